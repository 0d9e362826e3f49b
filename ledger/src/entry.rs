//! The entries of the journal: flows as they are counted and as they end, and events of the journal itself.
//!
//! Guarantees: counts are cumulative, so that a lost, repeated or late [`Entry::Interim`] does no harm. Each
//! flow has one [`Entry::Final`], and no interim behind it.
//!
//! An entry's bytes, little-endian; `docs/ledger-format.md` has the full description:
//!
//! | offset | bytes | final, interim                     | run began, ended  | gap                   |
//! |-------:|------:|------------------------------------|-------------------|-----------------------|
//! |      0 |     2 | bytes of the entry, these included | the same          | the same              |
//! |      2 |     1 | kind: 1, 2                         | 3, 5              | 4                     |
//! |      3 |     1 | close reason of a final, else 0    | 0                 | 0                     |
//! |      4 |     8 | closed or counted at, wall clock   | began or ended at | found at              |
//! |     12 |     4 | `client_rx` (8 bytes)              | epoch             | epoch                 |
//! |     16 |     8 | `upstream_tx` (at 20)              |                   | first lost number     |
//! |     28 |    16 | `upstream_rx`, `client_tx`         |                   |                       |
//! |     44 |     8 | uncertain up, uncertain down       |                   |                       |
//! |     52 |     . | identity                           |                   |                       |
//!
//! A consent is kind 6: epoch at 12, the first and the last missing number at 16 and 24, the lengths of
//! author (1 byte) and text (2 bytes) at 32, zero at 35, author and text from 36 on.

use sys::clock::WallNanos;

use crate::consent::Consent;
use crate::limits::{ENTRY_BYTES_MAX, IDENTITY_BYTES_MAX};
use crate::record::{CloseReason, Identity, Legs, MalformedRecord, Record, Uncertain};

const HEAD_BYTES: usize = 4;
/// Bytes of a flow's entry before its identity.
const FLOW_BYTES: usize = 52;
const RUN_BYTES: usize = 16;
const GAP_BYTES: usize = 24;

const _: () = assert!(FLOW_BYTES + IDENTITY_BYTES_MAX <= ENTRY_BYTES_MAX);

const FINAL: u8 = 1;
const INTERIM: u8 = 2;
const RUN_BEGAN: u8 = 3;
const GAP: u8 = 4;
const RUN_ENDED: u8 = 5;
const CONSENT: u8 = 6;
/// Bytes of a consent before its texts.
const CONSENT_BYTES: usize = 36;

/// One entry of the journal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Entry {
    /// A flow has ended.
    Final(Record),
    /// The counts of an open flow; its close reason is meaningless.
    Interim(Record),
    /// A run of the gateway begins, and has recovered what earlier runs left. A flow without a final by now
    /// has ended with [`CloseReason::Lost`] and the counts of its last interim.
    RunBegan {
        /// The run.
        epoch: u32,
        /// When it began, by the wall clock.
        at: WallNanos,
    },
    /// Frames of a run were torn before they were durable.
    Gap {
        /// The run that wrote them.
        epoch: u32,
        /// When that was found, by the wall clock.
        at: WallNanos,
        /// The number of the first lost entry.
        first_lsn: u64,
    },
    /// A run ended in order: all of its entries are before this one, and it left no live table.
    RunEnded {
        /// The run.
        epoch: u32,
        /// When it ended, by the wall clock.
        at: WallNanos,
    },
    /// An operator accepted a loss.
    Accepted(Consent),
}

impl Entry {
    /// Appends the entry's bytes to `out`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Final(record) => write_record(out, FINAL, record),
            Entry::Interim(record) => write_record(out, INTERIM, record),
            Entry::RunBegan { epoch, at } => {
                head(out, RUN_BYTES, RUN_BEGAN, 0, *at);
                out.extend_from_slice(&epoch.to_le_bytes());
            }
            Entry::Gap { epoch, at, first_lsn } => {
                head(out, GAP_BYTES, GAP, 0, *at);
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&first_lsn.to_le_bytes());
            }
            Entry::RunEnded { epoch, at } => {
                head(out, RUN_BYTES, RUN_ENDED, 0, *at);
                out.extend_from_slice(&epoch.to_le_bytes());
            }
            Entry::Accepted(consent) => write_consent(out, consent),
        }
    }

    /// The entry at the beginning of `bytes`, and its length.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Entry, usize), MalformedRecord> {
        let head =
            bytes.first_chunk::<HEAD_BYTES>().ok_or(MalformedRecord("an entry that ends too early"))?;
        let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let entry = bytes.get(..length).ok_or(MalformedRecord("an entry that ends too early"))?;
        let [.., kind, reason] = *head;
        let exactly = |expected: usize| match length == expected {
            true => Ok(Fields(entry)),
            false => Err(MalformedRecord("an entry of an impossible length")),
        };
        let read = match kind {
            FINAL => {
                let reason =
                    CloseReason::from_number(reason).ok_or(MalformedRecord("an unknown close reason"))?;
                Entry::Final(read_record(entry, reason)?)
            }
            INTERIM => Entry::Interim(read_record(entry, CloseReason::Fault)?),
            RUN_BEGAN => {
                let fields = exactly(RUN_BYTES)?;
                Entry::RunBegan { at: WallNanos(fields.u64(4)), epoch: fields.u32(12) }
            }
            GAP => {
                let fields = exactly(GAP_BYTES)?;
                Entry::Gap { at: WallNanos(fields.u64(4)), epoch: fields.u32(12), first_lsn: fields.u64(16) }
            }
            RUN_ENDED => {
                let fields = exactly(RUN_BYTES)?;
                Entry::RunEnded { at: WallNanos(fields.u64(4)), epoch: fields.u32(12) }
            }
            CONSENT => Entry::Accepted(read_consent(entry)?),
            _ => return Err(MalformedRecord("an entry of an unknown kind")),
        };
        Ok((read, length))
    }
}

/// The part of an entry that recovery needs; there may be millions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EntryKey {
    /// The final of this flow.
    Final(u128),
    /// The counts of this flow.
    Interim(u128),
    /// This run began.
    RunBegan(u32),
    /// This run ended in order.
    RunEnded(u32),
    /// Anything else.
    Other,
}

impl EntryKey {
    /// The key of the entry at the beginning of `bytes`, whose checksum was compared, and the entry's length.
    pub(crate) fn read(bytes: &[u8]) -> Result<(EntryKey, usize), MalformedRecord> {
        let head =
            bytes.first_chunk::<HEAD_BYTES>().ok_or(MalformedRecord("an entry that ends too early"))?;
        let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let field =
            |at: usize| bytes.get(at..length).ok_or(MalformedRecord("an entry of an impossible length"));
        let flow = || Ok(field(FLOW_BYTES)?.first_chunk().map(|id| u128::from_le_bytes(*id)));
        let key = match head[2] {
            FINAL => flow()?.map(EntryKey::Final),
            INTERIM => flow()?.map(EntryKey::Interim),
            RUN_BEGAN => field(12)?.first_chunk().map(|epoch| EntryKey::RunBegan(u32::from_le_bytes(*epoch))),
            RUN_ENDED => field(12)?.first_chunk().map(|epoch| EntryKey::RunEnded(u32::from_le_bytes(*epoch))),
            _ => Some(EntryKey::Other),
        };
        let key = key.filter(|_| (HEAD_BYTES..=bytes.len()).contains(&length));
        key.map(|key| (key, length)).ok_or(MalformedRecord("an entry of an impossible length"))
    }
}

impl From<&Entry> for EntryKey {
    fn from(entry: &Entry) -> EntryKey {
        match entry {
            Entry::Final(record) => EntryKey::Final(record.identity().id()),
            Entry::RunBegan { epoch, .. } => EntryKey::RunBegan(*epoch),
            Entry::Interim(record) => EntryKey::Interim(record.identity().id()),
            Entry::RunEnded { epoch, .. } => EntryKey::RunEnded(*epoch),
            Entry::Gap { .. } | Entry::Accepted(_) => EntryKey::Other,
        }
    }
}

/// A flow's entry as the committer writes it: the identity is already packed in the live table's slot.
pub(crate) struct FlowEntry<'a> {
    /// `None` for an interim.
    pub(crate) closed: Option<CloseReason>,
    pub(crate) at: WallNanos,
    pub(crate) legs: Legs,
    pub(crate) uncertain: Uncertain,
    /// The packed identity.
    pub(crate) identity: &'a [u8],
}

impl FlowEntry<'_> {
    /// Appends the entry's bytes to `out`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (kind, reason) = self.closed.map_or((INTERIM, 0), |reason| (FINAL, reason as u8));
        let Legs { client_rx, upstream_tx, upstream_rx, client_tx } = self.legs;
        head(out, FLOW_BYTES + self.identity.len(), kind, reason, self.at);
        for count in [client_rx, upstream_tx, upstream_rx, client_tx] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&self.uncertain.up.to_le_bytes());
        out.extend_from_slice(&self.uncertain.down.to_le_bytes());
        out.extend_from_slice(self.identity);
    }
}

fn head(out: &mut Vec<u8>, bytes: usize, kind: u8, reason: u8, at: WallNanos) {
    let bytes = u16::try_from(bytes).expect("ENTRY_BYTES_MAX is less than 64 KiB");
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(&[kind, reason]);
    out.extend_from_slice(&at.0.to_le_bytes());
}

fn write_consent(out: &mut Vec<u8>, consent: &Consent) {
    let (author, what) = (consent.author(), consent.what());
    head(out, CONSENT_BYTES + author.len() + what.len(), CONSENT, 0, consent.at);
    out.extend_from_slice(&consent.epoch.to_le_bytes());
    out.extend_from_slice(&consent.first_lsn.to_le_bytes());
    out.extend_from_slice(&consent.last_lsn.to_le_bytes());
    out.push(author.len() as u8);
    out.extend_from_slice(&(what.len() as u16).to_le_bytes());
    out.push(0);
    out.extend_from_slice(author.as_bytes());
    out.extend_from_slice(what.as_bytes());
}

fn read_consent(entry: &[u8]) -> Result<Consent, MalformedRecord> {
    let impossible = MalformedRecord("a consent of an impossible length");
    let texts = entry.get(CONSENT_BYTES..).ok_or(impossible)?;
    let lengths = (usize::from(entry[32]), usize::from(u16::from_le_bytes([entry[33], entry[34]])));
    let (author, what) = texts.split_at_checked(lengths.0).ok_or(impossible)?;
    let text = |bytes| str::from_utf8(bytes).map_err(|_| MalformedRecord("a consent that is not UTF-8"));
    let (author, what_text) = (text(author)?, text(what)?);
    let fields = Fields(entry);
    let lsns = (fields.u64(16), fields.u64(24));
    let consent = Consent::new(fields.u32(12), WallNanos(fields.u64(4)), lsns, author, what_text);
    let is_whole = what.len() == lengths.1 && consent.author() == author && consent.what() == what_text;
    is_whole.then_some(consent).ok_or(impossible)
}

fn write_record(out: &mut Vec<u8>, kind: u8, record: &Record) {
    let flow = record.flow();
    FlowEntry {
        closed: (kind == FINAL).then_some(flow.reason),
        at: flow.closed,
        legs: flow.legs,
        uncertain: flow.uncertain,
        identity: record.identity().bytes(),
    }
    .write(out);
}

fn read_record(entry: &[u8], reason: CloseReason) -> Result<Record, MalformedRecord> {
    let identity = entry.get(FLOW_BYTES..).ok_or(MalformedRecord("an entry of an impossible length"))?;
    let identity = Identity::parse(identity)?;
    let fields = Fields(entry);
    let legs = Legs {
        client_rx: fields.u64(12),
        upstream_tx: fields.u64(20),
        upstream_rx: fields.u64(28),
        client_tx: fields.u64(36),
    };
    let uncertain = Uncertain { up: fields.u32(44), down: fields.u32(48) };
    Ok(Record::from_parts(identity, WallNanos(fields.u64(4)), reason, legs).with_uncertain(uncertain))
}

/// The fixed fields of an entry whose length was checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.0[at..].first_chunk().expect("the entry's length was checked")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::Flow;
    use crate::record::tests::FLOW;

    fn record(host: &str, reason: CloseReason) -> Record {
        Record::new(&Flow { host, address: Some("192.0.2.1".parse().unwrap()), reason, ..FLOW })
    }

    fn all() -> Vec<Entry> {
        let at = WallNanos(77);
        vec![
            Entry::Final(record("example.com", CloseReason::Killed)),
            Entry::Interim(record(&"x".repeat(253), CloseReason::Fault)),
            Entry::RunBegan { epoch: u32::MAX, at },
            Entry::Gap { epoch: 3, at, first_lsn: u64::MAX },
            Entry::RunEnded { epoch: 3, at },
            Entry::Accepted(Consent::new(3, at, (4, 5), "root", "the journal is missing")),
        ]
    }

    #[test]
    fn entries_round_trip() {
        let mut bytes = Vec::new();
        all().iter().for_each(|entry| entry.write(&mut bytes));
        let mut remaining = &bytes[..];
        for expected in all() {
            let (entry, length) = Entry::read(remaining).unwrap();
            assert_eq!(entry, expected);
            assert_eq!(EntryKey::read(remaining), Ok((EntryKey::from(&entry), length)));
            assert!(length <= ENTRY_BYTES_MAX);
            remaining = &remaining[length..];
        }
        assert!(remaining.is_empty());
    }

    #[test]
    fn truncated_entries_are_refused() {
        for entry in all() {
            let mut bytes = Vec::new();
            entry.write(&mut bytes);
            for length in 0..bytes.len() {
                assert!(Entry::read(&bytes[..length]).is_err());
                assert!(EntryKey::read(&bytes[..length]).is_err() || length > FLOW_BYTES);
            }
            for kind in [0, 7, 255] {
                bytes[2] = kind;
                assert!(Entry::read(&bytes).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Entry::read(&bytes);
            let _ = EntryKey::read(&bytes);
        }
    }
}
