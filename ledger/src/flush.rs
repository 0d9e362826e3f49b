//! The flusher: syncs what the committer has written, and prepares the next segment.
//!
//! Guarantees: with [`Durability::Delayed`] a written entry is durable after [`SYNC_PAUSE`], the duration of
//! a sync, and that of one step of a new segment. While nothing is written, the flusher sleeps.
//! Not handled here: continuing after a failed sync (`commit`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sys::clock::{self, Nanos};

use crate::Durability;
use crate::journal::JournalState;
use crate::limits::SYNC_PAUSE;
use crate::parker::ParkDecision;
use crate::status::{LedgerState, Stage};
use crate::storage::Storage;

/// The state of the flusher thread.
pub(crate) struct Flusher<S: Storage> {
    pub(crate) journal: Arc<JournalState<S>>,
    pub(crate) durability: Durability,
    pub(crate) shared: Arc<LedgerState>,
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
                // The error is reported. The next sync follows when the committer has rewritten all of it.
                let _ = self.sync();
            }
            // One step between two syncs: a journal that is written without pause needs segments most.
            if self.journal.lacks_spare() && prepare_at <= now {
                prepare_at = self.prepare(now);
            } else if let Some(wait) = sync_in {
                self.shared.flusher.pause(wait);
            } else {
                self.sleep(prepare_at.since(now));
            }
        }
    }

    /// Whether something is left to sync that only this thread syncs, and the files have not failed.
    pub(crate) fn must_sync(&self) -> bool {
        self.durability == Durability::Delayed
            && self.journal.durable() < self.journal.appended()
            && self.journal.is_whole()
    }

    /// Syncs what was announced, and publishes the outcome.
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

    /// Does one step of preparing the next segment; returns when to continue.
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

    /// Sleeps until a sync is needed, or for `pause` if a segment is to be prepared then.
    fn sleep(&self, pause: Duration) {
        self.shared.flusher.sleep(|| match self.journal.lacks_spare() {
            _ if self.must_sync() || self.shared.has_reached(Stage::Applying) => ParkDecision::None,
            true => ParkDecision::For(pause),
            false => ParkDecision::UntilWoken,
        });
    }
}

/// The pause after a failed preparation. On a full disk each attempt may take space that others need.
const PREPARE_RETRY: Duration = Duration::from_secs(5);
