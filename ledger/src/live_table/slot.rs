//! One slot of the live table: written while a flow is open, and read by other threads and processes.
//!
//! The rules are in the parent's header.

use std::io;
use std::time::Duration;

use sys::clock::WallNanos;
use sys::sync::atomic::{AtomicU64, Ordering};

use super::SLOT_WORDS;
use crate::entry::FlowEntry;
use crate::limits::{EDGE_REACH, IDENTITY_BYTES_MAX};
use crate::record::{CloseReason, Identity, Legs, MalformedRecord, Record, Uncertain, version_1};

/// Every store is Release and every load Acquire. On x86-64 both are plain moves; for the compiler they keep
/// the order that recovery needs.
pub(super) const RELEASE: Ordering = Ordering::Release;
const ACQUIRE: Ordering = Ordering::Acquire;

pub(crate) const STATE: usize = 0;
const UP: usize = 1;
const DOWN: usize = 2;
const UP_INTENT: usize = 3;
const DOWN_INTENT: usize = 4;
const CLIENT_RX: usize = 5;
const UPSTREAM_RX: usize = 6;
const CLOSED: usize = 7;
const HOT_WORDS: usize = 8;
const REQUESTS: usize = 8;
const IDENTITY: usize = 9;
/// The identity's moment of opening.
const OPENED: usize = IDENTITY + 3;

const _: () = assert!((SLOT_WORDS - IDENTITY - 1) * 8 == IDENTITY_BYTES_MAX);

/// The layout of a slot, by the version of its table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SlotLayout {
    /// Read only: no requests, and the identity, of version 1, one word earlier.
    V1,
    V2,
}

/// In version 1.
const IDENTITY_1: usize = 8;
const _: () = assert!((SLOT_WORDS - IDENTITY_1 - 1) * 8 == version_1::BYTES_MAX);

/// The factor of rule 1.
const CODE: u64 = 251;
const VALUE_MAX: u64 = (1 << 56) - 1;
const _: () = assert!(VALUE_MAX <= u64::MAX / CODE);

/// Bits of an intent that hold the call's length; the others hold the low bits of the count.
const LENGTH_BITS: u32 = 20;
/// The longest call that an intent distinguishes; a longer one counts as this long.
const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;
const BASE_MASK: u64 = (1 << (56 - LENGTH_BITS)) - 1;

const GENERATION_MASK: u64 = (1 << 40) - 1;

pub(super) fn coded(value: u64) -> u64 {
    value.min(VALUE_MAX) * CODE
}

pub(super) fn decoded(word: u64) -> Option<u64> {
    word.is_multiple_of(CODE).then_some(word / CODE)
}

fn intent(count: u64, length: usize) -> u64 {
    (((count & BASE_MASK) << LENGTH_BITS) | (length as u64).min(LENGTH_MAX)) * CODE
}

/// The state of a slot: its contents and its writer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// The slot has no flow.
    Free,
    /// The flow is open.
    Live,
    /// The flow has ended, and is not journaled yet.
    Closing(CloseReason),
    /// The committer found the slot damaged: it is never used again.
    GivenUp,
}

impl State {
    /// The state's word: 2 bits of state, 8 of reason, 40 of generation.
    fn word(self, generation: u64) -> u64 {
        let (state, reason) = match self {
            State::Free => (0, 0),
            State::Live => (1, 0),
            State::Closing(reason) => (2, reason as u64),
            State::GivenUp => (3, 0),
        };
        coded(state | reason << 2 | (generation & GENERATION_MASK) << 10)
    }

    fn parse(word: u64) -> Option<(State, u64)> {
        let value = decoded(word)?;
        let reason = (value >> 2) as u8;
        let state = match (value & 3, CloseReason::from_number(reason)) {
            (0, None) if reason == 0 => State::Free,
            (1, None) if reason == 0 => State::Live,
            (2, Some(reason)) => State::Closing(reason),
            (3, None) if reason == 0 => State::GivenUp,
            _ => return None,
        };
        Some((state, value >> 10))
    }
}

/// A slot in this process's table.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a>(pub(super) &'a [AtomicU64; SLOT_WORDS]);

impl<'a> Slot<'a> {
    /// The state and the generation; `None` if the word is damaged.
    pub(crate) fn state(self) -> Option<(State, u64)> {
        State::parse(self.0[STATE].load(ACQUIRE))
    }

    /// Stores a flow in a free slot. Called by the reactor thread.
    pub(crate) fn open(self, identity: &Identity, generation: u64) {
        self.0[UP..IDENTITY].iter().for_each(|word| word.store(0, RELEASE));
        let length = identity.bytes().len();
        let check = u64::from(crc32c::crc32c(identity.bytes()));
        self.0[IDENTITY].store(length as u64 | check << 32, RELEASE);
        let (chunks, _) = identity.padded().as_chunks();
        for (word, bytes) in self.0[IDENTITY + 1..].iter().zip(&chunks[..length.div_ceil(8)]) {
            word.store(u64::from_le_bytes(*bytes), RELEASE);
        }
        self.0[STATE].store(State::Live.word(generation), RELEASE);
    }

    /// Ends the flow: from now on the committer owns the slot. Called by the reactor thread.
    pub(crate) fn close(self, generation: u64, at: WallNanos, reason: CloseReason) {
        self.0[CLOSED].store(coded(at.0 / 1000), RELEASE);
        self.0[STATE].store(State::Closing(reason).word(generation), RELEASE);
    }

    /// Frees the slot for its reactor thread. Called by the committer.
    pub(crate) fn free(self, generation: u64) {
        self.0[STATE].store(State::Free.word(generation.wrapping_add(1)), RELEASE);
    }

    /// Takes a damaged slot out of use. Called by the committer, which owns the slot.
    pub(crate) fn give_up(self) {
        self.0[STATE].store(State::GivenUp.word(0), RELEASE);
    }

    /// Stores an ended flow in a free slot, for the next start. Called when no reactor thread runs any more.
    pub(crate) fn store_closed(self, record: &Record) {
        let Some((State::Free, generation)) = self.state() else { return };
        let flow = record.flow();
        self.open(record.identity(), generation);
        let Legs { client_rx, upstream_tx, upstream_rx, client_tx } = flow.legs;
        for (word, count) in
            [(CLIENT_RX, client_rx), (UP, upstream_tx), (UPSTREAM_RX, upstream_rx), (DOWN, client_tx)]
        {
            self.0[word].store(coded(count), RELEASE);
        }
        self.store_requests(flow.requests);
        self.close(generation, flow.closed, flow.reason);
    }

    /// Stores the number of requests so far. Called by the reactor thread.
    pub(crate) fn store_requests(self, requests: u64) {
        self.0[REQUESTS].store(coded(requests), RELEASE);
    }

    /// The counters of the flow: those in `legs`, and their words in the slot.
    pub(crate) fn counters(self, legs: &'a mut Legs) -> FlowCounters<'a> {
        FlowCounters { hot: self.0.first_chunk().expect("a slot is longer than its first line"), legs }
    }

    /// Bytes sent both ways so far; `None` if a count is damaged.
    pub(crate) fn moved(self) -> Option<u64> {
        let count = |index: usize| decoded(self.0[index].load(ACQUIRE));
        Some(count(UP)?.saturating_add(count(DOWN)?))
    }

    /// Appends the slot's flow to `out` as the journal has it: its final, or an interim as of a moment.
    /// Returns `None` and appends nothing if the flow is not in the state that `kind` requires. The state is
    /// loaded once, for a reactor thread may close the flow of an interim at any instant.
    ///
    /// # Errors
    /// The slot is damaged; nothing was appended.
    pub(crate) fn write_entry(
        self,
        kind: CommitIntent,
        out: &mut Vec<u8>,
    ) -> Result<Option<SlotProgress>, MalformedRecord> {
        let word = |index: usize| self.0[index].load(ACQUIRE);
        let (state, generation) = State::parse(word(STATE)).ok_or(MalformedRecord("the state of a slot"))?;
        let (closed, at) = match (kind, state) {
            (CommitIntent::Interim(moment), State::Live) => (None, moment.of_flow(WallNanos(word(OPENED)))),
            (CommitIntent::Final { earliest }, State::Closing(reason)) => {
                let closed = decoded(word(CLOSED)).ok_or(MalformedRecord("a closing time"))?;
                (Some(reason), not_before(earliest, WallNanos(closed.saturating_mul(1000))))
            }
            _ => return Ok(None),
        };
        let (legs, _) = read_counts(&word).ok_or(MalformedRecord("a count"))?;
        let requests = decoded(word(REQUESTS)).ok_or(MalformedRecord("a count"))?;
        let mut bytes = [0; IDENTITY_BYTES_MAX];
        let identity = read_identity_bytes(IDENTITY, &word, &mut bytes)?;
        FlowEntry { closed, at, requests, legs, uncertain: Uncertain::default(), identity }.write(out);
        Ok(Some(SlotProgress { generation, moved: legs.upstream_tx + legs.client_tx }))
    }

    /// The identity of the flow in the slot.
    ///
    /// # Errors
    /// The slot is damaged or was never used.
    pub(crate) fn identity(self) -> Result<Identity, MalformedRecord> {
        read_identity(SlotLayout::V2, &|index: usize| self.0[index].load(ACQUIRE))
    }

    pub(crate) fn read(self) -> SlotContents {
        SlotContents::from_words(SlotLayout::V2, |index| self.0[index].load(ACQUIRE))
    }

    #[cfg(test)]
    pub(super) fn flip(self, bit: usize) {
        self.0[bit / 64].fetch_xor(1 << (bit % 64), RELEASE);
    }
}

/// The counters of an open flow, for its relay.
pub struct FlowCounters<'a> {
    hot: &'a [AtomicU64; HOT_WORDS],
    legs: &'a mut Legs,
}

impl FlowCounters<'_> {
    /// What was counted so far.
    pub fn legs(&self) -> Legs {
        *self.legs
    }

    /// The counters toward the upstream: bytes received from the client, and bytes sent to the upstream.
    pub fn up(&mut self) -> (Received<'_>, Sent<'_>) {
        let Legs { client_rx, upstream_tx, .. } = &mut *self.legs;
        (
            Received { total: client_rx, count: &self.hot[CLIENT_RX] },
            Sent { total: upstream_tx, count: &self.hot[UP], intent: &self.hot[UP_INTENT] },
        )
    }

    /// The counters toward the client.
    pub fn down(&mut self) -> (Received<'_>, Sent<'_>) {
        let Legs { upstream_rx, client_tx, .. } = &mut *self.legs;
        (
            Received { total: upstream_rx, count: &self.hot[UPSTREAM_RX] },
            Sent { total: client_tx, count: &self.hot[DOWN], intent: &self.hot[DOWN_INTENT] },
        )
    }
}

/// The counter of bytes received in one direction.
pub struct Received<'a> {
    total: &'a mut u64,
    count: &'a AtomicU64,
}

impl Received<'_> {
    /// Counts `bytes` more.
    pub fn add(&mut self, bytes: usize) {
        *self.total += bytes as u64;
        self.count.store(coded(*self.total), RELEASE);
    }
}

/// The counter of bytes sent in one direction. It costs two stores to a cached line, and no system call.
pub struct Sent<'a> {
    total: &'a mut u64,
    count: &'a AtomicU64,
    intent: &'a AtomicU64,
}

impl Sent<'_> {
    /// Makes an outgoing call of `length` bytes and counts the bytes that it took. A process that is killed
    /// at any instruction leaves either the exact count, or the length of the one call whose end is unknown
    /// (rule 2).
    ///
    /// # Errors
    /// Those of `call`, which then took nothing.
    pub fn around(&mut self, length: usize, call: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        self.intent.store(intent(*self.total, length), RELEASE);
        let result = call();
        match result {
            Ok(taken) if taken > 0 => {
                *self.total += taken as u64;
                self.count.store(coded(*self.total), RELEASE);
            }
            _ => self.intent.store(0, RELEASE),
        }
        result
    }
}

/// The entry that the committer wants from a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommitIntent {
    /// The final of an ended flow; its moment is that of its end, or the last edge's if that is little later.
    Final {
        /// The last edge.
        earliest: WallNanos,
    },
    /// The counts of an open flow.
    Interim(InterimMoment),
}

/// The moment at which the counts of an open flow are taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct InterimMoment {
    pub(crate) now: WallNanos,
    /// The edge in front of which they are taken, if they belong to the quarter-hour before it.
    pub(crate) edge: Option<WallNanos>,
}

impl InterimMoment {
    /// The moment for a flow that was opened at `opened`. One that was opened behind the edge has no bytes in
    /// the quarter-hour before.
    fn of_flow(self, opened: WallNanos) -> WallNanos {
        match self.edge {
            Some(edge) if opened < edge => WallNanos(edge.0 - 1),
            _ => self.now,
        }
    }
}

/// The moment of a final: that of the edge, where it is behind the edge by the clock's small steps alone.
fn not_before(edge: WallNanos, closed: WallNanos) -> WallNanos {
    let behind = Duration::from_nanos(edge.0.saturating_sub(closed.0));
    if behind <= EDGE_REACH { closed.max(edge) } else { closed }
}

/// The entry that was written from a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotProgress {
    pub(crate) generation: u64,
    /// Bytes sent both ways.
    pub(crate) moved: u64,
}

/// The contents of a slot, as a reader found them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum SlotContents {
    /// The slot is free.
    Nothing,
    /// An open flow, as if it had been killed now.
    Live(Record),
    /// An ended flow that may not be journaled.
    Closing(Record),
    /// Contents that no slot can have: memory was damaged. The flow's id, if it can be read.
    Damaged { what: &'static str, id: Option<u128> },
}

impl SlotContents {
    /// The flow's id, if it can be read.
    pub(crate) fn id(&self) -> Option<u128> {
        match self {
            SlotContents::Nothing => None,
            SlotContents::Live(record) | SlotContents::Closing(record) => Some(record.identity().id()),
            SlotContents::Damaged { id, .. } => *id,
        }
    }

    /// Reads a slot word by word.
    pub(crate) fn from_words(layout: SlotLayout, word: impl Fn(usize) -> u64) -> SlotContents {
        let state = State::parse(word(STATE));
        if let Some((State::Free, _)) = state {
            return SlotContents::Nothing;
        }
        let identity = read_identity(layout, &word);
        let id = identity.as_ref().ok().map(Identity::id);
        let damaged = |what| SlotContents::Damaged { what, id };
        let Some((state, _)) = state.filter(|(state, _)| *state != State::GivenUp) else {
            return damaged("the state of a slot");
        };
        let identity = match identity {
            Ok(identity) => identity,
            Err(MalformedRecord(what)) => return damaged(what),
        };
        let Some((legs, uncertain)) = read_counts(&word) else { return damaged("a count") };
        let Some(closed) = decoded(word(CLOSED)) else { return damaged("a closing time") };
        let requests = match layout {
            SlotLayout::V1 => Some(0),
            SlotLayout::V2 => decoded(word(REQUESTS)),
        };
        let Some(requests) = requests else { return damaged("a count") };
        let at = WallNanos(closed.saturating_mul(1000));
        let record = |reason| Record::from_parts(identity, at, reason, legs).with_requests(requests);
        match state {
            State::Closing(reason) => SlotContents::Closing(record(reason)),
            _ => SlotContents::Live(record(CloseReason::Killed).with_uncertain(uncertain)),
        }
    }
}

fn read_counts(word: &impl Fn(usize) -> u64) -> Option<(Legs, Uncertain)> {
    let legs = Legs {
        client_rx: decoded(word(CLIENT_RX))?,
        upstream_tx: decoded(word(UP))?,
        upstream_rx: decoded(word(UPSTREAM_RX))?,
        client_tx: decoded(word(DOWN))?,
    };
    let up = in_doubt(legs.upstream_tx, decoded(word(UP_INTENT))?);
    let down = in_doubt(legs.client_tx, decoded(word(DOWN_INTENT))?);
    Some((legs, Uncertain { up, down }))
}

/// Bytes beyond `count` that the last call may have taken (rule 2).
fn in_doubt(count: u64, intent: u64) -> u32 {
    let (base, length) = (intent >> LENGTH_BITS, intent & LENGTH_MAX);
    if base == count & BASE_MASK { length as u32 } else { 0 }
}

fn read_identity(layout: SlotLayout, word: &impl Fn(usize) -> u64) -> Result<Identity, MalformedRecord> {
    match layout {
        SlotLayout::V1 => {
            version_1::parse(read_identity_bytes(IDENTITY_1, word, &mut [0; version_1::BYTES_MAX])?)
        }
        SlotLayout::V2 => Identity::parse(read_identity_bytes(IDENTITY, word, &mut [0; IDENTITY_BYTES_MAX])?),
    }
}

/// Reads the identity whose length and checksum are in word `at`.
fn read_identity_bytes<'b, const N: usize>(
    at: usize,
    word: &impl Fn(usize) -> u64,
    bytes: &'b mut [u8; N],
) -> Result<&'b [u8], MalformedRecord> {
    let (length, check) = (word(at) as u32 as usize, (word(at) >> 32) as u32);
    if length > N {
        return Err(MalformedRecord("an identity of an impossible length"));
    }
    let (chunks, _) = bytes.as_chunks_mut();
    for (index, chunk) in chunks[..length.div_ceil(8)].iter_mut().enumerate() {
        *chunk = word(at + 1 + index).to_le_bytes();
    }
    match crc32c::crc32c(&bytes[..length]) == check {
        true => Ok(&bytes[..length]),
        false => Err(MalformedRecord("the identity of a slot")),
    }
}

#[cfg(test)]
mod tests {
    use sys::mapping::SharedWords;

    use super::super::{LiveTable, Region, TableHeader};
    use super::*;
    use crate::record::tests::FLOW;

    const AT: WallNanos = WallNanos(1_700_000_000_000_001_000);

    fn identity() -> Identity {
        Identity::new(&FLOW)
    }

    fn region() -> Region {
        let header = TableHeader { gateway: 1, epoch: 1, boot: 1, process: 1, regions: 1, slots: 2, run: 1 };
        let words = SharedWords::in_memory(header.table_words());
        LiveTable::create(words, header).regions().next().unwrap()
    }

    fn killed(legs: Legs, uncertain: Uncertain) -> SlotContents {
        let record = Record::from_parts(identity(), WallNanos(0), CloseReason::Killed, legs);
        SlotContents::Live(record.with_uncertain(uncertain))
    }

    #[test]
    fn call_is_counted_or_uncertain_at_every_instant() {
        let region = region();
        let slot = region.slot(1);
        slot.open(&identity(), 0);
        let mut legs = Legs::default();
        let none = Uncertain::default();
        assert_eq!(slot.read(), killed(legs, none));

        let mut counters = slot.counters(&mut legs);
        let (mut received, mut sent) = counters.up();
        received.add(1000);
        let taken = sent.around(1000, || {
            let counted = Legs { client_rx: 1000, ..Legs::default() };
            assert_eq!(slot.read(), killed(counted, Uncertain { up: 1000, down: 0 }));
            Ok(600)
        });
        assert_eq!(taken.unwrap(), 600);
        assert_eq!(slot.read(), killed(legs, none));
        assert_eq!(legs, Legs { client_rx: 1000, upstream_tx: 600, ..Legs::default() });

        let refused = slot.counters(&mut legs).up().1.around(400, || Err(io::ErrorKind::WouldBlock.into()));
        assert!(refused.is_err());
        assert_eq!(slot.read(), killed(legs, none));
        let long = slot.counters(&mut legs).down().1.around(1 << 30, || {
            let SlotContents::Live(record) = slot.read() else { panic!() };
            assert_eq!(record.flow().uncertain, Uncertain { up: 0, down: LENGTH_MAX as u32 });
            Ok(1 << 30)
        });
        assert!(long.is_ok());
        assert_eq!(slot.read(), killed(legs, none));
    }

    #[test]
    fn freed_slot_is_reused() {
        let region = region();
        let slot = region.slot(0);
        assert_eq!(slot.state(), Some((State::Free, 0)));
        slot.open(&identity(), 0);
        assert_eq!(slot.state(), Some((State::Live, 0)));
        let mut legs = Legs::default();
        slot.counters(&mut legs).down().1.around(5, || Ok(5)).unwrap();
        slot.close(0, AT, CloseReason::UpstreamClosed);
        let expected = Record::from_parts(identity(), AT, CloseReason::UpstreamClosed, legs);
        assert_eq!(slot.read(), SlotContents::Closing(expected));
        slot.free(0);
        assert_eq!((slot.state(), slot.read()), (Some((State::Free, 1)), SlotContents::Nothing));
        slot.open(&identity(), 1);
        assert_eq!(slot.read(), killed(Legs::default(), Uncertain::default()));
    }

    /// Regression: the committer once checked whether a flow was open, and then wrote what it found. A flow
    /// closed between the two was written as its final, which the close wrote again.
    #[test]
    fn interim_and_final_are_never_confused() {
        const OPEN: CommitIntent = CommitIntent::Interim(InterimMoment { now: AT, edge: None });
        const ENDED: CommitIntent = CommitIntent::Final { earliest: AT };
        let region = region();
        let slot = region.slot(0);
        let written = |kind| {
            let mut out = Vec::new();
            let written = slot.write_entry(kind, &mut out).unwrap();
            assert_eq!(written.is_some(), !out.is_empty());
            written.is_some()
        };
        assert_eq!((written(OPEN), written(ENDED)), (false, false));
        slot.open(&identity(), 0);
        assert_eq!((written(OPEN), written(ENDED)), (true, false));
        slot.close(0, AT, CloseReason::ClientClosed);
        assert_eq!((written(OPEN), written(ENDED)), (false, true));
        slot.give_up();
        assert_eq!((written(OPEN), written(ENDED)), (false, false));
        assert!(matches!(slot.read(), SlotContents::Damaged { .. }));
    }

    #[test]
    fn slot_bit_flip_is_noticed_or_harmless() {
        let region = region();
        let slot = region.slot(0);
        slot.open(&identity(), 3);
        let mut legs = Legs::default();
        slot.counters(&mut legs).up().1.around(70_000, || Ok(70_000)).unwrap();
        slot.counters(&mut legs).down().1.around(1, || Ok(1)).unwrap();
        for closed in [false, true] {
            if closed {
                slot.close(3, AT, CloseReason::ClientClosed);
            }
            let whole = slot.read();
            let used = (IDENTITY + 1) * 64 + identity().bytes().len() * 8;
            for bit in 0..SLOT_WORDS * 64 {
                slot.flip(bit);
                let found = slot.read();
                let noticed = matches!(found, SlotContents::Damaged { .. });
                assert!(noticed || (bit >= used && found == whole), "bit {bit}: {found:?}");
                slot.flip(bit);
            }
        }
    }

    #[test]
    fn largest_count_saturates() {
        assert_eq!(decoded(coded(u64::MAX)), Some(VALUE_MAX));
        assert_eq!(decoded(intent(VALUE_MAX, usize::MAX)), Some(VALUE_MAX));
    }
}
