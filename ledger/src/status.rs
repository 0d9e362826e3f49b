//! The state of the ledger: written by its threads, read by any.
//!
//! Guarantees: reading never waits for a disk. Only texts and lag marks are behind locks, which are held for
//! a copy.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use sys::clock::{self, Nanos};
use sys::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use sys::sync::{Mutex, MutexGuard};

use crate::directory::PathIdentity;
use crate::limits::LAG_MARKS_MAX;
use crate::numbering;
use crate::parker::Parker;
use crate::readers::{ReaderStatus, Readers};
use crate::requests::Requests;

/// Added to the warning that a segment cannot be created in advance.
const FREE_SPACE: &str = "Free space in the ledger's directory before the segment in use is full";

/// The state of a ledger at one moment: see [`StatusHandle::status`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// Ended flows that were applied to the database since the ledger was opened.
    pub records: u64,
    /// Transactions that did so.
    pub batches: u64,
    /// Ended flows that are not journaled yet, as of the committer's last pass.
    pub waiting: u64,
    /// No ended flow has waited longer than this to be applied. Zero while the ledger is idle.
    pub lag: Duration,
    /// The number of the last entry in the journal.
    pub appended: u64,
    /// All entries up to this number survive a power failure.
    pub durable: u64,
    /// All entries up to this number are in the database.
    pub applied: u64,
    /// Damaged slots of the live table.
    pub damaged: u64,
    /// Losses that operators have accepted since the ledger was created.
    pub accepted: u64,
    /// Whether the last run was killed, and its live table was missing at the start.
    pub table_was_missing: bool,
    /// Whether this run's live table was removed while in use: a kill would lose what it holds.
    pub table_is_missing: bool,
    /// The present failure, for the log; `None` without one. Nothing is lost: ended flows wait, and new ones
    /// are refused when the live table is full.
    pub failing: Option<String>,
    /// What will fail before long without a remedy.
    pub warning: Option<String>,
    /// Whether nothing can be journaled at present, so that new flows should be refused.
    pub is_stuck: bool,
    /// The readers of the journal besides the database.
    pub readers: Vec<ReaderStatus>,
}

/// Numbers of entries, as the ledger's threads know them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    /// The last entry in the journal.
    pub appended: u64,
    /// All entries up to this one survive a power failure.
    pub durable: u64,
    /// All entries up to this one are in the database.
    pub applied: u64,
}

/// Reads the ledger's [`Status`] from any thread. Cheap to clone; it may outlive the ledger.
#[derive(Clone)]
pub struct StatusHandle(pub(crate) Arc<LedgerState>);

impl StatusHandle {
    /// The present state of the ledger.
    pub fn status(&self) -> Status {
        let shared = &self.0;
        let (failing, spare) = {
            let failures = lock(&shared.failures);
            (failures.first(), failures.spare.clone())
        };
        let table_warning = shared.missing_table_warning();
        let table_is_missing = table_warning.is_some();
        let spare = spare
            .map(|cause| format!("the next segment of the journal cannot be created: {cause}. {FREE_SPACE}"));
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
            readers: shared.found.get().map_or_else(Vec::new, |found| found.readers.status()),
        }
    }

    /// How far entries have come. Takes no lock.
    pub fn progress(&self) -> Progress {
        let shared = &self.0;
        Progress {
            appended: shared.appended.load(Ordering::Relaxed),
            durable: shared.durable.load(Ordering::Relaxed),
            applied: shared.applied.load(Ordering::Relaxed),
        }
    }

    /// Whether nothing can be journaled at present. Takes no lock, so that any thread may call it.
    pub fn is_stuck(&self) -> bool {
        self.0.stuck.load(Ordering::Relaxed)
    }
}

/// The stages of closing a ledger.
#[derive(Clone, Copy, Debug, Eq, PartialEq, PartialOrd)]
#[repr(u8)]
pub(crate) enum Stage {
    /// The ledger is open.
    Open = 0,
    /// The committer has to finish.
    Committing = 1,
    /// The committer has finished; the other threads have to finish.
    Applying = 2,
    /// The other threads have to end at once: what is in the journal is safe.
    Aborting = 3,
}

/// The present failures, by their source.
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

/// What a start found, for the status.
#[derive(Debug)]
pub(crate) struct StartFindings {
    pub(crate) accepted: u64,
    pub(crate) table_was_missing: bool,
    pub(crate) table: PathIdentity,
    pub(crate) readers: Arc<Readers>,
}

/// The state that the ledger's threads share. All gauges are Relaxed: each is independent and orders nothing.
pub(crate) struct LedgerState {
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
    /// Everything that ended before this moment is applied; [`Nanos::NEVER`] while idle.
    caught_up_at: AtomicU64,
    /// What the start found, and the live table that it created.
    found: OnceLock<StartFindings>,
    /// Pairs (LSN, moment): what ended before the moment is journaled by that LSN. Oldest first.
    marks: Mutex<VecDeque<(u64, Nanos)>>,
    failures: Mutex<Failures>,
    pub(crate) numbering: numbering::Requests,
    /// Requests that all that was counted is journaled.
    pub(crate) barriers: Requests<()>,
    /// Entries that the journal is to get, as their bytes.
    pub(crate) appends: Requests<Vec<u8>>,
}

impl LedgerState {
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
            numbering: numbering::Requests::default(),
            barriers: Requests::default(),
            appends: Requests::default(),
        }
    }

    /// Notes what the start found.
    pub(crate) fn note_found(&self, found: StartFindings) {
        self.found.set(found).expect("the findings of a start are set once");
    }

    /// The warning that this run's live table was removed while in use.
    fn missing_table_warning(&self) -> Option<String> {
        let table = &self.found.get()?.table;
        // A closing ledger removes its table itself.
        let is_gone = !self.has_reached(Stage::Applying) && table.is_detached();
        is_gone.then(|| {
            format!(
                "the live table {} was removed while it is in use: a kill would lose what flows moved since \
                 they were last journaled; stop the gateway normally, and start it again",
                table.path().display()
            )
        })
    }

    /// Entries that are durable and not applied.
    pub(crate) fn unapplied(&self) -> u64 {
        self.durable.load(Ordering::Relaxed).saturating_sub(self.applied_lsn())
    }

    /// The number of the last applied entry.
    pub(crate) fn applied_lsn(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    /// Enters `stage`.
    pub(crate) fn enter(&self, stage: Stage) {
        // Relaxed: the interrupts below order this store for the threads.
        self.stage.store(stage as u8, Ordering::Relaxed);
        [&self.committer, &self.flusher, &self.applier].into_iter().for_each(Parker::interrupt);
    }

    /// Whether `stage` is reached or passed.
    pub(crate) fn has_reached(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Relaxed) >= stage as u8
    }

    /// Stores how far the journal has come.
    pub(crate) fn journaled(&self, appended: u64, durable: u64, waiting: usize) {
        self.appended.store(appended, Ordering::Relaxed);
        self.durable.store(durable, Ordering::Relaxed);
        self.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    /// Notes that everything that ended before `moment` is in the journal by entry `lsn`.
    pub(crate) fn mark(&self, lsn: u64, moment: Nanos) {
        let mut marks = lock(&self.marks);
        if marks.len() < LAG_MARKS_MAX {
            marks.push_back((lsn, moment));
        }
    }

    /// Notes that entries up to `lsn` are applied, `flows` of the new ones finals.
    pub(crate) fn applied(&self, lsn: u64, flows: u64) {
        self.records.fetch_add(flows, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.applied.store(lsn, Ordering::Relaxed);
        let mut marks = lock(&self.marks);
        while let Some((_, moment)) = marks.pop_front_if(|(marked, _)| *marked <= lsn) {
            self.caught_up_at.store(moment.0, Ordering::Relaxed);
        }
    }

    /// Everything is applied, and no entry is known to follow.
    pub(crate) fn note_idle(&self) {
        lock(&self.marks).clear();
        self.caught_up_at.store(Nanos::NEVER.0, Ordering::Relaxed);
    }

    /// A flow has ended after the ledger was idle.
    pub(crate) fn note_active(&self) {
        let now = clock::monotonic();
        let _ =
            self.caught_up_at.compare_exchange(Nanos::NEVER.0, now.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Counts a damaged slot of the live table.
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

    /// A thread panicked: the failure lasts until a restart.
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

    /// Whether the sink's last operation failed.
    pub(crate) fn is_sink_failing(&self) -> bool {
        lock(&self.failures).sink.is_some()
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
