//! The counters of a pool and of its classes.

use sys::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A pool's current values, and counts since its start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PoolStats {
    /// Permits that exist now.
    pub permits: usize,
    /// Permits that are held now.
    pub held: usize,
    /// Threads that exist now, idle ones included.
    pub threads: usize,
    /// The most threads that existed at a time.
    pub threads_peak: usize,
    /// How often a thread lost its permit because it slept without declaring it.
    pub suspected: u64,
    /// How often the kernel refused another thread.
    pub threads_refused: u64,
    /// By class, in the order of the settings.
    pub classes: Vec<ClassStats>,
}

/// The counters of one class.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClassStats {
    /// As in its settings.
    pub name: &'static str,
    /// Jobs that are queued now.
    pub queued: usize,
    /// Threads that its jobs hold now, running or waiting.
    pub taken: usize,
    /// The most threads that its jobs held at a time.
    pub taken_peak: usize,
    /// Jobs that were run to their end.
    pub finished: u64,
    /// Jobs that were refused because the queue was full.
    pub refused_full: u64,
    /// Jobs that were refused because they would not have been run before their deadline.
    pub refused_late: u64,
    /// Jobs that were not run because their deadline had passed.
    pub expired: u64,
    /// Jobs that were shed from an overloaded queue.
    pub shed: u64,
    /// Jobs that panicked, of those that were run.
    pub panicked: u64,
    /// Mean CPU time of a job, in nanoseconds.
    pub cost_ns: u64,
}

impl PoolStats {
    /// Jobs that are queued now, of all classes.
    pub fn queued(&self) -> usize {
        self.classes.iter().map(|class| class.queued).sum()
    }

    /// Jobs that were refused, of all classes.
    pub fn refused(&self) -> u64 {
        self.classes.iter().map(|class| class.refused_full + class.refused_late).sum()
    }
}

/// The counters of a class; any thread updates them.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) queued: AtomicUsize,
    pub(super) taken: AtomicUsize,
    pub(super) taken_peak: AtomicUsize,
    pub(super) finished: AtomicU64,
    pub(super) refused_full: AtomicU64,
    pub(super) refused_late: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) shed: AtomicU64,
    pub(super) panicked: AtomicU64,
    /// Means in nanoseconds, for the estimate at submission.
    pub(super) cost_ns: AtomicU64,
    pub(super) service_ns: AtomicU64,
}

impl Counts {
    pub(super) fn read(&self, name: &'static str) -> ClassStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClassStats {
            name,
            queued: self.queued.load(Ordering::Relaxed),
            taken: self.taken.load(Ordering::Relaxed),
            taken_peak: self.taken_peak.load(Ordering::Relaxed),
            finished: count(&self.finished),
            refused_full: count(&self.refused_full),
            refused_late: count(&self.refused_late),
            expired: count(&self.expired),
            shed: count(&self.shed),
            panicked: count(&self.panicked),
            cost_ns: count(&self.cost_ns),
        }
    }
}

/// Adds one, relaxed: no other memory depends on the counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
