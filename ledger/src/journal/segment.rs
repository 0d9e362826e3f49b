//! The name and the header of a segment.
//!
//! The header, little-endian, in the segment's first 4 KiB:
//!
//! | offset | bytes | field                                                             |
//! |-------:|------:|-------------------------------------------------------------------|
//! |      0 |     8 | "TOLLJRNL"                                                        |
//! |      8 |     4 | version, 2; 1: without a run                                      |
//! |     12 |     4 | gateway                                                           |
//! |     16 |     8 | the segment's number                                              |
//! |     24 |     4 | epoch                                                             |
//! |     28 |     4 | zero                                                              |
//! |     32 |     8 | number of its first entry                                         |
//! |     40 |     8 | number up to which all was durable when it was begun              |
//! |     48 |     8 | hash of the last header before it of a frame with entries, or zero|
//! |     56 |     8 | begun at, nanoseconds since the Unix epoch                        |
//! |     64 |     8 | if it rewrites entries of earlier segments: the last such number  |
//! |     72 |     2 | bytes of the live table's path                                    |
//! |     74 |  1024 | that path, then zeros                                             |
//! |   1104 |    16 | boot id of the machine when it was begun; zero: not known         |
//! |   1120 |     8 | bytes of the segment; zero: not known                             |
//! |   1128 |    16 | run: a number drawn by it; zero: not known                        |
//! |   4092 |     4 | CRC32C of all before                                              |

use sys::clock::WallNanos;

/// The alignment of frames: a multiple of a disk's sectors, and a page.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The header takes one block.
pub(crate) const HEADER_BYTES: usize = BLOCK_BYTES;

/// The greatest number that a header may hold. No gateway writes that many entries, the databases can store
/// it, and sums with the count of a frame do not overflow.
pub(super) const LSN_MAX: u64 = 1 << 62;

const MAGIC: &[u8; 8] = b"TOLLJRNL";
/// The version that is written. Version 1 has no run.
const VERSION: u32 = 2;
const PATH: usize = 74;
/// Bytes of a path that are stored.
const PATH_BYTES_MAX: usize = 1024;
const BOOT: usize = 1104;
const BYTES: usize = 1120;
const RUN: usize = 1128;
const CRC: usize = HEADER_BYTES - 4;

const PREFIX: &str = "segment-";

/// The file name of segment `number`.
pub(crate) fn name(number: u64) -> String {
    format!("{PREFIX}{number:012}")
}

/// Digits of a segment's number: fewer than a u64 has, so that there is always a next number.
const DIGITS_MAX: usize = 18;

/// The number in a segment's name; `None` for any other file.
pub(crate) fn number_in_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    ((12..=DIGITS_MAX).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

/// The header of a segment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SegmentHeader {
    pub(crate) gateway: u32,
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) first_lsn: u64,
    pub(crate) synced_lsn: u64,
    pub(crate) previous: u64,
    pub(crate) begun: WallNanos,
    /// Entries up to this number are rewritten from segments that count until the copies are known to be
    /// durable; 0 if none are.
    pub(crate) rewrites_to: u64,
    pub(crate) table: String,
    /// The boot of the machine in which the live table exists; 0 if it was not created yet, or in segments of
    /// an earlier version.
    pub(crate) boot: u128,
    /// Bytes of the segment; 0 in segments of an earlier version.
    pub(crate) bytes: u64,
    /// The number that the run drew; 0 in segments of an earlier version.
    pub(crate) run: u128,
}

impl SegmentHeader {
    /// The header's block. A path that is too long is left out.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(HEADER_BYTES);
        block.extend_from_slice(MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&self.gateway.to_le_bytes());
        block.extend_from_slice(&self.number.to_le_bytes());
        block.extend_from_slice(&self.epoch.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        let Self { first_lsn, synced_lsn, previous, begun, rewrites_to, .. } = self;
        for number in [first_lsn, synced_lsn, previous, &begun.0, rewrites_to] {
            block.extend_from_slice(&number.to_le_bytes());
        }
        let path = if self.table.len() <= PATH_BYTES_MAX { self.table.as_bytes() } else { &[] };
        block.extend_from_slice(&(path.len() as u16).to_le_bytes());
        block.extend_from_slice(path);
        block.resize(BOOT, 0);
        block.extend_from_slice(&self.boot.to_le_bytes());
        block.extend_from_slice(&self.bytes.to_le_bytes());
        block.extend_from_slice(&self.run.to_le_bytes());
        block.resize(CRC, 0);
        block.extend_from_slice(&crc32c::crc32c(&block).to_le_bytes());
        block
    }

    /// The header in a segment's first block. `None` if it is invalid: the segment was not begun, or is
    /// damaged, or its numbers are impossible.
    pub(crate) fn parse(block: &[u8]) -> Option<SegmentHeader> {
        let block: &[u8; HEADER_BYTES] = block.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes(*block[at..].first_chunk().expect("within the block"));
        let u64_at = |at: usize| u64::from_le_bytes(*block[at..].first_chunk().expect("within the block"));
        if version(block).is_none_or(|version| version > VERSION) {
            return None;
        }
        let (first_lsn, synced_lsn, rewrites_to) = (u64_at(32), u64_at(40), u64_at(64));
        if first_lsn == 0 || first_lsn.max(synced_lsn).max(rewrites_to) > LSN_MAX {
            return None;
        }
        let path_bytes = usize::from(u16::from_le_bytes([block[72], block[73]]));
        let path = block[PATH..].get(..path_bytes)?;
        Some(SegmentHeader {
            gateway: u32_at(12),
            number: u64_at(16),
            epoch: u32_at(24),
            first_lsn,
            synced_lsn,
            previous: u64_at(48),
            begun: WallNanos(u64_at(56)),
            rewrites_to,
            table: str::from_utf8(path).ok()?.to_owned(),
            boot: u128::from_le_bytes(*block[BOOT..].first_chunk().expect("within the block")),
            bytes: u64_at(BYTES),
            run: u128::from_le_bytes(*block[RUN..].first_chunk().expect("within the block")),
        })
    }
}

/// The version of a whole header; `None` if there is none in the block.
fn version(block: &[u8; HEADER_BYTES]) -> Option<u32> {
    let u32_at = |at: usize| u32::from_le_bytes(*block[at..].first_chunk().expect("within the block"));
    let is_whole = block.starts_with(MAGIC) && u32_at(CRC) == crc32c::crc32c(&block[..CRC]);
    is_whole.then(|| u32_at(8)).filter(|version| *version > 0)
}

/// The version of a header that only a later program can read, if the block has one.
pub(super) fn later_version(block: &[u8]) -> Option<u32> {
    version(block.try_into().ok()?).filter(|version| *version > VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            gateway: 1,
            number: 2,
            epoch: 3,
            first_lsn: 4,
            synced_lsn: 5,
            previous: 6,
            begun: WallNanos(7),
            rewrites_to: 8,
            table: "/dev/shm/tollgate-1.live".to_owned(),
            boot: 9,
            bytes: 10,
            run: 11,
        }
    }

    #[test]
    fn header_round_trips_and_detects_bit_flips() {
        let mut block = header().write();
        assert_eq!(block.len(), HEADER_BYTES);
        assert_eq!(SegmentHeader::parse(&block), Some(header()));
        for bit in (0..HEADER_BYTES * 8).step_by(7) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::parse(&block), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(SegmentHeader::parse(&[0; HEADER_BYTES]), None);
        assert_eq!(SegmentHeader::parse(&block[..100]), None);
    }

    /// The checksum is no proof of sense: a start computed with such numbers, and overflowed.
    #[test]
    fn header_with_impossible_numbers_is_refused() {
        for wrong in [
            SegmentHeader { first_lsn: 0, ..header() },
            SegmentHeader { first_lsn: LSN_MAX + 1, ..header() },
            SegmentHeader { synced_lsn: u64::MAX, ..header() },
            SegmentHeader { rewrites_to: u64::MAX, ..header() },
        ] {
            assert_eq!(SegmentHeader::parse(&wrong.write()), None, "{wrong:?}");
        }
    }

    #[test]
    fn only_segment_names_have_numbers() {
        assert_eq!(number_in_name(&name(7)), Some(7));
        assert_eq!(number_in_name(&name(999_999_999_999_999_999)), Some(999_999_999_999_999_999));
        assert_eq!(number_in_name(&name(u64::MAX)), None, "it has no next number");
        for other in ["segment-7", "segment-00000000000x", "segment-+00000000007", "new-000000000007", ""] {
            assert_eq!(number_in_name(other), None, "{other}");
        }
    }
}
