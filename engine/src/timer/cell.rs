//! The cell of a timer that several threads may take: one word says whose it is and what becomes of it.
//!
//! Promises: of all who would fire or cancel a timer exactly one wins, by a compare-and-swap on its word; a
//! handle of an earlier tenant of the cell never wins anything, since generations never come again (2^61 of
//! them). Leaves to others: where cells wait (`shard.rs`), and when a timer is due (`wheel.rs`).
//!
//! ```text
//!            fill           enlist            fire              finish
//!   FREE ---------> QUEUED ---------> ARMED ---------> FIRING ---------> FREE of the next generation
//!    |                |                 |  ^             | |  cancel
//!    |                | cancel          |  '-- again ----' '--------> DISMISSED, AWAITED --> FREE
//!    |                v                 v cancel
//!    |            CANCELLED         CANCELLED ---> FREE, once its owner has it in its hands again
//!    '----- fill, by the wheel's own thread: ARMED at once
//! ```
//!
//! Rules:
//! 1. A free cell belongs to whoever took it from a list of free cells; only they fill it.
//! 2. A cancelled cell is freed by the owner of the wheel, once: when it finds it among the arrivals if it
//!    was QUEUED, in the list of cancelled ones if it was ARMED. Whoever cancelled it puts it there.
//!    An owner who alone arms keeps it as it is and fills it anew: nobody else has to see it free.

use sys::sync::atomic::{AtomicU64, Ordering};

const STATE_BITS: u32 = 3;
const STATE: u64 = (1 << STATE_BITS) - 1;

/// In no wheel and in no list but one of free cells.
const FREE: u64 = 0;
/// Armed by a thread that is not the owner, and not in the wheel yet.
const QUEUED: u64 = 1;
/// In the wheel.
const ARMED: u64 = 2;
/// Its callback runs.
const FIRING: u64 = 3;
/// Taken back before it fired, and not in its owner's hands yet.
const CANCELLED: u64 = 4;
/// Its callback runs, and it is not to be armed again.
const DISMISSED: u64 = 5;
/// The same, and somebody sleeps until the callback has ended.
const AWAITED: u64 = 6;

/// The word of a timer: the generation above, the state below. Eight of them share a cache line on purpose: a
/// thread that cancels another's timers mostly cancels several that were armed together, and pays for each
/// line that it takes over.
#[derive(Debug)]
pub(super) struct Cell(AtomicU64);

/// What trying to cancel found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Claim {
    /// It is cancelled, and among the arrivals.
    Queued,
    /// It is cancelled, and in the wheel: to be given to its owner.
    Armed,
    /// Its callback runs; it will not be armed again.
    Running,
    /// It fired, or was cancelled, before.
    Gone,
}

impl Cell {
    pub(super) fn new() -> Cell {
        Cell(AtomicU64::new(FREE))
    }

    /// Makes the caller's free cell a timer that waits for its owner; its generation. It is published by the
    /// list that it goes into.
    pub(super) fn fill(&self) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(word & STATE, FREE, "the cell is the caller's");
        self.0.store(word | QUEUED, Ordering::Relaxed);
        word >> STATE_BITS
    }

    /// Makes a cell that is the owner's a timer that is in the wheel, of a generation that is new. Without a
    /// look: to read what another thread wrote takes longer than all else here.
    pub(super) fn fill_armed(&self, generation: u64) {
        self.0.store(generation << STATE_BITS | ARMED, Ordering::Relaxed);
    }

    /// The owner takes the cell into its wheel; its generation, or `None` if it was cancelled before.
    pub(super) fn enlist(&self) -> Option<u64> {
        self.transition(QUEUED, ARMED)
    }

    /// The owner begins its callback; false if it was cancelled before.
    pub(super) fn fire(&self) -> bool {
        self.transition(ARMED, FIRING).is_some()
    }

    /// The owner arms it anew after its callback, under the same name; false if it was cancelled meanwhile.
    pub(super) fn rearm(&self) -> bool {
        self.transition(FIRING, ARMED).is_some()
    }

    /// Exchanges the state, whatever the generation, and tells that: only the owner may, who holds the cell.
    fn transition(&self, from: u64, to: u64) -> Option<u64> {
        let generation = self.0.load(Ordering::Relaxed) & !STATE;
        let (from, to) = (generation | from, generation | to);
        let exchanged = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        exchanged.ok().map(|_| generation >> STATE_BITS)
    }

    /// Anybody takes the timer back. Who is told that it has gone sees what its callback did.
    pub(super) fn cancel(&self, generation: u64) -> Claim {
        // Most are in the wheel. To look first would fetch the cache line twice, to read and to write.
        let (armed, cancelled) = (generation << STATE_BITS | ARMED, generation << STATE_BITS | CANCELLED);
        let mut word = match self.0.compare_exchange(armed, cancelled, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Claim::Armed,
            Err(current) => current,
        };
        while word >> STATE_BITS == generation {
            let (to, claim) = match word & STATE {
                QUEUED => (CANCELLED, Claim::Queued),
                ARMED => (CANCELLED, Claim::Armed),
                FIRING => (DISMISSED, Claim::Running),
                DISMISSED | AWAITED => return Claim::Running,
                _ => return Claim::Gone,
            };
            let next = generation << STATE_BITS | to;
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return claim,
                Err(current) => word = current,
            }
        }
        Claim::Gone
    }

    /// Whether it was cancelled and waits to be freed.
    pub(super) fn is_cancelled(&self) -> bool {
        // Acquire: whoever frees it comes after the one who cancelled it.
        self.0.load(Ordering::Acquire) & STATE == CANCELLED
    }

    /// The owner takes back a timer that is in its wheel, or that it is to forget; false if it is not there
    /// any more. The cell is free.
    pub(super) fn reclaim_armed(&self, generation: u64) -> bool {
        let armed = generation << STATE_BITS | ARMED;
        let free = (generation + 1) << STATE_BITS | FREE;
        self.0.compare_exchange(armed, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The owner makes a cell free that it found among the cancelled ones, without a look: nobody else writes
    /// the word of a cancelled cell, and to read what another thread wrote takes longer than all else here.
    pub(super) fn free_cancelled(&self, generation: u64) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), generation << STATE_BITS | CANCELLED);
        self.0.store((generation + 1) << STATE_BITS | FREE, Ordering::Release);
    }

    /// The generation of the timer that the cell is or was last.
    pub(super) fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> STATE_BITS
    }

    /// The owner, or who filled it and has told nobody, makes it free; whether somebody sleeps until then.
    pub(super) fn free(&self) -> bool {
        let next = ((self.0.load(Ordering::Relaxed) >> STATE_BITS) + 1) << STATE_BITS | FREE;
        // A swap, since a callback's end meets those who dismiss and await it. Release: who finds it free
        // sees what the callback did.
        self.0.swap(next, Ordering::AcqRel) & STATE == AWAITED
    }

    /// Says that the caller will sleep until the callback has ended; false if it has.
    pub(super) fn await_end(&self, generation: u64) -> bool {
        let word_with = |state: u64| generation << STATE_BITS | state;
        let word = self.0.load(Ordering::Acquire);
        if word == word_with(AWAITED) {
            return true;
        }
        word == word_with(DISMISSED)
            && match self.0.compare_exchange(word, word_with(AWAITED), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => true,
                Err(current) => current == word_with(AWAITED),
            }
    }
}
