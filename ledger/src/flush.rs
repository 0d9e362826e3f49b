//! The flusher: it brings to stable storage what the committer has written, and has the next segment ready.
//!
//! Promises: with [`Durability::Delayed`] what is written is durable [`SYNC_PAUSE`] later, plus the time that
//! the disk takes; while nothing is written it sleeps. Leaves to others: going on after a failure (`commit`).

use std::sync::Arc;
use std::thread::{self, Thread};

use sys::clock::{self, Nanos};

use crate::Durability;
use crate::journal::Shared as Journal;
use crate::limits::{RETRY_PAUSE_MAX, SYNC_PAUSE};
use crate::status::{Shared, Stage};
use crate::storage::Storage;

/// See the file's header.
pub(crate) struct Flusher<S: Storage> {
    pub(crate) journal: Arc<Journal<S>>,
    pub(crate) durability: Durability,
    pub(crate) shared: Arc<Shared>,
    pub(crate) committer: Thread,
    pub(crate) applier: Thread,
}

impl<S: Storage> Flusher<S> {
    /// Works until the ledger is closed and the committer has finished.
    pub(crate) fn run(self) {
        let mut synced_at = Nanos(0);
        while !self.shared.has_reached(Stage::Applying) {
            if self.must_sync() {
                let wait = (synced_at + SYNC_PAUSE).since(clock::monotonic());
                if !wait.is_zero() {
                    thread::park_timeout(wait);
                    continue;
                }
                synced_at = clock::monotonic();
                self.sync();
            } else if self.journal.lacks_spare() {
                self.prepare();
            } else {
                self.sleep();
            }
        }
    }

    fn must_sync(&self) -> bool {
        self.durability == Durability::Delayed
            && self.journal.durable() < self.journal.appended()
            && !self.shared.has_sync_failed()
    }

    fn sync(&self) {
        match self.journal.sync() {
            Ok(lsn) => {
                self.journal.announce_durable(lsn);
                self.shared.wake_applier(&self.applier);
            }
            Err(error) => {
                self.shared.journal_failed(&format!("the journal cannot be synced: {error}"));
                self.shared.sync_failed();
                self.committer.unpark();
            }
        }
    }

    fn prepare(&self) {
        match self.journal.prepare() {
            Ok(()) => self.shared.spare_ready(),
            Err(error) => {
                self.shared.spare_failed(&error.to_string());
                thread::park_timeout(RETRY_PAUSE_MAX);
            }
        }
    }

    fn sleep(&self) {
        self.shared.flushing.announce();
        let nothing_waits = !self.must_sync() && !self.journal.lacks_spare();
        if nothing_waits && !self.shared.has_reached(Stage::Applying) {
            thread::park();
        }
        self.shared.flushing.retract();
    }
}
