//! Durable usage records: how they are written, and how they are queried.
//!
//! Guarantees: counting, opening and closing a flow never block. A counted byte is billed once, also if the
//! process is killed at any instruction. The loss of a power failure is bounded.
//!
//! ```text
//!   reactor threads               ledger-commit     ledger-flush     ledger-apply        any process
//!   FlowWriter: live table --hints--> Committer --> journal (sync) --> Applier --> SQLite --> SqliteUsage
//!                  ^                      |                               |
//!                  '---- slots freed -----'            segments released -'
//! ```
//!
//! - `record.rs`: what is known of a flow.
//! - `live_table.rs`: where a flow stands while it is open; `flow_writer.rs` puts it there.
//! - `commit.rs` and `flush.rs`: from the live table into the journal (`journal.rs`), which writes to a
//!   `storage.rs`.
//! - `apply.rs`: from the journal into a store (`sink.rs`), which `sqlite_sink.rs` is.
//! - `follow.rs`: the journal for a further reader of it; `readers.rs` knows how far each has come.
//! - `database.rs`: the files of that store.
//! - `recover.rs`: what a start does first.
//! - `numbering.rs`: requests for the numbers of accounts, sets and policies; `requests.rs`: those to the
//!   committer.
//! - `quota.rs`: grants and notices, which the journal keeps for the gateway.
//! - `query.rs`: questions about the usage, which `sqlite_usage.rs` answers.
//!
//! `docs/ledger-format.md` describes every byte, and what each failure leaves.
//!
//! Modules, each above those that it may use:
//!
//! ```text
//!   fuzzing repair
//!   open year
//!   findings
//!   acceptance
//!   simulation sqlite_sink
//!   backup commit inventory verify
//!   flow_writer recover sqlite_usage
//!   query
//!   apply database flush follow live_table loss
//!   journal sink
//!   entry
//!   consent quota record status storage
//!   readers
//!   requests
//!   directory limits numbering parker random
//! ```

#![forbid(unsafe_code)]

mod acceptance;
mod apply;
pub mod backup;
mod commit;
mod consent;
mod database;
mod directory;
pub mod entry;
mod findings;
mod flow_writer;
mod flush;
mod follow;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod inventory;
mod journal;
pub mod limits;
pub mod live_table;
mod loss;
#[cfg(test)]
mod memory_usage;
mod numbering;
mod open;
mod parker;
pub mod query;
pub mod quota;
#[cfg(any(test, feature = "simulation"))]
mod random;
mod readers;
pub mod record;
mod recover;
pub mod repair;
mod requests;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod sink;
mod sqlite_sink;
mod sqlite_usage;
mod status;
mod storage;
pub mod verify;
#[cfg(any(test, feature = "simulation"))]
pub mod year;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use thiserror::Error;

use crate::commit::Unfinished;
pub use crate::consent::Consent;
pub use crate::database::schema::SchemaError;
use crate::entry::{Entry, GrantEntry, NoticeEntry};
pub use crate::flow_writer::{FlowWriter, LiveFlow};
pub use crate::follow::{FollowReadError, Follower};
use crate::journal::JournalState;
use crate::live_table::LiveTable;
pub use crate::live_table::locations::Medium;
pub use crate::loss::{Damage, Loss, Losses};
use crate::numbering::Request;
pub use crate::numbering::{Names, Numbers, UserNames};
use crate::open::OpenLocks;
pub use crate::open::{Guarantees, OpenError, OpenSettings};
pub use crate::quota::{AppendError, Grant, Notice, Owner};
pub use crate::readers::{FollowError, ReaderNameError, ReaderSettings, ReaderStatus};
pub use crate::recover::{RecoverError, Recovery};
pub use crate::sqlite_usage::{QueryError, SqliteUsage};
use crate::status::{LedgerState, Stage};
pub use crate::status::{Progress, Status, StatusHandle};
use crate::storage::file::Directory;

/// When an ended flow survives a power failure.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Durability {
    /// Its entry is in the journal at once. It is durable within [`limits::SYNC_PAUSE`] and the time of a
    /// sync.
    #[default]
    Delayed,
    /// Its slot is freed only when its entry is durable.
    Sync,
}

/// An open ledger: the owner of its directory, its live table and its threads.
///
/// Dropping it journals every ended flow, and leaves applying them to the next start; see [`Ledger::close`].
pub struct Ledger {
    shared: Arc<LedgerState>,
    journal: Arc<JournalState<Directory>>,
    guarantees: Guarantees,
    recovery: Recovery,
    /// `None` once the threads were stopped.
    threads: Option<Threads>,
}

/// The threads, in the order in which they end.
struct Threads {
    committer: JoinHandle<Result<LiveTable, Unfinished>>,
    flusher: JoinHandle<()>,
    applier: JoinHandle<Result<(), String>>,
    /// Released when the threads have ended.
    locks: OpenLocks,
}

impl Ledger {
    /// The present state of the ledger.
    pub fn status(&self) -> Status {
        self.status_handle().status()
    }

    /// A handle by which other threads read the status.
    pub fn status_handle(&self) -> StatusHandle {
        StatusHandle(Arc::clone(&self.shared))
    }

    /// Follows the journal as one of [`OpenSettings::readers`], which has all entries up to `position`, or up
    /// to the stored one. Once the ledger is closed, the handle releases nothing more.
    ///
    /// # Errors
    /// See [`FollowError`].
    pub fn follow(&self, name: &str, position: Option<u64>) -> Result<Follower, FollowError> {
        Follower::new(&self.journal, name, position)
    }

    /// What failures this ledger survives on this machine.
    pub fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    /// What the start found and recovered.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Gives numbers to the accounts, sets and the policy in `names`; `receive` gets them on a thread of the
    /// ledger, and must not wait. That takes milliseconds, more while entries of earlier runs are applied,
    /// and until the end of a failure of the database. A later call replaces one that still waits.
    pub fn number(&self, names: Names, receive: impl FnOnce(Numbers) + Send + 'static) {
        self.shared.numbering.put(Request { names, receive: Box::new(receive) });
        self.shared.applier.interrupt();
    }

    /// Journals the counts of every open flow that has moved since it was last journaled, and waits for the
    /// finals of all that had ended. Returns true when a [`SqliteUsage::open_with_journal`] afterwards has
    /// every byte that was counted before the call, and false if that took longer than `wait_max`: the disk
    /// fails, or is behind. What a damaged slot of the live table has is not waited for.
    ///
    /// Takes milliseconds and a sync or two; reactor threads do not wait for it. Several calls at a time
    /// share a round over the slots.
    pub fn journal_counts(&self, wait_max: Duration) -> bool {
        let Some(reply) = self.shared.barriers.put(()) else { return false };
        self.shared.committer.interrupt();
        reply.recv_timeout(wait_max).is_ok()
    }

    /// Appends a grant to the journal; returns when it is durable and a
    /// [`SqliteUsage::open_with_journal`] afterwards has it. Reactor threads do not wait for it.
    ///
    /// # Errors
    /// See [`AppendError`]. After [`AppendError::Unconfirmed`] append the same grant again: it counts once.
    pub fn append_grant(&self, grant: &Grant, wait_max: Duration) -> Result<(), AppendError> {
        self.append(&Entry::Granted(GrantEntry::new(grant)?), wait_max)
    }

    /// As [`Ledger::append_grant`], for a notice.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append_notice(&self, notice: &Notice, wait_max: Duration) -> Result<(), AppendError> {
        self.append(&Entry::Noticed(NoticeEntry::new(notice)?), wait_max)
    }

    fn append(&self, entry: &Entry, wait_max: Duration) -> Result<(), AppendError> {
        let mut bytes = Vec::new();
        entry.write(&mut bytes);
        let reply = self.shared.appends.put(bytes).ok_or(AppendError::Busy)?;
        self.shared.committer.interrupt();
        reply.recv_timeout(wait_max).map_err(|_| AppendError::Unconfirmed)
    }

    /// Journals every ended flow, applies all entries, syncs, and ends the threads. Call it when no thread
    /// uses a flow writer any more. Two kinds of flows stay in the live table for the next start: open ones,
    /// and those that a failing disk did not take within some seconds.
    ///
    /// # Errors
    /// Some entries are not in the database, or not in the journal; the error says where they are.
    pub fn close(self) -> Result<Summary, LedgerError> {
        self.close_unless(never_abort)
    }

    /// As [`Ledger::close`], but polls `should_abort` for whether to leave journaled entries to the next
    /// start. `should_abort` is expected to sleep for the given duration.
    ///
    /// # Errors
    /// As [`Ledger::close`].
    pub fn close_unless(
        mut self,
        should_abort: impl FnMut(Duration) -> bool,
    ) -> Result<Summary, LedgerError> {
        let stopped = self.stop(Stage::Applying, should_abort);
        stopped.expect("this and `drop` stop the threads, and both consume the ledger")
    }

    /// Ends the threads. The applier enters `last` when the committer has ended.
    fn stop(
        &mut self,
        last: Stage,
        mut should_abort: impl FnMut(Duration) -> bool,
    ) -> Option<Result<Summary, LedgerError>> {
        let Threads { committer, flusher, applier, locks } = self.threads.take()?;
        self.shared.enter(Stage::Committing);
        let committed = committer.join();
        self.shared.enter(last);
        while !applier.is_finished() {
            if should_abort(JOIN_POLL_PAUSE) {
                self.shared.enter(Stage::Aborting);
            }
        }
        let flushed = flusher.join();
        let applied = applier.join();
        self.journal.end_readers();
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
        self.stop(Stage::Aborting, never_abort);
    }
}

/// The `should_abort` of a close that takes as long as it needs.
fn never_abort(pause: Duration) -> bool {
    thread::sleep(pause);
    false
}

/// How often a close checks whether the applier has ended.
const JOIN_POLL_PAUSE: Duration = Duration::from_millis(5);

/// Marks the ledger as failed when the thread that holds it panics.
struct PanicAlarm(Arc<LedgerState>);

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
    /// Ended flows that were applied to the database.
    pub records: u64,
    /// Transactions that did so.
    pub batches: u64,
}

/// Why a close left something to the next start.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum LedgerError {
    /// The journal failed until the last attempt.
    #[error(
        "the journal cannot be written: {cause}. {flows} ended flows are in the live table only, {}: start \
         the gateway before the machine restarts, or they are lost{}{}",
        table.display(),
        without_slot_text(*without_slot),
        unapplied_text(unapplied)
    )]
    Unjournaled {
        /// Ended flows that only the live table has.
        flows: u64,
        /// Ended flows for which it has no free slot.
        without_slot: u64,
        /// The live table.
        table: PathBuf,
        /// The last error of the disk.
        cause: String,
        /// The error of the database, if it failed too.
        unapplied: String,
    },
    /// The database failed until the last attempt.
    #[error(
        "the database cannot be written: {cause}. {entries} entries that it lacks are durable in the \
         journal: the next start applies them"
    )]
    Unapplied {
        /// Entries that are durable in the journal, and not in the database.
        entries: u64,
        /// The last error of the database.
        cause: String,
    },
    /// A thread of the ledger panicked.
    #[error("a thread of the ledger panicked; what it did not write is in the live table or the journal")]
    Panicked,
}

fn without_slot_text(without_slot: u64) -> String {
    match without_slot {
        0 => String::new(),
        _ => format!(
            ". {without_slot} more ended flows were written to the journal, which could not be synced, and \
             the live table has no slot for them: a power failure may lose them"
        ),
    }
}

fn unapplied_text(unapplied: &str) -> String {
    if unapplied.is_empty() { String::new() } else { format!(". And {unapplied}") }
}
