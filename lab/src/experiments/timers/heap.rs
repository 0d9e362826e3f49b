//! One mutex around one heap, and one thread that sleeps until the first timer is due: the obvious design.
//!
//! A cancelled timer's slot is free at once. Its entry stays in the heap, which finds it stale at its
//! deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sys::clock::{Nanos, monotonic};

use super::counters::Counters;
use super::sleep;
use super::timer_impl::{Sink, TimerImpl, User, Wakes};
use super::timer_thread::{TimerLoop, TimerThread};

/// The timers of one heap; clones share it and its thread.
#[derive(Clone)]
pub(super) struct Heap(Arc<TimerThread<LockedHeap>>);

impl TimerImpl for Heap {
    type User = Heap;

    fn start(sink: Sink) -> io::Result<Self> {
        Ok(Self(LockedHeap::start(sink)?))
    }

    fn enter(&self) -> Heap {
        self.clone()
    }

    fn wakes(&self) -> Option<Wakes> {
        Some(self.0.wakes())
    }
}

impl User for Heap {
    type Handle = Id;

    fn arm(&mut self, deadline: Nanos) -> io::Result<Id> {
        Ok(self.0.arm(deadline))
    }

    fn cancel(&mut self, id: Id) -> bool {
        self.0.cancel(id)
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}

/// The slot and generation of an armed timer of one heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    slot: u32,
    generation: u32,
}

/// A heap, its mutex, and the thread's part of it.
pub(super) struct LockedHeap {
    timers: Mutex<Timers>,
    /// Signalled when the first deadline changes, or all is closed.
    changed: Condvar,
    sink: Sink,
    counters: Counters,
}

#[derive(Default)]
struct Timers {
    /// In order of their deadlines, with those that were cancelled.
    heap: BinaryHeap<Reverse<(Nanos, Id)>>,
    /// The generation of each slot: a timer of another generation has fired or was cancelled.
    generations: Vec<u32>,
    free: Vec<u32>,
    is_closed: bool,
}

impl LockedHeap {
    /// # Errors
    /// No thread can be created.
    pub(super) fn start(sink: Sink) -> io::Result<Arc<TimerThread<Self>>> {
        let (timers, changed) = (Mutex::default(), Condvar::new());
        TimerThread::start("heap", Self { timers, changed, sink, counters: Counters::default() })
    }

    pub(super) fn arm(&self, deadline: Nanos) -> Id {
        let mut timers = self.lock();
        let is_first = timers.first().is_none_or(|first| deadline < first);
        let id = timers.arm(deadline);
        drop(timers);
        if is_first {
            self.changed.notify_one();
        }
        id
    }

    pub(super) fn cancel(&self, id: Id) -> bool {
        self.lock().release(id)
    }

    pub(super) fn wakes(&self) -> Wakes {
        self.counters.wakes()
    }

    fn lock(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, timers: MutexGuard<'a, Timers>, until: Option<Nanos>) -> MutexGuard<'a, Timers> {
        match until {
            None => self.changed.wait(timers).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let span = until.since(monotonic());
                self.changed.wait_timeout(timers, span).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

impl TimerLoop for LockedHeap {
    fn run(&self) {
        let mut account = self.counters.account();
        let mut due = Vec::new();
        let mut timers = self.lock();
        while !timers.is_closed {
            timers.take_due(monotonic(), &mut due);
            if !due.is_empty() {
                account.note_fired();
                drop(timers);
                due.drain(..).for_each(|deadline| (self.sink)(deadline));
                timers = self.lock();
                continue;
            }
            let first = timers.first();
            timers = account.sleep(|| self.wait(timers, first));
        }
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }
}

impl Timers {
    fn first(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((deadline, _))| *deadline)
    }

    fn is_wanted(&self, id: Id) -> bool {
        self.generations[id.slot as usize] == id.generation
    }

    fn arm(&mut self, deadline: Nanos) -> Id {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.generations.push(0);
            u32::try_from(self.generations.len() - 1).expect("memory is exhausted before 2^32 slots")
        });
        let id = Id { slot, generation: self.generations[slot as usize] };
        self.heap.push(Reverse((deadline, id)));
        id
    }

    /// Frees the timer's slot; false if that was done before.
    fn release(&mut self, id: Id) -> bool {
        let is_wanted = self.is_wanted(id);
        if is_wanted {
            self.generations[id.slot as usize] = id.generation.wrapping_add(1);
            self.free.push(id.slot);
        }
        is_wanted
    }

    /// Removes what is due at `now`, and drops cancelled timers with it.
    fn take_due(&mut self, now: Nanos, due: &mut Vec<Nanos>) {
        while let Some(&Reverse((deadline, id))) = self.heap.peek()
            && deadline <= now
        {
            self.heap.pop();
            if self.release(id) {
                due.push(deadline);
            }
        }
    }
}
