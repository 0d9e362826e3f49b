//! The interface of a store of entries, and the meaning of its errors.
//!
//! The journal numbers the entries. A store keeps the last number that it has in the same transaction as the
//! rows, so that resending entries is always safe.

use thiserror::Error;

use crate::entry::Entry;
use crate::numbering::{AccountsAhead, Names, Numbers};

/// A store of entries, used by one thread. An implementation must guarantee:
///
/// 1. `apply` makes all of its entries visible or none. Each number becomes visible once, however often it is
///    sent, also after an `apply` that failed and yet took effect.
/// 2. Numbers have no gaps, over all runs of the gateway. A gap is a [`SinkError::Fatal`], and so is an entry
///    of a run that has a successor.
/// 3. After a [`SinkError::Fatal`] no method is called any more.
pub(crate) trait Sink: Send {
    /// The number of the last applied entry; `None` if the store has never seen this gateway, and accepts any
    /// first number.
    fn applied_lsn(&mut self) -> Result<Option<u64>, SinkError>;

    /// Tells of the accounts in entries that come, before the first of them. No other name gets one of them.
    fn expect_accounts(&mut self, accounts: AccountsAhead);

    /// Makes `entries` visible. The first one has the number `first_lsn`; run `epoch` wrote them.
    fn apply(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]) -> Result<(), SinkError>;

    /// Gives numbers to `names`, on stable storage: those that they have, else new ones.
    fn number(&mut self, names: &Names) -> Result<Numbers, SinkError>;

    /// Brings what is visible to stable storage; returns the number up to which everything is there.
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
