//! Barriers: requests that all that was counted before them is journaled, and what they wait for. Requests
//! to append an entry wait for the same.
//!
//! Guarantees: a request is answered when a reader of the journal or of the database finds all that was
//! counted before it, and after a power failure too. Edges are not changed by it: an interim of a barrier has
//! the moment that any other interim of its slot would have.
//!
//! ```text
//!   requests --> a round over all slots --> its last entry is durable, and proved or applied --> answers
//! ```

use std::time::Duration;

use sys::clock::WallNanos;

use super::edges::Edges;
use super::round::{Round, RoundProgress};
use super::sweep::Sweep;
use crate::flow_writer::FlowDrain;
use crate::journal::frame::FrameBuffer;
use crate::limits::{COMMIT_PAUSE, ENTRY_BYTES_MAX, REQUESTS_MAX};
use crate::requests::{Reply, Requests};
use crate::status::LedgerState;

/// The barriers that are under way.
#[derive(Default)]
pub(super) struct Barrier {
    /// The present round, and its requests. Later ones wait for the next: what they wait for may have been
    /// counted behind the visit of its slot.
    round: Option<(Round, Vec<((), Reply)>)>,
    /// Requests whose round is complete, or whose entry is in a frame; and the entry by which all of it is
    /// journaled.
    journaled: Vec<(u64, Reply)>,
}

impl Barrier {
    /// Begins a round for the requests that wait, unless one is under way.
    pub(super) fn begin_if_requested(&mut self, requests: &Requests<()>, drains: &[FlowDrain]) {
        if self.round.is_none() && requests.is_waiting() {
            self.round = Some((Round::new(drains), requests.take(REQUESTS_MAX)));
        }
    }

    /// Visits slots; returns whether the frame is too full to go on. `next_lsn` is the number of the frame's
    /// first entry.
    pub(super) fn visit(
        &mut self,
        (now, edges): (WallNanos, &Edges),
        drains: &[FlowDrain],
        sweeps: &mut [Sweep],
        (frame, bytes_max, next_lsn): (&mut FrameBuffer, usize, u64),
        shared: &LedgerState,
    ) -> bool {
        let Some((round, _)) = &mut self.round else { return false };
        let moment = |drain, slot| edges.moment(drain, slot, now);
        let progress = round.visit(moment, drains, sweeps, (&mut *frame, bytes_max), shared);
        if progress == RoundProgress::Complete {
            let last_lsn = next_lsn + u64::from(frame.count()) - 1;
            let replies = self.round.take().map(|(_, replies)| replies).unwrap_or_default();
            self.journaled.extend(replies.into_iter().map(|((), reply)| (last_lsn, reply)));
        }
        progress == RoundProgress::CutShort
    }

    /// Appends the entries that were requested, as far as the frame has space. `next_lsn` is the number of
    /// the frame's first entry.
    pub(super) fn append(
        &mut self,
        requests: &Requests<Vec<u8>>,
        (frame, bytes_max, next_lsn): (&mut FrameBuffer, usize, u64),
    ) {
        if !requests.is_waiting() {
            return;
        }
        for (entry, reply) in requests.take(bytes_max.saturating_sub(frame.len()) / ENTRY_BYTES_MAX) {
            frame.push_if(|out| {
                out.extend_from_slice(&entry);
                true
            });
            self.journaled.push((next_lsn + u64::from(frame.count()) - 1, reply));
        }
    }

    /// Answers the requests whose entries a reader finds: those up to `visible`.
    pub(super) fn answer(&mut self, visible: u64) {
        self.journaled.retain(|(lsn, reply)| {
            let is_visible = *lsn <= visible;
            if is_visible {
                reply.send();
            }
            !is_visible
        });
    }

    /// Whether a round is under way, so that requests wait for the next one.
    pub(super) fn is_running(&self) -> bool {
        self.round.is_some()
    }

    /// How long until a pass is due for it.
    pub(super) fn pause(&self) -> Duration {
        match self.is_running() || !self.journaled.is_empty() {
            true => COMMIT_PAUSE,
            false => Duration::MAX,
        }
    }
}
