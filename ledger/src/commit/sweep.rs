//! The sweep: finds the open flows that have moved since they were last journaled.
//!
//! Guarantees: each slot is checked within [`INTERIM_PAUSE_MAX`], however often passes come.

use std::time::Duration;

use sys::clock::{self, Nanos};

use crate::journal::frame::FrameBuffer;
use crate::limits::{ENTRY_BYTES_MAX, FRAME_BYTES_MAX, INTERIM_PAUSE_MAX};
use crate::live_table::{CommitIntent, Region, State};
use crate::status::LedgerState;

/// The cyclic search of a drain's slots for flows that have moved.
pub(super) struct Sweep {
    /// The bytes of each slot's flow when it was last journaled; behind its final [`FINAL`] and the slot's
    /// generation. Zero: not journaled.
    journaled: Vec<u64>,
    /// The slot to check next.
    next: u32,
    /// Slots have been checked as due up to this moment.
    pub(super) swept_to: Nanos,
}

/// Distinguishes a journaled final from bytes, which are less.
const FINAL: u64 = 1 << 63;

/// The longest pause between two sweeps.
pub(super) const SWEEP_PAUSE_MAX: Duration = Duration::from_millis(500);

/// The shortest pause between two sweeps, however often passes come. A frame costs a sync and a transaction,
/// whether it has the interim of one flow or of a hundred.
const SWEEP_PAUSE_MIN: Duration = Duration::from_millis(250);

/// How long a round over all slots takes. A slot that a sweep has just missed is still checked within
/// [`INTERIM_PAUSE_MAX`], if the next sweep is late by one pass that was too early and the longest sleep
/// after it.
const SWEEP_ROUND: Duration =
    INTERIM_PAUSE_MAX.saturating_sub(SWEEP_PAUSE_MAX).saturating_sub(SWEEP_PAUSE_MIN.saturating_mul(2));

/// Up to so many slots are checked all at once when their round is over: their interims fit one frame, and
/// its transaction takes a few milliseconds. So few flows cost a few syncs in each round, instead of some
/// with each sweep.
const FEW_SLOTS: u32 = 1024;

const _: () = assert!(
    SWEEP_PAUSE_MIN.as_nanos() < SWEEP_PAUSE_MAX.as_nanos(),
    "or a sweep after a sleep could be put off"
);
const _: () = assert!(FEW_SLOTS as usize * ENTRY_BYTES_MAX <= FRAME_BYTES_MAX);
const _: () =
    assert!(SWEEP_PAUSE_MAX.as_millis() * 2 <= SWEEP_ROUND.as_millis(), "a round takes several sweeps");

impl Sweep {
    pub(super) fn new() -> Sweep {
        Sweep { journaled: Vec::new(), next: 0, swept_to: clock::monotonic() }
    }

    /// How many of `used` slots have to be checked to have done all that was due by `moment`. None while
    /// others gather; of few slots none before the round is over.
    pub(super) fn due(&mut self, used: u32, moment: Nanos) -> u32 {
        let behind = moment.since(self.swept_to);
        if used == 0 || behind >= SWEEP_ROUND {
            // Nothing was used, or no pass came for a round: one full round, from now on.
            self.swept_to = Nanos(moment.0.saturating_sub(SWEEP_ROUND.as_nanos() as u64));
            return used;
        }
        if behind < SWEEP_PAUSE_MIN || used <= FEW_SLOTS {
            return 0;
        }
        (behind.as_nanos() * u128::from(used) / SWEEP_ROUND.as_nanos()) as u32
    }

    /// Marks a slot as checked; returns its number.
    pub(super) fn advance(&mut self, used: u32, moment: Nanos) -> u32 {
        let slot = self.next % used;
        self.next = (slot + 1) % used;
        let slot_share = Duration::from_nanos((SWEEP_ROUND.as_nanos() / u128::from(used)) as u64);
        self.swept_to = (self.swept_to + slot_share).min(moment);
        slot
    }

    pub(super) fn has_moved(&self, region: &Region, slot: u32) -> bool {
        let journaled = self.journaled(slot);
        let bytes = if journaled & FINAL == 0 { journaled } else { 0 };
        region.slot(slot).moved().is_some_and(|moved| moved != bytes)
    }

    /// The generation of a slot whose flow has ended and whose final is not journaled, if it is such a slot.
    pub(super) fn unjournaled_end(&self, region: &Region, slot: u32) -> Option<u64> {
        match region.slot(slot).state() {
            Some((State::Closing(_), generation)) => {
                (self.journaled(slot) != FINAL | generation).then_some(generation)
            }
            _ => None,
        }
    }

    fn journaled(&self, slot: u32) -> u64 {
        self.journaled.get(slot as usize).copied().unwrap_or(0)
    }

    /// Appends a slot's flow to the frame; returns the slot's generation if it was in the expected state.
    pub(super) fn journal(
        &mut self,
        region: &Region,
        slot: u32,
        kind: CommitIntent,
        frame: &mut FrameBuffer,
        shared: &LedgerState,
    ) -> Option<u64> {
        let mut outcome = Ok(None);
        frame.push_if(|out| {
            outcome = region.slot(slot).write_entry(kind, out);
            matches!(outcome, Ok(Some(_)))
        });
        match (outcome, kind) {
            (Ok(Some(written)), _) => {
                let index = slot as usize;
                if self.journaled.len() <= index {
                    self.journaled.resize(index + 1, 0);
                }
                self.journaled[index] = match kind {
                    CommitIntent::Final { .. } => FINAL | written.generation,
                    CommitIntent::Interim(_) => written.moved,
                };
                Some(written.generation)
            }
            (Ok(None), _) => None,
            (Err(_), CommitIntent::Final { .. }) => {
                // A damaged final is not guessed: its last interim is billed.
                region.slot(slot).give_up();
                shared.damaged();
                None
            }
            // Counted when it ends.
            (Err(_), CommitIntent::Interim(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::COMMIT_PAUSE;

    /// The longest time between two checks of the same slot of `used`, and how many passes had checks. Passes
    /// come by `pauses` in a cycle, for three rounds.
    fn measure_sweep(used: u32, pauses: &[Duration]) -> (Duration, u32) {
        let begin = Nanos(1_000_000_000_000);
        let mut sweep = Sweep { journaled: Vec::new(), next: 0, swept_to: begin };
        let mut visited_at = vec![begin; used as usize];
        let (mut longest, mut sweeping_passes) = (Duration::ZERO, 0);
        let mut now = begin;
        for pause in pauses.iter().cycle() {
            now = now + *pause;
            if now >= begin + SWEEP_ROUND * 3 {
                break;
            }
            let due = sweep.due(used, now);
            sweeping_passes += u32::from(due > 0);
            for _ in 0..due {
                let visited_at = &mut visited_at[sweep.advance(used, now) as usize];
                longest = longest.max(now.since(std::mem::replace(visited_at, now)));
            }
        }
        let overdue = visited_at.into_iter().map(|visited_at| now.since(visited_at)).max();
        (longest.max(overdue.unwrap_or_default()), sweeping_passes)
    }

    #[test]
    fn sweep_visits_every_slot_in_time() {
        let too_early = SWEEP_PAUSE_MIN - Duration::from_millis(1);
        for used in [1, 7, 19, 100, 1_000, FEW_SLOTS, FEW_SLOTS + 1, 25_384] {
            for pauses in [
                &[Duration::from_micros(50)][..],
                &[COMMIT_PAUSE],
                &[SWEEP_PAUSE_MAX],
                &[too_early, SWEEP_PAUSE_MAX],
            ] {
                let (longest, _) = measure_sweep(used, pauses);
                assert!(
                    longest <= INTERIM_PAUSE_MAX,
                    "{longest:?} with {used} slots, passes every {pauses:?}"
                );
            }
        }
    }

    #[test]
    fn sweeps_are_batched_at_any_pass_rate() {
        let most = (SWEEP_ROUND * 3).as_millis() / SWEEP_PAUSE_MIN.as_millis();
        for pause in [Duration::from_micros(50), COMMIT_PAUSE] {
            let (_, passes) = measure_sweep(25_384, &[pause]);
            assert!(u128::from(passes) <= most, "{passes} passes with checks, every {pause:?}");
            let (_, passes) = measure_sweep(FEW_SLOTS, &[pause]);
            assert!(passes <= 3, "{passes} passes with checks of few slots, every {pause:?}");
        }
    }
}
