//! How the ledger is doing: written by its thread, read by any.
//!
//! Promises: reading never waits for the database; only the text of a failure is behind a lock, which is
//! held for a copy. Leaves to others: what to make of it (readiness, metrics).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sys::clock::{self, Nanos};
use sys::parking::ParkFlag;

/// What [`Watch::status`] found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Status {
    /// Records made visible since the ledger was opened.
    pub records: u64,
    /// Transactions that did so.
    pub batches: u64,
    /// Records that wait because the database fails, at its last attempt. 0 unless `failing`.
    pub waiting: u64,
    /// No accepted record has waited longer than this to become visible. Zero while the ledger rests.
    pub lag: Duration,
    /// Why nothing can be written at present, for the log; `None` if all is well. Nothing is lost: what
    /// was accepted waits, and the inlets refuse when they are full.
    pub failing: Option<String>,
}

/// A view of the ledger's [`Status`] for other threads. Cheap to clone; it outlives the ledger.
#[derive(Clone)]
pub struct Watch(pub(crate) Arc<Shared>);

impl Watch {
    /// How the ledger is doing now.
    pub fn status(&self) -> Status {
        let shared = &self.0;
        let caught_up = Nanos(shared.caught_up_at.load(Ordering::Relaxed));
        Status {
            records: shared.records.load(Ordering::Relaxed),
            batches: shared.batches.load(Ordering::Relaxed),
            waiting: shared.waiting.load(Ordering::Relaxed),
            lag: clock::monotonic().since(caught_up),
            failing: shared.failure().clone(),
        }
    }

    /// Whether nothing can be written at present. Never waits, so that any thread may ask.
    pub fn is_failing(&self) -> bool {
        self.0.failing.load(Ordering::Relaxed)
    }
}

/// What the ledger's threads share. All gauges are Relaxed: each stands alone and orders nothing.
pub(crate) struct Shared {
    /// Whether the ledger thread sleeps, so that a push must wake it.
    pub(crate) parking: ParkFlag,
    closing: AtomicBool,
    records: AtomicU64,
    batches: AtomicU64,
    waiting: AtomicU64,
    /// A moment before which everything accepted is visible; [`Nanos::NEVER`] while at rest.
    caught_up_at: AtomicU64,
    failing: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            parking: ParkFlag::new(),
            closing: AtomicBool::new(false),
            records: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            caught_up_at: AtomicU64::new(clock::monotonic().0),
            failing: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Asks the ledger thread to finish. The caller unparks it.
    pub(crate) fn close(&self) {
        // Relaxed: unpark and park order this store for the thread that it ends.
        self.closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// `records` more have become visible, in one transaction.
    pub(crate) fn applied(&self, records: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Everything accepted before `moment` is visible.
    pub(crate) fn caught_up(&self, moment: Nanos) {
        self.caught_up_at.store(moment.0, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, text: String, waiting: u64) {
        *self.failure() = Some(text);
        self.waiting.store(waiting, Ordering::Relaxed);
        self.failing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn recovered(&self) {
        if self.failing.swap(false, Ordering::Relaxed) {
            *self.failure() = None;
            self.waiting.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    fn failure(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
