//! Counts the sleeps of an implementation's threads.
//!
//! Guarantees: a wake counts as dead when its thread sleeps again without having noted that a timer fired.

use std::sync::atomic::{AtomicU64, Ordering};

use super::timer_impl::Wakes;

/// Completed sleeps of any number of threads.
#[derive(Debug, Default)]
pub(super) struct Counters {
    all: AtomicU64,
    dead: AtomicU64,
}

/// One thread's count of its present wake.
#[derive(Debug)]
pub(super) struct WakeAccount<'a> {
    counters: &'a Counters,
    has_fired: bool,
}

impl Counters {
    /// The account of a thread that has not slept yet.
    pub(super) fn account(&self) -> WakeAccount<'_> {
        WakeAccount { counters: self, has_fired: true }
    }

    /// Records a completed sleep of a thread without an account.
    pub(super) fn record_wake(&self, has_fired: bool) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.dead.fetch_add(u64::from(!has_fired), Ordering::Relaxed);
    }

    pub(super) fn wakes(&self) -> Wakes {
        // Relaxed: figures for a report. `dead` first, since it never exceeds `all`.
        let dead = self.dead.load(Ordering::Relaxed);
        Wakes { all: self.all.load(Ordering::Relaxed), dead }
    }
}

impl WakeAccount<'_> {
    /// This wake fired a timer.
    pub(super) fn note_fired(&mut self) {
        self.has_fired = true;
    }

    /// Runs `sleep`, which ends with a wake.
    pub(super) fn sleep<R>(&mut self, sleep: impl FnOnce() -> R) -> R {
        self.counters.dead.fetch_add(u64::from(!self.has_fired), Ordering::Relaxed);
        let slept = sleep();
        self.counters.all.fetch_add(1, Ordering::Relaxed);
        self.has_fired = false;
        slept
    }
}
