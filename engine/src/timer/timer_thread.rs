//! A wheel with a timer thread, which sleeps until a timer is due.
//!
//! Guarantees: only the alarm ends the sleep of the timer thread. Other threads set the alarm to an earlier
//! time; or they collect cancelled timers, and set it to a later time.
//!
//! Not handled here: which thread arms at which timer thread (`service.rs`).
//!
//! The alarm expires at the shard's `parked_until`. A thread that changes `parked_until` sets the alarm and
//! then reads it again, until both agree. The last such thread does so too, in whatever order their system
//! calls arrive.
//!
//! A thread that collects for the sleeping timer thread holds the driver's lock for some microseconds. Only
//! the timer thread itself waits for that, if a timer becomes due just then.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, TryLockError};

use sys::alarm::Alarm;
use sys::clock::Nanos;
use sys::sync::atomic::{AtomicBool, Ordering, fence};
use sys::sync::{Mutex, MutexGuard};

use super::callback_barrier::CallbackBarrier;
use super::handle::{ArmError, Cancel, Next, TimerKey};
use super::shard::{CachePadded, FollowUp, Shard};
use super::slack::Slack;
use super::wheel_driver::{Finished, WheelDriver};
use crate::stats::Counter;

/// A wheel driver with its shard, its alarm and its counters; one thread of the service runs it.
pub(super) struct TimerThread {
    pub(super) shard: Arc<Shard>,
    driver: CachePadded<Mutex<WheelDriver>>,
    alarm: Alarm,
    is_closing: AtomicBool,
    pub(super) barrier: CallbackBarrier,
    pub(super) stats: TimerThreadStats,
}

/// Written by the thread that holds the driver's lock.
#[derive(Debug, Default)]
pub(super) struct TimerThreadStats {
    armed: Counter,
    fired: Counter,
    rearmed: Counter,
    panics: Counter,
    wakes: Counter,
    dead_wakes: Counter,
    collected: Counter,
    dropped: Counter,
}

/// The counters of a service. Each is exact, but they may be read at slightly different moments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TimerStats {
    /// Timers in the wheels of the timer threads, at the last collection.
    pub armed: u64,
    /// Callbacks that have run.
    pub fired: u64,
    /// Of those, the ones after which the timer was rearmed.
    pub rearmed: u64,
    /// Callbacks that ended by a panic; their timers have ended.
    pub panics: u64,
    /// Sleeps of the timer threads that have ended.
    pub wakes: u64,
    /// Of those, the ones that found no timer due.
    pub dead_wakes: u64,
    /// How often a caller collected cancelled timers for a sleeping timer thread.
    pub collected: u64,
}

impl TimerThread {
    pub(super) fn new(cells: usize, now: Nanos) -> io::Result<TimerThread> {
        let shard = Arc::new(Shard::shared(cells));
        let mut driver = WheelDriver::shared(Arc::clone(&shard), now);
        let until = driver.park();
        debug_assert_eq!(until, Some(Nanos::NEVER), "an empty wheel has no deadline");
        Ok(TimerThread {
            shard,
            driver: CachePadded(Mutex::new(driver)),
            alarm: Alarm::new()?,
            is_closing: AtomicBool::new(false),
            barrier: CallbackBarrier::new(),
            stats: TimerThreadStats::default(),
        })
    }

    /// Any thread: arms a timer.
    pub(super) fn arm(&self, deadline: Nanos, slack: Slack, tag: u64) -> Result<TimerKey, ArmError> {
        let mut armed = self.shard.arm(deadline, slack, tag);
        if armed == Err(ArmError::Full) {
            self.collect();
            armed = self.shard.arm(deadline, slack, tag);
        }
        let (key, follow_up) = armed?;
        if follow_up == FollowUp::Wake {
            self.rearm_alarm();
        }
        Ok(key)
    }

    /// Any thread: cancels a timer.
    pub(super) fn cancel(&self, key: TimerKey) -> Cancel {
        let (found, follow_up) = self.shard.cancel(key);
        if follow_up == FollowUp::Collect {
            self.collect();
        }
        found
    }

    /// Makes the thread end.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Shard::park`: either the next `park_until_next` sees the flag, or this
        // thread sees its `parked_until`.
        fence(Ordering::SeqCst);
        self.shard.bring_forward(Nanos(0));
        self.rearm_alarm();
    }

    /// Timers that were armed when the service ended.
    pub(super) fn dropped(&self) -> u64 {
        self.stats.dropped.value()
    }

    /// Sets the alarm to `parked_until` and reads that again: another thread may have changed it meanwhile,
    /// and may have set the alarm before.
    fn rearm_alarm(&self) {
        while let Some(until) = self.shard.parked_until() {
            self.alarm.set(until);
            if self.shard.parked_until() == Some(until) {
                return;
            }
        }
    }

    /// Collects for the sleeping timer thread, and lets it sleep on. If another thread is collecting, it may
    /// be descheduled, so this one does what it can without the wheel.
    fn collect(&self) {
        let Some(mut driver) = self.try_lock() else {
            if self.shard.recycle() == FollowUp::Wake {
                self.rearm_alarm();
            }
            return;
        };
        driver.collect();
        self.stats.armed.set(driver.armed() as u64);
        self.stats.collected.add(1);
        if self.shard.parked_until().is_some() {
            self.park_until_next(&mut driver);
        }
    }

    /// Publishes until when the thread sleeps from now on. It sets the alarm even to the same time as before:
    /// another thread may have seen and set an intermediate value.
    fn park_until_next(&self, driver: &mut WheelDriver) {
        while driver.park().is_none() {
            driver.collect();
        }
        if self.is_closing.load(Ordering::Relaxed) {
            self.shard.bring_forward(Nanos(0));
        }
        self.rearm_alarm();
    }

    /// The body of the thread; `callback` gets the tag of each due timer.
    pub(super) fn run(&self, callback: impl Fn(u64) -> Next) {
        self.barrier.set_runner();
        loop {
            let now = self.alarm.wait();
            let mut driver = self.driver.0.lock().unwrap_or_else(PoisonError::into_inner);
            self.shard.unpark();
            if self.is_closing.load(Ordering::Relaxed) {
                self.stats.dropped.add(driver.close() as u64);
                self.stats.armed.set(0);
                return;
            }
            self.stats.wakes.add(1);
            driver.collect();
            if !self.fire(&mut driver, now, &callback) {
                self.stats.dead_wakes.add(1);
            }
            self.park_until_next(&mut driver);
            self.stats.armed.set(driver.armed() as u64);
        }
    }

    /// Runs the callbacks that are due at `now`; returns whether there was any.
    fn fire(&self, driver: &mut WheelDriver, now: Nanos, callback: &impl Fn(u64) -> Next) -> bool {
        let mut has_fired = false;
        while let Some(due) = driver.pop_due(now) {
            has_fired = true;
            self.stats.fired.add(1);
            let next = catch_unwind(AssertUnwindSafe(|| callback(due.tag))).unwrap_or_else(|_| {
                self.stats.panics.add(1);
                Next::Done
            });
            match driver.finish(due, next) {
                Finished::Rearmed => self.stats.rearmed.add(1),
                Finished::Gone => {}
                Finished::Awaited => self.barrier.notify(),
            }
        }
        has_fired
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, WheelDriver>> {
        match self.driver.0.try_lock() {
            Ok(driver) => Some(driver),
            // Panics of callbacks are caught, so a poisoned lock guards an intact wheel.
            Err(TryLockError::Poisoned(driver)) => Some(driver.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl TimerThreadStats {
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

impl TimerStats {
    pub(super) fn plus(self, other: TimerStats) -> TimerStats {
        TimerStats {
            armed: self.armed + other.armed,
            fired: self.fired + other.fired,
            rearmed: self.rearmed + other.rearmed,
            panics: self.panics + other.panics,
            wakes: self.wakes + other.wakes,
            dead_wakes: self.dead_wakes + other.dead_wakes,
            collected: self.collected + other.collected,
        }
    }
}
