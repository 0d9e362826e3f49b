//! The applier: reads durable entries from the journal and applies them to the sink, one transaction after
//! another.
//!
//! Guarantees: the sink has no entry that the journal could lose. It gets entries in the order of their
//! numbers; after any failure, again from where it has come to. A segment is released only when the sink has
//! all of its entries on stable storage.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sys::clock::{self, Nanos};
use sys::crash::point;
use thiserror::Error;

use crate::entry::Entry;
use crate::journal::JournalState;
use crate::journal::reader::{ReadError, Reader};
use crate::limits::{
    APPLY_PAUSE, BATCH_ENTRIES_MAX, CHECKPOINT_ENTRIES_MAX, CHECKPOINT_PAUSE_MAX, CLOSE_ATTEMPTS_MAX,
    RETRY_PAUSE_MAX, RETRY_PAUSE_MIN,
};
use crate::parker::ParkDecision;
use crate::sink::{Sink, SinkError};
use crate::status::{LedgerState, Stage};
use crate::storage::Storage;

/// The state of the applier thread.
pub(crate) struct Applier<S: Storage, K> {
    sink: K,
    journal: Arc<JournalState<S>>,
    reader: Reader<S>,
    shared: Arc<LedgerState>,
    /// Entries that were read and not applied, all of one run.
    batch: Vec<Entry>,
    epoch: u32,
    first_lsn: u64,
    /// A frame of the next run that was read already.
    next: Option<(u32, Vec<Entry>)>,
    /// Entries applied since the last complete checkpoint.
    uncheckpointed: u64,
    checkpointed_at: Nanos,
    retry_pause: Duration,
    /// The last entry of earlier runs: numbers are given when it is applied.
    recovered_to: u64,
}

/// Why a pass failed.
#[derive(Debug, Error)]
enum ApplyError {
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl ApplyError {
    fn is_fatal(&self) -> bool {
        matches!(
            self,
            ApplyError::Sink(SinkError::Fatal(_))
                | ApplyError::Read(ReadError::Damaged { .. } | ReadError::Malformed { .. })
        )
    }
}

impl<S: Storage, K: Sink> Applier<S, K> {
    /// An applier for `sink`, which has entries up to `applied`.
    pub(crate) fn new(
        sink: K,
        journal: Arc<JournalState<S>>,
        applied: u64,
        shared: Arc<LedgerState>,
    ) -> Self {
        let reader = Reader::new(Arc::clone(&journal), applied + 1);
        let (first_lsn, recovered_to) = (reader.next_lsn(), journal.appended());
        Self {
            sink,
            journal,
            reader,
            shared,
            batch: Vec::new(),
            epoch: 0,
            first_lsn,
            next: None,
            uncheckpointed: 1,
            checkpointed_at: clock::monotonic(),
            retry_pause: RETRY_PAUSE_MIN,
            recovered_to,
        }
    }

    /// Works until the ledger is closed, and then finishes.
    pub(crate) fn run(mut self) -> Result<(), String> {
        self.shared.applier.bind_current_thread();
        while !self.shared.has_reached(Stage::Applying) {
            match self.pass() {
                Ok(0) if self.uncheckpointed == 0 => self.sleep(),
                // A full batch: more entries are waiting.
                Ok(BATCH_ENTRIES_MAX..) => {}
                Ok(_) => self.shared.applier.pause(APPLY_PAUSE),
                Err(error) if error.is_fatal() => return self.stop_applying(&error),
                Err(_) => {
                    let pause = self.longer_pause();
                    self.shared.applier.pause(pause);
                }
            }
        }
        self.finish()
    }

    /// Applies what has become durable; returns the number of entries.
    fn pass(&mut self) -> Result<usize, ApplyError> {
        let outcome = self.collect().and_then(|()| self.apply());
        let outcome = outcome.and_then(|applied| self.number().map(|()| applied));
        let outcome = outcome.and_then(|applied| self.checkpoint_if_due().map(|()| applied));
        self.report(&outcome);
        outcome
    }

    fn report(&mut self, outcome: &Result<usize, ApplyError>) {
        match outcome {
            Ok(_) => {
                self.retry_pause = RETRY_PAUSE_MIN;
                self.shared.sink_works();
            }
            Err(error) => self.shared.sink_failed(&error.to_string()),
        }
    }

    /// A pass of the simulation, which schedules checkpoints itself and not by the machine's clock.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn step(&mut self) -> Result<(), String> {
        let outcome = self.collect().and_then(|()| self.apply());
        self.report(&outcome);
        outcome.map(drop).map_err(|error| error.to_string())
    }

    /// A checkpoint of the simulation.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn step_checkpoint(&mut self) -> Result<(), String> {
        self.checkpoint().map_err(|error| error.to_string())
    }

    /// Reads frames until the batch is full, or the next frame is of another run.
    fn collect(&mut self) -> Result<(), ApplyError> {
        while self.batch.len() < BATCH_ENTRIES_MAX {
            let known = self.batch.len();
            let epoch = match self.next.take() {
                Some((epoch, mut entries)) => {
                    self.batch.append(&mut entries);
                    epoch
                }
                None => match self.reader.read(&mut self.batch)? {
                    Some(epoch) => epoch,
                    None => break,
                },
            };
            if epoch != self.epoch && known > 0 {
                self.next = Some((epoch, self.batch.split_off(known)));
                break;
            }
            self.epoch = epoch;
        }
        Ok(())
    }

    fn apply(&mut self) -> Result<usize, ApplyError> {
        if self.batch.is_empty() {
            return Ok(0);
        }
        point("apply.before");
        self.sink.apply(self.epoch, self.first_lsn, &self.batch)?;
        point("apply.committed");
        let count = self.batch.len();
        let flows = self.batch.iter().filter(|entry| matches!(entry, Entry::Final(_))).count();
        self.batch.clear();
        self.first_lsn += count as u64;
        self.uncheckpointed += count as u64;
        self.shared.applied(self.first_lsn - 1, flows as u64);
        Ok(count)
    }

    /// Gives the numbers that were requested.
    fn number(&mut self) -> Result<(), ApplyError> {
        if !self.can_number() {
            return Ok(());
        }
        let Some(request) = self.shared.numbering.take() else { return Ok(()) };
        match self.sink.number(&request.names) {
            Ok(numbers) => (request.receive)(numbers),
            Err(error) => {
                self.shared.numbering.put_back(request);
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn can_number(&self) -> bool {
        self.first_lsn > self.recovered_to && self.shared.numbering.is_waiting()
    }

    fn checkpoint_if_due(&mut self) -> Result<(), ApplyError> {
        let now = clock::monotonic();
        let due = self.uncheckpointed >= CHECKPOINT_ENTRIES_MAX
            || (self.uncheckpointed > 0 && now.since(self.checkpointed_at) >= CHECKPOINT_PAUSE_MAX);
        if due { self.checkpoint() } else { Ok(()) }
    }

    fn checkpoint(&mut self) -> Result<(), ApplyError> {
        let stable = self.sink.checkpoint()?;
        self.journal.release(stable);
        self.checkpointed_at = clock::monotonic();
        // Not zero while a reader blocks a part of the checkpoint, so that the next second tries again.
        self.uncheckpointed = u64::from(stable + 1 < self.first_lsn);
        Ok(())
    }

    fn sleep(&mut self) {
        let has_slept = self.shared.applier.sleep(|| {
            let has_work = self.journal.durable() >= self.first_lsn || self.can_number();
            if has_work || self.shared.has_reached(Stage::Applying) {
                return ParkDecision::None;
            }
            if self.journal.appended() < self.first_lsn {
                self.shared.note_idle();
            }
            ParkDecision::UntilWoken
        });
        if has_slept {
            // The first entry after an idle time waits for its checkpoint as long as any other.
            self.checkpointed_at = clock::monotonic();
        }
    }

    /// Applies everything durable and brings it to stable storage. What fails stays in the journal, and the
    /// next start applies it.
    fn finish(mut self) -> Result<(), String> {
        let mut attempts = 1;
        // The caller of close waits: however long it has failed, the last attempts come quickly.
        self.retry_pause = RETRY_PAUSE_MIN;
        loop {
            match self.finish_once() {
                Ok(()) => return Ok(()),
                Err(error) if error.is_fatal() || attempts == CLOSE_ATTEMPTS_MAX => {
                    self.shared.sink_failed(&error.to_string());
                    return Err(error.to_string());
                }
                Err(_) => thread::sleep(self.longer_pause()),
            }
            attempts += 1;
        }
    }

    fn finish_once(&mut self) -> Result<(), ApplyError> {
        while !self.shared.has_reached(Stage::Aborting) && self.pass()? > 0 {}
        Ok(self.sink.seal()?)
    }

    /// The sink must not be used again: entries stay in the journal.
    fn stop_applying(self, error: &ApplyError) -> Result<(), String> {
        self.shared.sink_failed(&error.to_string());
        while !self.shared.has_reached(Stage::Applying) {
            self.shared.applier.sleep(|| match self.shared.has_reached(Stage::Applying) {
                true => ParkDecision::None,
                false => ParkDecision::UntilWoken,
            });
        }
        Err(error.to_string())
    }

    fn longer_pause(&mut self) -> Duration {
        let longer = (self.retry_pause * 2).min(RETRY_PAUSE_MAX);
        std::mem::replace(&mut self.retry_pause, longer)
    }
}
