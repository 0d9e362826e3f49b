//! The bytes of an entry, in version 2.
//!
//! Guarantees: an entry or a field of a later version is refused, unless it says that it may be skipped: then
//! the entry's kind, or the field's tag, is 128 or greater.
//!
//! Little-endian; `docs/ledger-format.md` has the full description:
//!
//! | offset | bytes | final, interim                     | run began         | run ended, edge, gap      |
//! |-------:|------:|------------------------------------|-------------------|---------------------------|
//! |      0 |     2 | bytes of the entry, these included | the same          | the same                  |
//! |      2 |     1 | kind: 1, 2                         | 3                 | 5, 7, 4                   |
//! |      3 |     1 | close reason of a final, else 0    | 0                 | 0                         |
//! |      4 |     8 | closed or counted at, wall clock   | began at          | ended, edge, found at     |
//! |     12 |     4 | `client_rx` (8 bytes)              | epoch             | epoch                     |
//! |     16 |     8 | `upstream_tx` (at 20)              | run (16 bytes)    | gap: first lost number    |
//! |     28 |    16 | `upstream_rx`, `client_tx`         | table (1, at 32)  |                           |
//! |     44 |     8 | uncertain up, uncertain down       |                   |                           |
//! |     52 |     4 | requests                           |                   |                           |
//! |     56 |     2 | bytes of the identity              |                   |                           |
//! |     58 |     . | identity                           |                   |                           |
//!
//! A consent is kind 6: epoch at 12, the first and the last missing number at 16 and 24, the lengths of
//! author (1 byte) and text (2 bytes) at 32, zero at 35, author and text from 36 on. Grants and
//! notices, kinds 128 and 129, are in `quotas.rs`.
//!
//! Behind all of that come fields, which this version does not write: tag (1 byte), length (1 byte), value.

use sys::clock::WallNanos;

use super::fields::{Fixed, HEAD_BYTES, IMPOSSIBLE_LENGTH, head};
use super::quotas::{GRANT, GrantEntry, NOTICE, NoticeEntry};
use super::{Entry, EntryKey, SkippedEntry, TableFinding};
use crate::consent::Consent;
use crate::limits::{ENTRY_BYTES_MAX, IDENTITY_BYTES_MAX};
use crate::record::{CloseReason, Identity, Legs, MalformedRecord, Record, Uncertain};

pub(super) const KIND: usize = 2;
const REASON: usize = 3;
/// Of all entries but a flow's, and those that are skipped.
pub(super) const EPOCH: usize = 12;
/// Bytes of a flow's entry before its identity.
const FLOW_BYTES: usize = 58;
const RUN_BEGAN_BYTES: usize = 33;
const RUN_ENDED_BYTES: usize = 16;
const EDGE_BYTES: usize = 16;
const GAP_BYTES: usize = 24;
/// Bytes of a consent before its texts.
const CONSENT_BYTES: usize = 36;

const _: () = assert!(FLOW_BYTES + IDENTITY_BYTES_MAX <= ENTRY_BYTES_MAX);

pub(super) const FINAL: u8 = 1;
pub(super) const INTERIM: u8 = 2;
pub(super) const RUN_BEGAN: u8 = 3;
pub(super) const GAP: u8 = 4;
pub(super) const RUN_ENDED: u8 = 5;
pub(super) const CONSENT: u8 = 6;
pub(super) const EDGE: u8 = 7;

/// The kinds and tags from this one on may be skipped by a version that does not know them.
const SKIPPED_FROM: u8 = 128;

/// Appends the bytes of `entry` to `out`.
pub(super) fn write(entry: &Entry, out: &mut Vec<u8>) {
    match entry {
        Entry::Final(record) => write_record(out, true, record),
        Entry::Interim(record) => write_record(out, false, record),
        Entry::RunBegan { epoch, at, run, table } => {
            head(out, RUN_BEGAN_BYTES, RUN_BEGAN, 0, *at);
            out.extend_from_slice(&epoch.to_le_bytes());
            out.extend_from_slice(&run.to_le_bytes());
            out.push(*table as u8);
        }
        Entry::Gap { epoch, at, first_lsn } => {
            head(out, GAP_BYTES, GAP, 0, *at);
            out.extend_from_slice(&epoch.to_le_bytes());
            out.extend_from_slice(&first_lsn.to_le_bytes());
        }
        Entry::RunEnded { epoch, at } => {
            head(out, RUN_ENDED_BYTES, RUN_ENDED, 0, *at);
            out.extend_from_slice(&epoch.to_le_bytes());
        }
        Entry::Edge { epoch, at } => {
            head(out, EDGE_BYTES, EDGE, 0, *at);
            out.extend_from_slice(&epoch.to_le_bytes());
        }
        Entry::Accepted(consent) => write_consent(out, consent),
        Entry::Granted(grant) => out.extend_from_slice(grant.bytes()),
        Entry::Noticed(notice) => out.extend_from_slice(notice.bytes()),
        Entry::Skipped(skipped) => out.extend_from_slice(skipped.bytes()),
    }
}

/// The entry that `bytes` hold, and nothing else.
pub(super) fn read(bytes: &[u8]) -> Result<Entry, MalformedRecord> {
    let (fields, at) = (Fixed(bytes), || Ok(WallNanos(Fixed(bytes).u64(HEAD_BYTES)?)));
    let (entry, length) = match bytes[KIND] {
        FINAL => {
            let (record, length) = read_record(bytes, read_reason(bytes)?)?;
            (Entry::Final(record), length)
        }
        INTERIM => {
            let (record, length) = read_record(bytes, CloseReason::Fault)?;
            (Entry::Interim(record), length)
        }
        RUN_BEGAN => {
            let table = bytes.get(32).and_then(|number| TableFinding::from_number(*number));
            let table = table.ok_or(MalformedRecord("an unknown finding of a live table"))?;
            let run = fields.array(16).map(u128::from_le_bytes)?;
            (Entry::RunBegan { epoch: fields.u32(EPOCH)?, at: at()?, run, table }, RUN_BEGAN_BYTES)
        }
        GAP => (Entry::Gap { epoch: fields.u32(EPOCH)?, at: at()?, first_lsn: fields.u64(16)? }, GAP_BYTES),
        RUN_ENDED => (Entry::RunEnded { epoch: fields.u32(EPOCH)?, at: at()? }, RUN_ENDED_BYTES),
        EDGE => (Entry::Edge { epoch: fields.u32(EPOCH)?, at: at()? }, EDGE_BYTES),
        CONSENT => {
            let (consent, length) = read_consent(bytes)?;
            (Entry::Accepted(consent), length)
        }
        GRANT => {
            let (grant, length) = GrantEntry::read(bytes)?;
            (Entry::Granted(grant), length)
        }
        NOTICE => {
            let (notice, length) = NoticeEntry::read(bytes)?;
            (Entry::Noticed(notice), length)
        }
        kind if kind >= SKIPPED_FROM => return SkippedEntry::new(bytes).map(Entry::Skipped),
        _ => return Err(MalformedRecord("an entry of an unknown kind")),
    };
    skip_fields(bytes.get(length..).ok_or(IMPOSSIBLE_LENGTH)?)?;
    Ok(entry)
}

/// The key of the entry that `bytes` hold, and nothing else.
pub(super) fn read_key(bytes: &[u8]) -> Result<EntryKey<'_>, MalformedRecord> {
    let kind = bytes[KIND];
    if kind != FINAL && kind != INTERIM {
        return Ok(read(bytes)?.event_key());
    }
    let (identity, length) = identity_bytes(bytes)?;
    let flow = Identity::check(identity)?;
    skip_fields(&bytes[length..])?;
    match kind {
        FINAL => read_reason(bytes).map(|_| EntryKey::Final(flow.into())),
        _ => Ok(EntryKey::Interim(flow.into())),
    }
}

/// The close reason of a final.
pub(super) fn read_reason(entry: &[u8]) -> Result<CloseReason, MalformedRecord> {
    CloseReason::from_number(entry[REASON]).ok_or(MalformedRecord("an unknown close reason"))
}

/// Skips the fields behind an entry's known part.
fn skip_fields(mut bytes: &[u8]) -> Result<(), MalformedRecord> {
    while let [tag, length, rest @ ..] = bytes {
        if *tag < SKIPPED_FROM {
            return Err(MalformedRecord("an entry with an unknown field"));
        }
        bytes = rest.get(usize::from(*length)..).ok_or(IMPOSSIBLE_LENGTH)?;
    }
    if bytes.is_empty() { Ok(()) } else { Err(IMPOSSIBLE_LENGTH) }
}

impl TableFinding {
    /// The finding with this number.
    pub(crate) fn from_number(number: u8) -> Option<TableFinding> {
        [Self::None, Self::Found, Self::Missing].into_iter().find(|finding| *finding as u8 == number)
    }
}

/// A flow's entry as the committer writes it: the identity is already packed in the live table's slot.
pub(crate) struct FlowEntry<'a> {
    /// `None` for an interim.
    pub(crate) closed: Option<CloseReason>,
    pub(crate) at: WallNanos,
    pub(crate) requests: u64,
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
        let requests = u32::try_from(self.requests).unwrap_or(u32::MAX);
        for count in [self.uncertain.up, self.uncertain.down, requests] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&(self.identity.len() as u16).to_le_bytes());
        out.extend_from_slice(self.identity);
    }
}

fn write_record(out: &mut Vec<u8>, is_final: bool, record: &Record) {
    let flow = record.flow();
    FlowEntry {
        closed: is_final.then_some(flow.reason),
        at: flow.closed,
        requests: flow.requests,
        legs: flow.legs,
        uncertain: flow.uncertain,
        identity: record.identity().bytes(),
    }
    .write(out);
}

/// The record of a flow's entry, and the length of its known part.
fn read_record(entry: &[u8], reason: CloseReason) -> Result<(Record, usize), MalformedRecord> {
    let (identity, length) = identity_bytes(entry)?;
    let (identity, fields) = (Identity::parse(identity)?, Fixed(entry));
    let record = Record::from_parts(identity, WallNanos(fields.u64(HEAD_BYTES)?), reason, fields.legs()?);
    let record = record.with_uncertain(fields.uncertain()?).with_requests(fields.u32(52)?.into());
    Ok((record, length))
}

/// The identity in a flow's entry, and the length of the entry's known part.
fn identity_bytes(entry: &[u8]) -> Result<(&[u8], usize), MalformedRecord> {
    let length = FLOW_BYTES + usize::from(u16::from_le_bytes(Fixed(entry).array(56)?));
    Ok((entry.get(FLOW_BYTES..length).ok_or(IMPOSSIBLE_LENGTH)?, length))
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

/// A consent, and the length of its known part.
pub(super) fn read_consent(entry: &[u8]) -> Result<(Consent, usize), MalformedRecord> {
    let impossible = MalformedRecord("a consent of an impossible length");
    let fields = Fixed(entry);
    let [author_bytes, low, high, _] = fields.array(32)?;
    let texts = entry.get(CONSENT_BYTES..).ok_or(impossible)?;
    let (author, behind) = texts.split_at_checked(usize::from(author_bytes)).ok_or(impossible)?;
    let what = behind.get(..usize::from(u16::from_le_bytes([low, high]))).ok_or(impossible)?;
    let length = CONSENT_BYTES + author.len() + what.len();
    let text = |bytes| str::from_utf8(bytes).map_err(|_| MalformedRecord("a consent that is not UTF-8"));
    let (author, what) = (text(author)?, text(what)?);
    let lsns = (fields.u64(16)?, fields.u64(24)?);
    let consent = Consent::new(fields.u32(EPOCH)?, WallNanos(fields.u64(HEAD_BYTES)?), lsns, author, what);
    let is_whole = consent.author() == author && consent.what() == what;
    is_whole.then_some((consent, length)).ok_or(impossible)
}
