//! Many sums in one value of a row: by number, or by host.
//!
//! Guarantees: what is unpacked is what was packed, in the same order.
//!
//! A row of SQLite costs a question many calls, an entry of a packed value none.
//!
//! ```text
//!   by number = number - number before it, sums
//!   by host   = hash of the name (8 bytes, the lowest first), its length, the name,
//!               2 * set + class (0 external, 1 internal), sums
//!   sums      = flows, requests, up, down, uncertain up, uncertain down
//!   each number but the hash in groups of seven bits, the lowest first, with the eighth set in all but the
//!   last (LEB128)
//! ```

use rusqlite::Connection;

use super::checksum;
use super::sums::Sums;
use crate::record::Class;

/// The sums of a host in one class and set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct HostSums<'a> {
    /// [`hash`] of the name: the order of entries.
    pub(crate) hash: u64,
    pub(crate) name: &'a str,
    pub(crate) class: Class,
    pub(crate) set: i64,
    pub(crate) sums: Sums,
}

/// Packs sums, whose numbers ascend from 0 on; `None` if a sum is negative, or a number is not in order.
pub(crate) fn pack<'a>(sums: impl IntoIterator<Item = (i64, &'a Sums)>) -> Option<Vec<u8>> {
    let (mut packed, mut before) = (Vec::new(), 0);
    for (number, sums) in sums {
        put(&mut packed, number.checked_sub(before)?)?;
        put_sums(&mut packed, sums)?;
        before = number;
    }
    Some(packed)
}

/// The same for sums by host, in the order in which they come.
pub(crate) fn pack_hosts<'a>(all: impl IntoIterator<Item = HostSums<'a>>) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    for HostSums { hash, name, class, set, sums } in all {
        packed.extend_from_slice(&hash.to_le_bytes());
        put(&mut packed, i64::try_from(name.len()).ok()?)?;
        packed.extend_from_slice(name.as_bytes());
        put(&mut packed, set.checked_mul(2)?.checked_add(i64::from(class == Class::Internal))?)?;
        put_sums(&mut packed, &sums)?;
    }
    Some(packed)
}

/// The hash of a host's name: FNV-1a, 64 bits (draft-eastlake-fnv). It gives values an order in which they
/// are merged. Two names may have the same.
pub(crate) fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Calls `each` with what was packed; returns whether all of `packed` could be read.
pub(crate) fn unpack(mut packed: &[u8], mut each: impl FnMut(i64, &Sums)) -> bool {
    let mut number = 0_i64;
    while !packed.is_empty() {
        let Some(more) = take(&mut packed) else { return false };
        let Some(sums) = take_sums(&mut packed) else { return false };
        number = number.saturating_add(more);
        each(number, &sums);
    }
    true
}

/// The entries of a packed value of sums by host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostEntries<'a> {
    packed: &'a [u8],
}

impl<'a> HostEntries<'a> {
    pub(crate) fn new(packed: &'a [u8]) -> HostEntries<'a> {
        HostEntries { packed }
    }

    /// Whether nothing is left: false behind an entry that cannot be read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.packed.is_empty()
    }
}

impl<'a> Iterator for HostEntries<'a> {
    type Item = HostSums<'a>;

    fn next(&mut self) -> Option<HostSums<'a>> {
        let mut packed = self.packed;
        let hash = u64::from_le_bytes(*packed.split_off(..8)?.first_chunk()?);
        let length = usize::try_from(take(&mut packed)?).ok()?;
        let name = str::from_utf8(packed.split_off(..length)?).ok()?;
        let set_and_class = take(&mut packed)?;
        let class = if set_and_class & 1 == 0 { Class::External } else { Class::Internal };
        let sums = take_sums(&mut packed)?;
        self.packed = packed;
        Some(HostSums { hash, name, class, set: set_and_class >> 1, sums })
    }
}

/// Deletes the damaged rows of tables with packed values, which are made again.
pub(super) fn delete_damaged(file: &Connection, tables: &[&str]) -> rusqlite::Result<()> {
    for table in tables {
        let mut damaged: Vec<i64> = Vec::new();
        let mut select = file.prepare(&format!("SELECT * FROM {table}"))?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            if !checksum::is_intact(row)? {
                damaged.push(row.get(0)?);
            }
        }
        let mut delete = file.prepare(&format!("DELETE FROM {table} WHERE rowid = ?1"))?;
        damaged.into_iter().try_for_each(|number| delete.execute([number]).map(drop))?;
    }
    Ok(())
}

fn put_sums(packed: &mut Vec<u8>, sums: &Sums) -> Option<()> {
    let Sums { flows, requests, up, down, uncertain_up, uncertain_down } = *sums;
    [flows, requests, up, down, uncertain_up, uncertain_down].into_iter().try_for_each(|sum| put(packed, sum))
}

fn take_sums(packed: &mut &[u8]) -> Option<Sums> {
    let mut sums = [0; 6];
    for sum in &mut sums {
        *sum = take(packed)?;
    }
    let [flows, requests, up, down, uncertain_up, uncertain_down] = sums;
    Some(Sums { flows, requests, up, down, uncertain_up, uncertain_down })
}

fn put(packed: &mut Vec<u8>, value: i64) -> Option<()> {
    let mut rest = u64::try_from(value).ok()?;
    while rest >= 0x80 {
        packed.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    packed.push(rest as u8);
    Some(())
}

fn take(packed: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = packed.split_first()?;
        *packed = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return i64::try_from(value).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_sums_are_those_that_were_packed() {
        let sums = |flows, up, uncertain_down| Sums { flows, up, uncertain_down, ..Sums::default() };
        let all = [
            (0, sums(0, 0, 0)),
            (1, sums(127, 128, i64::MAX)),
            (700_000, sums(1, i64::MAX, 16_384)),
            (i64::MAX, sums(2, 3, 4)),
        ];
        let packed = pack(all.iter().map(|(number, sums)| (*number, sums))).unwrap();
        let mut found = Vec::new();
        assert!(unpack(&packed, |number, sums| found.push((number, *sums))));
        assert_eq!(found, all);
        assert!(!unpack(&packed[..packed.len() - 1], |_, _| ()), "a cut value is no value");
        assert_eq!(pack([(7, &sums(-1, 0, 0))]), None);
        assert_eq!(pack([(7, &sums(1, 0, 0)), (6, &sums(1, 0, 0))]), None);
    }

    #[test]
    fn unpacked_hosts_are_those_that_were_packed() {
        let entry = |name, class, set, up| HostSums {
            hash: hash(name),
            name,
            class,
            set,
            sums: Sums { flows: 1, up, ..Sums::default() },
        };
        let long = "h".repeat(200);
        let all = [
            entry("example.com", Class::External, 0, 5),
            entry("example.com", Class::Internal, 3, i64::MAX),
            entry("", Class::External, 7, 0),
            entry(&long, Class::Internal, i64::MAX / 2, 1),
        ];
        let packed = pack_hosts(all).unwrap();
        assert_eq!(HostEntries::new(&packed).collect::<Vec<_>>(), all);
        for length in 0..packed.len() {
            let mut entries = HostEntries::new(&packed[..length]);
            let found: Vec<_> = entries.by_ref().collect();
            assert!(found.len() < all.len() && found == all[..found.len()]);
            let is_whole = pack_hosts(found).unwrap().len() == length;
            assert_eq!(entries.is_at_end(), is_whole, "cut to {length} bytes");
        }
        assert_eq!(pack_hosts([entry("a", Class::External, i64::MAX, 1)]), None);
        let mut no_text = packed.clone();
        no_text[9] = 0xff;
        assert_eq!(HostEntries::new(&no_text).next(), None);
        // The test vectors of the draft.
        assert_eq!([hash(""), hash("a"), hash("foobar")], FNV);
    }

    const FNV: [u64; 3] = [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8];
}
