//! The journal of an open ledger for a reader besides the database.
//!
//! Guarantees: those of `journal/follower.rs`, without the journal's own types.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::entry::Entry;
use crate::journal::JournalState;
use crate::journal::follower;
use crate::journal::reader::ReadError;
use crate::readers::FollowError;
use crate::storage::file::Directory;

/// A handle of a further reader; one at a time for each name. Dropping it does not end the reader's hold.
pub struct Follower(follower::Follower<Directory>);

/// Why the journal cannot be read further.
#[derive(Debug, Error)]
pub enum FollowReadError {
    /// The reader lapsed. The next read goes on behind what it misses.
    #[error("entries {first_lsn} to {} are gone, and {next_lsn} is the next", next_lsn - 1)]
    Lapsed {
        /// The number of the first entry that it misses.
        first_lsn: u64,
        /// The number of the next entry that can be read.
        next_lsn: u64,
    },
    /// The disk failed, or the journal is damaged or has entries of a later version.
    #[error("{0}")]
    Unreadable(String),
}

impl From<ReadError> for FollowReadError {
    fn from(error: ReadError) -> FollowReadError {
        match error {
            ReadError::Lapsed { first_lsn, next_lsn } => FollowReadError::Lapsed { first_lsn, next_lsn },
            other => FollowReadError::Unreadable(other.to_string()),
        }
    }
}

impl Follower {
    pub(crate) fn new(
        journal: &Arc<JournalState<Directory>>,
        name: &str,
        position: Option<u64>,
    ) -> Result<Follower, FollowError> {
        follower::Follower::new(journal, name, position).map(Follower)
    }

    /// The number of the next entry to read.
    pub fn next_lsn(&self) -> u64 {
        self.0.next_lsn()
    }

    /// Appends the entries of the next durable frame to `entries`, and returns the run that wrote it; `None`
    /// if no further frame is durable.
    ///
    /// # Errors
    /// See [`FollowReadError`].
    pub fn read(&mut self, entries: &mut Vec<Entry>) -> Result<Option<u32>, FollowReadError> {
        Ok(self.0.read(entries)?)
    }

    /// Releases the entries up to `lsn`: the reader has them, or knows that it misses them. Stores that
    /// position.
    ///
    /// # Errors
    /// The disk's: nothing is released, and a later call may succeed. Or the ledger was closed.
    pub fn release(&self, lsn: u64) -> io::Result<()> {
        self.0.release(lsn)
    }
}
