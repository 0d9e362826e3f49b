//! The owner's side of a shard: the wheel, and the one thread at a time that turns it.
//!
//! Promises: a timer that was cancelled by another thread is out of the wheel and free when
//! [`WheelDriver::collect`] comes by; a callback that is due runs unlinked and one at a time, so that it may
//! cancel any other. Leaves to others: who turns it and when (`service.rs`).

use std::sync::Arc;

use sys::clock::Nanos;

use super::arm_request::ArmRequest;
use super::levels::{Levels, Links, Node, due_tick};
use super::service::{Cancel, Next};
use super::shard::{FollowUp, FreeList, Shard, TimerKey};
use super::slack::Slack;
use super::slot_allocator::{Locality, SlotAllocator};

/// A timer whose callback is to run now, and then to be finished.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Due {
    index: u32,
    pub(super) tag: u64,
}

/// See the file's header.
#[derive(Debug)]
pub(super) struct WheelDriver {
    shard: Arc<Shard>,
    wheel: Levels,
    /// By the numbers of the shard's cells. Apart from these, so that others who take timers back and the
    /// owner who links their neighbours do not take cache lines from each other.
    timers: Box<[Timer]>,
    spare: FreeSlots,
}

/// Free cells in the owner's hands.
#[derive(Debug)]
enum FreeSlots {
    /// They stay here, where the owner alone arms timers.
    Kept(SlotAllocator),
    /// They go to all threads, so many so far.
    Lent(FreeList, usize),
}

/// What only the owner touches of a timer.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// Of the timer in the wheel, or where cells are kept, of the next one.
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
    /// Gone, and somebody sleeps until then.
    Awaited,
}

/// Free cells are lent after so many: who collects may be descheduled, and others need them.
const LEND_AFTER: usize = 64;

impl WheelDriver {
    /// The owner of a shard in which any thread arms timers.
    pub(super) fn lending(shard: Arc<Shard>, now: Nanos) -> WheelDriver {
        WheelDriver::new(shard, now, FreeSlots::Lent(FreeList::EMPTY, 0))
    }

    /// The owner of a shard in which it alone arms timers, and others cancel them.
    pub(super) fn keeping(shard: Arc<Shard>, now: Nanos) -> WheelDriver {
        let spare = FreeSlots::Kept(SlotAllocator::all(shard.len()));
        WheelDriver::new(shard, now, spare)
    }

    fn new(shard: Arc<Shard>, now: Nanos, spare: FreeSlots) -> WheelDriver {
        let timers = vec![NO_TIMER; shard.len()].into();
        WheelDriver { shard, wheel: Levels::new(now), timers, spare }
    }

    /// How many timers are in the wheel.
    pub(super) fn armed(&self) -> usize {
        self.wheel.armed()
    }

    /// Arms a timer with a cell that was kept; `None` when all are in use.
    #[inline]
    pub(super) fn arm(&mut self, when: Nanos, slack: Slack, tag: u64) -> Option<TimerKey> {
        let FreeSlots::Kept(free) = &mut self.spare else {
            unreachable!("lent cells are taken by `Shard::arm`")
        };
        let index = free.take()?;
        let generation = self.timers[index as usize].generation;
        self.shard.cell(index).fill_armed(generation);
        self.link(index, ArmRequest { tick: due_tick(slack.apply(when)), tag, slack });
        Some(TimerKey { index, generation })
    }

    /// Takes a timer back; its cell is free at once.
    #[inline]
    pub(super) fn cancel(&mut self, ticket: TimerKey) -> (Cancel, FollowUp) {
        if (ticket.index as usize) < self.shard.len() && self.reclaim(ticket) {
            return (Cancel::Cancelled, FollowUp::Nothing);
        }
        self.shard.cancel(ticket)
    }

    /// Takes in what other threads have armed and cancelled.
    pub(super) fn collect(&mut self) {
        let cancelled = self.shard.take_cancelled();
        let arrivals = self.shard.take_arrivals();
        self.shard.was_collected();
        self.sort(cancelled, arrivals);
    }

    fn sort(&mut self, mut cancelled: FreeList, mut arrivals: FreeList) {
        while let Some(index) = cancelled.pop(&self.shard) {
            let timer = &self.timers[index as usize];
            if let FreeSlots::Lent(..) = self.spare {
                self.shard.cell(index).free_cancelled(timer.generation);
            }
            if timer.is_in_wheel() {
                self.wheel.remove(&mut self.timers, index);
            }
            self.give_back(index, Locality::Cold);
        }
        while let Some(index) = arrivals.pop(&self.shard) {
            let cell = self.shard.cell(index);
            if let Some(generation) = cell.enlist() {
                self.timers[index as usize].generation = generation;
                self.link(index, self.shard.wanted(index));
            } else {
                cell.free();
                self.give_back(index, Locality::Cold);
            }
        }
        self.tell_armed();
        self.lend();
    }

    /// Has others judge by how many timers there are now.
    pub(super) fn tell_armed(&self) {
        self.shard.set_armed(self.wheel.armed());
    }

    /// A cell is free.
    #[inline]
    fn give_back(&mut self, index: u32, heat: Locality) {
        self.timers[index as usize].generation += 1;
        match &mut self.spare {
            FreeSlots::Kept(free) => free.give(index, heat),
            FreeSlots::Lent(chain, count) => {
                chain.push(index, &self.shard);
                *count += 1;
                if count.is_multiple_of(LEND_AFTER) {
                    self.lend();
                }
            }
        }
    }

    /// Gives free cells to those who need them, where that is not the owner.
    fn lend(&mut self) {
        if let FreeSlots::Lent(chain, _) = &mut self.spare
            && !chain.is_empty()
        {
            self.shard.give_spare(std::mem::replace(chain, FreeList::EMPTY));
        }
    }

    /// The next timer that is due at `now`, taken from whoever would cancel it.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<Due> {
        loop {
            let index = self.wheel.pop_due(&mut self.timers, now)?;
            let timer = &mut self.timers[index as usize];
            timer.links = Links::NONE;
            if self.shard.cell(index).fire() {
                return Some(Due { index, tag: timer.tag });
            }
            // Cancelled by another thread, which has put it among the cancelled ones or is about to.
        }
    }

    /// The callback of `due` has ended.
    pub(super) fn finish(&mut self, due: Due, next: Next) -> Finished {
        let cell = self.shard.cell(due.index);
        if let Next::Again(when) = next
            && cell.again()
        {
            let slack = self.timers[due.index as usize].slack;
            self.link(due.index, ArmRequest { tick: due_tick(slack.apply(when)), tag: due.tag, slack });
            return Finished::Rearmed;
        }
        let is_awaited = cell.free();
        self.give_back(due.index, Locality::Warm);
        self.lend();
        if is_awaited { Finished::Awaited } else { Finished::Gone }
    }

    /// Says until when nothing is due, for the sleep that follows; `None` when that sleep is not to be, as
    /// something has come in meanwhile.
    pub(super) fn park(&mut self) -> Option<Nanos> {
        let until = self.wheel.next_due(&self.timers).unwrap_or(Nanos::NEVER);
        self.shard.park(until).then_some(until)
    }

    /// Forgets all timers, so that every name leads to nothing; how many there were. Where all threads armed
    /// timers none can any more.
    pub(super) fn close(&mut self) -> usize {
        let cancelled = self.shard.take_cancelled();
        let arrivals = self.shard.close();
        self.sort(cancelled, arrivals);
        let armed = self.wheel.armed();
        for index in 0..self.shard.len() as u32 {
            let generation = self.shard.cell(index).generation();
            self.reclaim(TimerKey { index, generation });
        }
        armed
    }

    /// Takes a timer out of the wheel, unless another thread was faster.
    #[inline]
    fn reclaim(&mut self, ticket: TimerKey) -> bool {
        let is_ours = self.shard.cell(ticket.index).reclaim_armed(ticket.generation);
        if is_ours {
            self.wheel.remove(&mut self.timers, ticket.index);
            self.give_back(ticket.index, Locality::Warm);
        }
        is_ours
    }

    #[inline]
    fn link(&mut self, index: u32, wanted: ArmRequest) {
        let ArmRequest { tick, tag, slack } = wanted;
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
