//! A shard: what all threads access of one wheel's timers, namely the cells and the lists that cells pass
//! through.
//!
//! Guarantees: no thread waits here. A descheduled thread delays no other, with one exception: a thread that
//! is about to move the driver's wake-up to an earlier time does so only when it runs again. Memory is
//! allocated once, at the start.
//!
//! Not handled here: the states of a cell (`cell.rs`), the wheel (`wheel_driver.rs`), and the driver's sleep.
//!
//! ```text
//!   any thread                                              the driver of the wheel
//!   arm:    free -----> fill ----> arrivals --------------> enlist, into the wheel
//!             ^                      '- earlier than parked_until? lower it and wake the driver
//!   cancel: the word ------------> cancelled -------------> out of the wheel, free
//!             '- QUEUED: only counted, the driver finds it among the arrivals
//!             '- as many as `reclaim_threshold`: the caller has them collected
//! ```
//!
//! Lists of cells are stacks, linked by cell numbers. Two are always taken as a whole, which avoids the ABA
//! problem (R. K. Treiber, IBM RJ 5118, 1986). From the third, `free`, single cells are taken, so its head
//! counts them: the count repeats only if 2^40 cells pass through it while a thread is between two
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
/// The head of the arrivals when the driver has taken them for the last time.
const CLOSED: u32 = NONE - 1;
const INDEX_BITS: u32 = 24;
const INDEX: u64 = (1 << INDEX_BITS) - 1;
const ONE_TAKEN: u64 = 1 << INDEX_BITS;
/// In the word `cancelled` the count is above the head.
const ONE_CANCELLED: u64 = 1 << 32;
/// The most cells that a shard can have.
pub(super) const CELLS_MAX: usize = CLOSED as usize;

/// At least so many cancelled timers may be uncollected; the other bound is a share of the armed ones. 256
/// cells are 16 KiB: collecting them together costs little for each. Models have fewer timers.
const RECLAIM_MIN: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };
const RECLAIM_SHARE: usize = 8;

/// The value of `parked_until` while the driver runs, and while another thread is about to wake it.
const RUNNING: u64 = 0;

/// How many cancelled timers may be uncollected while `armed` are armed.
pub(super) fn uncollected_max(armed: usize) -> usize {
    (armed / RECLAIM_SHARE).max(RECLAIM_MIN)
}

/// What the caller has to do after a call, for the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(super) enum FollowUp {
    Nothing,
    /// The driver would sleep too long.
    Wake,
    /// Enough cancelled timers are uncollected to collect them now.
    Collect,
}

/// Data that many threads write, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

/// The cells of one wheel's timers, with the lists of free, arriving and cancelled cells.
#[derive(Debug)]
pub(super) struct Shard {
    cells: Box<[Cell]>,
    /// By cell number: the next cell of the list that a cell is in. Written by the thread that holds the cell
    /// and adds it to the list.
    nexts: Box<[AtomicU32]>,
    /// One for each cell, or none where the driver alone arms timers.
    requests: Box<[ArmCell]>,
    free: CachePadded<AtomicU64>,
    arrivals: CachePadded<AtomicU32>,
    cancelled: CachePadded<AtomicU64>,
    /// The earliest time at which the sleeping driver wakes by itself.
    parked_until: CachePadded<AtomicU64>,
    /// So many cancelled timers have to be collected.
    reclaim_threshold: CachePadded<AtomicU64>,
    /// Tells a running driver that so many are cancelled.
    collect_requested: CachePadded<AtomicBool>,
}

impl Shard {
    /// A shard in which any thread arms timers; all its cells are free.
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

    /// A shard in which the driver alone arms timers; all cells belong to the driver.
    pub(super) fn local(cells: usize) -> Shard {
        assert!(cells <= CELLS_MAX, "a shard has at most `CELLS_MAX` cells");
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

    /// The request of an armed timer, in a shard where any thread arms.
    pub(super) fn request(&self, index: u32) -> ArmRequest {
        self.requests[index as usize].read()
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Any thread: arms a timer that the driver will find.
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
            // The key was never returned, so no thread can have cancelled it.
            cell.free();
            self.give_free(CellList { first: index, last: index });
            return Err(ArmError::Closed);
        }
        Ok((TimerKey { index, generation }, self.ensure_wake_by(levels::start_of(tick))))
    }

    /// Adds a list to the arrivals; false if the driver has taken them for the last time.
    pub(super) fn put_arrivals(&self, list: CellList) -> bool {
        let mut head = self.arrivals.0.load(Ordering::Relaxed);
        while head != CLOSED {
            self.next(list.last).store(head, Ordering::Relaxed);
            // Release pairs with the Acquire of the thread that takes the list: it sees what each cell holds.
            // SeqCst: see `ensure_wake_by`.
            let to = list.first;
            match self.arrivals.0.compare_exchange_weak(head, to, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(current) => head = current,
            }
        }
        false
    }

    /// Whether the caller, which has added a timer, must wake the driver earlier.
    fn ensure_wake_by(&self, due: Nanos) -> FollowUp {
        // The exchange in `put_arrivals`, this load, and the store and the load in `park` are all
        // sequentially consistent. So either the driver's last check finds the timer, or this load sees until
        // when the driver sleeps.
        fence_for_loom();
        if due.0 < self.parked_until.0.load(Ordering::SeqCst) && self.bring_forward(due) {
            FollowUp::Wake
        } else {
            FollowUp::Nothing
        }
    }

    /// Limits the driver's sleep to `due`; returns whether that is earlier than before.
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

    /// Any thread: cancels a timer.
    pub(super) fn cancel(&self, key: TimerKey) -> (Cancel, FollowUp) {
        let Some(cell) = self.cells.get(key.index as usize) else {
            return (Cancel::Gone, FollowUp::Nothing);
        };
        let before = match cell.cancel(key.generation) {
            Claim::Running => return (Cancel::Running, FollowUp::Nothing),
            Claim::Gone => return (Cancel::Gone, FollowUp::Nothing),
            // The cell is in the list of arrivals and has no second link, so it is only counted.
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
            // Release pairs with the Acquire of the driver's swap.
            match self.cancelled.0.compare_exchange_weak(word, new, Ordering::Release, Ordering::Relaxed) {
                Ok(before) => return before,
                Err(current) => word = current,
            }
        }
    }

    /// Any thread but the driver's, after [`FollowUp::Collect`]: requests a collection, and returns whether
    /// the caller has to wake the driver for it.
    pub(super) fn request_collect(&self) -> bool {
        let collect_requested = &self.collect_requested.0;
        // Only the first to request it wakes the driver.
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

    /// Driver only: whether a collection was requested.
    pub(super) fn is_collect_requested(&self) -> bool {
        self.collect_requested.0.load(Ordering::Relaxed)
    }

    /// Driver only, after a collection: clears the request, since a stale one would suppress later requests.
    /// A request that arrives between the two is lost here. The next cancel repeats it, and a driver that
    /// goes to sleep checks the count itself.
    pub(super) fn clear_collect_request(&self) {
        if self.is_collect_requested() {
            self.collect_requested.0.store(false, Ordering::Relaxed);
        }
    }

    /// Until when the driver sleeps, as lowered by other threads; `None` while it runs.
    pub(super) fn parked_until(&self) -> Option<Nanos> {
        match self.parked_until.0.load(Ordering::Acquire) {
            RUNNING => None,
            until => Some(Nanos(until)),
        }
    }

    /// Driver only: announces a sleep until then. This is the last check before it: false if there is
    /// something to do.
    pub(super) fn park(&self, until: Nanos) -> bool {
        self.parked_until.0.store(until.0.max(RUNNING + 1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let has_arrivals = !matches!(self.arrivals.0.load(Ordering::SeqCst), NONE | CLOSED);
        let count = self.cancelled.0.load(Ordering::Relaxed) / ONE_CANCELLED;
        !has_arrivals
            && count < self.reclaim_threshold.0.load(Ordering::Relaxed)
            && !self.is_collect_requested()
    }

    /// Driver only: it runs.
    pub(super) fn unpark(&self) {
        self.parked_until.0.store(RUNNING, Ordering::Relaxed);
    }

    /// Driver only: publishes the number of armed timers, on which the threshold depends.
    pub(super) fn set_armed(&self, armed: usize) {
        let reclaim_threshold = uncollected_max(armed) as u64;
        // Every cancelling thread reads it, so it is written only on a change.
        if self.reclaim_threshold.0.load(Ordering::Relaxed) != reclaim_threshold {
            self.reclaim_threshold.0.store(reclaim_threshold, Ordering::Relaxed);
        }
    }

    /// Any thread, after [`FollowUp::Collect`] while another thread uses the driver: frees cancelled
    /// arrivals, and puts the others back.
    pub(super) fn recycle(&self) -> FollowUp {
        // Reset the count before taking the arrivals, since some of the counted cells are among them. Timers
        // that were cancelled in the wheel stay in their list.
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
        // If the driver has ended meanwhile, they never fire, like all its other timers.
        if others.is_empty() || !self.put_arrivals(others) {
            return FollowUp::Nothing;
        }
        // The driver's last check may have missed them while they were out of the list.
        self.ensure_wake_by(earliest)
    }

    /// Driver only: takes the timers that were cancelled in the wheel. To be called before
    /// [`Shard::take_arrivals`], so that a cancelled arrival that was counted is found there.
    pub(super) fn take_cancelled(&self) -> CellList {
        if self.cancelled.0.load(Ordering::Relaxed) == u64::from(NONE) {
            return CellList::EMPTY;
        }
        CellList::taken(self.cancelled.0.swap(u64::from(NONE), Ordering::Acquire) as u32)
    }

    /// Takes the timers that other threads have armed.
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

    /// Driver only: as [`Shard::take_arrivals`], for the last time. From now on arming fails.
    pub(super) fn close(&self) -> CellList {
        CellList::taken(self.arrivals.0.swap(CLOSED, Ordering::Acquire))
    }

    fn take_free(&self) -> Option<u32> {
        // Acquire pairs with the Release of `give_free`: this thread sees the cell's link and word.
        let mut head = self.free.0.load(Ordering::Acquire);
        loop {
            let index = (head & INDEX) as u32;
            if index == NONE {
                return None;
            }
            // Another thread may have taken the cell and may write its link: then the exchange fails, by the
            // count.
            let next = self.next(index).load(Ordering::Relaxed);
            let new = (head & !INDEX).wrapping_add(ONE_TAKEN) | u64::from(next);
            match self.free.0.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(current) => head = current,
            }
        }
    }

    /// Adds a list of free cells to the shard's free ones.
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

/// A list of cells that one thread owns.
#[derive(Debug)]
pub(super) struct CellList {
    first: u32,
    /// Unknown for a list that was taken from the shard.
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

    /// Adds a cell, which is in no list, at the front.
    pub(super) fn push(&mut self, index: u32, shard: &Shard) {
        shard.next(index).store(self.first, Ordering::Relaxed);
        if self.is_empty() {
            self.last = index;
        }
        self.first = index;
    }

    /// Removes the first cell.
    pub(super) fn pop(&mut self, shard: &Shard) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let index = self.first;
        self.first = shard.next(index).load(Ordering::Relaxed);
        Some(index)
    }
}
