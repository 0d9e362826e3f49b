//! The committer: writes closed flows, and interims of open ones, from the live table to the journal.
//!
//! Guarantees: a slot is freed only when its flow is journaled (with [`Durability::Sync`]: durable), and
//! before the entry is announced; so an applied entry has no slot any more. After a disk failure nothing is
//! taken from the slots until everything taken before is written.
//!
//! ```text
//!   hints --take--> frame --append--> journal --(sync)--> free slots --> announce
//! ```

mod barrier;
mod edges;
mod round;
mod sweep;

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sys::clock::{self, Nanos, WallNanos};
use sys::crash::point;

use crate::Durability;
use crate::entry::Entry;
use crate::flow_writer::FlowDrain;
use crate::journal::frame::FrameBuffer;
use crate::journal::{JournalError, Writer};
use crate::limits::{
    CLOSE_ATTEMPTS_MAX, COMMIT_PAUSE, ENTRY_BYTES_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN, UNDURABLE_BYTES_MAX,
};
use crate::live_table::{CommitIntent, LiveTable, SlotContents};
use crate::parker::ParkDecision;
use crate::status::{LedgerState, Stage};
use crate::storage::Storage;
use barrier::Barrier;
use edges::Edges;
use sweep::{SWEEP_PAUSE_MAX, Sweep};

/// The state of the committer thread.
pub(crate) struct Committer<S: Storage> {
    journal: Writer<S>,
    table: LiveTable,
    drains: Vec<FlowDrain>,
    durability: Durability,
    shared: Arc<LedgerState>,
    /// Slots whose flows are in frames that are not written, or with `Sync` not durable: drain, slot,
    /// generation.
    taken: Vec<(usize, u32, u64)>,
    sweeps: Vec<Sweep>,
    edges: Edges,
    barrier: Barrier,
    /// The drain to empty first: another one each pass, so that none starves when frames are full.
    first_drain: usize,
    /// Whether a frame of its own marks all of the journal as durable.
    is_marked: bool,
    /// Whether the end of the run is in the journal.
    is_ended: bool,
}

/// What a closing committer could not journal: it is in the live table.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// Ended flows that only the live table has.
    pub(crate) flows: u64,
    /// Ended flows for which the table has no free slot: they were written, and no sync succeeded.
    pub(crate) without_slot: u64,
    pub(crate) cause: String,
}

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PassOutcome {
    /// Entries appended.
    pub(crate) entries: u32,
    /// Whether so much waits that the next pass should follow at once.
    pub(crate) is_full: bool,
    /// Whether nothing was taken, because the disk is too far behind.
    pub(crate) is_throttled: bool,
}

impl<S: Storage> Committer<S> {
    pub(crate) fn new(
        journal: Writer<S>,
        table: LiveTable,
        drains: Vec<FlowDrain>,
        durability: Durability,
        shared: Arc<LedgerState>,
    ) -> Self {
        let sweeps = drains.iter().map(|_| Sweep::new()).collect();
        let edges = Edges::new(table.epoch(), clock::steady_wall());
        Self {
            journal,
            table,
            drains,
            durability,
            shared,
            taken: Vec::new(),
            sweeps,
            edges,
            barrier: Barrier::default(),
            first_drain: 0,
            is_marked: true,
            is_ended: false,
        }
    }

    /// Sets the beginning of its time, for a simulation with a clock of its own.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn begin_at(&mut self, now: Nanos) {
        self.sweeps.iter_mut().for_each(|sweep| sweep.swept_to = now);
        self.edges = Edges::without_clock(self.table.epoch());
    }

    /// Begins the round for the edge at this moment, for a simulation, which does not wait for quarter-hours;
    /// returns whether none was under way.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn begin_edge(&mut self, at: WallNanos) -> bool {
        let may_begin = !self.is_ended && !self.edges.is_running();
        if may_begin {
            self.edges.begin(at, WallNanos(u64::MAX), &self.drains);
        }
        may_begin
    }

    /// Works until the ledger is closed, and then finishes.
    pub(crate) fn run(mut self) -> Result<LiveTable, Unfinished> {
        self.shared.committer.bind_current_thread();
        let mut retry_pause = RETRY_PAUSE_MIN;
        while !self.shared.has_reached(Stage::Committing) {
            match self.step(clock::monotonic()) {
                Ok(pass) => {
                    retry_pause = RETRY_PAUSE_MIN;
                    self.pause_after(pass);
                }
                Err(_) => {
                    self.shared.committer.pause(retry_pause);
                    retry_pause = (retry_pause * 2).min(RETRY_PAUSE_MAX);
                }
            }
        }
        self.finish_with_retries()
    }

    /// Runs a pass and publishes its outcome.
    ///
    /// # Errors
    /// As [`Committer::pass`].
    pub(crate) fn step(&mut self, now: Nanos) -> Result<PassOutcome, JournalError> {
        let outcome = self.pass(now);
        match &outcome {
            Ok(pass) => self.publish(*pass, now),
            Err(error) => {
                if matches!(error, JournalError::Full { .. }) && self.shared.is_sink_failing() {
                    // What is kept for further readers may be the space that the database lacks.
                    self.journal.shared().give_up_kept();
                }
                self.shared.journal_failed(&error.to_string());
            }
        }
        outcome
    }

    /// Publishes the progress to the status, and wakes the threads that continue from it.
    fn publish(&mut self, pass: PassOutcome, began: Nanos) {
        self.barrier.answer(self.journal.proved().max(self.shared.applied_lsn()));
        let journal = self.journal.shared();
        self.shared.journal_works();
        self.shared.journaled(journal.appended(), journal.durable(), self.waiting());
        if pass.entries > 0 {
            self.shared.note_active();
            self.shared.mark(journal.appended(), began);
        }
        self.shared.flusher.wake();
        if self.durability == Durability::Sync {
            self.shared.applier.wake();
        }
    }

    /// Sleeps until the next pass is needed.
    fn pause_after(&mut self, pass: PassOutcome) {
        match (pass.entries, self.durability) {
            _ if pass.is_full => {}
            _ if pass.is_throttled => self.shared.committer.pause(THROTTLE_PAUSE),
            (1.., Durability::Delayed) => self.shared.committer.pause(COMMIT_PAUSE),
            // The sync was the pause in which others gathered.
            (1.., Durability::Sync) => {}
            (0, _) => self.sleep(),
        }
    }

    fn sleep(&self) {
        self.shared.committer.sleep(|| match self.pause() {
            _ if self.has_work() || self.shared.has_reached(Stage::Committing) => ParkDecision::None,
            pause => ParkDecision::For(pause),
        });
    }

    fn finish_with_retries(mut self) -> Result<LiveTable, Unfinished> {
        let mut pause = RETRY_PAUSE_MIN;
        for attempt in 1.. {
            match self.finish() {
                Ok(()) => break,
                Err(error) if attempt == CLOSE_ATTEMPTS_MAX => {
                    let cause = error.to_string();
                    self.shared.journal_failed(&cause);
                    return Err(self.restore_to_table(cause));
                }
                Err(_) => thread::sleep(pause),
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
        self.publish(PassOutcome::default(), clock::monotonic());
        Ok(self.table)
    }

    /// Stores what was taken from the live table and is not durable in it again. A disk that failed its syncs
    /// may lose such entries at an unmount, and the table outlives the process. Returns the counts.
    pub(crate) fn restore_to_table(&mut self, cause: String) -> Unfinished {
        let mut closing = HashSet::new();
        let mut free = Vec::new();
        for region in self.table.regions() {
            for slot in 0..region.slots() {
                match region.slot(slot).read() {
                    SlotContents::Closing(record) => drop(closing.insert(record.identity().id())),
                    SlotContents::Nothing => free.push((region.clone(), slot)),
                    _ => {}
                }
            }
        }
        let (mut flows, mut without_slot) = (closing.len() as u64, 0);
        for record in self.journal.undurable_finals() {
            if closing.contains(&record.identity().id()) {
                continue;
            }
            match free.pop() {
                Some((region, slot)) => region.slot(slot).store_closed(&record),
                None => without_slot += 1,
            }
            flows += 1;
        }
        // The table holds these entries: the journal may end before them.
        self.table.note_appended(0);
        Unfinished { flows: flows - without_slot, without_slot, cause }
    }

    /// Takes waiting slots and journals them.
    ///
    /// # Errors
    /// The journal's: what was taken is kept, and the next pass tries again.
    pub(crate) fn pass(&mut self, now: Nanos) -> Result<PassOutcome, JournalError> {
        self.note_alive();
        self.table.note_applied(self.shared.applied_lsn());
        if !self.journal.is_whole() {
            self.journal.fail_over()?;
        }
        self.free_and_announce()?;
        if self.journal.undurable_bytes() >= UNDURABLE_BYTES_MAX {
            return Ok(PassOutcome { is_throttled: true, ..PassOutcome::default() });
        }
        let mut frame = self.journal.buffer();
        // Once more: calls of the disk may have taken seconds, and the frame may get an edge of this moment.
        let wall = self.note_alive();
        let is_full = self.fill(&mut frame, now, wall);
        let entries = frame.count();
        if entries > 0 {
            self.is_marked = false;
            self.journal.append(frame)?;
            self.free_and_announce()?;
        } else {
            self.mark(frame)?;
        }
        Ok(PassOutcome { entries, is_full, is_throttled: false })
    }

    /// Stores the present moment, and returns it. Flows end then if the process is killed, and not before the
    /// last edge.
    fn note_alive(&self) -> WallNanos {
        let now = clock::steady_wall();
        self.table.note_alive(now.max(self.edges.earliest()));
        now
    }

    /// Whether no hint waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.drains.iter().all(FlowDrain::is_empty)
    }

    /// Whether a pass is due at once.
    fn has_work(&self) -> bool {
        let is_requested = self.shared.barriers.is_waiting() && !self.barrier.is_running();
        is_requested || self.shared.appends.is_waiting() || !self.is_idle()
    }

    /// Whether a flow is open, so that sweeps are due.
    pub(crate) fn has_live(&self) -> bool {
        self.drains.iter().any(FlowDrain::has_live)
    }

    /// Closed flows that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.taken.len() + self.drains.iter().map(FlowDrain::waiting).sum::<usize>()
    }

    /// Journals every ended flow. Call it when no reactor thread runs.
    ///
    /// # Errors
    /// The journal's; call it again.
    pub(crate) fn finish(&mut self) -> Result<(), JournalError> {
        loop {
            let pass = self.pass(clock::monotonic())?;
            if pass.is_throttled {
                self.sync()?;
            } else if pass.entries == 0 && self.is_idle() {
                self.end_run()?;
                return self.sync();
            }
        }
    }

    /// Writes the end of the run to the journal, unless the table has flows for the next start.
    fn end_run(&mut self) -> Result<(), JournalError> {
        if self.is_ended || !self.table.is_empty() {
            return Ok(());
        }
        // Once only, also if the disk fails: an appended entry is kept and rewritten.
        self.is_ended = true;
        let mut frame = self.journal.buffer();
        let at = clock::steady_wall().max(self.edges.earliest());
        frame.push(&Entry::RunEnded { epoch: self.table.epoch(), at });
        self.journal.append(frame)?;
        self.free_and_announce()
    }

    /// Makes everything appended durable.
    ///
    /// # Errors
    /// The disk's; the next pass continues in another file.
    pub(crate) fn sync(&mut self) -> Result<(), JournalError> {
        Ok(self.journal.shared().sync_and_announce()?)
    }

    /// Frees the slots of what has been written, and then announces the entries.
    fn free_and_announce(&mut self) -> Result<(), JournalError> {
        let last_lsn = self.journal.next_lsn() - 1;
        let journal = Arc::clone(self.journal.shared());
        let announced_lsn = match self.durability {
            Durability::Delayed => journal.appended(),
            Durability::Sync => journal.durable(),
        };
        if self.taken.is_empty() && announced_lsn == last_lsn {
            return Ok(());
        }
        self.table.note_appended(last_lsn);
        match self.durability {
            Durability::Delayed => {
                self.free_taken();
                journal.announce(last_lsn);
            }
            Durability::Sync => {
                // Announced entries are read only once they are durable.
                journal.announce(last_lsn);
                let synced = journal.sync()?;
                self.free_taken();
                journal.announce_durable(synced);
            }
        }
        Ok(())
    }

    fn free_taken(&mut self) {
        point("commit.before-free");
        for (drain, slot, generation) in self.taken.drain(..) {
            self.drains[drain].region().slot(slot).free(generation);
        }
        point("commit.freed");
    }

    /// Fills a frame; returns whether more may wait.
    fn fill(&mut self, frame: &mut FrameBuffer, moment: Nanos, now: WallNanos) -> bool {
        if !self.is_ended {
            self.edges.begin_if_due(now, &self.drains);
            let space = (&mut *frame, self.journal.frame_bytes_max(), self.journal.next_lsn());
            self.barrier.append(&self.shared.appends, space);
        }
        self.barrier.begin_if_requested(&self.shared.barriers, &self.drains);
        let bytes_max = self.journal.frame_bytes_max();
        let capacity = |frame: &FrameBuffer| bytes_max.saturating_sub(frame.len()) / ENTRY_BYTES_MAX;
        let count = self.drains.len();
        for index in (0..count).map(|offset| (self.first_drain + offset) % count) {
            let Self { drains, sweeps, edges, taken, shared, .. } = self;
            let (drain, sweep) = (&mut drains[index], &mut sweeps[index]);
            let ended = CommitIntent::Final { earliest: edges.earliest() };
            drain.take_closed(capacity(frame), |region, slot| {
                if let Some(generation) = sweep.journal(region, slot, ended, frame, shared) {
                    taken.push((index, slot, generation));
                }
            });
            drain.take_interims(capacity(frame), |region, slot| {
                let open = CommitIntent::Interim(edges.moment(index, slot, now));
                sweep.journal(region, slot, open, frame, shared);
            });
        }
        self.first_drain = (self.first_drain + 1) % count.max(1);
        let is_cut_short = match self.edges.is_running() {
            true => self.edges.visit(now, &self.drains, &mut self.sweeps, frame, bytes_max, &self.shared),
            false => {
                self.sweep(moment, now, frame, bytes_max);
                false
            }
        };
        let next_lsn = self.journal.next_lsn();
        let Self { barrier, drains, sweeps, edges, shared, .. } = self;
        let frame = (frame, bytes_max, next_lsn);
        let is_cut_short = barrier.visit((now, &*edges), drains, sweeps, frame, shared) || is_cut_short;
        is_cut_short || self.drains.iter().map(FlowDrain::waiting).sum::<usize>() >= WAITING_MANY
    }

    /// Checks a part of each thread's slots, so that all are checked within a round of [`Sweep`].
    fn sweep(&mut self, moment: Nanos, now: WallNanos, frame: &mut FrameBuffer, bytes_max: usize) {
        for (index, (drain, sweep)) in self.drains.iter().zip(&mut self.sweeps).enumerate() {
            let (region, used) = (drain.region(), drain.used());
            for _ in 0..sweep.due(used, moment) {
                if bytes_max.saturating_sub(frame.len()) < ENTRY_BYTES_MAX {
                    return;
                }
                let slot = sweep.advance(used, moment);
                if sweep.has_moved(region, slot) {
                    let open = CommitIntent::Interim(self.edges.moment(index, slot, now));
                    sweep.journal(region, slot, open, frame, &self.shared);
                }
            }
        }
    }

    /// Writes a frame without entries once everything is durable. It proves that of the last frame with
    /// entries; without it, that frame could not be told from a torn one if it were damaged.
    fn mark(&mut self, frame: FrameBuffer) -> Result<(), JournalError> {
        let journal = self.journal.shared();
        if self.is_marked || journal.durable() < journal.appended() {
            return Ok(());
        }
        self.journal.append(frame)?;
        self.is_marked = true;
        Ok(())
    }

    /// How long until a pass is due without any hint: for a sweep, an edge or a barrier.
    pub(crate) fn pause(&self) -> Duration {
        let pause = self.edges.pause(clock::steady_wall()).min(self.barrier.pause());
        if self.has_live() || !self.is_marked { pause.min(SWEEP_PAUSE_MAX) } else { pause }
    }
}

/// So many waiting flows are worth a pass without the pause in which others gather.
const WAITING_MANY: usize = 256;

/// How often a throttled committer checks whether the disk has caught up.
const THROTTLE_PAUSE: Duration = Duration::from_millis(1);
