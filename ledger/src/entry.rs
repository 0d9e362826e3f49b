//! The entries of the journal: flows as they are counted and as they end, and events of the journal itself.
//!
//! Guarantees: counts are cumulative, so that a lost, repeated or late [`Entry::Interim`] does no harm. Each
//! flow has one [`Entry::Final`], and no interim behind it.
//!
//! `format.rs` has their bytes, `quotas.rs` those of grants and notices, `fields.rs` what all have, and
//! `version_1.rs` those that an earlier program wrote.

mod fields;
mod format;
mod quotas;
mod version_1;

use sys::clock::WallNanos;

use crate::consent::Consent;
use crate::limits::ENTRY_BYTES_MAX;
use crate::record::{Flow, MalformedRecord, Record};

pub(crate) use format::FlowEntry;
pub use quotas::{GrantEntry, NoticeEntry};

/// One entry of the journal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Entry {
    /// A flow has ended.
    Final(Record),
    /// The counts of an open flow; its close reason is meaningless.
    Interim(Record),
    /// A run of the gateway begins, and has recovered what earlier runs left. A flow without a final by now
    /// has ended with [`crate::record::CloseReason::Lost`] and the counts of its last interim.
    RunBegan {
        /// The run.
        epoch: u32,
        /// When it began, by the wall clock.
        at: WallNanos,
        /// A number drawn by the run, by which a copied ledger is told from its original; 0: not known.
        run: u128,
        /// The live table of the run before.
        table: TableFinding,
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
    /// A quarter-hour has begun: all that its run counted before is in front of this entry.
    Edge {
        /// The run.
        epoch: u32,
        /// The beginning of the quarter-hour.
        at: WallNanos,
    },
    /// An operator accepted a loss.
    Accepted(Consent),
    /// An operator added credit to a quota. A program that does not know it skips it.
    Granted(GrantEntry),
    /// A quota reached a threshold. A program that does not know it skips it.
    Noticed(NoticeEntry),
    /// An entry of a later version, which says that this one may skip it.
    Skipped(SkippedEntry),
}

/// What a start found of the live table that the last run left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum TableFinding {
    /// Not recorded, or there was nothing to find: the last run had ended in order, or in another boot.
    None = 0,
    /// The table was found: flows are billed to the last counted byte.
    Found = 1,
    /// The table was missing: flows are billed as they were last journaled.
    Missing = 2,
}

/// The bytes of an entry that this version skips, unchanged.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct SkippedEntry {
    length: u16,
    /// Zero from `length` on.
    bytes: [u8; ENTRY_BYTES_MAX],
}

impl SkippedEntry {
    fn new(entry: &[u8]) -> Result<SkippedEntry, MalformedRecord> {
        let mut bytes = [0; ENTRY_BYTES_MAX];
        let Some(copy) = bytes.get_mut(..entry.len()) else {
            return Err(MalformedRecord("an entry of an impossible length"));
        };
        copy.copy_from_slice(entry);
        Ok(SkippedEntry { length: entry.len() as u16, bytes })
    }

    /// The entry's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for SkippedEntry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SkippedEntry({:02x?})", self.bytes())
    }
}

/// The version of an entry's bytes; each frame has one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EntryVersion {
    /// Read only.
    V1,
    /// The version that is written.
    V2,
}

impl Entry {
    /// Appends the entry's bytes to `out`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        format::write(self, out);
    }

    /// The flow of an entry that has one.
    pub(crate) fn flow(&self) -> Option<Flow<'_>> {
        match self {
            Entry::Final(record) | Entry::Interim(record) => Some(record.flow()),
            _ => None,
        }
    }

    /// The key of an entry without a flow.
    fn event_key(&self) -> EntryKey<'static> {
        match self {
            Entry::RunBegan { epoch, .. } => EntryKey::RunBegan(*epoch),
            Entry::RunEnded { epoch, .. } => EntryKey::RunEnded(*epoch),
            _ => EntryKey::Other,
        }
    }

    /// The entry at the beginning of `bytes`, and its length.
    pub(crate) fn read(bytes: &[u8], version: EntryVersion) -> Result<(Entry, usize), MalformedRecord> {
        let entry = one(bytes)?;
        let read = match version {
            EntryVersion::V1 => version_1::read(entry)?,
            EntryVersion::V2 => format::read(entry)?,
        };
        Ok((read, entry.len()))
    }
}

/// The bytes of the entry at the beginning of `bytes`. In every version they begin with their number.
fn one(bytes: &[u8]) -> Result<&[u8], MalformedRecord> {
    let too_early = MalformedRecord("an entry that ends too early");
    let [low, high, ..] = *bytes else { return Err(too_early) };
    let length = usize::from(u16::from_le_bytes([low, high]));
    let entry = bytes.get(..length).ok_or(too_early)?;
    if length < fields::HEAD_BYTES { Err(too_early) } else { Ok(entry) }
}

/// The part of an entry that recovery needs; there may be millions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EntryKey<'a> {
    /// The final of this flow.
    Final(FlowKey<'a>),
    /// The counts of this flow.
    Interim(FlowKey<'a>),
    /// This run began.
    RunBegan(u32),
    /// This run ended in order.
    RunEnded(u32),
    /// Anything else.
    Other,
}

/// The part of a flow that recovery needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FlowKey<'a> {
    pub(crate) id: u128,
    /// The account of its user, 0 if it is not known.
    pub(crate) account: u32,
    pub(crate) user: &'a str,
}

impl<'a> From<Flow<'a>> for FlowKey<'a> {
    fn from(Flow { id, account, user, .. }: Flow<'a>) -> FlowKey<'a> {
        FlowKey { id, account, user }
    }
}

impl<'a> EntryKey<'a> {
    /// The key of the entry at the beginning of `bytes`, and the entry's length. What [`Entry::read`] refuses
    /// is refused here too, though nothing is copied.
    pub(crate) fn read(bytes: &'a [u8], version: EntryVersion) -> Result<(Self, usize), MalformedRecord> {
        let entry = one(bytes)?;
        let key = match version {
            EntryVersion::V1 => version_1::read_key(entry)?,
            EntryVersion::V2 => format::read_key(entry)?,
        };
        Ok((key, entry.len()))
    }
}

impl<'a> From<&'a Entry> for EntryKey<'a> {
    fn from(entry: &'a Entry) -> EntryKey<'a> {
        match entry {
            Entry::Final(record) => EntryKey::Final(record.flow().into()),
            Entry::Interim(record) => EntryKey::Interim(record.flow().into()),
            event => event.event_key(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::EntryVersion::{V1, V2};
    use super::*;
    use crate::quota::{
        AUTHOR_BYTES_MAX, AppendError, Grant, Notice, Owner, QUOTA_BYTES_MAX, REASON_BYTES_MAX,
        TEAM_BYTES_MAX,
    };
    use crate::record::tests::FLOW;
    use crate::record::{CloseReason, Flow};

    fn record(host: &str, reason: CloseReason) -> Record {
        Record::new(&Flow { host, address: Some("192.0.2.1".parse().unwrap()), reason, ..FLOW })
    }

    /// The longest one.
    fn grant() -> Grant {
        let (from, until) = (WallNanos(1), WallNanos(u64::MAX));
        let text = |length| "x".repeat(length);
        let (quota, author, reason) = (text(QUOTA_BYTES_MAX), text(AUTHOR_BYTES_MAX), text(REASON_BYTES_MAX));
        let owner = Owner::Team(text(TEAM_BYTES_MAX));
        Grant { id: 1 << 100, at: WallNanos(7), owner, quota, bytes: 5, from, until, author, reason }
    }

    fn notice() -> Notice {
        let (period_start, quota) = (WallNanos(8), "month".to_owned());
        Notice {
            at: WallNanos(9),
            owner: Owner::User(3),
            quota,
            period_start,
            percent: 80,
            used: 4,
            limit: 5,
        }
    }

    #[test]
    fn record_of_a_quota_beyond_a_bound_is_refused() {
        assert_eq!(GrantEntry::new(&grant()).unwrap().grant(), grant());
        assert_eq!(NoticeEntry::new(&notice()).unwrap().notice(), notice());
        let longer = |text: &str| format!("{text}x");
        let refused = [
            Grant { owner: Owner::Team("x".repeat(TEAM_BYTES_MAX + 1)), ..grant() },
            Grant { quota: longer(&grant().quota), ..grant() },
            Grant { author: longer(&grant().author), ..grant() },
            Grant { reason: longer(&grant().reason), ..grant() },
        ];
        for grant in refused {
            assert!(matches!(GrantEntry::new(&grant), Err(AppendError::TooLong { .. })), "{grant:?}");
        }
        for owner in [Owner::User(0), Owner::Team(String::new())] {
            let notice = Notice { owner: owner.clone(), ..notice() };
            assert_eq!(NoticeEntry::new(&notice), Err(AppendError::NoOwner), "{owner:?}");
        }
        let control = GrantEntry::new(&Grant { reason: "a\x1b[1m".to_owned(), ..grant() });
        assert_eq!(control, Err(AppendError::ControlCharacter("reason")));
    }

    fn all() -> Vec<Entry> {
        let at = WallNanos(77);
        vec![
            Entry::Final(record("example.com", CloseReason::Killed)),
            Entry::Interim(record(&"x".repeat(253), CloseReason::Fault)),
            Entry::RunBegan { epoch: u32::MAX, at, run: 1 << 100, table: TableFinding::Missing },
            Entry::Gap { epoch: 3, at, first_lsn: u64::MAX },
            Entry::RunEnded { epoch: 3, at },
            Entry::Edge { epoch: 3, at },
            Entry::Accepted(Consent::new(3, at, (4, 5), "root", "the journal is missing")),
            Entry::Granted(GrantEntry::new(&grant()).unwrap()),
            Entry::Noticed(NoticeEntry::new(&notice()).unwrap()),
            Entry::Skipped(SkippedEntry::new(&[5, 0, 200, 0, 9]).unwrap()),
        ]
    }

    fn written(entry: &Entry) -> Vec<u8> {
        let mut bytes = Vec::new();
        entry.write(&mut bytes);
        bytes
    }

    /// The entry's bytes with `behind` behind them, as a later version may write them.
    fn extended(entry: &Entry, behind: &[u8]) -> Vec<u8> {
        let mut bytes = [&written(entry)[..], behind].concat();
        let length = (bytes.len() as u16).to_le_bytes();
        bytes[..2].copy_from_slice(&length);
        bytes
    }

    /// The key is that of the entry, or both are refused.
    fn assert_agree(bytes: &[u8], version: EntryVersion) {
        let read = Entry::read(bytes, version).ok();
        let key = read.as_ref().map(|(entry, length)| (EntryKey::from(entry), *length));
        assert_eq!(EntryKey::read(bytes, version).ok(), key, "{version:?} {bytes:?}");
    }

    /// Longer than any entry may be.
    #[test]
    fn skippable_entry_beyond_the_greatest_length_is_refused() {
        let mut bytes = vec![0; ENTRY_BYTES_MAX + 1];
        bytes[..3].copy_from_slice(&[1, 2, 200]);
        assert_agree(&bytes, V2);
        assert!(EntryKey::read(&bytes, V2).is_err());
    }

    #[test]
    fn entries_round_trip() {
        let bytes: Vec<u8> = all().iter().flat_map(written).collect();
        let mut remaining = &bytes[..];
        for expected in all() {
            let (entry, length) = Entry::read(remaining, V2).unwrap();
            assert_eq!(entry, expected);
            assert_eq!(EntryKey::read(remaining, V2), Ok((EntryKey::from(&entry), length)));
            assert!(length <= ENTRY_BYTES_MAX);
            remaining = &remaining[length..];
        }
        assert!(remaining.is_empty());
    }

    #[test]
    fn truncated_entries_are_refused() {
        for entry in all() {
            let bytes = written(&entry);
            for length in 0..bytes.len() {
                for version in [V1, V2] {
                    assert!(Entry::read(&bytes[..length], version).is_err());
                    assert!(EntryKey::read(&bytes[..length], version).is_err());
                }
            }
        }
    }

    #[test]
    fn unknown_kinds_are_refused_or_skipped_as_they_say() {
        for entry in all() {
            let mut bytes = written(&entry);
            for kind in [0, 8, 127] {
                bytes[format::KIND] = kind;
                for version in [V1, V2] {
                    assert!(Entry::read(&bytes, version).is_err());
                    assert!(EntryKey::read(&bytes, version).is_err());
                }
            }
            for kind in [130, 255] {
                bytes[format::KIND] = kind;
                let (skipped, length) = Entry::read(&bytes, V2).unwrap();
                assert_eq!((written(&skipped), length), (bytes.clone(), bytes.len()));
                assert!(matches!(skipped, Entry::Skipped(_)));
                assert!(Entry::read(&bytes, V1).is_err());
                assert!(EntryKey::read(&bytes, V1).is_err());
            }
        }
    }

    #[test]
    fn unknown_fields_are_refused_or_skipped_as_they_say() {
        let skipped: [&[u8]; 4] = [&[128, 0], &[255, 3, 1, 2, 3], &[200, 1, 0, 128, 0], &[]];
        let refused: [&[u8]; 6] = [&[127, 0], &[0, 0], &[128], &[128, 1], &[128, 0, 1, 0], &[0]];
        for entry in all().into_iter().filter(|entry| !matches!(entry, Entry::Skipped(_))) {
            for behind in skipped {
                let bytes = extended(&entry, behind);
                assert_eq!(Entry::read(&bytes, V2), Ok((entry, bytes.len())), "{behind:?}");
                assert_eq!(EntryKey::read(&bytes, V2), Ok((EntryKey::from(&entry), bytes.len())));
            }
            for behind in refused {
                assert!(Entry::read(&extended(&entry, behind), V2).is_err(), "{entry:?} {behind:?}");
                assert!(EntryKey::read(&extended(&entry, behind), V2).is_err(), "{entry:?} {behind:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            for version in [V1, V2] {
                assert_agree(&bytes, version);
            }
        }

        #[test]
        fn entry_and_key_agree_on_flipped_bytes(at: usize, with: u8) {
            for entry in all() {
                for length in [0, 4] {
                    let mut bytes = extended(&entry, &[200, 2, 7, 7][..length]);
                    let at = at % bytes.len();
                    bytes[at] = with;
                    for version in [V1, V2] {
                        assert_agree(&bytes, version);
                    }
                }
            }
        }
    }
}
