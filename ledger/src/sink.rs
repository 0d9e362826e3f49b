//! Where entries end up: the contract of a store, and what its failures mean.
//!
//! The journal and further stores attach here: whoever hands entries over numbers them, and a store keeps
//! the number that it has reached in the transaction of the rows, so that resending is always safe.

mod batch;
pub(crate) mod checksum;
pub(crate) mod columns;
mod live;
pub(crate) mod month;
pub(crate) mod month_file;
pub(crate) mod pairing;
pub(crate) mod rebuild;
pub(crate) mod resend;
mod retention;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod sqlite;
pub(crate) mod sums;
mod version_1;
pub(crate) mod watermarks;

use thiserror::Error;

use crate::entry::Entry;

/// A store of entries, used by one thread. What an implementation must hold:
///
/// 1. `apply` makes all of its entries visible or none; each number becomes visible once, however often it
///    is sent, also after an `apply` that failed and yet took effect.
/// 2. Numbers have no gaps, over all runs of the gateway; a gap is a [`SinkError::Fatal`], and so is an entry
///    of a run that a later one has followed.
/// 3. After a [`SinkError::Fatal`] nothing is called any more.
pub(crate) trait Sink: Send {
    /// The number of the last entry that is applied; `None` if the store has never seen this gateway, and
    /// takes whichever number comes first.
    fn applied_lsn(&mut self) -> Result<Option<u64>, SinkError>;

    /// Makes `entries` visible, the first of which bears the number `first_lsn`; run `epoch` wrote them.
    fn apply(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]) -> Result<(), SinkError>;

    /// Brings what is visible to stable storage; the number up to which everything is there.
    fn checkpoint(&mut self) -> Result<u64, SinkError>;

    /// Ends the sink: on success everything applied is on stable storage.
    fn seal(&mut self) -> Result<(), SinkError>;
}

/// What a sink keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SinkSettings {
    /// Months of which each flow is kept; of older ones, only sums by user, class, hour and day.
    pub(crate) detail_months: u32,
    /// Flows and parts of a month that are kept one by one; the rest is kept as sums by user, host, class and
    /// hour.
    pub(crate) rows_per_month_max: u64,
}

impl Default for SinkSettings {
    fn default() -> Self {
        Self { detail_months: 13, rows_per_month_max: 50_000_000 }
    }
}

/// Why a sink could not do it.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub(crate) enum SinkError {
    /// It may succeed later: no space, an I/O error, somebody else's lock.
    #[error("{0}")]
    Retryable(String),
    /// It must not be tried again before a restart: a failed sync, a damaged file, a gap.
    #[error("{0}; nothing more is written until a restart")]
    Fatal(String),
}
