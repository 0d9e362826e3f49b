//! Where records end up: the contract of a store, and what its failures mean.
//!
//! The journal and further stores attach here: whoever hands records over numbers them, and a store keeps
//! the number that it has reached in the transaction of the rows, so that resending is always safe.

pub(crate) mod schema;
pub(crate) mod sqlite;

use thiserror::Error;

use crate::record::Record;

/// A store of records, used by one thread. What an implementation must hold:
///
/// 1. `apply` makes all of its records visible or none; each number becomes visible once, however often it
///    is sent, also after an `apply` that failed and yet took effect.
/// 2. Numbers begin at 1 for each opened sink and have no gaps; a gap is a [`SinkError::Final`].
/// 3. After a [`SinkError::Final`] nothing is called any more.
pub(crate) trait Sink: Send {
    /// Makes `records` visible, the first of which bears the number `first_lsn`.
    fn apply(&mut self, first_lsn: u64, records: &[Record]) -> Result<(), SinkError>;

    /// Brings what is visible to stable storage; `false` if part of it could not be brought there yet.
    fn checkpoint(&mut self) -> Result<bool, SinkError>;

    /// Ends the sink: on success everything applied is on stable storage.
    fn seal(&mut self) -> Result<(), SinkError>;
}

/// Why a sink could not do it.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub(crate) enum SinkError {
    /// It may succeed later: no space, an I/O error, somebody else's lock.
    #[error("{0}")]
    Passing(String),
    /// It must not be tried again before a restart: a failed sync, a damaged file, a gap.
    #[error("{0}; nothing more is written until a restart")]
    Final(String),
}
