//! The cell of a timer that several threads access: one word holds its generation and its state.
//!
//! Guarantees: of all threads that try to fire or cancel a timer exactly one wins, by a compare-and-swap on
//! its word. A stale handle never wins, since generations do not repeat (2^61 of them).
//!
//! Not handled here: the lists of cells (`shard.rs`), and when a timer is due (`levels.rs`).
//!
//! ```text
//!            fill           enlist            fire              free
//!   FREE ---------> QUEUED ---------> ARMED ---------> FIRING ---------> FREE of the next generation
//!    |                |                 |  ^             | |  cancel
//!    |                | cancel          |  '-- rearm ----' '--------> DISMISSED, AWAITED --> FREE
//!    |                v                 v cancel
//!    |            CANCELLED         CANCELLED ---> FREE, when the driver collects it
//!    '----- fill_armed, by the driver's own thread: ARMED at once
//! ```
//!
//! Rules:
//! 1. A free cell belongs to the thread that took it from a list of free cells; only that thread fills it.
//! 2. A cancelled cell is freed once, by the driver. A cell that was QUEUED is found among the arrivals. A
//!    cell that was ARMED is found in the list of cancelled ones, to which the cancelling thread adds it.
//!    Where the driver alone arms timers, it reuses the cell at once, without the state FREE.

use sys::sync::atomic::{AtomicU64, Ordering};

const STATE_BITS: u32 = 3;
const STATE: u64 = (1 << STATE_BITS) - 1;

/// In no wheel and in no list, except one of free cells.
const FREE: u64 = 0;
/// Armed by another thread than the driver's, and not in the wheel yet.
const QUEUED: u64 = 1;
/// In the wheel.
const ARMED: u64 = 2;
/// Its callback runs.
const FIRING: u64 = 3;
/// Cancelled before it fired, and not collected by the driver yet.
const CANCELLED: u64 = 4;
/// Its callback runs, and it will not be rearmed.
const DISMISSED: u64 = 5;
/// The same, and another thread sleeps until the callback has ended.
const AWAITED: u64 = 6;

/// The word of a timer: the generation in the upper bits, the state in the lower ones. Eight words share a
/// cache line on purpose. A thread that cancels another's timers mostly cancels several that were armed
/// together, and pays for each cache line that it fetches.
#[derive(Debug)]
pub(super) struct Cell(AtomicU64);

/// The result of a cancel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Claim {
    /// It is cancelled, and among the arrivals.
    Queued,
    /// It is cancelled, and in the wheel: the caller has to add it to the cancelled ones.
    Armed,
    /// Its callback runs; it will not be rearmed.
    Running,
    /// It fired or was cancelled before.
    Gone,
}

impl Cell {
    pub(super) fn new() -> Cell {
        Cell(AtomicU64::new(FREE))
    }

    /// Makes the caller's free cell a queued timer, and returns its generation. The list to which the cell is
    /// added publishes it.
    pub(super) fn fill(&self) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(word & STATE, FREE, "only a free cell is filled");
        self.0.store(word | QUEUED, Ordering::Relaxed);
        word >> STATE_BITS
    }

    /// Makes a cell of the driver an armed timer of a new generation. It does not load the word first:
    /// fetching a cache line that another thread wrote costs more than all else here.
    pub(super) fn fill_armed(&self, generation: u64) {
        self.0.store(generation << STATE_BITS | ARMED, Ordering::Relaxed);
    }

    /// Driver only: takes the cell into the wheel; returns its generation, or `None` if it was cancelled
    /// before.
    pub(super) fn enlist(&self) -> Option<u64> {
        self.transition(QUEUED, ARMED)
    }

    /// Driver only: the callback begins; false if it was cancelled before.
    pub(super) fn fire(&self) -> bool {
        self.transition(ARMED, FIRING).is_some()
    }

    /// Driver only: rearms it after its callback, in the same generation; false if it was cancelled
    /// meanwhile.
    pub(super) fn rearm(&self) -> bool {
        self.transition(FIRING, ARMED).is_some()
    }

    /// Driver only, which holds the cell: exchanges the state in any generation, and returns the generation.
    fn transition(&self, from: u64, to: u64) -> Option<u64> {
        let generation = self.0.load(Ordering::Relaxed) & !STATE;
        let (from, to) = (generation | from, generation | to);
        let exchanged = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        exchanged.ok().map(|_| generation >> STATE_BITS)
    }

    /// Any thread: cancels the timer. A caller that gets [`Claim::Gone`] sees what the callback did.
    pub(super) fn cancel(&self, generation: u64) -> Claim {
        // Most timers are in the wheel. A load first would fetch the cache line twice, to read and to write.
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

    /// Whether it was cancelled and is not freed yet.
    pub(super) fn is_cancelled(&self) -> bool {
        // Acquire: the thread that frees the cell sees what the cancelling thread did.
        self.0.load(Ordering::Acquire) & STATE == CANCELLED
    }

    /// Driver only: cancels a timer that is in its wheel, and frees the cell; false if another thread was
    /// first.
    pub(super) fn reclaim_armed(&self, generation: u64) -> bool {
        let armed = generation << STATE_BITS | ARMED;
        let free = (generation + 1) << STATE_BITS | FREE;
        self.0.compare_exchange(armed, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Driver only: frees a cell of the cancelled list, without a load. No other thread writes the word of a
    /// cancelled cell, and fetching a cache line that another thread wrote costs more than all else here.
    pub(super) fn free_cancelled(&self, generation: u64) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), generation << STATE_BITS | CANCELLED);
        self.0.store((generation + 1) << STATE_BITS | FREE, Ordering::Release);
    }

    /// The generation of the cell's current or last timer.
    pub(super) fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> STATE_BITS
    }

    /// Frees the cell; returns whether a thread sleeps until then. For the driver, or for a thread that
    /// filled the cell and has not published it.
    pub(super) fn free(&self) -> bool {
        let next = ((self.0.load(Ordering::Relaxed) >> STATE_BITS) + 1) << STATE_BITS | FREE;
        // A swap, since other threads may dismiss or await the callback at this moment. Release: a thread
        // that finds the cell free sees what the callback did.
        self.0.swap(next, Ordering::AcqRel) & STATE == AWAITED
    }

    /// Records that the caller will sleep until the callback has ended; false if it has ended.
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
