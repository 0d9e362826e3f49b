//! The sleeps of a facility's threads, counted. Promises: a wake is charged as dead when its thread goes to
//! sleep again and has said nothing else. Leaves to others: what makes a wake worth it (`facility.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::timer_impl::Wakes;

/// Sleeps that have ended, of any number of threads.
#[derive(Debug, Default)]
pub(super) struct Counters {
    all: AtomicU64,
    dead: AtomicU64,
}

/// One thread's account of its present wake.
#[derive(Debug)]
pub(super) struct WakeAccount<'a> {
    counters: &'a Counters,
    has_fired: bool,
}

impl Counters {
    /// Opens the account of a thread that has not slept yet.
    pub(super) fn account(&self) -> WakeAccount<'_> {
        WakeAccount { counters: self, has_fired: true }
    }

    /// A sleep has ended of a thread that keeps no account.
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
