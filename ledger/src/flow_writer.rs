//! Reports flows to the ledger: a [`FlowWriter`] for a reactor thread, a [`FlowDrain`] for the committer.
//!
//! Guarantees: opening, counting and closing a flow never block, take no lock, and make no system call unless
//! the committer sleeps. A closed flow stays in its slot until it is journaled, however long that takes.
//!
//! The rings between the two ends are hints: what they refer to is in the live table, and would be found
//! there without them. The ring of closed slots has an element for every slot, so it is never full. The ring
//! of flows that need an interim may be full; such a flow requests again with its next bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use sys::clock::WallNanos;
use sys::crash::point;
use sys::ring::{Consumer, Producer, ring};
use sys::sync::atomic::{AtomicU32, Ordering};

use crate::limits::{INTERIM_BYTES, INTERIM_HINTS};
use crate::live_table::{FlowCounters, Region, State};
use crate::record::{CloseReason, Identity, Legs, Record};
use crate::status::LedgerState;

/// The reactor thread's end: its slots of the live table.
pub struct FlowWriter {
    region: Region,
    /// Free slots that were used before, the last one freed on top.
    free: Vec<u32>,
    /// Slots that the committer owns, in the order of their closing, in which it frees them.
    closing: VecDeque<u32>,
    /// Slots below this number are recorded in the table as used.
    noted: u32,
    /// Flows open now.
    live: u32,
    closed: Producer<u32>,
    interims: Producer<u32>,
    ring_counters: Arc<RingCounters>,
    shared: Arc<LedgerState>,
}

/// Counters that both ends share besides the rings.
#[derive(Debug, Default)]
struct RingCounters {
    /// Slots below this number were used. Only the writer increases it.
    used: AtomicU32,
    /// Flows open now.
    live: AtomicU32,
}

/// An open flow: its slot, and its counts.
#[derive(Debug)]
pub struct LiveFlow {
    slot: u32,
    generation: u64,
    requests: u64,
    legs: Legs,
    /// The bytes sent both ways at which it requests its next interim.
    interim_at: u64,
}

impl FlowWriter {
    /// Whether `flows` more flows fit, and the journal can be written.
    pub fn has_capacity_for(&mut self, flows: u32) -> bool {
        self.reclaim();
        let unused = self.region.slots() - self.ring_counters.used.load(Ordering::Relaxed);
        let free = u32::try_from(self.free.len()).unwrap_or(u32::MAX);
        free.saturating_add(unused) >= flows && !self.shared.is_stuck()
    }

    /// Takes a slot for a new flow; `None` if all are taken: by open flows, or by closed ones that are not
    /// journaled.
    pub fn open(&mut self, identity: &Identity) -> Option<LiveFlow> {
        self.reclaim();
        let (slot, generation) = self.take_free()?;
        self.region.slot(slot).open(identity, generation);
        if slot >= self.noted {
            // After the slot's first store: a used slot that is all zero has lost its contents.
            self.noted = slot + 1;
            self.region.note_used(self.noted);
        }
        self.live += 1;
        self.ring_counters.live.store(self.live, Ordering::Relaxed);
        if self.live == 1 {
            // The committer sweeps open flows now and then, as long as there are any.
            self.shared.committer.wake();
        }
        let (requests, legs) = (0, Legs::default());
        Some(LiveFlow { slot, generation, requests, legs, interim_at: INTERIM_BYTES })
    }

    /// The counters of an open flow.
    pub fn counters<'a>(&'a self, flow: &'a mut LiveFlow) -> FlowCounters<'a> {
        self.region.slot(flow.slot).counters(&mut flow.legs)
    }

    /// Counts a request of the flow.
    pub fn count_request(&mut self, flow: &mut LiveFlow) {
        flow.requests += 1;
        self.region.slot(flow.slot).store_requests(flow.requests);
    }

    /// Requests an interim if the flow has moved enough since its last one.
    pub fn request_interim_if_due(&mut self, flow: &mut LiveFlow) {
        let moved = flow.legs.upstream_tx + flow.legs.client_tx;
        if moved >= flow.interim_at && self.interims.push(&flow.slot).is_ok() {
            flow.interim_at = moved + INTERIM_BYTES;
            self.shared.committer.wake();
        }
    }

    /// The record of an open flow, as if it were closed now.
    pub fn record(&self, flow: &LiveFlow, at: WallNanos, reason: CloseReason) -> Option<Record> {
        let identity = self.region.slot(flow.slot).identity().ok()?;
        Some(Record::from_parts(identity, at, reason, flow.legs).with_requests(flow.requests))
    }

    /// Ends a flow. The committer journals it and frees its slot.
    pub fn close(&mut self, flow: LiveFlow, at: WallNanos, reason: CloseReason) {
        self.region.slot(flow.slot).close(flow.generation, at, reason);
        point("table.closing");
        self.live -= 1;
        self.ring_counters.live.store(self.live, Ordering::Relaxed);
        self.closing.push_back(flow.slot);
        self.closed.push(&flow.slot).expect("the ring holds every slot of the region");
        self.shared.committer.wake();
    }

    /// Closed flows that are not journaled yet, as of the last reclaim.
    pub fn unjournaled(&mut self) -> usize {
        self.reclaim();
        self.closing.len()
    }

    /// Takes back freed slots, a few for each call: an open takes one.
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

    /// A free slot and its generation. A slot that was damaged since it was freed is never used again.
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

/// How many slots ahead memory is prefetched: about its latency.
const PREFETCH_DISTANCE: usize = 8;

/// The committer's end.
pub(crate) struct FlowDrain {
    region: Region,
    closed: Consumer<u32>,
    interims: Consumer<u32>,
    ring_counters: Arc<RingCounters>,
    /// Slots that were taken from the ring.
    batch: Vec<u32>,
}

impl FlowDrain {
    /// The slots of the reactor thread.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Takes at most `max` closed slots.
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

    /// Takes at most `max` slots whose flows need an interim.
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

    /// Whether both rings are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.interims.is_empty()
    }

    /// Closed slots in the ring.
    pub(crate) fn waiting(&self) -> usize {
        self.closed.len()
    }
}

/// Both ends for `region`.
pub(crate) fn pair(region: &Region, shared: &Arc<LedgerState>) -> (FlowDrain, FlowWriter) {
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
        // Allocated at their largest size: the reactor thread allocates nothing later.
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
        let header = TableHeader { gateway: 7, epoch: 1, boot: 1, process: 1, regions: 1, slots: 3, run: 1 };
        let table = LiveTable::create(SharedWords::in_memory(header.table_words()), header);
        let region = table.regions().next().expect("the table has one region");
        let shared = Arc::new(LedgerState::new(0));
        let (_drain, mut writer) = pair(&region, &shared);
        // As a flipped bit would do.
        region.slot(0).give_up();
        let opened: Vec<bool> =
            (1..=3).map(|id| writer.open(&Identity::new(&Flow { id, ..FLOW })).is_some()).collect();
        assert_eq!(opened, [true, true, false]);
        assert_eq!(crate::StatusHandle(shared).status().damaged, 1);
    }
}
