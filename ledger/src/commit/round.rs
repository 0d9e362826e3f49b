//! A round: visits each slot that is in use when it begins, and journals what was counted by then.
//!
//! Guarantees: when a round is complete, the frames up to then have all that was counted before it began: of
//! each open flow its counts, of each flow that had ended its final. A damaged slot adds nothing.
//!
//! ```text
//!   each slot that was used by then
//!     open:  interim, if it has moved since it was journaled
//!     ended: its final, which comes by the ring
//! ```

use super::sweep::Sweep;
use crate::flow_writer::FlowDrain;
use crate::journal::frame::FrameBuffer;
use crate::limits::ENTRY_BYTES_MAX;
use crate::live_table::{CommitIntent, InterimMoment, Region};
use crate::status::LedgerState;

/// The visit of all slots.
pub(super) struct Round {
    visits: Vec<Visit>,
}

/// What remains to be visited of a drain.
struct Visit {
    /// Slots from `next` to before `used`.
    next: u32,
    used: u32,
    /// Visited slots whose flow had ended without a journaled final, and their generation.
    ended: Vec<(u32, u64)>,
}

/// How far a round has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RoundProgress {
    /// The frame is too full to go on.
    CutShort,
    /// Finals of flows that had ended are in no frame yet.
    AwaitsFinals,
    /// All is in frames.
    Complete,
}

/// Whether the frame has space for one more entry.
pub(super) fn has_space(frame: &FrameBuffer, bytes_max: usize) -> bool {
    bytes_max.saturating_sub(frame.len()) >= ENTRY_BYTES_MAX
}

impl Round {
    /// A round that begins now.
    pub(super) fn new(drains: &[FlowDrain]) -> Round {
        let visit = |drain: &FlowDrain| Visit { next: 0, used: drain.used(), ended: Vec::new() };
        Round { visits: drains.iter().map(visit).collect() }
    }

    /// Whether `slot` in a drain's region is not visited yet, or was not in use when the round began.
    pub(super) fn is_unvisited(&self, drain: usize, slot: u32) -> bool {
        slot >= self.visits[drain].next
    }

    /// Visits slots as far as the frame has space; `moment` is that of an interim, by drain and slot.
    pub(super) fn visit(
        &mut self,
        moment: impl Fn(usize, u32) -> InterimMoment,
        drains: &[FlowDrain],
        sweeps: &mut [Sweep],
        (frame, bytes_max): (&mut FrameBuffer, usize),
        shared: &LedgerState,
    ) -> RoundProgress {
        for (index, ((drain, sweep), visit)) in drains.iter().zip(sweeps).zip(&mut self.visits).enumerate() {
            while visit.next < visit.used {
                if !has_space(frame, bytes_max) {
                    return RoundProgress::CutShort;
                }
                visit.slot(drain.region(), sweep, moment(index, visit.next), frame, shared);
            }
            visit.drop_journaled(drain.region(), sweep);
        }
        match self.visits.iter().all(|visit| visit.ended.is_empty()) {
            true => RoundProgress::Complete,
            false => RoundProgress::AwaitsFinals,
        }
    }
}

impl Visit {
    /// Visits the next slot. A flow that is open gets an interim; one that ends meanwhile gets a final
    /// instead, which comes by the ring, perhaps in a later pass.
    fn slot(
        &mut self,
        region: &Region,
        sweep: &mut Sweep,
        moment: InterimMoment,
        frame: &mut FrameBuffer,
        shared: &LedgerState,
    ) {
        let slot = self.next;
        self.next += 1;
        let open = CommitIntent::Interim(moment);
        if !sweep.has_moved(region, slot) || sweep.journal(region, slot, open, frame, shared).is_none() {
            self.ended.extend(sweep.unjournaled_end(region, slot).map(|generation| (slot, generation)));
        }
    }

    /// Drops the ended flows whose finals are journaled by now.
    fn drop_journaled(&mut self, region: &Region, sweep: &Sweep) {
        self.ended.retain(|(slot, generation)| sweep.unjournaled_end(region, *slot) == Some(*generation));
    }
}
