//! Edges: when a quarter-hour begins, the committer journals all that was counted before, and then an entry
//! that says so.
//!
//! Guarantees: behind the [`Entry::Edge`] of a moment no entry of the run has an earlier moment. What a flow
//! was counted before the edge is in front of it, and belongs to the quarter-hour before; so does what it was
//! counted until its slot was visited, some milliseconds later.
//!
//! ```text
//!   a quarter-hour begins --> ended flows that wait, and each slot that was used by then --> edge
//! ```

use std::time::Duration;

use sys::clock::WallNanos;

use super::sweep::Sweep;
use crate::database::month::QUARTER_NS;
use crate::entry::Entry;
use crate::flow_writer::FlowDrain;
use crate::journal::frame::FrameBuffer;
use crate::limits::ENTRY_BYTES_MAX;
use crate::live_table::{CommitIntent, InterimMoment};
use crate::status::LedgerState;

/// The edges of a run.
pub(super) struct Edges {
    epoch: u32,
    /// The moment of the last edge; at first the beginning of the quarter-hour in which the run began.
    last: WallNanos,
    /// When the next round begins.
    due: WallNanos,
    round: Option<Round>,
}

/// The visit of all slots for the edge of a moment.
struct Round {
    at: WallNanos,
    visits: Vec<Visit>,
}

/// What remains to be visited of a drain.
#[derive(Clone, Copy)]
struct Visit {
    /// Ended flows that were in the ring when the round began; the ring is in the order of their ends.
    waiting: usize,
    /// Slots from `next` to before `used`.
    next: u32,
    used: u32,
}

impl Edges {
    /// The edges of run `epoch`, which begins now.
    pub(super) fn new(epoch: u32, now: WallNanos) -> Edges {
        Edges { epoch, last: beginning(now), due: next(now), round: None }
    }

    /// No round begins by the clock: a simulation begins them itself.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn without_clock(epoch: u32) -> Edges {
        Edges { epoch, last: WallNanos(0), due: WallNanos(u64::MAX), round: None }
    }

    /// How long until the next edge.
    pub(super) fn pause(&self, now: WallNanos) -> Duration {
        Duration::from_nanos(self.due.0.saturating_sub(now.0))
    }

    /// Begins a round if a quarter-hour has begun since the last one. After a pause over several there is one
    /// edge, the last.
    pub(super) fn begin_if_due(&mut self, now: WallNanos, drains: &[FlowDrain]) {
        if self.round.is_none() && now >= self.due {
            self.due = next(now);
            self.begin(beginning(now), drains);
        }
    }

    /// Begins the round for the edge at this moment, which is not later than now.
    pub(super) fn begin(&mut self, at: WallNanos, drains: &[FlowDrain]) {
        let visit = |drain: &FlowDrain| Visit { waiting: drain.waiting(), next: 0, used: drain.used() };
        self.round = Some(Round { at, visits: drains.iter().map(visit).collect() });
    }

    /// Whether a round is under way.
    pub(super) fn is_running(&self) -> bool {
        self.round.is_some()
    }

    /// The moment before which no further entry may be.
    pub(super) fn earliest(&self) -> WallNanos {
        self.last
    }

    /// The moment of an interim of `slot` in a drain's region.
    pub(super) fn moment(&self, drain: usize, slot: u32, now: WallNanos) -> InterimMoment {
        let now = now.max(self.last);
        let unvisited = |round: &&Round| slot >= round.visits[drain].next;
        InterimMoment { now, edge: self.round.as_ref().filter(unvisited).map(|round| round.at) }
    }

    /// Notes that so many ended flows were taken from a drain.
    pub(super) fn note_taken(&mut self, drain: usize, count: usize) {
        if let Some(round) = &mut self.round {
            let waiting = &mut round.visits[drain].waiting;
            *waiting = waiting.saturating_sub(count);
        }
    }

    /// Visits slots until the frame is full; behind the last one appends the edge, and ends the round.
    pub(super) fn visit(
        &mut self,
        drains: &[FlowDrain],
        sweeps: &mut [Sweep],
        frame: &mut FrameBuffer,
        bytes_max: usize,
        shared: &LedgerState,
    ) {
        let Some(round) = &mut self.round else { return };
        let is_full = |frame: &FrameBuffer| bytes_max.saturating_sub(frame.len()) < ENTRY_BYTES_MAX;
        let moment = InterimMoment { now: round.at, edge: Some(round.at) };
        for ((drain, sweep), visit) in drains.iter().zip(sweeps).zip(&mut round.visits) {
            while visit.next < visit.used {
                if is_full(frame) {
                    return;
                }
                if sweep.has_moved(drain.region(), visit.next) {
                    sweep.journal(drain.region(), visit.next, CommitIntent::Interim(moment), frame, shared);
                }
                visit.next += 1;
            }
        }
        if is_full(frame) || round.visits.iter().any(|visit| visit.waiting > 0) {
            return;
        }
        frame.push(&Entry::Edge { epoch: self.epoch, at: round.at });
        self.last = round.at;
        self.round = None;
    }
}

/// The beginning of the quarter-hour behind this moment.
fn next(now: WallNanos) -> WallNanos {
    WallNanos(beginning(now).0.saturating_add(QUARTER_NS.cast_unsigned()))
}

/// The beginning of the quarter-hour that has this moment.
fn beginning(now: WallNanos) -> WallNanos {
    WallNanos(now.0 - now.0 % QUARTER_NS.cast_unsigned())
}
