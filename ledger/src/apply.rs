//! The ledger thread: it empties the rings into one transaction after another.
//!
//! Promises: each accepted record reaches the sink once and keeps its number through every retry; while
//! the sink fails, at most one batch waits here and the rest in the rings. Leaves to others: what a batch
//! does (the sink).
//!
//! ```text
//!   all rings --collect--> batch --apply--> sink        one turn; while there is traffic, a nap, then
//!                            ^        |                 the next: what gathered meanwhile is its batch
//!                            '-retry--'
//! ```

use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sys::clock::{self, Nanos};

use crate::inlet::Outlet;
use crate::limits::{
    BATCH_RECORDS_MAX, CHECKPOINT_PAUSE_MAX, CHECKPOINT_RECORDS_MAX, CLOSE_ATTEMPTS_MAX, NAP,
    NAP_RECORDS_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN,
};
use crate::record::Record;
use crate::sink::{Sink, SinkError};
use crate::status::Shared;
use crate::{LedgerError, Summary};

/// The state of the ledger thread.
pub(crate) struct Applier<S> {
    sink: S,
    outlets: Vec<Outlet>,
    shared: Arc<Shared>,
    /// Taken from the rings and not applied. 0 <= len <= BATCH_RECORDS_MAX
    batch: Vec<Record>,
    /// The number of the batch's first record.
    first_lsn: u64,
    /// The outlet to empty first: each turn another, so that none starves when batches are full.
    turn_of: usize,
    /// Records applied since the last complete checkpoint.
    unchecked: u64,
    checked_at: Nanos,
    /// The pause before the next attempt, if this one fails.
    retry_pause: Duration,
}

/// What to do after a turn.
enum Next {
    /// There is much traffic: look again at once.
    Turn,
    Pause(Duration),
    /// Nothing waits for anything: sleep until a push.
    Sleep,
}

impl<S: Sink> Applier<S> {
    pub(crate) fn new(sink: S, outlets: Vec<Outlet>, shared: Arc<Shared>) -> Self {
        Self {
            sink,
            outlets,
            shared,
            batch: Vec::with_capacity(BATCH_RECORDS_MAX),
            first_lsn: 1,
            turn_of: 0,
            unchecked: 0,
            checked_at: clock::monotonic(),
            retry_pause: RETRY_PAUSE_MIN,
        }
    }

    /// Works until the ledger is closed, and then finishes.
    pub(crate) fn run(mut self) -> Result<Summary, LedgerError> {
        while !self.shared.is_closing() {
            match self.turn() {
                Ok(Next::Turn) => {}
                Ok(Next::Pause(pause)) => thread::park_timeout(pause),
                Ok(Next::Sleep) => self.sleep(),
                Err(SinkError::Passing(_)) => thread::park_timeout(self.longer_pause()),
                Err(error @ SinkError::Final(_)) => return self.wait_and_give_up(error),
            }
        }
        self.finish()
    }

    fn turn(&mut self) -> Result<Next, SinkError> {
        let started = clock::monotonic();
        self.collect();
        let moved = self.batch.len();
        let result = self.apply().and_then(|()| self.checkpoint_if_due(started));
        self.report(&result);
        result?;
        if moved < BATCH_RECORDS_MAX {
            self.shared.caught_up(started);
        }
        Ok(match moved {
            NAP_RECORDS_MAX.. => Next::Turn,
            0 if self.unchecked == 0 => Next::Sleep,
            _ => Next::Pause(NAP),
        })
    }

    fn collect(&mut self) {
        let count = self.outlets.len();
        for offset in 0..count {
            self.outlets[(self.turn_of + offset) % count].drain_into(&mut self.batch, BATCH_RECORDS_MAX);
        }
        self.turn_of = (self.turn_of + 1) % count.max(1);
    }

    fn apply(&mut self) -> Result<(), SinkError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.sink.apply(self.first_lsn, &self.batch)?;
        let count = self.batch.len() as u64;
        self.batch.clear();
        self.first_lsn += count;
        self.unchecked += count;
        self.shared.applied(count);
        Ok(())
    }

    fn checkpoint_if_due(&mut self, now: Nanos) -> Result<(), SinkError> {
        let due = self.unchecked >= CHECKPOINT_RECORDS_MAX
            || (self.unchecked > 0 && now.since(self.checked_at) >= CHECKPOINT_PAUSE_MAX);
        if due {
            let complete = self.sink.checkpoint()?;
            self.checked_at = clock::monotonic();
            // Kept from zero while a reader is in the way, so that the next second tries again.
            self.unchecked = if complete { 0 } else { 1 };
        }
        Ok(())
    }

    fn sleep(&mut self) {
        self.shared.parking.announce();
        if self.outlets.iter().all(Outlet::is_empty) && !self.shared.is_closing() {
            self.shared.caught_up(Nanos::NEVER);
            thread::park();
            self.shared.caught_up(clock::monotonic());
            // The first record after a rest waits for its checkpoint as long as every other.
            self.checked_at = clock::monotonic();
        }
        self.shared.parking.retract();
    }

    /// Everything that was accepted goes to the sink and to stable storage, or the number of those that
    /// could not be written is told.
    fn finish(mut self) -> Result<Summary, LedgerError> {
        self.shut();
        for _ in 1..CLOSE_ATTEMPTS_MAX {
            match self.finish_once() {
                Ok(summary) => return Ok(summary),
                Err(error @ SinkError::Final(_)) => return Err(self.unwritten(error)),
                Err(SinkError::Passing(_)) => thread::sleep(self.longer_pause()),
            }
        }
        self.finish_once().map_err(|error| self.unwritten(error))
    }

    fn finish_once(&mut self) -> Result<Summary, SinkError> {
        let result = self.empty().and_then(|()| self.sink.seal());
        self.report(&result);
        result?;
        self.shared.caught_up(Nanos::NEVER);
        Ok(Summary { records: self.shared.records(), batches: self.shared.batches() })
    }

    fn empty(&mut self) -> Result<(), SinkError> {
        loop {
            self.collect();
            if self.batch.is_empty() {
                return Ok(());
            }
            self.apply()?;
        }
    }

    fn shut(&self) {
        for outlet in &self.outlets {
            while !outlet.shut() {
                thread::yield_now();
            }
        }
    }

    /// The sink must not be touched again: what waits stays where it is, and who pushes is refused once
    /// the ring is full.
    fn wait_and_give_up(self, error: SinkError) -> Result<Summary, LedgerError> {
        while !self.shared.is_closing() {
            thread::park();
        }
        self.shut();
        Err(self.unwritten(error))
    }

    fn report<T>(&mut self, result: &Result<T, SinkError>) {
        match result {
            Ok(_) => {
                self.retry_pause = RETRY_PAUSE_MIN;
                self.shared.recovered();
            }
            Err(error) => self.shared.failed(error.to_string(), self.waiting()),
        }
    }

    fn unwritten(&self, error: SinkError) -> LedgerError {
        LedgerError::Unwritten { records: self.waiting(), cause: error.to_string() }
    }

    fn waiting(&self) -> u64 {
        (self.batch.len() + self.outlets.iter().map(Outlet::len).sum::<usize>()) as u64
    }

    fn longer_pause(&mut self) -> Duration {
        let longer = (self.retry_pause * 2).min(RETRY_PAUSE_MAX);
        mem::replace(&mut self.retry_pause, longer)
    }
}

#[cfg(test)]
mod tests;
