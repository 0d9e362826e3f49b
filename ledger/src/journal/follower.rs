//! A further reader of the journal: it follows at its own pace, and releases for itself.
//!
//! Guarantees: it gets each durable entry behind its position once and in order, or learns which ones it
//! missed. A position counts once it is stored, so that a start never finds a position older than the entries
//! that were removed because of it.

use std::io;
use std::sync::Arc;

use super::positions;
use super::reader::{ReadError, Reader};
use super::shared::{JournalState, lock};
use crate::entry::Entry;
use crate::readers::FollowError;
use crate::storage::Storage;

/// A handle of a further reader; one at a time for each name. Dropping it does not end the reader's hold.
pub(crate) struct Follower<S: Storage> {
    shared: Arc<JournalState<S>>,
    reader: Reader<S>,
    /// Its index in the registry.
    index: usize,
}

impl<S: Storage> Follower<S> {
    /// Follows the journal by the name of a registered reader that has all entries up to `position`; `None`
    /// stands for the stored position.
    ///
    /// # Errors
    /// The name is unknown or in use, the position is not of this journal, or it cannot be stored.
    pub(crate) fn new(
        shared: &Arc<JournalState<S>>,
        name: &str,
        position: Option<u64>,
    ) -> Result<Follower<S>, FollowError> {
        let (index, position) = {
            // Nothing is removed meanwhile.
            let segments = lock(&shared.segments);
            shared.readers.follow(name, position, (segments.first_lsn(), shared.durable()))?
        };
        let reader = Reader::at(Arc::clone(shared), position + 1);
        let follower = Follower { shared: Arc::clone(shared), reader, index };
        follower.shared.store_position(index, position)?;
        Ok(follower)
    }

    /// The number of the next entry to return.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.reader.next_lsn()
    }

    /// Appends the entries of the next durable frame to `out`, and returns the frame's epoch; `None` if no
    /// further frame is durable.
    ///
    /// # Errors
    /// The disk's, or a durable frame is missing. [`ReadError::Lapsed`] is returned once for each lapse; then
    /// the next call goes on behind it.
    pub(crate) fn read(&mut self, out: &mut Vec<Entry>) -> Result<Option<u32>, ReadError> {
        self.check_hold()?;
        let outcome = self.reader.read(out);
        if outcome.is_err() {
            // The segment may have been reused while it was read.
            self.check_hold()?;
        }
        outcome
    }

    /// Behind a damaged entry: the next one that can be read, or the first one that is not durable.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn next_intact(&mut self) -> io::Result<u64> {
        self.reader.next_intact()
    }

    fn check_hold(&mut self) -> Result<(), ReadError> {
        let first_lsn = self.reader.next_lsn();
        match self.shared.readers.lapsed_beyond(self.index, first_lsn) {
            Some(next_lsn) => {
                self.reader = Reader::at(Arc::clone(&self.shared), next_lsn);
                Err(ReadError::Lapsed { first_lsn, next_lsn })
            }
            None => Ok(()),
        }
    }

    /// Releases the entries up to `lsn`, of which it has read all, or has learned that it misses them.
    ///
    /// # Errors
    /// The position cannot be stored: nothing is released, and a later call may succeed. The ledger was
    /// closed.
    pub(crate) fn release(&self, lsn: u64) -> io::Result<()> {
        self.shared.store_position(self.index, lsn.min(self.next_lsn() - 1))
    }
}

impl<S: Storage> Drop for Follower<S> {
    fn drop(&mut self) {
        self.shared.readers.unfollow(self.index);
    }
}

impl<S: Storage> JournalState<S> {
    /// Stores that reader `index` has all entries up to `lsn`, and releases them.
    fn store_position(&self, index: usize, lsn: u64) -> io::Result<()> {
        let is_ended = lock(&self.storing);
        if *is_ended {
            return Err(io::Error::other("the ledger was closed: open it, and follow it anew"));
        }
        // Not without need: a reader can follow on a disk that is full.
        if let Some(positions) = self.readers.positions_to_store(index, lsn) {
            positions::store(&self.storage, self.settings.gateway, &positions)?;
            self.readers.note_stored(&positions);
        }
        self.readers.release(index, lsn);
        Ok(())
    }

    /// Lets no further reader store a position any more: the journal is about to be another process's.
    pub(crate) fn end_readers(&self) {
        *lock(&self.storing) = true;
    }
}

#[cfg(test)]
mod tests;
