//! Segments of a journal, read and written by the description in `docs/ledger-format.md` alone.
//!
//! A second opinion on the product's own code: it knows no chain, no proof and no order, and takes each frame
//! for itself.

use std::collections::BTreeSet;

use blake2::Blake2b;
use blake2::digest::{Digest, consts::U8};
use crc32c::crc32c;
use ledger::fuzzing::{Files, GATEWAY};

use crate::entry::rewritten;

/// Frames begin at multiples of this, and the header takes as much.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Bytes of a frame before its entries.
pub(crate) const FRAME_HEADER_BYTES: usize = 64;

/// A frame whose checksums match.
pub(crate) struct Frame {
    pub(crate) file: String,
    pub(crate) at: usize,
    pub(crate) first_lsn: u64,
    pub(crate) synced_lsn: u64,
    /// The bytes of each entry, as the product writes them.
    pub(crate) entries: Vec<Vec<u8>>,
    payload_bytes: usize,
}

impl Frame {
    /// Its bytes in `files`, without the padding; `None` if the file ends before the padding does.
    pub(crate) fn bytes<'f>(&self, files: &'f Files) -> Option<&'f [u8]> {
        let length = FRAME_HEADER_BYTES + self.payload_bytes;
        let whole = files.get(&self.file)?.get(self.at..self.at + length.next_multiple_of(BLOCK_BYTES))?;
        Some(&whole[..length])
    }
}

/// The intact frames at every block of every segment.
pub(crate) fn frames(files: &Files) -> Vec<Frame> {
    let mut frames = Vec::new();
    for (name, bytes) in files {
        let Some(number) = name.strip_prefix("segment-").and_then(|digits| digits.parse().ok()) else {
            continue;
        };
        for at in (BLOCK_BYTES..bytes.len()).step_by(BLOCK_BYTES) {
            frames.extend(frame(name, number, bytes, at));
        }
    }
    frames
}

fn frame(file: &str, number: u64, bytes: &[u8], at: usize) -> Option<Frame> {
    let header = bytes.get(at..at + FRAME_HEADER_BYTES)?;
    let is_old = header.starts_with(b"FRAM");
    let is_intact = (is_old || header.starts_with(b"FRM2"))
        && u32_at(header, 4) == crc32c(&header[8..])
        && u64_at(header, 16) == number;
    let payload_bytes = u32_at(header, 48) as usize;
    let length = (FRAME_HEADER_BYTES + payload_bytes).next_multiple_of(BLOCK_BYTES);
    let frame = bytes.get(at..at + length)?;
    let payload = &frame[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + payload_bytes];
    if !is_intact || crc32c(payload) != u32_at(header, 52) {
        return None;
    }
    Some(Frame {
        file: file.to_owned(),
        at,
        first_lsn: u64_at(header, 24),
        synced_lsn: u64_at(header, 32),
        entries: split(payload, u32_at(header, 12), is_old)?,
        payload_bytes,
    })
}

/// The bytes of `count` entries, of which each begins with its length, as the product writes them.
fn split(mut payload: &[u8], count: u32, is_old: bool) -> Option<Vec<Vec<u8>>> {
    let mut entries = Vec::new();
    for _ in 0..count {
        let length = usize::from(u16::from_le_bytes(*payload.first_chunk()?));
        let (entry, remaining) = payload.split_at_checked(length).filter(|_| length >= 4)?;
        entries.push(rewritten(entry, is_old));
        payload = remaining;
    }
    payload.is_empty().then_some(entries)
}

/// The number and the bytes of each entry in `frames`.
pub(crate) fn numbered(frames: &[Frame]) -> BTreeSet<(u64, &[u8])> {
    let mut numbered = BTreeSet::new();
    for frame in frames {
        for (index, entry) in frame.entries.iter().enumerate() {
            numbered.insert((frame.first_lsn.wrapping_add(index as u64), entry.as_slice()));
        }
    }
    numbered
}

/// The highest number that a segment's header or an intact frame says is durable.
pub(crate) fn proved_lsn(files: &Files, frames: &[Frame]) -> u64 {
    let headers = files.values().filter_map(|bytes| bytes.get(..BLOCK_BYTES));
    let intact = headers.filter(|header| {
        header.starts_with(b"TOLLJRNL")
            && u32_at(header, BLOCK_BYTES - 4) == crc32c(&header[..BLOCK_BYTES - 4])
    });
    let of_headers = intact.map(|header| u64_at(header, 40));
    of_headers.chain(frames.iter().map(|frame| frame.synced_lsn)).max().unwrap_or(0)
}

/// A segment's header that is to be written.
#[derive(Clone, Copy, Default)]
pub(crate) struct SegmentHeader<'a> {
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) first_lsn: u64,
    pub(crate) synced_lsn: u64,
    pub(crate) previous: u64,
    pub(crate) rewrites_to: u64,
    pub(crate) table: &'a str,
    pub(crate) bytes: u64,
}

impl SegmentHeader<'_> {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut block = Vec::from(*b"TOLLJRNL");
        for number in [2, GATEWAY] {
            block.extend_from_slice(&number.to_le_bytes());
        }
        block.extend_from_slice(&self.number.to_le_bytes());
        block.extend_from_slice(&u64::from(self.epoch).to_le_bytes());
        for number in [self.first_lsn, self.synced_lsn, self.previous, 0, self.rewrites_to] {
            block.extend_from_slice(&number.to_le_bytes());
        }
        let table = self.table.as_bytes();
        block.extend_from_slice(&(table.len() as u16).to_le_bytes());
        block.extend_from_slice(table);
        block.resize(1120, 0);
        block.extend_from_slice(&self.bytes.to_le_bytes());
        block.resize(BLOCK_BYTES - 4, 0);
        block.extend_from_slice(&crc32c(&block).to_le_bytes());
        block
    }
}

/// A frame's header that is to be written.
#[derive(Clone, Copy, Default)]
pub(crate) struct FrameHeader {
    pub(crate) epoch: u32,
    pub(crate) count: u32,
    pub(crate) segment: u64,
    pub(crate) first_lsn: u64,
    pub(crate) synced_lsn: u64,
    pub(crate) previous: u64,
    pub(crate) payload_bytes: u32,
    pub(crate) payload_crc: u32,
}

impl FrameHeader {
    pub(crate) fn write(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut sealed = Vec::new();
        for number in [self.epoch, self.count] {
            sealed.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.segment, self.first_lsn, self.synced_lsn, self.previous] {
            sealed.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.payload_bytes, self.payload_crc, 0, 0] {
            sealed.extend_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c(&sealed).to_le_bytes();
        let header = [b"FRM2", &crc[..], &sealed].concat();
        header.try_into().expect("the fields have 64 bytes")
    }
}

/// The hash by which the next frame names the one with this header.
pub(crate) fn hash(header: &[u8; FRAME_HEADER_BYTES]) -> u64 {
    u64::from_le_bytes(Blake2b::<U8>::digest(header).into())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the block"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("within the block"))
}
