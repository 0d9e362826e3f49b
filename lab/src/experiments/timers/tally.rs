//! The sleeps of a facility's threads, counted. Promises: a wake is charged as dead when its thread goes to
//! sleep again and has said nothing else. Leaves to others: what makes a wake worth it (`facility.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::facility::Wakes;

/// Sleeps that have ended, of any number of threads.
#[derive(Debug, Default)]
pub(super) struct Tally {
    all: AtomicU64,
    dead: AtomicU64,
}

/// One thread's account of its present wake.
#[derive(Debug)]
pub(super) struct Account<'a> {
    tally: &'a Tally,
    is_worth: bool,
}

impl Tally {
    /// Opens the account of a thread that has not slept yet.
    pub(super) fn account(&self) -> Account<'_> {
        Account { tally: self, is_worth: true }
    }

    /// A sleep has ended of a thread that keeps no account.
    pub(super) fn note(&self, was_worth_it: bool) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.dead.fetch_add(u64::from(!was_worth_it), Ordering::Relaxed);
    }

    pub(super) fn wakes(&self) -> Wakes {
        // Relaxed: figures for a report. `dead` first, since it never exceeds `all`.
        let dead = self.dead.load(Ordering::Relaxed);
        Wakes { all: self.all.load(Ordering::Relaxed), dead }
    }
}

impl Account<'_> {
    /// This wake fired a timer.
    pub(super) fn was_worth_it(&mut self) {
        self.is_worth = true;
    }

    /// Runs `sleep`, which ends with a wake.
    pub(super) fn around<R>(&mut self, sleep: impl FnOnce() -> R) -> R {
        self.tally.dead.fetch_add(u64::from(!self.is_worth), Ordering::Relaxed);
        let slept = sleep();
        self.tally.all.fetch_add(1, Ordering::Relaxed);
        self.is_worth = false;
        slept
    }
}
