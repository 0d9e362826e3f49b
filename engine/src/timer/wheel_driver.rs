//! The wheel driver: the owner of a shard's wheel. One thread at a time uses it.
//!
//! Guarantees: [`WheelDriver::collect`] takes timers that other threads cancelled out of the wheel and frees
//! their cells. Due callbacks run one at a time, and their timers are out of the wheel by then; so a callback
//! may cancel any other timer.
//!
//! Not handled here: which thread uses it and when (`timer_thread.rs`, `local.rs`).

use std::sync::Arc;

use sys::clock::Nanos;

use super::arm_request::ArmRequest;
use super::cell_allocator::{CellAllocator, Locality};
use super::handle::{Cancel, Next, TimerKey};
use super::levels::{Levels, Links, Node, due_tick};
use super::shard::{CellList, FollowUp, Shard};
use super::slack::Slack;

/// A timer whose callback is to run now, and then to be finished.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Due {
    index: u32,
    pub(super) tag: u64,
}

/// The wheel of a shard, and the driver's part of its timers.
#[derive(Debug)]
pub(super) struct WheelDriver {
    shard: Arc<Shard>,
    wheel: Levels,
    /// By cell number. Kept apart from the cells, so that threads that cancel timers and the driver that
    /// links their neighbours do not contend for cache lines.
    timers: Box<[Timer]>,
    free_cells: FreeCells,
}

/// Free cells that the driver holds.
#[derive(Debug)]
enum FreeCells {
    /// They stay here, where the driver alone arms timers.
    Private(CellAllocator),
    /// They go to all threads; the count of cells freed so far.
    Shared(CellList, usize),
}

/// The part of a timer that only the driver accesses.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// Of the timer in the wheel; or of the next one, if the cell is free and private.
    generation: u64,
    tick: u64,
    tag: u64,
    /// [`Links::NONE`] after it was due.
    links: Links,
    slack: Slack,
}

const NO_TIMER: Timer = Timer { generation: 0, tick: 0, tag: 0, links: Links::NONE, slack: Slack::Tick };

/// What became of a timer after its callback.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Finished {
    Rearmed,
    Gone,
    /// Gone, and another thread sleeps until then.
    Awaited,
}

/// Free cells are published in batches of this size: a collecting thread may be descheduled, and others need
/// the cells.
const PUBLISH_AFTER: usize = 64;

impl WheelDriver {
    /// The driver of a shard in which any thread arms timers.
    pub(super) fn shared(shard: Arc<Shard>, now: Nanos) -> WheelDriver {
        WheelDriver::new(shard, now, FreeCells::Shared(CellList::EMPTY, 0))
    }

    /// The driver of a shard in which it alone arms timers; other threads cancel them.
    pub(super) fn local(shard: Arc<Shard>, now: Nanos) -> WheelDriver {
        let free_cells = FreeCells::Private(CellAllocator::all(shard.len()));
        WheelDriver::new(shard, now, free_cells)
    }

    fn new(shard: Arc<Shard>, now: Nanos, free_cells: FreeCells) -> WheelDriver {
        let timers = vec![NO_TIMER; shard.len()].into();
        WheelDriver { shard, wheel: Levels::new(now), timers, free_cells }
    }

    /// The number of timers in the wheel.
    pub(super) fn armed(&self) -> usize {
        self.wheel.armed()
    }

    /// Arms a timer in a private free cell; `None` when all are in use.
    #[inline]
    pub(super) fn arm(&mut self, when: Nanos, slack: Slack, tag: u64) -> Option<TimerKey> {
        let FreeCells::Private(free) = &mut self.free_cells else {
            unreachable!("in a shared shard `Shard::arm` takes the free cells")
        };
        let index = free.take()?;
        let generation = self.timers[index as usize].generation;
        self.shard.cell(index).fill_armed(generation);
        self.link(index, ArmRequest { tick: due_tick(slack.apply(when)), tag, slack });
        Some(TimerKey { index, generation })
    }

    /// Cancels a timer; its cell is free at once.
    #[inline]
    pub(super) fn cancel(&mut self, key: TimerKey) -> (Cancel, FollowUp) {
        if (key.index as usize) < self.shard.len() && self.reclaim(key) {
            return (Cancel::Cancelled, FollowUp::Nothing);
        }
        self.shard.cancel(key)
    }

    /// Takes in what other threads have armed and cancelled.
    pub(super) fn collect(&mut self) {
        let cancelled = self.shard.take_cancelled();
        let arrivals = self.shard.take_arrivals();
        self.shard.clear_collect_request();
        self.apply(cancelled, arrivals);
    }

    fn apply(&mut self, mut cancelled: CellList, mut arrivals: CellList) {
        while let Some(index) = cancelled.pop(&self.shard) {
            let timer = &self.timers[index as usize];
            if let FreeCells::Shared(..) = self.free_cells {
                self.shard.cell(index).free_cancelled(timer.generation);
            }
            if timer.is_in_wheel() {
                self.wheel.remove(&mut self.timers, index);
            }
            self.free_cell(index, Locality::Cold);
        }
        while let Some(index) = arrivals.pop(&self.shard) {
            let cell = self.shard.cell(index);
            if let Some(generation) = cell.enlist() {
                self.timers[index as usize].generation = generation;
                self.link(index, self.shard.request(index));
            } else {
                cell.free();
                self.free_cell(index, Locality::Cold);
            }
        }
        self.publish_armed();
        self.publish_free();
    }

    /// Publishes the number of armed timers, on which the reclaim threshold depends.
    pub(super) fn publish_armed(&self) {
        self.shard.set_armed(self.wheel.armed());
    }

    /// Frees a cell.
    #[inline]
    fn free_cell(&mut self, index: u32, locality: Locality) {
        self.timers[index as usize].generation += 1;
        match &mut self.free_cells {
            FreeCells::Private(free) => free.give(index, locality),
            FreeCells::Shared(list, count) => {
                list.push(index, &self.shard);
                *count += 1;
                if count.is_multiple_of(PUBLISH_AFTER) {
                    self.publish_free();
                }
            }
        }
    }

    /// Publishes free cells, where other threads arm timers.
    fn publish_free(&mut self) {
        if let FreeCells::Shared(list, _) = &mut self.free_cells
            && !list.is_empty()
        {
            self.shard.give_free(std::mem::replace(list, CellList::EMPTY));
        }
    }

    /// The next timer that is due at `now`; from here on it cannot be cancelled.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<Due> {
        loop {
            let index = self.wheel.pop_due(&mut self.timers, now)?;
            let timer = &mut self.timers[index as usize];
            timer.links = Links::NONE;
            if self.shard.cell(index).fire() {
                return Some(Due { index, tag: timer.tag });
            }
            // Another thread has cancelled it, and adds it to the cancelled ones.
        }
    }

    /// The callback of `due` has ended.
    pub(super) fn finish(&mut self, due: Due, next: Next) -> Finished {
        let cell = self.shard.cell(due.index);
        if let Next::Again(when) = next
            && cell.rearm()
        {
            let slack = self.timers[due.index as usize].slack;
            self.link(due.index, ArmRequest { tick: due_tick(slack.apply(when)), tag: due.tag, slack });
            return Finished::Rearmed;
        }
        let is_awaited = cell.free();
        self.free_cell(due.index, Locality::Warm);
        self.publish_free();
        if is_awaited { Finished::Awaited } else { Finished::Gone }
    }

    /// Announces a sleep, and returns until when no timer is due; `None` if something has arrived meanwhile.
    pub(super) fn park(&mut self) -> Option<Nanos> {
        let until = self.wheel.next_due(&self.timers).unwrap_or(Nanos::NEVER);
        self.shard.park(until).then_some(until)
    }

    /// Ends all timers, so that every key is stale; returns their number. In a shared shard arming fails from
    /// now on.
    pub(super) fn close(&mut self) -> usize {
        let cancelled = self.shard.take_cancelled();
        let arrivals = self.shard.close();
        self.apply(cancelled, arrivals);
        let armed = self.wheel.armed();
        for index in 0..self.shard.len() as u32 {
            let generation = self.shard.cell(index).generation();
            self.reclaim(TimerKey { index, generation });
        }
        armed
    }

    /// Takes a timer out of the wheel, unless another thread was first.
    #[inline]
    fn reclaim(&mut self, key: TimerKey) -> bool {
        let is_ours = self.shard.cell(key.index).reclaim_armed(key.generation);
        if is_ours {
            self.wheel.remove(&mut self.timers, key.index);
            self.free_cell(key.index, Locality::Warm);
        }
        is_ours
    }

    #[inline]
    fn link(&mut self, index: u32, request: ArmRequest) {
        let ArmRequest { tick, tag, slack } = request;
        let timer = &mut self.timers[index as usize];
        (timer.tick, timer.tag, timer.slack) = (self.wheel.ahead(tick), tag, slack);
        self.wheel.insert(&mut self.timers, index);
    }
}

impl Timer {
    fn is_in_wheel(&self) -> bool {
        self.links.list != Links::NONE.list
    }
}

impl Node for Timer {
    fn tick(&self) -> u64 {
        self.tick
    }

    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}
