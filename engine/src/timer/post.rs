//! A wheel with a thread of the service's own, which sleeps until something is due.
//!
//! Promises: while its thread sleeps nobody wakes it but the alarm; the others bring the alarm forward, or
//! collect what was cancelled and put it off. Leaves to others: which thread comes to which post.
//!
//! The alarm rings at the shard's `parked_until`: whoever has changed that sets the alarm and then looks at
//! it again, until both agree; so does the last one, whatever the order in which several come to the kernel.
//!
//! Whoever collects for the sleeper holds its lock for some microseconds. Nobody waits for that but the
//! sleeper itself, should it be due just then.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, TryLockError};

use sys::alarm::Alarm;
use sys::clock::Nanos;
use sys::sync::atomic::{AtomicBool, Ordering, fence};
use sys::sync::{Mutex, MutexGuard};

use super::ending::Ending;
use super::owner::{Finished, Owner};
use super::service::{ArmError, Cancel, Next, TimerStats, Timers};
use super::shard::{Apart, Duty, Shard, Ticket};
use super::slack::Slack;
use crate::stats::Counter;

/// See the file's header.
pub(super) struct Post {
    pub(super) shard: Arc<Shard>,
    owner: Apart<Mutex<Owner>>,
    alarm: Alarm,
    is_closing: AtomicBool,
    pub(super) ending: Ending,
    pub(super) stats: PostStats,
}

/// Written by who holds the owner's lock.
#[derive(Debug, Default)]
pub(super) struct PostStats {
    armed: Counter,
    fired: Counter,
    rearmed: Counter,
    panics: Counter,
    wakes: Counter,
    dead_wakes: Counter,
    collected: Counter,
    forgotten: Counter,
}

impl Post {
    pub(super) fn new(cells: usize, now: Nanos) -> io::Result<Post> {
        let shard = Arc::new(Shard::shared(cells));
        let mut owner = Owner::lending(Arc::clone(&shard), now);
        let until = owner.park();
        debug_assert_eq!(until, Some(Nanos::NEVER), "it is empty, and the alarm is not set");
        Ok(Post {
            shard,
            owner: Apart(Mutex::new(owner)),
            alarm: Alarm::new()?,
            is_closing: AtomicBool::new(false),
            ending: Ending::new(),
            stats: PostStats::default(),
        })
    }

    /// Any thread.
    pub(super) fn arm(&self, deadline: Nanos, slack: Slack, tag: u64) -> Result<Ticket, ArmError> {
        let mut armed = self.shard.arm(deadline, slack, tag);
        if armed == Err(ArmError::Full) {
            self.collect();
            armed = self.shard.arm(deadline, slack, tag);
        }
        let (ticket, duty) = armed?;
        if duty == Duty::Wake {
            self.agree();
        }
        Ok(ticket)
    }

    /// Any thread.
    pub(super) fn cancel(&self, ticket: Ticket) -> Cancel {
        let (found, duty) = self.shard.cancel(ticket);
        if duty == Duty::Collect {
            self.collect();
        }
        found
    }

    /// Has the thread end.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Shard::park`: whoever settles next sees it, or this sees until when.
        fence(Ordering::SeqCst);
        self.shard.bring_forward(Nanos(0));
        self.agree();
    }

    /// Timers that were armed when the service ended.
    pub(super) fn forgotten(&self) -> u64 {
        self.stats.forgotten.value()
    }

    /// Sets the alarm to the time that the shard says, and looks again: another may have changed that
    /// meanwhile and set the alarm before.
    fn agree(&self) {
        while let Some(until) = self.shard.parked_until() {
            self.alarm.set(until);
            if self.shard.parked_until() == Some(until) {
                return;
            }
        }
    }

    /// Takes in what was armed and cancelled while the thread sleeps, and lets it sleep on. Where another is
    /// at that, it may be descheduled, so this does what it can without the wheel.
    fn collect(&self) {
        let Some(mut owner) = self.try_lock() else {
            if self.shard.recycle() == Duty::Wake {
                self.agree();
            }
            return;
        };
        owner.collect();
        self.stats.armed.set(owner.armed() as u64);
        self.stats.collected.add(1);
        if self.shard.parked_until().is_some() {
            self.settle(&mut owner);
        }
    }

    /// Says until when the thread sleeps, from now on. The alarm is set even if that is what it was before:
    /// another may have seen, and set, what was said in between.
    fn settle(&self, owner: &mut Owner) {
        while owner.park().is_none() {
            owner.collect();
        }
        if self.is_closing.load(Ordering::Relaxed) {
            self.shard.bring_forward(Nanos(0));
        }
        self.agree();
    }

    /// The life of the thread.
    pub(super) fn live(&self, timers: &Timers) {
        self.ending.run_here();
        loop {
            let now = self.alarm.wait();
            let mut owner = self.owner.0.lock().unwrap_or_else(PoisonError::into_inner);
            self.shard.unpark();
            if self.is_closing.load(Ordering::Relaxed) {
                self.stats.forgotten.add(owner.close() as u64);
                self.stats.armed.set(0);
                return;
            }
            self.stats.wakes.add(1);
            owner.collect();
            if !self.fire(&mut owner, now, timers) {
                self.stats.dead_wakes.add(1);
            }
            self.settle(&mut owner);
            self.stats.armed.set(owner.armed() as u64);
        }
    }

    /// Runs the callbacks that are due at `now`, and says whether there was any.
    fn fire(&self, owner: &mut Owner, now: Nanos, timers: &Timers) -> bool {
        let mut has_fired = false;
        while let Some(due) = owner.pop_due(now) {
            has_fired = true;
            self.stats.fired.add(1);
            let next = catch_unwind(AssertUnwindSafe(|| timers.call(due.tag))).unwrap_or_else(|_| {
                self.stats.panics.add(1);
                Next::Done
            });
            match owner.finish(due, next) {
                Finished::Rearmed => self.stats.rearmed.add(1),
                Finished::Gone => {}
                Finished::Awaited => self.ending.tell(),
            }
        }
        has_fired
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Owner>> {
        match self.owner.0.try_lock() {
            Ok(owner) => Some(owner),
            // Panics of callbacks are caught, so a poisoned lock guards an intact wheel.
            Err(TryLockError::Poisoned(owner)) => Some(owner.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl PostStats {
    pub(super) fn read(&self) -> TimerStats {
        TimerStats {
            armed: self.armed.value(),
            fired: self.fired.value(),
            rearmed: self.rearmed.value(),
            panics: self.panics.value(),
            wakes: self.wakes.value(),
            dead_wakes: self.dead_wakes.value(),
            collected: self.collected.value(),
        }
    }
}
