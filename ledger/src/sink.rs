//! The interface of a store of entries, and the meaning of its errors.
//!
//! The journal numbers the entries. A store keeps the last number that it has in the same transaction as the
//! rows, so that resending entries is always safe. `sink/conformance.rs` has the contract as tests.

#[cfg(test)]
pub(crate) mod conformance;

use thiserror::Error;

use crate::entry::Entry;
use crate::numbering::{AccountsAhead, Names, Numbers};

/// A store of the entries of one gateway, used by one thread. An implementation must guarantee:
///
/// 1. **All or nothing.** `apply` makes all of its entries visible or none; queries see no part of a batch.
///    After an error either may have happened.
/// 2. **Once.** Each number becomes visible once, however often it is sent. A batch may begin anywhere in
///    what is applied, be grouped differently than before, and follow an `apply` that failed and yet took
///    effect. Known entries are left out by their numbers alone; they need not be compared.
/// 3. **No gap.** Numbers have no gaps, over all runs of the gateway. A batch that begins behind the next
///    number is a [`SinkError::Fatal`], and nothing of it becomes visible. A store that has never seen the
///    gateway accepts any first number.
/// 4. **Fencing.** A batch with a new entry of a run that has a successor in the store is a
///    [`SinkError::Fatal`]: two copies of the gateway write. Any run may send what is known. Which of two
///    journals with the same runs is the right one, a start finds out before.
/// 5. **Stable.** What `checkpoint` has returned survives every failure of the process and the machine. The
///    entries behind it may be lost with the process; then the store is, as a whole, as after an earlier
///    batch.
/// 6. **Totals.** The counts of an entry are totals of its flow. [`Entry::Final`] ends the flow; an
///    [`Entry::RunBegan`] ends, as they were last counted, the open flows of earlier runs.
/// 7. **Every entry counts.** An entry that makes no row, as [`Entry::Skipped`], has its number all the same.
/// 8. **Names.** What `number` has returned is stable without a checkpoint. A number is that of one user, set
///    or policy for ever. A user and a set keep theirs, also while no configuration has them; a policy keeps
///    its own until another one is numbered.
///
/// The caller guarantees: one thread; batches of at least one entry, all of one run; only entries that are
/// durable in the journal. After a [`SinkError::Fatal`] it calls no method of that sink any more; after a
/// [`SinkError::Retryable`] it sends the same entries again, after a pause.
pub(crate) trait Sink: Send {
    /// The number of the last applied entry; `None` if the store has never seen this gateway.
    fn applied_lsn(&mut self) -> Result<Option<u64>, SinkError>;

    /// Tells of the accounts in entries that come, before the first of them. No other name gets one of them;
    /// a name without an account gets the first one that it comes with.
    fn expect_accounts(&mut self, accounts: AccountsAhead);

    /// Makes `entries` visible. The first one has the number `first_lsn`; run `epoch` wrote them.
    fn apply(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]) -> Result<(), SinkError>;

    /// Gives numbers to `names`, on stable storage: those that they have, else new ones.
    fn number(&mut self, names: &Names) -> Result<Numbers, SinkError>;

    /// Brings what is visible to stable storage; returns the number up to which everything is there, 0 if
    /// nothing is. It may be less than what is applied, where that is not known to be stable yet; it is never
    /// less than before. The journal releases entries by this number alone.
    fn checkpoint(&mut self) -> Result<u64, SinkError>;

    /// Ends the sink: after success everything applied is on stable storage.
    fn seal(&mut self) -> Result<(), SinkError>;
}

/// How much detail a sink keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SinkSettings {
    /// Months of which each flow is kept; of older ones, only sums by user, class, hour and day.
    pub(crate) detail_months: u32,
    /// Flows and parts of a month that are kept one by one; others are kept as sums by user, host, class and
    /// hour.
    pub(crate) rows_per_month_max: u64,
}

impl Default for SinkSettings {
    fn default() -> Self {
        Self { detail_months: 13, rows_per_month_max: 50_000_000 }
    }
}

/// Why an operation of a sink failed.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub(crate) enum SinkError {
    /// It may succeed later: no space, an I/O error, a foreign lock.
    #[error("{0}")]
    Retryable(String),
    /// It must not be tried again before a restart: a failed sync, a damaged file, a gap.
    #[error("{0}; nothing more is written until a restart")]
    Fatal(String),
}
