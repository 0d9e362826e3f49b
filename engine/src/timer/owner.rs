//! The owner's side of a shard: the wheel, and the one thread at a time that turns it.
//!
//! Promises: a timer that was cancelled by another thread is out of the wheel and free when
//! [`Owner::collect`] comes by; a callback that is due runs unlinked and one at a time, so that it may cancel
//! any other. Leaves to others: who turns it and when (`service.rs`).

use std::sync::Arc;

use sys::clock::Nanos;

use super::levels::{Levels, due_tick};
use super::service::{Cancel, Next};
use super::shard::{Chain, Duty, Linked, Shard, Ticket};
use super::slack::Slack;

/// A timer whose callback is to run now, and then to be finished.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Due {
    index: u32,
    pub(super) tag: u64,
}

/// See the file's header.
#[derive(Debug)]
pub(super) struct Owner {
    shard: Arc<Shard>,
    wheel: Levels,
    /// Free cells, of which some or all are still in the owner's hands.
    free: Chain,
    /// Whether free cells go to all threads, or stay here, where the owner alone arms timers.
    lends: bool,
}

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

impl Owner {
    /// The owner of a shard in which any thread arms timers.
    pub(super) fn lending(shard: Arc<Shard>, now: Nanos) -> Owner {
        Owner { shard, wheel: Levels::new(now), free: Chain::EMPTY, lends: true }
    }

    /// The owner of a shard in which it alone arms timers, and others cancel them.
    pub(super) fn keeping(shard: Arc<Shard>, now: Nanos) -> Owner {
        let free = shard.take_spares();
        Owner { shard, wheel: Levels::new(now), free, lends: false }
    }

    /// How many timers are in the wheel.
    pub(super) fn armed(&self) -> usize {
        self.wheel.armed()
    }

    /// Arms a timer with a cell that was kept; `None` when all are in use.
    pub(super) fn arm(&mut self, when: Nanos, slack: Slack, tag: u64) -> Option<Ticket> {
        debug_assert!(!self.lends, "cells that are lent are taken by `Shard::arm`");
        let index = self.free.pop(&self.shard)?;
        let generation =
            self.shard.cell(index).fill_armed(self.wheel.ahead(due_tick(slack.apply(when))), slack, tag);
        self.wheel.insert(&mut Linked(&self.shard), index);
        Some(Ticket { index, generation })
    }

    /// Takes a timer back; its cell is free at once.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> (Cancel, Duty) {
        if (ticket.index as usize) < self.shard.len() && self.reclaim(ticket) {
            return (Cancel::Cancelled, Duty::Nothing);
        }
        self.shard.cancel(ticket)
    }

    /// Takes in what other threads have armed and cancelled.
    pub(super) fn collect(&mut self) {
        let cancelled = self.shard.take_cancelled();
        let arrivals = self.shard.take_arrivals();
        self.sort(cancelled, arrivals);
    }

    fn sort(&mut self, mut cancelled: Chain, mut arrivals: Chain) {
        let mut freed = 0;
        while let Some(index) = cancelled.first() {
            // First, as it fetches the cell to be written.
            self.shard.cell(index).free_cancelled();
            cancelled.pop(&self.shard);
            self.unlink(index);
            self.give_back(index, &mut freed);
        }
        while let Some(index) = arrivals.pop(&self.shard) {
            let cell = self.shard.cell(index);
            if cell.enlist() {
                self.link(index, cell.tick());
            } else {
                cell.free();
                self.give_back(index, &mut freed);
            }
        }
        self.shard.set_armed(self.wheel.armed());
        self.lend();
    }

    fn give_back(&mut self, index: u32, freed: &mut usize) {
        self.free.push(index, &self.shard);
        *freed += 1;
        if freed.is_multiple_of(LEND_AFTER) {
            self.lend();
        }
    }

    /// Gives free cells to those who need them, where that is not the owner.
    fn lend(&mut self) {
        if self.lends && !self.free.is_empty() {
            self.shard.give_spare(std::mem::replace(&mut self.free, Chain::EMPTY));
        }
    }

    /// The next timer that is due at `now`, taken from whoever would cancel it.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<Due> {
        loop {
            let index = self.wheel.pop_due(&mut Linked(&self.shard), now)?;
            let cell = self.shard.cell(index);
            cell.leave_wheel();
            if cell.fire() {
                return Some(Due { index, tag: cell.tag() });
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
            self.link(due.index, due_tick(cell.slack().apply(when)));
            return Finished::Rearmed;
        }
        let is_awaited = cell.free();
        self.free.push(due.index, &self.shard);
        self.lend();
        if is_awaited { Finished::Awaited } else { Finished::Gone }
    }

    /// Says until when nothing is due, for the sleep that follows; `None` when that sleep is not to be, as
    /// something has come in meanwhile.
    pub(super) fn park(&mut self) -> Option<Nanos> {
        let until = self.wheel.next_due(&Linked(&self.shard)).unwrap_or(Nanos::NEVER);
        self.shard.park(until).then_some(until)
    }

    /// Forgets all timers, so that every name leads to nothing; how many there were. Where all threads armed
    /// timers none can any more.
    pub(super) fn close(&mut self) -> usize {
        let cancelled = self.shard.take_cancelled();
        let arrivals = if self.lends { self.shard.close() } else { self.shard.take_arrivals() };
        self.sort(cancelled, arrivals);
        let armed = self.wheel.armed();
        for index in 0..self.shard.len() as u32 {
            let generation = self.shard.cell(index).generation();
            self.reclaim(Ticket { index, generation });
        }
        armed
    }

    /// Takes a timer out of the wheel, unless another thread was faster.
    fn reclaim(&mut self, ticket: Ticket) -> bool {
        let is_ours = self.shard.cell(ticket.index).reclaim_armed(ticket.generation);
        if is_ours {
            self.unlink(ticket.index);
            self.free.push(ticket.index, &self.shard);
        }
        is_ours
    }

    fn link(&mut self, index: u32, tick: u64) {
        self.shard.cell(index).set_tick(self.wheel.ahead(tick));
        self.wheel.insert(&mut Linked(&self.shard), index);
    }

    /// Takes a cell out of the wheel, if it is there.
    fn unlink(&mut self, index: u32) {
        let cell = self.shard.cell(index);
        if cell.is_in_wheel() {
            self.wheel.remove(&mut Linked(&self.shard), index);
            cell.leave_wheel();
        }
    }
}
