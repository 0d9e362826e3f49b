//! Durable usage: what flows through is recorded here, once, and here one asks for it.
//!
//! Promises: counting, opening and closing a flow never block; a byte that was counted is billed once, also
//! if the process is killed at any instruction; what a power failure may cost is bounded. Leaves to others:
//! what is counted.
//!
//! ```text
//!   reactor threads          ledger-commit      ledger-flush     ledger-apply          any process
//!   Inlet: live table --hints--> Committer --> journal (sync) --> Applier --> SQLite --> query::Usage
//!             ^                      |                               |
//!             '---- slots freed -----'             segments let go --'
//! ```
//!
//! `record.rs` is what is known of a flow, `live_table.rs` where it stands while it lives, `inlet.rs` how
//! it gets there, `commit.rs` and `flush.rs` how it gets into the journal (`journal.rs`, on a
//! `storage.rs`), `apply.rs` from there to a store (`sink.rs`), `recover.rs` what a start does first,
//! `query.rs` the questions. `docs/ledger-format.md` has every byte, and every way to die.

#![forbid(unsafe_code)]

mod acceptance;
mod apply;
pub mod backup;
mod commit;
mod consent;
mod directory;
pub mod entry;
mod findings;
mod flow_writer;
mod flush;
#[cfg(test)]
mod golden;
mod inventory;
mod journal;
pub mod limits;
pub mod live_table;
mod loss;
mod open;
mod parker;
pub mod query;
pub mod record;
mod recover;
pub mod repair;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod sink;
mod status;
mod storage;
pub mod verify;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use thiserror::Error;

use crate::commit::Unfinished;
pub use crate::consent::Consent;
pub use crate::flow_writer::{FlowWriter, LiveFlow};
use crate::live_table::LiveTable;
pub use crate::live_table::locations::Medium;
pub use crate::loss::{Damage, Loss, Losses};
use crate::open::OpenLocks;
pub use crate::open::{Guarantees, OpenError, OpenSettings};
pub use crate::recover::{RecoverError, Recovery};
pub use crate::sink::schema::SchemaError;
pub use crate::status::{Progress, Status, StatusHandle};
use crate::status::{Shared, Stage};

/// When an ended flow is safe.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Durability {
    /// Its entry is in the journal at once, and durable within [`limits::SYNC_PAUSE`] and a sync.
    #[default]
    Delayed,
    /// Its slot is free only when its entry is durable.
    Sync,
}

/// An open ledger: the owner of its directory, its live table and its threads.
///
/// Dropping it journals every flow that has ended, and leaves it to the next start to apply them; see
/// [`Ledger::close`].
pub struct Ledger {
    shared: Arc<Shared>,
    guarantees: Guarantees,
    recovery: Recovery,
    /// `None` once they were asked to end.
    threads: Option<Threads>,
}

/// The threads, in the order in which they end.
struct Threads {
    committer: JoinHandle<Result<LiveTable, Unfinished>>,
    flusher: JoinHandle<()>,
    applier: JoinHandle<Result<(), String>>,
    /// What is let go of when they have ended.
    locks: OpenLocks,
}

impl Ledger {
    /// How the ledger is doing.
    pub fn status(&self) -> Status {
        self.status_handle().status()
    }

    /// A view of the status for other threads.
    pub fn status_handle(&self) -> StatusHandle {
        StatusHandle(Arc::clone(&self.shared))
    }

    /// What holds on this machine.
    pub fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    /// What the start found.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Journals every flow that has ended, applies all, brings it to the disk, and ends the threads; to be
    /// called when no thread uses an inlet any more. Flows that are open then, and those that a failing
    /// disk did not take within some seconds, stay in the live table for the next start.
    ///
    /// # Errors
    /// Something is not where it should be; the error says where it is.
    pub fn close(self) -> Result<Summary, LedgerError> {
        self.close_unless(never_hurry)
    }

    /// As [`Ledger::close`], but asks `hurry` now and then whether to leave what is journaled to the next
    /// start; it is expected to sleep for the span that it is given.
    ///
    /// # Errors
    /// As [`Ledger::close`].
    pub fn close_unless(mut self, hurry: impl FnMut(Duration) -> bool) -> Result<Summary, LedgerError> {
        let stopped = self.stop(Stage::Applying, hurry);
        stopped.expect("this and `drop` stop the threads, and both consume the ledger")
    }

    /// Ends the threads; the applier does what `last` says.
    fn stop(
        &mut self,
        last: Stage,
        mut hurry: impl FnMut(Duration) -> bool,
    ) -> Option<Result<Summary, LedgerError>> {
        let Threads { committer, flusher, applier, locks } = self.threads.take()?;
        self.shared.enter(Stage::Committing);
        let committed = committer.join();
        self.shared.enter(last);
        while !applier.is_finished() {
            if hurry(JOIN_POLL_PAUSE) {
                self.shared.enter(Stage::Aborting);
            }
        }
        let flushed = flusher.join();
        let applied = applier.join();
        let (Ok(committed), Ok(()), Ok(applied)) = (committed, flushed, applied) else {
            return Some(Err(LedgerError::Panicked));
        };
        let backlog = self.shared.unapplied();
        let applied = applied.map_err(|cause| LedgerError::Unapplied { entries: backlog, cause });
        let unjournaled = |Unfinished { flows, without_slot, cause }| {
            let unapplied = applied.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let table = locks.table().to_owned();
            LedgerError::Unjournaled { flows, without_slot, table, cause, unapplied }
        };
        match committed.map_err(unjournaled) {
            Ok(table) => locks.release(&table),
            Err(error) => return Some(Err(error)),
        }
        Some(applied.map(|()| self.summary()))
    }

    fn summary(&self) -> Summary {
        Summary { records: self.shared.records(), batches: self.shared.batches() }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.stop(Stage::Aborting, never_hurry);
    }
}

/// Waits as long as it takes.
fn never_hurry(pause: Duration) -> bool {
    thread::sleep(pause);
    false
}

/// How often a close looks whether the threads have ended.
const JOIN_POLL_PAUSE: Duration = Duration::from_millis(5);

/// Tells those who watch that the thread which holds it panicked, and that it works no more.
struct PanicAlarm(Arc<Shared>);

impl Drop for PanicAlarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.panicked("a thread of the ledger panicked; nothing more is written until a restart");
        }
    }
}

/// What a ledger did between opening and closing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Summary {
    /// Flows made visible.
    pub records: u64,
    /// Transactions that did so.
    pub batches: u64,
}

/// Why a ledger was not closed in order.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum LedgerError {
    /// The journal failed to the end.
    #[error(
        "the journal takes nothing: {cause}. {flows} flows that ended are in the live table alone, {}: the \
         next start brings them into the journal, and a restart of the machine before it loses them{}{}",
        table.display(),
        without_slot_text(*without_slot),
        unapplied_text(unapplied)
    )]
    Unjournaled {
        /// Flows that have ended, in the live table alone.
        flows: u64,
        /// Flows that have ended, for which it has no room.
        without_slot: u64,
        /// The live table.
        table: PathBuf,
        /// What the disk said last.
        cause: String,
        /// What the database said, if it failed too.
        unapplied: String,
    },
    /// The database failed to the end.
    #[error(
        "the database takes nothing: {cause}. {entries} entries that it has not got are durable in the \
         journal, and the next start brings them there"
    )]
    Unapplied {
        /// Entries that are durable in the journal, and not in the database.
        entries: u64,
        /// What the database said last.
        cause: String,
    },
    /// A thread ended by a fault of its own.
    #[error("a thread of the ledger panicked; what it did not write is in the live table or the journal")]
    Panicked,
}

fn without_slot_text(without_slot: u64) -> String {
    match without_slot {
        0 => String::new(),
        _ => format!(
            ". {without_slot} more were written, no sync succeeded, and the live table is full: they may be lost"
        ),
    }
}

fn unapplied_text(unapplied: &str) -> String {
    if unapplied.is_empty() { String::new() } else { format!(". And {unapplied}") }
}
