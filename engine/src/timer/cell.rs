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
//! 3. `next` is written by whoever holds the cell and puts it into a list; the links of the wheel by the
//!    owner alone, and `tick` by whoever fills the cell and by the owner.

use sys::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::levels::Links;
use super::slack::Slack;

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

/// `list` of a cell that is not in the wheel.
const NO_LIST: u32 = u32::MAX;

/// A timer's memory; it has a cache line for itself.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Cell {
    /// The generation above, the state below.
    word: AtomicU64,
    /// The tick at which it is due. Valid while it is armed.
    tick: AtomicU64,
    /// What its owner's callback is told.
    tag: AtomicU64,
    /// For when it is armed anew: the class's number.
    slack: AtomicU8,
    /// Where it is in the wheel.
    list: AtomicU32,
    next_in_wheel: AtomicU32,
    previous_in_wheel: AtomicU32,
    /// The next cell of the list that it is in.
    pub(super) next: AtomicU32,
}

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
    pub(super) fn new(next: u32) -> Cell {
        Cell {
            word: AtomicU64::new(FREE),
            tick: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            slack: AtomicU8::new(0),
            list: AtomicU32::new(NO_LIST),
            next_in_wheel: AtomicU32::new(0),
            previous_in_wheel: AtomicU32::new(0),
            next: AtomicU32::new(next),
        }
    }

    pub(super) fn tick(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }

    pub(super) fn slack(&self) -> Slack {
        Slack::ALL[usize::from(self.slack.load(Ordering::Relaxed))]
    }

    /// The owner: as it is to be kept by the wheel.
    pub(super) fn set_tick(&self, tick: u64) {
        self.tick.store(tick, Ordering::Relaxed);
    }

    pub(super) fn is_in_wheel(&self) -> bool {
        self.list.load(Ordering::Relaxed) != NO_LIST
    }

    /// The owner: it is not in the wheel any more.
    pub(super) fn leave_wheel(&self) {
        self.list.store(NO_LIST, Ordering::Relaxed);
    }

    pub(super) fn links(&self) -> Links {
        Links {
            next: self.next_in_wheel.load(Ordering::Relaxed),
            previous: self.previous_in_wheel.load(Ordering::Relaxed),
            list: self.list.load(Ordering::Relaxed) as u16,
        }
    }

    pub(super) fn set_links(&self, links: Links) {
        self.next_in_wheel.store(links.next, Ordering::Relaxed);
        self.previous_in_wheel.store(links.previous, Ordering::Relaxed);
        self.list.store(u32::from(links.list), Ordering::Relaxed);
    }

    pub(super) fn set_next_in_wheel(&self, next: u32) {
        self.next_in_wheel.store(next, Ordering::Relaxed);
    }

    pub(super) fn set_previous_in_wheel(&self, previous: u32) {
        self.previous_in_wheel.store(previous, Ordering::Relaxed);
    }

    pub(super) fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }

    /// Makes the caller's free cell a timer that waits for its owner; its generation. What it holds is
    /// published by the list that it goes into.
    pub(super) fn fill(&self, tick: u64, slack: Slack, tag: u64) -> u64 {
        self.begin(tick, slack, tag, QUEUED)
    }

    /// Makes the owner's free cell a timer that is in the wheel; its generation.
    pub(super) fn fill_armed(&self, tick: u64, slack: Slack, tag: u64) -> u64 {
        self.begin(tick, slack, tag, ARMED)
    }

    fn begin(&self, tick: u64, slack: Slack, tag: u64, state: u64) -> u64 {
        let word = self.word.load(Ordering::Relaxed);
        debug_assert_eq!(word & STATE, FREE, "the cell is the caller's");
        self.tick.store(tick, Ordering::Relaxed);
        self.tag.store(tag, Ordering::Relaxed);
        self.slack.store(slack as u8, Ordering::Relaxed);
        self.word.store(word | state, Ordering::Relaxed);
        word >> STATE_BITS
    }

    /// The owner takes the cell into its wheel; false if it was cancelled before.
    pub(super) fn enlist(&self) -> bool {
        self.step(QUEUED, ARMED)
    }

    /// The owner begins its callback; false if it was cancelled before.
    pub(super) fn fire(&self) -> bool {
        self.step(ARMED, FIRING)
    }

    /// The owner arms it anew after its callback, under the same name; false if it was cancelled meanwhile.
    pub(super) fn again(&self) -> bool {
        self.step(FIRING, ARMED)
    }

    /// Exchanges the state, whatever the generation: only the owner may, who holds the cell.
    fn step(&self, from: u64, to: u64) -> bool {
        let generation = self.word.load(Ordering::Relaxed) & !STATE;
        self.word
            .compare_exchange(generation | from, generation | to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Anybody takes the timer back. Who is told that it has gone sees what its callback did.
    pub(super) fn cancel(&self, generation: u64) -> Claim {
        // Most are in the wheel. To look first would fetch the cache line twice, to read and to write.
        let (armed, cancelled) = (generation << STATE_BITS | ARMED, generation << STATE_BITS | CANCELLED);
        let mut word = match self.word.compare_exchange(armed, cancelled, Ordering::AcqRel, Ordering::Acquire)
        {
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
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return claim,
                Err(current) => word = current,
            }
        }
        Claim::Gone
    }

    /// Whether it was cancelled and waits to be freed.
    pub(super) fn is_cancelled(&self) -> bool {
        // Acquire: whoever frees it comes after the one who cancelled it.
        self.word.load(Ordering::Acquire) & STATE == CANCELLED
    }

    /// The owner takes back a timer that is in its wheel, or that it is to forget; false if it is not there
    /// any more. The cell is free.
    pub(super) fn reclaim_armed(&self, generation: u64) -> bool {
        let armed = generation << STATE_BITS | ARMED;
        let free = (generation + 1) << STATE_BITS | FREE;
        self.word.compare_exchange(armed, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The owner, or whoever else holds a cancelled cell, makes it free. Without a look, as above.
    pub(super) fn free_cancelled(&self) {
        let before = self.word.fetch_add((1 << STATE_BITS) + FREE - CANCELLED, Ordering::AcqRel);
        debug_assert_eq!(before & STATE, CANCELLED);
    }

    /// The generation of the timer that the cell is or was last.
    pub(super) fn generation(&self) -> u64 {
        self.word.load(Ordering::Relaxed) >> STATE_BITS
    }

    /// The owner, or who filled it and has told nobody, makes it free; whether somebody sleeps until then.
    pub(super) fn free(&self) -> bool {
        let next = ((self.word.load(Ordering::Relaxed) >> STATE_BITS) + 1) << STATE_BITS | FREE;
        // A swap, since a callback's end meets those who dismiss and await it. Release: who finds it free
        // sees what the callback did.
        self.word.swap(next, Ordering::AcqRel) & STATE == AWAITED
    }

    /// Says that the caller will sleep until the callback has ended; false if it has.
    pub(super) fn await_end(&self, generation: u64) -> bool {
        let of = |state: u64| generation << STATE_BITS | state;
        let word = self.word.load(Ordering::Acquire);
        if word == of(AWAITED) {
            return true;
        }
        word == of(DISMISSED)
            && match self.word.compare_exchange(word, of(AWAITED), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => true,
                Err(current) => current == of(AWAITED),
            }
    }
}
