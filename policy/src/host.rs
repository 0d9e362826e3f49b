//! Requested hosts, and the hash table that finds all rules for the suffixes of a name.
//!
//! Guarantees: a lookup walks the name's labels from the right, extends one hash at each label border, and
//! compares the bytes after a match of the hash; it allocates nothing.
//!
//! ```text
//! api.eu.example.com
//!               com     probe "com"                  for rules *.com
//!       example.com     probe "example.com"          for rules *.example.com
//!    eu.example.com     probe "eu.example.com"       for rules *.eu.example.com
//! api.eu.example.com    probe "api.eu.example.com"   for rules api.eu.example.com
//! ```

use std::net::IpAddr;

use crate::ports::PortRange;

/// Longest name in bytes, without the trailing dot (RFC 1035 section 2.3.4: 255 on the wire).
pub const NAME_BYTES_MAX: usize = 253;

/// Longest label in bytes (RFC 1035 section 2.3.4).
pub const LABEL_BYTES_MAX: usize = 63;

/// A requested host: a name, or a literal address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host<'a> {
    /// A name in its canonical form: lower-case letters, digits, `-` and `_`, without a trailing dot. Any
    /// other spelling is denied as malformed.
    Name(&'a str),
    /// A literal address. Only address rules match it.
    Address(IpAddr),
}

/// Whether a name is in canonical form, the only spelling in the tables. A deny rule would miss other
/// spellings, so they are refused before the rules are checked.
pub(crate) fn is_canonical(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && name
            .as_bytes()
            .split(|byte| *byte == b'.')
            .all(|label| !label.is_empty() && label.iter().all(|byte| is_name_byte(*byte)))
}

pub(crate) const fn is_name_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')
}

/// One suffix of a name that begins at a label border, with the hash of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suffix<'a> {
    bytes: &'a [u8],
    hash: u64,
    /// Whether this is the whole name: then exact rules match, otherwise `*.` rules.
    pub(crate) is_whole: bool,
}

/// Walks the suffixes of a canonical name, shortest first.
pub(crate) struct Suffixes<'a> {
    name: &'a [u8],
    /// The number of leading bytes that are not in the hash yet; `None` after the last suffix.
    unread: Option<usize>,
    hash: u64,
}

impl<'a> Suffixes<'a> {
    pub(crate) fn new(name: &'a str) -> Self {
        Self { name: name.as_bytes(), unread: Some(name.len()), hash: HASH_START }
    }
}

impl<'a> Iterator for Suffixes<'a> {
    type Item = Suffix<'a>;

    fn next(&mut self) -> Option<Suffix<'a>> {
        let unread = &self.name[..self.unread?];
        let label_bytes = unread.iter().rev().take_while(|byte| **byte != b'.').count();
        let start = unread.len() - label_bytes;
        self.hash = unread[start..].iter().rev().fold(self.hash, |hash, byte| mix(hash, *byte));
        let suffix = Suffix { bytes: &self.name[start..], hash: self.hash, is_whole: start == 0 };
        self.unread = start.checked_sub(1);
        self.hash = mix(self.hash, b'.');
        Some(suffix)
    }
}

/// FNV-1a over the bytes from the right. The table contains the operator's own names and compares bytes, so a
/// hostile name can cost a comparison, but can neither match nor lengthen a chain.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

const fn mix(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

/// A rule by name in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRule {
    pub(crate) ports: PortRange,
    /// `*.x` rather than `x`.
    pub(crate) is_below: bool,
    /// The rule's position in its list.
    pub(crate) index: u32,
}

/// A hash table from names to their rules: open addressing, at most half full. A name and its rules lie
/// together, so that a hit among many names reads two locations in memory, and a miss one.
#[derive(Debug, Default)]
pub(crate) struct NameTable {
    /// A power of two of slots; empty for an empty table.
    slots: Box<[Slot]>,
    /// For each name its length (one byte), its bytes, the number of its rules (four bytes), and the rules.
    records: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The low bits of the mixed hash: most records of other names are skipped without reading them.
    tag: u32,
    /// The offset of the record.
    record: u32,
}

const EMPTY_SLOT: Slot = Slot { tag: 0, record: u32::MAX };

/// Bytes of a record in addition to its name and rules.
const RECORD_FRAME_BYTES: usize = 5;

/// The maximum bytes of a record whose name has one rule; a further rule of the name adds fewer.
pub(crate) const RECORD_BYTES_MAX: usize = RECORD_FRAME_BYTES + NAME_BYTES_MAX + NameRule::BYTES;

const _: () = assert!(NAME_BYTES_MAX <= u8::MAX as usize);

impl NameTable {
    /// Builds the table. Rules for one name keep their order.
    pub(crate) fn build(mut rules: Vec<(Box<str>, NameRule)>) -> Self {
        rules.sort_by(|left, right| left.0.cmp(&right.0));
        let by_name = || rules.chunk_by(|left, right| left.0 == right.0);
        if rules.is_empty() {
            return Self::default();
        }
        let mut slots = vec![EMPTY_SLOT; (by_name().count() * 2).next_power_of_two()];
        let mut records = Vec::new();
        for same_name in by_name() {
            let name = same_name[0].0.as_bytes();
            let hash = name.iter().rev().fold(HASH_START, |hash, byte| mix(hash, *byte));
            let (mut at, tag) = home_slot(hash, slots.len());
            while slots[at].record != EMPTY_SLOT.record {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = Slot { tag, record: to_u32(records.len()) };
            records
                .push(u8::try_from(name.len()).expect("a canonical name has at most NAME_BYTES_MAX bytes"));
            records.extend_from_slice(name);
            records.extend_from_slice(&to_u32(same_name.len()).to_le_bytes());
            records.extend(same_name.iter().flat_map(|(_, rule)| rule.to_bytes()));
        }
        Self { slots: slots.into(), records: records.into() }
    }

    /// Whether the table has no rule.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The rules whose name is this suffix, exact ones and `*.` ones.
    pub(crate) fn rules_at(&self, suffix: &Suffix<'_>) -> impl Iterator<Item = NameRule> {
        let (rules, _) = self.record(suffix).unwrap_or_default().as_chunks();
        rules.iter().map(NameRule::from_bytes)
    }

    /// The bytes of the rules for a suffix.
    fn record(&self, suffix: &Suffix<'_>) -> Option<&[u8]> {
        if self.slots.is_empty() {
            return None;
        }
        let (mut at, tag) = home_slot(suffix.hash, self.slots.len());
        loop {
            let slot = self.slots[at];
            if slot.record == EMPTY_SLOT.record {
                return None;
            }
            if slot.tag == tag {
                let (length, rest) = self.records[slot.record as usize..].split_first()?;
                let (name, rest) = rest.split_at_checked(usize::from(*length))?;
                if name == suffix.bytes {
                    let (count, rest) = rest.split_first_chunk()?;
                    return rest.get(..u32::from_le_bytes(*count) as usize * NameRule::BYTES);
                }
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

impl NameRule {
    /// Bytes of a rule in a record: first port, last port, position, and whether it is a `*.` rule.
    const BYTES: usize = 9;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let [first_low, first_high] = self.ports.first.to_le_bytes();
        let [last_low, last_high] = self.ports.last.to_le_bytes();
        let [index0, index1, index2, index3] = self.index.to_le_bytes();
        [first_low, first_high, last_low, last_high, index0, index1, index2, index3, self.is_below.into()]
    }

    fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [first_low, first_high, last_low, last_high, index0, index1, index2, index3, is_below] = *bytes;
        Self {
            ports: PortRange {
                first: u16::from_le_bytes([first_low, first_high]),
                last: u16::from_le_bytes([last_low, last_high]),
            },
            index: u32::from_le_bytes([index0, index1, index2, index3]),
            is_below: is_below != 0,
        }
    }
}

/// The first slot to probe among this many slots (a power of two, at least two), and the tag. FNV's high bits
/// are weak for short names, so the hash is multiplied first.
const fn home_slot(hash: u64, slots: usize) -> (usize, u32) {
    let spread = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((spread >> (64 - slots.trailing_zeros())) as usize, spread as u32)
}

fn to_u32(length: usize) -> u32 {
    u32::try_from(length).expect("RULES_MAX keeps a list's tables within 4 GiB")
}

#[cfg(test)]
mod tests;
