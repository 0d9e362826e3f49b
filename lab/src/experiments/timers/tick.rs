//! A hashed wheel with a tick, the design of Netty's HashedWheelTimer: 512 slots of 1 ms, rounds for later
//! deadlines, and a thread that wakes every tick, whether there are timers or not.
//!
//! Guarantees: arming and cancelling are a push each, without a lock; a cancelled timer is unlinked at the
//! next tick; a timer fires up to a tick late.
//!
//! ```text
//!   arm    --push--> inbox  ---.
//!                               +-- every tick --> slots 0..511: lists of (timer, rounds) --> sink
//!   cancel --push--> cancelled '
//! ```
//! A thread that changes a timer's version from that of its arming owns it: a canceller, which pushes it for
//! the timer thread to unlink, or the timer thread, which fires it. Only the timer thread returns a timer to
//! the free list, a cancelled one when it takes it from `cancelled`, which it reads before the inbox.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use sys::clock::{Nanos, monotonic};

use super::counters::{Counters, WakeAccount};
use super::free_list::LocalFreeList;
use super::sleep;
use super::slots::{NONE, Slots};
use super::timer_impl::{self, Sink, TimerImpl, Wakes};
use super::timer_thread::{TimerLoop, TimerThread};

const TICK_NANOS: u64 = 1_000_000;
const SLOTS: u64 = 512;

/// The wheel; clones share it and its thread.
#[derive(Clone)]
pub(super) struct Tick(Arc<TimerThread<Wheel>>);

impl TimerImpl for Tick {
    type User = User;

    fn start(sink: Sink) -> io::Result<Self> {
        Ok(Self(TimerThread::start("tick", Wheel::new(sink))?))
    }

    fn enter(&self) -> User {
        User { free: self.0.timers.local(), wheel: Arc::clone(&self.0) }
    }

    fn wakes(&self) -> Option<Wakes> {
        Some(self.0.counters.wakes())
    }
}

/// A thread's handle, with its free timers.
pub(super) struct User {
    wheel: Arc<TimerThread<Wheel>>,
    free: LocalFreeList<u32>,
}

/// The number and version of an armed timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id {
    timer: u32,
    version: u32,
}

impl timer_impl::User for User {
    type Handle = Id;

    fn arm(&mut self, deadline: Nanos) -> io::Result<Id> {
        let wheel: &Wheel = &self.wheel;
        let number = wheel.timers.claim(&mut self.free)?;
        let timer = wheel.timers.at(number);
        let version = timer.version.load(Ordering::Relaxed);
        timer.armed.store(version, Ordering::Relaxed);
        timer.deadline.store(deadline.0, Ordering::Relaxed);
        wheel.inbox.push(number, &timer.newer);
        Ok(Id { timer: number, version })
    }

    fn cancel(&mut self, id: Id) -> bool {
        let timer = self.wheel.timers.at(id.timer);
        let is_ours = timer.claim(id.version);
        if is_ours {
            self.wheel.cancelled.push(id.timer, &timer.cancelled);
        }
        is_ours
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}

/// The inbox publishes `deadline` and `armed`; only the timer thread uses the fields after `cancelled`.
#[derive(Default)]
#[repr(align(64))]
struct Timer {
    deadline: AtomicU64,
    armed: AtomicU32,
    version: AtomicU32,
    /// The next in the inbox.
    newer: AtomicU32,
    /// The next among the cancelled.
    cancelled: AtomicU32,
    /// `NONE` when it is in no slot.
    slot: AtomicU32,
    next: AtomicU32,
    previous: AtomicU32,
    rounds: AtomicU64,
}

impl Timer {
    fn claim(&self, version: u32) -> bool {
        let next = version.wrapping_add(1);
        // Relaxed: the exchange decides which thread owns the timer, and the two inboxes publish everything
        // else.
        self.version.compare_exchange(version, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn is_wanted(&self) -> bool {
        self.version.load(Ordering::Relaxed) == self.armed.load(Ordering::Relaxed)
    }
}

/// A stack to which all threads push, and from which the timer thread takes everything at once.
#[repr(align(128))]
struct Inbox(AtomicU32);

impl Inbox {
    fn push(&self, number: u32, link: &AtomicU32) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link.store(head, Ordering::Relaxed);
            // Release pairs with the Acquire of `take`: the timer thread sees what was pushed.
            match self.0.compare_exchange_weak(head, number, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }

    fn take(&self) -> u32 {
        // Not even an exchange where the inbox is empty.
        if self.0.load(Ordering::Relaxed) == NONE { NONE } else { self.0.swap(NONE, Ordering::Acquire) }
    }
}

struct Wheel {
    timers: Slots<Timer>,
    inbox: Inbox,
    cancelled: Inbox,
    /// When the first tick began.
    start: Nanos,
    is_closed: AtomicBool,
    sink: Sink,
    counters: Counters,
}

/// The data that only the timer thread uses.
struct ThreadState<'a> {
    heads: [u32; SLOTS as usize],
    /// The tick that has ended last, whose slot is being fired.
    tick: u64,
    free: LocalFreeList<u32>,
    account: WakeAccount<'a>,
}

impl Wheel {
    fn new(sink: Sink) -> Self {
        Self {
            timers: Slots::new(),
            inbox: Inbox(AtomicU32::new(NONE)),
            cancelled: Inbox(AtomicU32::new(NONE)),
            start: monotonic(),
            is_closed: AtomicBool::new(false),
            sink,
            counters: Counters::default(),
        }
    }

    /// Moves what was armed since the last tick to its slots, and frees what was cancelled.
    fn drain_inboxes(&self, state: &mut ThreadState<'_>) {
        // Taken first: each of these was pushed to the inbox before, and is taken from it now at the latest.
        let mut cancelled = self.cancelled.take();
        let mut number = self.inbox.take();
        while number != NONE {
            let timer = self.timers.at(number);
            let next = timer.newer.load(Ordering::Relaxed);
            if timer.is_wanted() {
                self.link(state, number, timer);
            } else {
                timer.slot.store(NONE, Ordering::Relaxed);
            }
            number = next;
        }
        while cancelled != NONE {
            let timer = self.timers.at(cancelled);
            let next = timer.cancelled.load(Ordering::Relaxed);
            self.unlink(state, timer);
            state.free.push(cancelled);
            cancelled = next;
        }
    }

    fn link(&self, state: &mut ThreadState<'_>, number: u32, timer: &Timer) {
        let deadline = Nanos(timer.deadline.load(Ordering::Relaxed));
        // A timer that is due already fires in this tick.
        let tick = (deadline.0.saturating_sub(self.start.0) / TICK_NANOS).max(state.tick);
        let slot = tick % SLOTS;
        timer.rounds.store((tick - state.tick) / SLOTS, Ordering::Relaxed);
        timer.slot.store(slot as u32, Ordering::Relaxed);
        let head = std::mem::replace(&mut state.heads[slot as usize], number);
        timer.next.store(head, Ordering::Relaxed);
        timer.previous.store(NONE, Ordering::Relaxed);
        if head != NONE {
            self.timers.at(head).previous.store(number, Ordering::Relaxed);
        }
    }

    fn unlink(&self, state: &mut ThreadState<'_>, timer: &Timer) {
        let slot = timer.slot.load(Ordering::Relaxed);
        if slot == NONE {
            return;
        }
        let (next, previous) = (timer.next.load(Ordering::Relaxed), timer.previous.load(Ordering::Relaxed));
        if next != NONE {
            self.timers.at(next).previous.store(previous, Ordering::Relaxed);
        }
        if previous == NONE {
            state.heads[slot as usize] = next;
        } else {
            self.timers.at(previous).next.store(next, Ordering::Relaxed);
        }
    }

    fn fire_slot(&self, state: &mut ThreadState<'_>) {
        let mut number = state.heads[(state.tick % SLOTS) as usize];
        while number != NONE {
            let timer = self.timers.at(number);
            let next = timer.next.load(Ordering::Relaxed);
            let rounds = timer.rounds.load(Ordering::Relaxed);
            if rounds > 0 {
                timer.rounds.store(rounds - 1, Ordering::Relaxed);
            } else if timer.claim(timer.armed.load(Ordering::Relaxed)) {
                self.unlink(state, timer);
                (self.sink)(Nanos(timer.deadline.load(Ordering::Relaxed)));
                state.free.push(number);
                state.account.note_fired();
            }
            number = next;
        }
    }
}

impl TimerLoop for Wheel {
    fn run(&self) {
        let (free, account) = (self.timers.local(), self.counters.account());
        let mut state = ThreadState { heads: [NONE; SLOTS as usize], tick: 0, free, account };
        // Relaxed: it is loaded again in a tick.
        while !self.is_closed.load(Ordering::Relaxed) {
            let end = Nanos(self.start.0 + (state.tick + 1) * TICK_NANOS);
            if monotonic() < end {
                state.account.sleep(|| sleep::until(end));
            }
            self.drain_inboxes(&mut state);
            self.fire_slot(&mut state);
            state.tick += 1;
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}
