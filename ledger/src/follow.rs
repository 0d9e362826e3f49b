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
    /// Entries that the journal should have are damaged or missing. Each read returns this error, for the
    /// hole has to be accepted: by another handle that follows from behind it.
    #[error(
        "{cause}. The reader cannot have entries {first_lsn} to {0}: take them from the database, and follow \
         from position {0}",
        next_lsn - 1
    )]
    Damaged {
        /// The number of the first entry that cannot be read.
        first_lsn: u64,
        /// The number of the next entry behind it that can be read, or that will be written.
        next_lsn: u64,
        /// What is damaged.
        cause: String,
    },
    /// The disk failed, or the journal has entries of a later version.
    #[error("{0}")]
    Unreadable(String),
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
        self.0.read(entries).map_err(|error| self.explain(error))
    }

    fn explain(&mut self, error: ReadError) -> FollowReadError {
        let cause = error.to_string();
        match error {
            ReadError::Lapsed { first_lsn, next_lsn } => FollowReadError::Lapsed { first_lsn, next_lsn },
            ReadError::Damaged { lsn: first_lsn, .. } => match self.0.next_intact() {
                Ok(next_lsn) => FollowReadError::Damaged { first_lsn, next_lsn, cause },
                Err(error) => FollowReadError::Unreadable(format!("{cause}; {error}")),
            },
            ReadError::Io(_) | ReadError::Malformed { .. } => FollowReadError::Unreadable(cause),
        }
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
