//! The way into the ledger: an [`FlowWriter`] for a data-plane thread, an [`FlowDrain`] for the committer.
//!
//! Promises: opening, counting and closing a flow never block, take no lock and make no system call unless
//! the committer sleeps; a closed flow waits in its slot until it is journaled, however long that takes.
//! Leaves to others: what is counted (the gateway's relay), where it goes (`commit`).
//!
//! The rings between the two ends are hints: what they point at is in the live table, and would be found
//! there without them. The ring of closed slots has as many places as there are slots, so it is never full;
//! the ring of flows that want an interim may be, and then they ask again with their next bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use sys::clock::WallNanos;
use sys::crash::point;
use sys::ring::{Consumer, Producer, ring};
use sys::sync::atomic::{AtomicU32, Ordering};

use crate::limits::{INTERIM_BYTES, INTERIM_HINTS};
use crate::live_table::{FlowCounters, Region, State};
use crate::record::{CloseReason, Identity, Legs, Record};
use crate::status::Shared;

/// A data-plane thread's end: its slots of the live table.
pub struct FlowWriter {
    region: Region,
    /// Slots that are free and were used before, the last one freed on top.
    free: Vec<u32>,
    /// Slots that are the committer's, in the order of their closing, which is the order in which it frees.
    closing: VecDeque<u32>,
    /// Slots below this number are noted in the table as used.
    noted: u32,
    /// Flows open now.
    live: u32,
    closed: Producer<u32>,
    interims: Producer<u32>,
    ring_counters: Arc<RingCounters>,
    shared: Arc<Shared>,
}

/// What the two ends see of each other, besides the rings.
#[derive(Debug, Default)]
struct RingCounters {
    /// Slots below this number were used. Only grows, by the inlet.
    used: AtomicU32,
    /// Flows open now.
    live: AtomicU32,
}

/// An open flow: its slot, and its counts.
#[derive(Debug)]
pub struct LiveFlow {
    slot: u32,
    generation: u64,
    legs: Legs,
    /// The bytes sent both ways at which it wants its next interim.
    interim_at: u64,
}

impl FlowWriter {
    /// Whether `flows` more can be opened and should be: not while nothing can be journaled.
    pub fn has_room_for(&mut self, flows: u32) -> bool {
        self.reclaim();
        let unused = self.region.slots() - self.ring_counters.used.load(Ordering::Relaxed);
        let free = u32::try_from(self.free.len()).unwrap_or(u32::MAX);
        free.saturating_add(unused) >= flows && !self.shared.is_stuck()
    }

    /// Takes a slot for a flow that begins; `None` if all are taken: by open flows, or by closed ones that
    /// the journal does not take.
    pub fn open(&mut self, identity: &Identity) -> Option<LiveFlow> {
        self.reclaim();
        let (slot, generation) = self.take_free()?;
        self.region.slot(slot).open(identity, generation);
        if slot >= self.noted {
            // Behind its first store: a slot that is noted as used and is zero has lost what it held.
            self.noted = slot + 1;
            self.region.note_used(self.noted);
        }
        self.live += 1;
        self.ring_counters.live.store(self.live, Ordering::Relaxed);
        if self.live == 1 {
            // It looks at open flows now and then, as long as there are any.
            self.shared.committer.wake();
        }
        Some(LiveFlow { slot, generation, legs: Legs::default(), interim_at: INTERIM_BYTES })
    }

    /// The counts of an open flow.
    pub fn tally<'a>(&'a self, flow: &'a mut LiveFlow) -> FlowCounters<'a> {
        self.region.slot(flow.slot).counters(&mut flow.legs)
    }

    /// Asks for an interim if the flow has moved enough since its last one.
    pub fn counted(&mut self, flow: &mut LiveFlow) {
        let moved = flow.legs.upstream_tx + flow.legs.client_tx;
        if moved >= flow.interim_at && self.interims.push(&flow.slot).is_ok() {
            flow.interim_at = moved + INTERIM_BYTES;
            self.shared.committer.wake();
        }
    }

    /// The record of an open flow, as if it were closed now.
    pub fn record(&self, flow: &LiveFlow, at: WallNanos, reason: CloseReason) -> Option<Record> {
        let identity = self.region.slot(flow.slot).identity().ok()?;
        Some(Record::from_parts(identity, at, reason, flow.legs))
    }

    /// Ends a flow. From here on it is the committer's to journal and to free.
    pub fn close(&mut self, flow: LiveFlow, at: WallNanos, reason: CloseReason) {
        self.region.slot(flow.slot).close(flow.generation, at, reason);
        point("table.closing");
        self.live -= 1;
        self.ring_counters.live.store(self.live, Ordering::Relaxed);
        self.closing.push_back(flow.slot);
        self.closed.push(&flow.slot).expect("the ring has a place for every slot");
        self.shared.committer.wake();
    }

    /// Closed flows that are not journaled yet, as far as was looked.
    pub fn unjournaled(&mut self) -> usize {
        self.reclaim();
        self.closing.len()
    }

    /// Takes back slots that were freed, some at a time: an open takes one.
    fn reclaim(&mut self) {
        for _ in 0..RECLAIMED_AT_ONCE {
            let Some(&slot) = self.closing.front() else { break };
            match self.region.slot(slot).state() {
                Some((State::Free, _)) => self.free.push(slot),
                Some((State::Closing(_), _)) => break,
                // Given up by the committer, or damaged: never used again.
                _ => {}
            }
            self.closing.pop_front();
            if let Some(ahead) = self.closing.get(PREFETCH_DISTANCE) {
                self.region.prefetch(*ahead);
            }
        }
    }

    /// A free slot and its generation. One that was damaged since it was freed is passed over for good.
    fn take_free(&mut self) -> Option<(u32, u64)> {
        loop {
            let slot = self.free.pop().or_else(|| self.take_unused())?;
            match self.region.slot(slot).state() {
                Some((State::Free, generation)) => return Some((slot, generation)),
                _ => self.shared.damaged(),
            }
        }
    }

    fn take_unused(&mut self) -> Option<u32> {
        let slot = self.ring_counters.used.load(Ordering::Relaxed);
        (slot < self.region.slots()).then(|| {
            self.ring_counters.used.store(slot + 1, Ordering::Release);
            slot
        })
    }
}

/// More than one, so that a thread which opened nothing for a while catches up.
const RECLAIMED_AT_ONCE: usize = 4;

/// Slots before one is used that its memory is asked for: about as long as memory takes to answer.
const PREFETCH_DISTANCE: usize = 8;

/// The committer's end.
pub(crate) struct FlowDrain {
    region: Region,
    closed: Consumer<u32>,
    interims: Consumer<u32>,
    ring_counters: Arc<RingCounters>,
    /// Slots on their way from the ring.
    batch: Vec<u32>,
}

impl FlowDrain {
    /// The slots.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Takes at most `max` slots that were closed.
    pub(crate) fn take_closed(&mut self, max: usize, mut each: impl FnMut(&Region, u32)) -> usize {
        let Self { region, closed, batch, .. } = self;
        batch.clear();
        let count = closed.drain(max, |slot| batch.push(*slot));
        for (index, slot) in batch.iter().enumerate() {
            if let Some(ahead) = batch.get(index + PREFETCH_DISTANCE) {
                region.prefetch(*ahead);
            }
            each(region, *slot);
        }
        count
    }

    /// Takes at most `max` slots whose flows want an interim.
    pub(crate) fn take_interims(&mut self, max: usize, mut each: impl FnMut(&Region, u32)) -> usize {
        let region = &self.region;
        self.interims.drain(max, |slot| each(region, *slot))
    }

    /// Slots below this number were used.
    pub(crate) fn used(&self) -> u32 {
        self.ring_counters.used.load(Ordering::Acquire)
    }

    /// Whether a flow is open.
    pub(crate) fn has_live(&self) -> bool {
        self.ring_counters.live.load(Ordering::Relaxed) > 0
    }

    /// Whether no hint waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.interims.is_empty()
    }

    /// Closed slots that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.closed.len()
    }
}

/// The two ends for `region`.
pub(crate) fn pair(region: &Region, shared: &Arc<Shared>) -> (FlowDrain, FlowWriter) {
    let slots = region.slots() as usize;
    let (closed, closed_out) = ring(slots.next_power_of_two(), u32::MAX);
    let (interims, interims_out) = ring(INTERIM_HINTS, u32::MAX);
    let ring_counters = Arc::new(RingCounters::default());
    let drain = FlowDrain {
        region: region.clone(),
        closed: closed_out,
        interims: interims_out,
        ring_counters: Arc::clone(&ring_counters),
        batch: Vec::new(),
    };
    let writer = FlowWriter {
        region: region.clone(),
        // All that they may ever hold: the data plane allocates nothing here.
        free: Vec::with_capacity(slots),
        closing: VecDeque::with_capacity(slots),
        noted: 0,
        live: 0,
        closed,
        interims,
        ring_counters,
        shared: Arc::clone(shared),
    };
    (drain, writer)
}

#[cfg(test)]
mod tests {
    use sys::mapping::SharedWords;

    use super::*;
    use crate::live_table::{LiveTable, TableHeader};
    use crate::record::Flow;
    use crate::record::tests::FLOW;

    #[test]
    fn damaged_free_slot_is_skipped_and_counted() {
        let header = TableHeader { gateway: 7, epoch: 1, boot: 1, process: 1, regions: 1, slots: 3 };
        let table = LiveTable::create(SharedWords::in_memory(header.table_words()), header);
        let region = table.regions().next().expect("a table has a region");
        let shared = Arc::new(Shared::new(0));
        let (_drain, mut writer) = pair(&region, &shared);
        // As a flipped bit would.
        region.slot(0).give_up();
        let opened: Vec<bool> =
            (1..=3).map(|id| writer.open(&Identity::new(&Flow { id, ..FLOW })).is_some()).collect();
        assert_eq!(opened, [true, true, false]);
        assert_eq!(crate::StatusHandle(shared).status().damaged, 1);
    }
}
