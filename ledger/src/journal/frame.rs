//! A frame: one group of entries, sealed by checksums.
//!
//! Its header, little-endian; the entries follow, then zeros up to the next multiple of 4 KiB:
//!
//! | offset | bytes | field                                                                     |
//! |-------:|------:|---------------------------------------------------------------------------|
//! |      0 |     4 | "FRM2"; "FRAM" if the entries are of version 1                            |
//! |      4 |     4 | CRC32C of the other bytes of the header                                   |
//! |      8 |     4 | epoch                                                                     |
//! |     12 |     4 | number of entries; 0 in a frame that only states how far all is durable   |
//! |     16 |     8 | the segment's number                                                      |
//! |     24 |     8 | number of its first entry                                                 |
//! |     32 |     8 | number up to which all was durable when it was written                    |
//! |     40 |     8 | BLAKE2b-64 hash of the header of the frame before it, all 64 bytes of it  |
//! |     48 |     4 | bytes of all entries                                                      |
//! |     52 |     4 | their CRC32C                                                              |
//! |     56 |     8 | written at, nanoseconds since the Unix epoch                              |

use blake2::Blake2b;
use blake2::digest::Digest;
use blake2::digest::consts::U8;
use sys::clock::WallNanos;

use super::segment::{BLOCK_BYTES, LSN_MAX};
use crate::entry::{Entry, EntryKey, EntryVersion};
use crate::record::MalformedRecord;

/// Bytes of a frame's header.
pub(crate) const FRAME_HEADER_BYTES: usize = 64;

/// The first bytes, which name the version of the entries.
const MAGICS: [(&[u8; 4], EntryVersion); 2] = [(b"FRM2", EntryVersion::V2), (b"FRAM", EntryVersion::V1)];

/// The header of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FrameHeader {
    /// The version of its entries.
    pub(crate) version: EntryVersion,
    pub(crate) epoch: u32,
    pub(crate) count: u32,
    pub(crate) segment: u64,
    pub(crate) first_lsn: u64,
    pub(crate) synced_lsn: u64,
    pub(crate) previous: u64,
    pub(crate) payload_bytes: u32,
    pub(crate) payload_crc: u32,
    pub(crate) written: WallNanos,
}

impl FrameHeader {
    /// The header's bytes.
    pub(crate) fn write(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let magic = MAGICS.into_iter().find(|(_, version)| *version == self.version);
        bytes[..4].copy_from_slice(magic.expect("each version has a magic").0);
        bytes[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.segment.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_lsn.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.synced_lsn.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.previous.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.written.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header at the beginning of `bytes`, if its checksum matches, it names `segment`, and its numbers
    /// are possible.
    pub(crate) fn parse(bytes: &[u8], segment: u64) -> Option<FrameHeader> {
        let bytes: &[u8; FRAME_HEADER_BYTES] = bytes.first_chunk()?;
        let u32_at = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the header"));
        let u64_at = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("within the header"));
        let (_, version) = MAGICS.into_iter().find(|(magic, _)| bytes.starts_with(*magic))?;
        let whole = u32_at(4) == crc32c::crc32c(&bytes[8..]);
        let (first_lsn, synced_lsn) = (u64_at(24), u64_at(32));
        let is_possible = first_lsn > 0 && first_lsn.max(synced_lsn) <= LSN_MAX;
        if !whole || u64_at(16) != segment || !is_possible {
            return None;
        }
        Some(FrameHeader {
            version,
            epoch: u32_at(8),
            count: u32_at(12),
            segment,
            first_lsn,
            synced_lsn,
            previous: u64_at(40),
            payload_bytes: u32_at(48),
            payload_crc: u32_at(52),
            written: WallNanos(u64_at(56)),
        })
    }

    /// Whether a frame of `segment` was begun in `bytes`, even if a bit of its header has flipped: two of
    /// three marks match, which bytes of an earlier use of the file never do together.
    pub(crate) fn is_begun(bytes: &[u8], segment: u64, epoch: u32, first_lsn: u64) -> bool {
        let Some(bytes) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else { return false };
        let position = [&epoch.to_le_bytes()[..], &first_lsn.to_le_bytes()];
        let marks = [
            MAGICS.iter().any(|(magic, _)| bytes.starts_with(*magic)),
            bytes[16..24] == segment.to_le_bytes(),
            [&bytes[8..12], &bytes[24..32]] == position,
        ];
        marks.into_iter().filter(|is_present| *is_present).count() >= 2
    }

    /// The number of the last entry; without entries that of the entry before.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.first_lsn + u64::from(self.count) - 1
    }

    /// Bytes of the whole frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        (FRAME_HEADER_BYTES + self.payload_bytes as usize).next_multiple_of(BLOCK_BYTES)
    }

    /// The hash by which the next frame refers to this one.
    pub(crate) fn hash(&self) -> u64 {
        u64::from_le_bytes(Blake2b::<U8>::digest(self.write()).into())
    }

    /// Whether `payload` has the checksum in this header.
    pub(crate) fn matches_checksum(&self, payload: &[u8]) -> bool {
        crc32c::crc32c(payload) == self.payload_crc
    }

    /// Calls `each` with the number and the key of each entry in `payload`, whose checksum was compared.
    ///
    /// # Errors
    /// The contents are unknown.
    pub(crate) fn keys(
        &self,
        payload: &[u8],
        mut each: impl FnMut(u64, EntryKey<'_>),
    ) -> Result<(), MalformedRecord> {
        let mut remaining = payload;
        for lsn in self.first_lsn..self.first_lsn + u64::from(self.count) {
            let (key, length) = EntryKey::read(remaining, self.version)?;
            each(lsn, key);
            remaining = &remaining[length..];
        }
        check_end(remaining)
    }

    /// Appends the entries in `payload`, whose checksum was compared, to `out`.
    ///
    /// # Errors
    /// The contents are unknown.
    pub(crate) fn entries(&self, payload: &[u8], out: &mut Vec<Entry>) -> Result<(), MalformedRecord> {
        let mut remaining = payload;
        for _ in 0..self.count {
            let (entry, length) = Entry::read(remaining, self.version)?;
            out.push(entry);
            remaining = &remaining[length..];
        }
        check_end(remaining)
    }
}

/// Refuses bytes behind the entries of a frame.
fn check_end(remaining: &[u8]) -> Result<(), MalformedRecord> {
    if remaining.is_empty() { Ok(()) } else { Err(MalformedRecord("a frame with bytes behind its entries")) }
}

/// A frame that is being filled, and the buffer that it is written from.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    /// Space for the header, then the entries.
    bytes: Vec<u8>,
    count: u32,
}

impl FrameBuffer {
    /// Makes the frame empty.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(FRAME_HEADER_BYTES, 0);
        self.count = 0;
    }

    /// The number of entries.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the header and the entries.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the entry that `write` writes; if it returns false, it has written nothing and there is none.
    pub(crate) fn push_if(&mut self, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        if write(&mut self.bytes) {
            self.count += 1;
        }
    }

    /// Appends an entry.
    pub(crate) fn push(&mut self, entry: &Entry) {
        entry.write(&mut self.bytes);
        self.count += 1;
    }

    /// Pads the frame to whole blocks and writes its header, which `header` makes from count, payload bytes
    /// and payload checksum.
    pub(crate) fn seal(&mut self, header: impl FnOnce(u32, u32, u32) -> FrameHeader) -> FrameHeader {
        let payload = &self.bytes[FRAME_HEADER_BYTES..];
        let payload_bytes = u32::try_from(payload.len()).expect("a frame has at most FRAME_BYTES_MAX bytes");
        let header = header(self.count, payload_bytes, crc32c::crc32c(payload));
        self.bytes.resize(header.frame_bytes(), 0);
        self.reseal(&header);
        header
    }

    /// Replaces the header; the entries stay.
    pub(crate) fn reseal(&mut self, header: &FrameHeader) {
        self.bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header.write());
    }

    /// The bytes of the whole frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FrameHeader {
        FrameHeader {
            version: EntryVersion::V2,
            epoch: 1,
            count: 2,
            segment: 3,
            first_lsn: 4,
            synced_lsn: 3,
            previous: 5,
            payload_bytes: 6,
            payload_crc: 7,
            written: WallNanos(8),
        }
    }

    /// The checksum is no proof of sense: a start computed with such numbers, and overflowed.
    #[test]
    fn frame_with_impossible_numbers_is_refused() {
        let greatest = FrameHeader { first_lsn: LSN_MAX, count: u32::MAX, ..header() };
        for possible in [header(), greatest] {
            assert_eq!(FrameHeader::parse(&possible.write(), 3), Some(possible));
            assert!(possible.last_lsn() >= possible.first_lsn);
        }
        for wrong in [
            FrameHeader { first_lsn: 0, count: 0, ..header() },
            FrameHeader { first_lsn: u64::MAX, ..header() },
            FrameHeader { synced_lsn: LSN_MAX + 1, ..header() },
        ] {
            assert_eq!(FrameHeader::parse(&wrong.write(), 3), None, "{wrong:?}");
        }
    }
}
