//! The bytes of an entry of version 1, which an earlier program wrote.
//!
//! They differ from those of version 2: flows have no number of requests, and an identity of version 1, from
//! offset 52 to the end of the entry; a run has an epoch alone; no entry has fields behind it.

use sys::clock::WallNanos;

use super::fields::Fixed;
use super::format;
use super::{Entry, EntryKey, FlowKey, TableFinding};
use crate::record::{CloseReason, MalformedRecord, Record, version_1};

/// Bytes of a flow's entry before its identity.
const FLOW_BYTES: usize = 52;
const RUN_BYTES: usize = 16;
const GAP_BYTES: usize = 24;

/// The entry that `bytes` hold, and nothing else.
pub(super) fn read(bytes: &[u8]) -> Result<Entry, MalformedRecord> {
    let exactly = |expected: usize| match bytes.len() == expected {
        true => Ok(Fixed(bytes)),
        false => Err(MalformedRecord("an entry of an impossible length")),
    };
    match bytes[format::KIND] {
        format::FINAL => read_record(bytes, format::read_reason(bytes)?).map(Entry::Final),
        format::INTERIM => read_record(bytes, CloseReason::Fault).map(Entry::Interim),
        format::RUN_BEGAN => {
            let fields = exactly(RUN_BYTES)?;
            let (epoch, at) = (fields.u32(format::EPOCH)?, WallNanos(fields.u64(4)?));
            Ok(Entry::RunBegan { epoch, at, run: 0, table: TableFinding::None })
        }
        format::GAP => {
            let fields = exactly(GAP_BYTES)?;
            let (epoch, at) = (fields.u32(format::EPOCH)?, WallNanos(fields.u64(4)?));
            Ok(Entry::Gap { epoch, at, first_lsn: fields.u64(16)? })
        }
        format::RUN_ENDED => {
            let fields = exactly(RUN_BYTES)?;
            Ok(Entry::RunEnded { epoch: fields.u32(format::EPOCH)?, at: WallNanos(fields.u64(4)?) })
        }
        format::CONSENT => {
            let (consent, length) = format::read_consent(bytes)?;
            exactly(length).map(|_| Entry::Accepted(consent))
        }
        _ => Err(MalformedRecord("an entry of an unknown kind")),
    }
}

/// The key of the entry that `bytes` hold, and nothing else.
pub(super) fn read_key(bytes: &[u8]) -> Result<EntryKey<'_>, MalformedRecord> {
    let flow = || version_1::check(identity_bytes(bytes)?).map(FlowKey::from);
    match bytes[format::KIND] {
        format::FINAL => format::read_reason(bytes).and_then(|_| flow()).map(EntryKey::Final),
        format::INTERIM => flow().map(EntryKey::Interim),
        _ => Ok(read(bytes)?.event_key()),
    }
}

fn identity_bytes(entry: &[u8]) -> Result<&[u8], MalformedRecord> {
    entry.get(FLOW_BYTES..).ok_or(MalformedRecord("an entry of an impossible length"))
}

fn read_record(entry: &[u8], reason: CloseReason) -> Result<Record, MalformedRecord> {
    let identity = version_1::parse(identity_bytes(entry)?)?;
    let fields = Fixed(entry);
    let record = Record::from_parts(identity, WallNanos(fields.u64(4)?), reason, fields.legs()?);
    Ok(record.with_uncertain(fields.uncertain()?))
}
