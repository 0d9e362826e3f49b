//! How the ledger is doing: written by its threads, read by any.
//!
//! Promises: reading never waits for a disk; only texts and marks are behind locks, which are held for a
//! copy. Leaves to others: what to make of it (readiness, metrics).

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use sys::clock::{self, Nanos};
use sys::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use sys::sync::{Mutex, MutexGuard};

use crate::directory::PathIdentity;
use crate::limits::LAG_MARKS_MAX;
use crate::parker::Parker;

/// What [`StatusHandle::status`] found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// Ended flows made visible since the ledger was opened.
    pub records: u64,
    /// Transactions that did so.
    pub batches: u64,
    /// Ended flows that are not journaled yet, when it was last looked.
    pub waiting: u64,
    /// No flow that ended has waited longer than this to become visible. Zero while the ledger rests.
    pub lag: Duration,
    /// The number of the last entry in the journal.
    pub appended: u64,
    /// The number up to which all survives a power failure.
    pub durable: u64,
    /// The number up to which all is visible.
    pub applied: u64,
    /// Slots of the live table that were found damaged.
    pub damaged: u64,
    /// Losses that operators have accepted since the ledger was made.
    pub accepted: u64,
    /// Whether the last run was killed, and its live table was missing at the start.
    pub table_was_missing: bool,
    /// Whether this run's live table was removed while it is in use: a kill would lose what it holds.
    pub table_is_missing: bool,
    /// What fails at present, for the log; `None` if all is well. Nothing is lost: what ended waits, and new
    /// flows are refused when there is no more room.
    pub failing: Option<String>,
    /// What will fail before long if nobody does anything about it.
    pub warning: Option<String>,
    /// Whether nothing can be journaled at present, so that new flows should be refused.
    pub is_stuck: bool,
}

/// Numbers of entries, from when they are known to the ledger's threads.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    /// The last entry in the journal.
    pub appended: u64,
    /// All up to this one survive a power failure.
    pub durable: u64,
    /// All up to this one are visible.
    pub applied: u64,
}

/// A view of the ledger's [`Status`] for other threads. Cheap to clone; it outlives the ledger.
#[derive(Clone)]
pub struct StatusHandle(pub(crate) Arc<Shared>);

impl StatusHandle {
    /// How the ledger is doing now.
    pub fn status(&self) -> Status {
        let shared = &self.0;
        let (failing, spare) = {
            let failures = lock(&shared.failures);
            (failures.first(), failures.spare.clone())
        };
        let table_warning = shared.missing_table_warning();
        let table_is_missing = table_warning.is_some();
        let spare =
            spare.map(|cause| format!("the next segment cannot be made, and will be needed: {cause}"));
        let warning = table_warning.or(spare);
        let caught_up = Nanos(shared.caught_up_at.load(Ordering::Relaxed));
        Status {
            records: shared.records.load(Ordering::Relaxed),
            batches: shared.batches.load(Ordering::Relaxed),
            waiting: shared.waiting.load(Ordering::Relaxed),
            lag: clock::monotonic().since(caught_up),
            appended: shared.appended.load(Ordering::Relaxed),
            durable: shared.durable.load(Ordering::Relaxed),
            applied: shared.applied.load(Ordering::Relaxed),
            damaged: shared.damaged.load(Ordering::Relaxed),
            accepted: shared.found.get().map_or(0, |found| found.accepted),
            table_was_missing: shared.found.get().is_some_and(|found| found.table_was_missing),
            table_is_missing,
            failing,
            warning,
            is_stuck: self.is_stuck(),
        }
    }

    /// How far entries have come. Never waits.
    pub fn progress(&self) -> Progress {
        let shared = &self.0;
        Progress {
            appended: shared.appended.load(Ordering::Relaxed),
            durable: shared.durable.load(Ordering::Relaxed),
            applied: shared.applied.load(Ordering::Relaxed),
        }
    }

    /// Whether nothing can be journaled at present. Never waits, so that any thread may ask.
    pub fn is_stuck(&self) -> bool {
        self.0.stuck.load(Ordering::Relaxed)
    }
}

/// How far the ledger's end has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq, PartialOrd)]
#[repr(u8)]
pub(crate) enum Stage {
    /// It is open.
    Open = 0,
    /// The committer is to finish.
    Committing = 1,
    /// It has; the others are to finish.
    Applying = 2,
    /// The others are to end at once: what is in the journal is safe.
    Aborting = 3,
}

/// Why something does not work, by who says so.
#[derive(Debug, Default)]
struct Failures {
    panic: Option<String>,
    journal: Option<String>,
    spare: Option<String>,
    sink: Option<String>,
}

impl Failures {
    fn first(&self) -> Option<String> {
        let all = [&self.panic, &self.journal, &self.sink];
        all.into_iter().flatten().next().cloned()
    }
}

/// What a start found, for those who watch.
#[derive(Debug)]
pub(crate) struct StartFindings {
    pub(crate) accepted: u64,
    pub(crate) table_was_missing: bool,
    pub(crate) table: PathIdentity,
}

/// What the ledger's threads share. All gauges are Relaxed: each stands alone and orders nothing.
pub(crate) struct Shared {
    pub(crate) committer: Parker,
    pub(crate) flusher: Parker,
    pub(crate) applier: Parker,
    stage: AtomicU8,
    stuck: AtomicBool,
    records: AtomicU64,
    batches: AtomicU64,
    waiting: AtomicU64,
    appended: AtomicU64,
    durable: AtomicU64,
    applied: AtomicU64,
    damaged: AtomicU64,
    /// A moment before which everything that ended is visible; [`Nanos::NEVER`] while at rest.
    caught_up_at: AtomicU64,
    /// What the start found, and the live table that it made.
    found: OnceLock<StartFindings>,
    /// Entry `lsn` and all that ended before the moment are journaled; oldest first.
    marks: Mutex<VecDeque<(u64, Nanos)>>,
    failures: Mutex<Failures>,
}

impl Shared {
    pub(crate) fn new(applied: u64) -> Self {
        Self {
            committer: Parker::default(),
            flusher: Parker::default(),
            applier: Parker::default(),
            stage: AtomicU8::new(Stage::Open as u8),
            stuck: AtomicBool::new(false),
            records: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            appended: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            applied: AtomicU64::new(applied),
            damaged: AtomicU64::new(0),
            caught_up_at: AtomicU64::new(clock::monotonic().0),
            found: OnceLock::new(),
            marks: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Notes what the start found.
    pub(crate) fn note_found(&self, found: StartFindings) {
        self.found.set(found).expect("a start notes it once");
    }

    /// What is to be said of a live table that was removed while it is in use.
    fn missing_table_warning(&self) -> Option<String> {
        let table = &self.found.get()?.table;
        // A ledger that ends removes its table itself.
        let is_gone = !self.has_reached(Stage::Applying) && table.is_detached();
        is_gone.then(|| {
            format!(
                "the live table {} was removed while it is in use: a kill would lose what flows moved since \
                 they were last journaled; stop the gateway in order, and start it again",
                table.path().display()
            )
        })
    }

    /// Entries that are durable and not visible.
    pub(crate) fn unapplied(&self) -> u64 {
        self.durable.load(Ordering::Relaxed).saturating_sub(self.applied_lsn())
    }

    /// The number of the last entry that is visible.
    pub(crate) fn applied_lsn(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    /// Goes on to `stage`.
    pub(crate) fn enter(&self, stage: Stage) {
        // Relaxed: what rouses the threads orders this store for them.
        self.stage.store(stage as u8, Ordering::Relaxed);
        [&self.committer, &self.flusher, &self.applier].into_iter().for_each(Parker::interrupt);
    }

    /// Whether `stage` is reached or over.
    pub(crate) fn has_reached(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Relaxed) >= stage as u8
    }

    /// How far the journal has come.
    pub(crate) fn journaled(&self, appended: u64, durable: u64, waiting: usize) {
        self.appended.store(appended, Ordering::Relaxed);
        self.durable.store(durable, Ordering::Relaxed);
        self.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    /// All that ended before `moment` is in the journal by entry `lsn`.
    pub(crate) fn mark(&self, lsn: u64, moment: Nanos) {
        let mut marks = lock(&self.marks);
        if marks.len() < LAG_MARKS_MAX {
            marks.push_back((lsn, moment));
        }
    }

    /// Entries up to `lsn` are visible, `flows` more of them finals.
    pub(crate) fn applied(&self, lsn: u64, flows: u64) {
        self.records.fetch_add(flows, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.applied.store(lsn, Ordering::Relaxed);
        let mut marks = lock(&self.marks);
        while let Some((_, moment)) = marks.pop_front_if(|(marked, _)| *marked <= lsn) {
            self.caught_up_at.store(moment.0, Ordering::Relaxed);
        }
    }

    /// Everything is visible, and nobody knows of more.
    pub(crate) fn note_idle(&self) {
        lock(&self.marks).clear();
        self.caught_up_at.store(Nanos::NEVER.0, Ordering::Relaxed);
    }

    /// Something has ended after a rest.
    pub(crate) fn note_active(&self) {
        let now = clock::monotonic();
        let _ =
            self.caught_up_at.compare_exchange(Nanos::NEVER.0, now.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A slot of the live table was found damaged.
    pub(crate) fn damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn journal_failed(&self, text: &str) {
        lock(&self.failures).journal = Some(text.to_owned());
        self.stuck.store(true, Ordering::Relaxed);
    }

    /// Whether nothing can be journaled at present.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// A thread has ended by a fault of its own; nothing takes that back.
    pub(crate) fn panicked(&self, text: &str) {
        lock(&self.failures).panic = Some(text.to_owned());
        self.stuck.store(true, Ordering::Relaxed);
    }

    pub(crate) fn journal_works(&self) {
        if self.is_stuck() {
            let mut failures = lock(&self.failures);
            failures.journal = None;
            self.stuck.store(failures.panic.is_some(), Ordering::Relaxed);
        }
    }

    pub(crate) fn spare_failed(&self, text: &str) {
        lock(&self.failures).spare = Some(text.to_owned());
    }

    pub(crate) fn spare_ready(&self) {
        lock(&self.failures).spare = None;
    }

    pub(crate) fn sink_failed(&self, text: &str) {
        lock(&self.failures).sink = Some(text.to_owned());
    }

    pub(crate) fn sink_works(&self) {
        lock(&self.failures).sink = None;
    }

    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
