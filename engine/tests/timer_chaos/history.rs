//! The history of one timer: its deadlines, the results of cancels, and its callbacks.
//!
//! Guarantees: every contradiction is an `Err` with its description, at the latest in [`History::outcome`].
//!
//! Not handled here: when the timer can have no more callbacks.
//!
//! A cancel's result is recorded after the cancel returned, together with the number of callbacks that have
//! begun by then. After `Cancelled` and `Gone`, and after `cancel_sync` has returned, no other callback may
//! begin. After `Running` the running one may not have been counted yet, so one more may.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use engine::timer::{Cancel, Next, TimerHandle};
use sys::clock::Nanos;

/// What has happened to one timer, recorded by all threads that use it.
#[derive(Debug)]
pub(crate) struct History {
    /// The deadline of the current arming.
    deadline: AtomicU64,
    /// When that arming should have fired at the latest, on a machine with enough CPUs.
    expected_by: AtomicU64,
    /// Its handle, once its caller has it; never if arming failed.
    handle: OnceLock<TimerHandle>,
    is_local: AtomicBool,
    begun: AtomicU32,
    ended: AtomicU32,
    /// Callbacks that asked to be rearmed.
    rearmed: AtomicU32,
    /// How many cancels returned `Cancelled`.
    cancelled: AtomicU32,
    /// How many cancels returned `Running`.
    dismissed: AtomicU32,
    /// The most callbacks that may have begun in the end: begun <= begun_max
    begun_max: AtomicU32,
}

/// How a timer ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// It could not be armed.
    Refused,
    Fired,
    Cancelled,
    /// Its last callback asked to be rearmed, but a cancel had returned `Running`.
    Dismissed,
    /// It is armed, or ended with its service.
    Left,
}

/// What a callback needs to know of the history.
pub(crate) struct CallbackStart {
    /// The number of this callback of the timer, from 1.
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

    /// It is about to be armed or rearmed.
    pub(crate) fn expect_by(&self, deadline: Nanos, expected_by: Nanos) {
        self.deadline.store(deadline.0, SeqCst);
        self.expected_by.store(expected_by.0, SeqCst);
    }

    /// It was armed.
    pub(crate) fn set_handle(&self, handle: TimerHandle, is_local: bool) {
        self.is_local.store(is_local, SeqCst);
        self.handle.set(handle).expect("a timer gets one handle, from the thread that armed it");
    }

    pub(crate) fn handle(&self) -> Option<TimerHandle> {
        self.handle.get().copied()
    }

    pub(crate) fn is_local(&self) -> bool {
        self.is_local.load(SeqCst)
    }

    /// See [`History::expect_by`].
    pub(crate) fn expected_by(&self) -> Nanos {
        Nanos(self.expected_by.load(SeqCst))
    }

    fn deadline(&self) -> Nanos {
        Nanos(self.deadline.load(SeqCst))
    }

    /// Callbacks that asked to be rearmed.
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
            return Err("it fired without being rearmed");
        }
        if before >= self.begun_max.load(SeqCst) {
            return Err("it fired after a cancel had ruled that out");
        }
        let late_nanos = now.0.saturating_sub(self.expected_by.load(SeqCst));
        Ok(CallbackStart { number: before + 1, late_nanos })
    }

    /// Its callback ends and returns `next`.
    pub(crate) fn end(&self, next: Next, expected_by: Nanos) {
        if let Next::Again(deadline) = next {
            self.expect_by(deadline, expected_by);
            self.rearmed.fetch_add(1, SeqCst);
        }
        self.ended.fetch_add(1, SeqCst);
    }

    /// Records the result of a cancel. `is_over` is true for `cancel_sync`, which waits for a running
    /// callback.
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
            _ => self.has_ended("its callback runs, and the cancel did not return `Running`"),
        }
    }

    fn has_ended(&self, otherwise: &'static str) -> Result<(), &'static str> {
        if self.begun.load(SeqCst) == self.ended.load(SeqCst) { Ok(()) } else { Err(otherwise) }
    }

    /// How it ended, once no thread uses it any more.
    pub(crate) fn outcome(&self) -> Result<Outcome, &'static str> {
        let [begun, rearmed, cancelled, dismissed] =
            [&self.begun, &self.rearmed, &self.cancelled, &self.dismissed].map(|count| count.load(SeqCst));
        self.has_ended("a callback began and did not end")?;
        if begun > self.begun_max.load(SeqCst) {
            return Err("it fired after a cancel had ruled that out");
        }
        match (begun - rearmed, cancelled) {
            (0, 0) if self.handle().is_none() => Ok(Outcome::Refused),
            (0, 0) if dismissed > 0 && begun > 0 => Ok(Outcome::Dismissed),
            (0, 0) if dismissed > 0 => Err("a cancel returned `Running`, but its callback never ran"),
            (0, 0) => Ok(Outcome::Left),
            (0, 1) if dismissed > 0 => Err("it was cancelled after a cancel had returned `Running`"),
            (0, 1) => Ok(Outcome::Cancelled),
            (1, 0) => Ok(Outcome::Fired),
            (1, 1) => Err("it fired and was cancelled"),
            (_, 0) => Err("it fired more often than it was armed"),
            _ => Err("it was cancelled twice"),
        }
    }
}
