//! The flusher: it brings to stable storage what the committer has written, and has the next segment ready.
//!
//! Promises: with [`Durability::Delayed`] what is written is durable [`SYNC_PAUSE`] later, plus the time that
//! the disk takes for it and for a part of a new segment; while nothing is written it sleeps. Leaves to
//! others: going on after a failure (`commit`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sys::clock::{self, Nanos};

use crate::Durability;
use crate::journal::Shared as Journal;
use crate::limits::SYNC_PAUSE;
use crate::parker::ParkDecision;
use crate::status::{Shared, Stage};
use crate::storage::Storage;

/// See the file's header.
pub(crate) struct Flusher<S: Storage> {
    pub(crate) journal: Arc<Journal<S>>,
    pub(crate) durability: Durability,
    pub(crate) shared: Arc<Shared>,
}

impl<S: Storage> Flusher<S> {
    /// Works until the ledger is closed and the committer has finished.
    pub(crate) fn run(self) {
        self.shared.flusher.bind_current_thread();
        let mut synced_at = Nanos(0);
        let mut prepare_at = Nanos(0);
        while !self.shared.has_reached(Stage::Applying) {
            let now = clock::monotonic();
            let sync_in = self.must_sync().then(|| (synced_at + SYNC_PAUSE).since(now));
            if sync_in.is_some_and(|wait| wait.is_zero()) {
                synced_at = now;
                // Told, and tried again when the committer has written all of it anew.
                let _ = self.sync();
            }
            // A part between any two syncs: a journal that is written all the time needs segments most.
            if self.journal.lacks_spare() && prepare_at <= now {
                prepare_at = self.prepare(now);
            } else if let Some(wait) = sync_in {
                self.shared.flusher.pause(wait);
            } else {
                self.sleep(prepare_at.since(now));
            }
        }
    }

    /// Whether there is something that only this thread brings to stable storage, and can.
    pub(crate) fn must_sync(&self) -> bool {
        self.durability == Durability::Delayed
            && self.journal.durable() < self.journal.appended()
            && self.journal.is_whole()
    }

    /// Brings what is announced to stable storage, and tells what that came to.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let outcome = self.journal.sync_and_announce();
        match &outcome {
            Ok(()) => self.shared.applier.wake(),
            Err(error) => {
                self.shared.journal_failed(&format!("the journal cannot be synced: {error}"));
                self.shared.committer.interrupt();
            }
        }
        outcome
    }

    /// Does a part of making the next segment; returns when to go on.
    fn prepare(&self, now: Nanos) -> Nanos {
        match self.journal.prepare() {
            Ok(is_done) => {
                if is_done {
                    self.shared.spare_ready();
                }
                now
            }
            Err(error) => {
                self.shared.spare_failed(&error.to_string());
                now + PREPARE_RETRY
            }
        }
    }

    /// Sleeps until something is to be synced, or for `pause` if a segment is to be made then.
    fn sleep(&self, pause: Duration) {
        self.shared.flusher.sleep(|| match self.journal.lacks_spare() {
            _ if self.must_sync() || self.shared.has_reached(Stage::Applying) => ParkDecision::None,
            true => ParkDecision::For(pause),
            false => ParkDecision::UntilWoken,
        });
    }
}

/// The pause after a segment could not be made. On a full disk each attempt may take what others need.
const PREPARE_RETRY: Duration = Duration::from_secs(5);
