//! The account of one timer: what it was promised, what was answered about it, and what its callbacks saw.
//!
//! Promises: whatever contradicts is an `Err` with the words for it, at the latest in [`Account::fate`].
//! Leaves to others: who asks, and when no more can come.
//!
//! An answer is noted after it was given, so each note takes the callbacks that have begun by then: after
//! `Cancelled` and `Gone`, and after `cancel_sync` has returned, no other may begin; after `Running` the one
//! that runs may not have been counted yet, so one may.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use engine::timer::{Cancel, Next, TimerHandle};
use sys::clock::Nanos;

/// See the file's header.
#[derive(Debug)]
pub(crate) struct History {
    /// Of the arming that stands, as its caller gave it.
    deadline: AtomicU64,
    /// When that arming should have fired at the latest, on a machine with CPUs to spare.
    expected_by: AtomicU64,
    /// Its name, once its caller knows it; never if it was refused.
    handle: OnceLock<TimerHandle>,
    is_local: AtomicBool,
    begun: AtomicU32,
    ended: AtomicU32,
    /// Callbacks that asked to be armed again.
    rearmed: AtomicU32,
    /// How often it was answered that the timer was cancelled.
    cancelled: AtomicU32,
    /// How often it was answered that its callback runs.
    dismissed: AtomicU32,
    /// Callbacks that may have begun at the end: begun <= begun_max
    begun_max: AtomicU32,
}

/// How a timer ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// It could not be armed.
    Refused,
    Fired,
    Cancelled,
    /// Its last callback asked to be armed again after somebody had been told that it runs.
    Dismissed,
    /// It is armed, or went with its service.
    Left,
}

/// What a callback is to know of the account.
pub(crate) struct CallbackStart {
    /// Which of the timer's callbacks this is, from 1.
    pub(crate) number: u32,
    pub(crate) late_nanos: u64,
}

impl History {
    pub(crate) fn new() -> History {
        History {
            deadline: AtomicU64::new(0),
            expected_by: AtomicU64::new(0),
            handle: OnceLock::new(),
            is_local: AtomicBool::new(false),
            begun: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            rearmed: AtomicU32::new(0),
            cancelled: AtomicU32::new(0),
            dismissed: AtomicU32::new(0),
            begun_max: AtomicU32::new(u32::MAX),
        }
    }

    /// It is about to be armed, or armed again.
    pub(crate) fn expect_by(&self, deadline: Nanos, expected_by: Nanos) {
        self.deadline.store(deadline.0, SeqCst);
        self.expected_by.store(expected_by.0, SeqCst);
    }

    /// It was armed.
    pub(crate) fn set_handle(&self, handle: TimerHandle, is_local: bool) {
        self.is_local.store(is_local, SeqCst);
        self.handle.set(handle).expect("a timer is named once, by who armed it");
    }

    pub(crate) fn handle(&self) -> Option<TimerHandle> {
        self.handle.get().copied()
    }

    pub(crate) fn is_local(&self) -> bool {
        self.is_local.load(SeqCst)
    }

    /// See [`Account::promise`].
    pub(crate) fn expected_by(&self) -> Nanos {
        Nanos(self.expected_by.load(SeqCst))
    }

    fn deadline(&self) -> Nanos {
        Nanos(self.deadline.load(SeqCst))
    }

    /// Callbacks that were followed by another arming, unless it was dismissed.
    pub(crate) fn rearmed(&self) -> u32 {
        self.rearmed.load(SeqCst)
    }

    pub(crate) fn begun(&self) -> u32 {
        self.begun.load(SeqCst)
    }

    /// Its callback begins.
    pub(crate) fn begin(&self, now: Nanos) -> Result<CallbackStart, &'static str> {
        let before = self.begun.fetch_add(1, SeqCst);
        if now < self.deadline() {
            return Err("it fired before its deadline");
        }
        if before != self.ended.load(SeqCst) {
            return Err("two of its callbacks run at once");
        }
        if before != self.rearmed.load(SeqCst) {
            return Err("it fired without being armed again");
        }
        if before >= self.begun_max.load(SeqCst) {
            return Err("it fired after a cancel said that it will not");
        }
        let late_nanos = now.0.saturating_sub(self.expected_by.load(SeqCst));
        Ok(CallbackStart { number: before + 1, late_nanos })
    }

    /// Its callback ends so.
    pub(crate) fn end(&self, next: Next, expected_by: Nanos) {
        if let Next::Again(deadline) = next {
            self.expect_by(deadline, expected_by);
            self.rearmed.fetch_add(1, SeqCst);
        }
        self.ended.fetch_add(1, SeqCst);
    }

    /// Cancelling found this; `is_over`: and returned when a callback that ran had ended.
    pub(crate) fn record_cancel(&self, found: Cancel, is_over: bool) -> Result<(), &'static str> {
        let begun = self.begun.load(SeqCst);
        if found == Cancel::Running && !is_over {
            self.begun_max.fetch_min(begun + 1, SeqCst);
            self.dismissed.fetch_add(1, SeqCst);
            return Ok(());
        }
        self.begun_max.fetch_min(begun, SeqCst);
        match found {
            Cancel::Cancelled if self.cancelled.fetch_add(1, SeqCst) > 0 => Err("it was cancelled twice"),
            Cancel::Running => {
                self.dismissed.fetch_add(1, SeqCst);
                self.has_ended("cancel_sync returned while its callback ran")
            }
            _ => self.has_ended("its callback runs, and cancelling did not say so"),
        }
    }

    fn has_ended(&self, otherwise: &'static str) -> Result<(), &'static str> {
        if self.begun.load(SeqCst) == self.ended.load(SeqCst) { Ok(()) } else { Err(otherwise) }
    }

    /// How it ended, when nobody touches it any more.
    pub(crate) fn outcome(&self) -> Result<Outcome, &'static str> {
        let [begun, rearmed, cancelled, dismissed] =
            [&self.begun, &self.rearmed, &self.cancelled, &self.dismissed].map(|count| count.load(SeqCst));
        self.has_ended("a callback began and did not end")?;
        if begun > self.begun_max.load(SeqCst) {
            return Err("it fired after a cancel said that it will not");
        }
        match (begun - rearmed, cancelled) {
            (0, 0) if self.handle().is_none() => Ok(Outcome::Refused),
            (0, 0) if dismissed > 0 && begun > 0 => Ok(Outcome::Dismissed),
            (0, 0) if dismissed > 0 => Err("its callback was said to run, and never did"),
            (0, 0) => Ok(Outcome::Left),
            (0, 1) if dismissed > 0 => Err("it was cancelled after its callback was said to run"),
            (0, 1) => Ok(Outcome::Cancelled),
            (1, 0) => Ok(Outcome::Fired),
            (1, 1) => Err("it fired and was cancelled"),
            (_, 0) => Err("it fired more often than it was armed"),
            _ => Err("it was cancelled twice"),
        }
    }
}
