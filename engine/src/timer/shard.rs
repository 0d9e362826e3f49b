//! What all threads may touch of one wheel's timers: the cells, and the lists by which cells come and go.
//!
//! Promises: nobody waits here; a thread that is descheduled anywhere stalls no other, but that whoever was
//! about to bring the owner's wake-up forward does so when it runs again. Memory is taken once, at the start.
//! Leaves to others: what the word of a cell means (`cell.rs`), the wheel (`owner.rs`), the owner's sleep.
//!
//! ```text
//!   any thread                                              the owner of the wheel
//!   arm:    spare ----> fill ----> arrivals --------------> enlist, into the wheel
//!             ^                      '- earlier than parked_until? the one who lowers it has the owner woken
//!   cancel: the word ------------> cancelled -------------> out of the wheel, free
//!             '- QUEUED: counted only, the owner finds it among the arrivals
//!             '- as many as `crowd`: somebody has them collected
//! ```
//!
//! Lists of cells are stacks, linked by the numbers of cells. Two are taken whole, which rules the ABA
//! problem out (R. K. Treiber, IBM RJ 5118, 1986); of the third, `spare`, single cells are taken, so its head
//! counts what was taken: 2^40 cells would have to go through it while a thread stands between two
//! instructions.

use sys::clock::Nanos;
use sys::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use sys::sync::fence_for_loom;

use super::arm_request::{ArmCell, ArmRequest};
use super::cell::{Cell, Claim};
use super::handle::{ArmError, Cancel, TimerKey};
use super::levels;
use super::slack::Slack;

/// The end of a list, in 24 bits.
const NONE: u32 = (1 << INDEX_BITS) - 1;
/// The head of the arrivals when nobody will take them any more.
const CLOSED: u32 = NONE - 1;
const INDEX_BITS: u32 = 24;
const INDEX: u64 = (1 << INDEX_BITS) - 1;
const ONE_TAKEN: u64 = 1 << INDEX_BITS;
/// In the word of the cancelled ones the count stands above the head.
const ONE_CANCELLED: u64 = 1 << 32;
/// The most cells that a shard can have.
pub(super) const CELLS_MAX: usize = CLOSED as usize;

/// Cancelled timers that may wait before they are collected, at least; the other bound is a part of those
/// that are armed. 256 cells are 16 KiB: collected together they cost each other nothing. Models have fewer
/// timers.
const RECLAIM_MIN: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };
const RECLAIM_SHARE: usize = 8;

/// `parked_until` while the owner runs, and while somebody is on the way to wake it.
const RUNNING: u64 = 0;

/// How many timers of so many may be cancelled and not collected.
pub(super) fn uncollected_max(armed: usize) -> usize {
    (armed / RECLAIM_SHARE).max(RECLAIM_MIN)
}

/// What the caller has to do after a call, for the owner's sake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(super) enum FollowUp {
    Nothing,
    /// The owner would sleep too long.
    Wake,
    /// So many cancelled timers wait that they are to be collected.
    Collect,
}

/// What many threads write; nothing else shares its cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

/// See the file's header.
#[derive(Debug)]
pub(super) struct Shard {
    cells: Box<[Cell]>,
    /// By the same numbers: the next cell of the list that a cell is in. Written by whoever holds the cell
    /// and puts it into the list.
    nexts: Box<[AtomicU32]>,
    /// One for each cell, or none where the owner alone arms timers.
    requests: Box<[ArmCell]>,
    free: CachePadded<AtomicU64>,
    arrivals: CachePadded<AtomicU32>,
    cancelled: CachePadded<AtomicU64>,
    /// The earliest time at which the sleeping owner wakes by itself.
    parked_until: CachePadded<AtomicU64>,
    /// Cancelled timers from which on they are to be collected.
    reclaim_threshold: CachePadded<AtomicU64>,
    /// Set when they are so many, for an owner who runs.
    collect_requested: CachePadded<AtomicBool>,
}

impl Shard {
    /// A shard in which any thread arms timers: its cells are spare.
    pub(super) fn shared(cells: usize) -> Shard {
        let mut shard = Shard::local(cells);
        shard.requests = (0..cells).map(|_| ArmCell::default()).collect();
        let mut free = CellList::EMPTY;
        (0..cells as u32).rev().for_each(|index| free.push(index, &shard));
        if !free.is_empty() {
            shard.give_free(free);
        }
        shard
    }

    /// A shard in which the owner alone arms timers, and to whom all cells belong.
    pub(super) fn local(cells: usize) -> Shard {
        assert!(cells <= CELLS_MAX, "the caller bounds its cells");
        Shard {
            cells: (0..cells).map(|_| Cell::new()).collect(),
            nexts: (0..cells).map(|_| AtomicU32::new(NONE)).collect(),
            requests: Box::default(),
            free: CachePadded(AtomicU64::new(INDEX)),
            arrivals: CachePadded(AtomicU32::new(NONE)),
            cancelled: CachePadded(AtomicU64::new(u64::from(NONE))),
            parked_until: CachePadded(AtomicU64::new(RUNNING)),
            reclaim_threshold: CachePadded(AtomicU64::new(RECLAIM_MIN as u64)),
            collect_requested: CachePadded(AtomicBool::new(false)),
        }
    }

    pub(super) fn cell(&self, index: u32) -> &Cell {
        &self.cells[index as usize]
    }

    fn next(&self, index: u32) -> &AtomicU32 {
        &self.nexts[index as usize]
    }

    /// What was asked for a timer that is armed, and that any thread may have armed.
    pub(super) fn request(&self, index: u32) -> ArmRequest {
        self.requests[index as usize].read()
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Any thread: a timer that the owner will find.
    ///
    /// # Errors
    /// See [`ArmError`].
    pub(super) fn arm(&self, when: Nanos, slack: Slack, tag: u64) -> Result<(TimerKey, FollowUp), ArmError> {
        let index = self.take_free().ok_or(ArmError::Full)?;
        let cell = self.cell(index);
        let tick = levels::due_tick(slack.apply(when));
        self.requests[index as usize].write(ArmRequest { tick, tag, slack });
        let generation = cell.fill();
        if !self.put_arrivals(CellList { first: index, last: index }) {
            // Nobody knows its name, so nobody can have cancelled it.
            cell.free();
            self.give_free(CellList { first: index, last: index });
            return Err(ArmError::Closed);
        }
        Ok((TimerKey { index, generation }, self.ensure_wake_by(levels::start_of(tick))))
    }

    /// Puts a chain in front of the arrivals; false if nobody takes them any more.
    pub(super) fn put_arrivals(&self, list: CellList) -> bool {
        let mut head = self.arrivals.0.load(Ordering::Relaxed);
        while head != CLOSED {
            self.next(list.last).store(head, Ordering::Relaxed);
            // Pairs, as a Release, with the Acquire of the one who takes: who finds a cell finds what it
            // holds. For the rest see `is_too_late`.
            let to = list.first;
            match self.arrivals.0.compare_exchange_weak(head, to, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(current) => head = current,
            }
        }
        false
    }

    /// Whether the caller, whose timer has arrived, must have the owner wake earlier.
    fn ensure_wake_by(&self, due: Nanos) -> FollowUp {
        // Of the exchange in `put_arrivals`, this load, and the store and the load in `park`, all of them
        // sequentially consistent: either the owner's last look finds the timer, or this finds until when it
        // sleeps.
        fence_for_loom();
        if due.0 < self.parked_until.0.load(Ordering::SeqCst) && self.bring_forward(due) {
            FollowUp::Wake
        } else {
            FollowUp::Nothing
        }
    }

    /// Has the owner sleep no longer than until `due`; whether it would have.
    pub(super) fn bring_forward(&self, due: Nanos) -> bool {
        let due = due.0.max(RUNNING + 1);
        let parked_until = &self.parked_until.0;
        let mut until = parked_until.load(Ordering::Relaxed);
        while due < until {
            match parked_until.compare_exchange_weak(until, due, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(current) => until = current,
            }
        }
        false
    }

    /// Any thread: takes a timer back.
    pub(super) fn cancel(&self, key: TimerKey) -> (Cancel, FollowUp) {
        let Some(cell) = self.cells.get(key.index as usize) else {
            return (Cancel::Gone, FollowUp::Nothing);
        };
        let before = match cell.cancel(key.generation) {
            Claim::Running => return (Cancel::Running, FollowUp::Nothing),
            Claim::Gone => return (Cancel::Gone, FollowUp::Nothing),
            // It is in the list of arrivals, which has no second link: counted here.
            Claim::Queued => self.cancelled.0.fetch_add(ONE_CANCELLED, Ordering::Relaxed),
            Claim::Armed => self.push_cancelled(key.index),
        };
        let waiting = before / ONE_CANCELLED + 1;
        let is_over_threshold = waiting >= self.reclaim_threshold.0.load(Ordering::Relaxed);
        (Cancel::Cancelled, if is_over_threshold { FollowUp::Collect } else { FollowUp::Nothing })
    }

    fn push_cancelled(&self, index: u32) -> u64 {
        let mut word = self.cancelled.0.load(Ordering::Relaxed);
        loop {
            self.next(index).store(word as u32, Ordering::Relaxed);
            let count = word / ONE_CANCELLED + 1;
            let new = count * ONE_CANCELLED + u64::from(index);
            // Release pairs with the Acquire of the owner's swap.
            match self.cancelled.0.compare_exchange_weak(word, new, Ordering::Release, Ordering::Relaxed) {
                Ok(before) => return before,
                Err(current) => word = current,
            }
        }
    }

    /// Any thread but the owner, after [`FollowUp::Collect`]: has the owner know, and says whether it must be
    /// woken for that.
    pub(super) fn request_collect(&self) -> bool {
        let collect_requested = &self.collect_requested.0;
        // Who is not the first leaves it to that one.
        if collect_requested.load(Ordering::Relaxed) || collect_requested.swap(true, Ordering::Relaxed) {
            return false;
        }
        // Pairs with the fence in `park`.
        fence(Ordering::SeqCst);
        let parked_until = &self.parked_until.0;
        let until = parked_until.load(Ordering::Relaxed);
        until != RUNNING
            && parked_until.compare_exchange(until, RUNNING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The owner: whether somebody has called it to collect.
    pub(super) fn is_collect_requested(&self) -> bool {
        self.collect_requested.0.load(Ordering::Relaxed)
    }

    /// The owner has collected: to be said after that, as a call for what it has just taken would keep others
    /// from calling later. One for what came since is lost here; the next who cancels repeats it, and an
    /// owner that goes to sleep counts by itself.
    pub(super) fn clear_collect_request(&self) {
        if self.is_collect_requested() {
            self.collect_requested.0.store(false, Ordering::Relaxed);
        }
    }

    /// Until when the owner sleeps, as far as those who lower it know; `None` while it runs.
    pub(super) fn parked_until(&self) -> Option<Nanos> {
        match self.parked_until.0.load(Ordering::Acquire) {
            RUNNING => None,
            until => Some(Nanos(until)),
        }
    }

    /// The owner: it sleeps until then unless its last look, which this is, finds something to do.
    pub(super) fn park(&self, until: Nanos) -> bool {
        self.parked_until.0.store(until.0.max(RUNNING + 1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let has_arrivals = !matches!(self.arrivals.0.load(Ordering::SeqCst), NONE | CLOSED);
        let count = self.cancelled.0.load(Ordering::Relaxed) / ONE_CANCELLED;
        !has_arrivals
            && count < self.reclaim_threshold.0.load(Ordering::Relaxed)
            && !self.is_collect_requested()
    }

    /// The owner: it runs.
    pub(super) fn unpark(&self) {
        self.parked_until.0.store(RUNNING, Ordering::Relaxed);
    }

    /// The owner: how many timers it has, by which cancelled ones are judged to be many.
    pub(super) fn set_armed(&self, armed: usize) {
        let reclaim_threshold = uncollected_max(armed) as u64;
        // Everybody who cancels reads it: it is not written without need.
        if self.reclaim_threshold.0.load(Ordering::Relaxed) != reclaim_threshold {
            self.reclaim_threshold.0.store(reclaim_threshold, Ordering::Relaxed);
        }
    }

    /// Any thread, after [`FollowUp::Collect`] while another has the wheel: makes those arrivals spare that
    /// were cancelled, and puts the others back.
    pub(super) fn recycle(&self) -> FollowUp {
        // Counted anew, before the arrivals are taken among which those counted are. What was cancelled in
        // the wheel stays in its list.
        self.cancelled.0.fetch_and(ONE_CANCELLED - 1, Ordering::Relaxed);
        let mut arrivals = self.take_arrivals();
        let (mut cancelled, mut others, mut earliest) = (CellList::EMPTY, CellList::EMPTY, Nanos::NEVER);
        while let Some(index) = arrivals.pop(self) {
            let cell = self.cell(index);
            if cell.is_cancelled() {
                cell.free();
                cancelled.push(index, self);
            } else {
                earliest = earliest.min(levels::start_of(self.request(index).tick));
                others.push(index, self);
            }
        }
        if !cancelled.is_empty() {
            self.give_free(cancelled);
        }
        // Where the owner has ended meanwhile, nobody will fire them, which is what became of all others.
        if others.is_empty() || !self.put_arrivals(others) {
            return FollowUp::Nothing;
        }
        // The owner's last look may have missed them here.
        self.ensure_wake_by(earliest)
    }

    /// The owner: those that were cancelled in the wheel. To be called before [`Shard::take_arrivals`], so
    /// that a cancelled arrival that was counted is found there.
    pub(super) fn take_cancelled(&self) -> CellList {
        if self.cancelled.0.load(Ordering::Relaxed) == u64::from(NONE) {
            return CellList::EMPTY;
        }
        CellList::taken(self.cancelled.0.swap(u64::from(NONE), Ordering::Acquire) as u32)
    }

    /// Those that were armed by others.
    pub(super) fn take_arrivals(&self) -> CellList {
        let mut head = self.arrivals.0.load(Ordering::Relaxed);
        while head != NONE && head != CLOSED {
            match self.arrivals.0.compare_exchange_weak(head, NONE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(current) => head = current,
            }
        }
        CellList::taken(head)
    }

    /// The owner: as [`Shard::take_arrivals`], for the last time; who arms from now on is refused.
    pub(super) fn close(&self) -> CellList {
        CellList::taken(self.arrivals.0.swap(CLOSED, Ordering::Acquire))
    }

    fn take_free(&self) -> Option<u32> {
        // Acquire pairs with the Release of `give_spare`: the cell's link and word are those of its giver.
        let mut head = self.free.0.load(Ordering::Acquire);
        loop {
            let index = (head & INDEX) as u32;
            if index == NONE {
                return None;
            }
            // Another thread may have taken it and write its link: then the exchange fails, by the count.
            let next = self.next(index).load(Ordering::Relaxed);
            let new = (head & !INDEX).wrapping_add(ONE_TAKEN) | u64::from(next);
            match self.free.0.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(current) => head = current,
            }
        }
    }

    /// Makes a chain of free cells spare that the caller holds.
    pub(super) fn give_free(&self, list: CellList) {
        let mut head = self.free.0.load(Ordering::Relaxed);
        loop {
            self.next(list.last).store((head & INDEX) as u32, Ordering::Relaxed);
            let new = head & !INDEX | u64::from(list.first);
            match self.free.0.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }
}

/// Cells in a list that is the caller's alone.
#[derive(Debug)]
pub(super) struct CellList {
    first: u32,
    /// Not known of a chain that was taken.
    last: u32,
}

impl CellList {
    pub(super) const EMPTY: CellList = CellList { first: NONE, last: NONE };

    fn taken(first: u32) -> CellList {
        CellList { first: if first == CLOSED { NONE } else { first }, last: NONE }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Puts a cell in front that is in no list.
    pub(super) fn push(&mut self, index: u32, shard: &Shard) {
        shard.next(index).store(self.first, Ordering::Relaxed);
        if self.is_empty() {
            self.last = index;
        }
        self.first = index;
    }

    /// Takes the first cell out.
    pub(super) fn pop(&mut self, shard: &Shard) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let index = self.first;
        self.first = shard.next(index).load(Ordering::Relaxed);
        Some(index)
    }
}
