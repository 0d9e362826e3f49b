//! Reads the journal: behind its writer, or all of it at a start.
//!
//! Guarantees: an entry is returned only when its frame's checksum matches, each number once and in order.
//! Bytes of a segment's earlier use are never taken for frames.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use thiserror::Error;

use super::frame::{FRAME_HEADER_BYTES, FrameHeader};
use super::segment::{self, BLOCK_BYTES, HEADER_BYTES, SegmentHeader};
use super::shared::JournalState;
use crate::entry::Entry;
use crate::record::MalformedRecord;
use crate::storage::{Storage, StorageFile};

/// Why the journal cannot be read further.
#[derive(Debug, Error)]
pub(crate) enum ReadError {
    /// The disk's error.
    #[error("the journal cannot be read: {0}")]
    Io(#[from] io::Error),
    /// An expected frame is missing or damaged.
    #[error("the journal is damaged in segment {segment} at byte {at}: entry {lsn} is missing")]
    Damaged {
        /// The segment's number.
        segment: u64,
        /// The position in it, in bytes.
        at: u64,
        /// The number of the first missing entry.
        lsn: u64,
    },
    /// The reader lapsed: the journal has kept entries for it alone up to its bound, and some no longer.
    #[error("entries {first_lsn} to {} are gone, and {next_lsn} is the next", next_lsn - 1)]
    Lapsed {
        /// The number of the first entry that it misses.
        first_lsn: u64,
        /// The number of the next entry that can be read.
        next_lsn: u64,
    },
    /// The entries of a frame match their checksum, and are unknown.
    #[error(
        "segment {segment} of the journal has {what}, written by a later version of the program: use that \
         version, or restore a backup"
    )]
    Malformed {
        /// The segment's number.
        segment: u64,
        /// The unknown contents.
        what: MalformedRecord,
    },
}

/// A segment's file.
pub(crate) struct Segment<F> {
    pub(crate) number: u64,
    /// `None` if the segment was not begun, or its header is damaged.
    pub(crate) header: Option<SegmentHeader>,
    file: F,
    bytes: u64,
}

/// A frame whose checksums match.
pub(crate) struct Frame {
    pub(crate) header: FrameHeader,
    pub(crate) entries: Vec<Entry>,
}

/// The numbers of the segments in `storage`, begun or not, in ascending order.
pub(crate) fn numbers(storage: &impl Storage) -> io::Result<Vec<u64>> {
    let mut numbers: Vec<u64> =
        storage.names()?.iter().filter_map(|name| segment::number_in_name(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

impl<F: StorageFile> Segment<F> {
    /// Opens segment `number`.
    pub(crate) fn open<S: Storage<File = F>>(storage: &S, number: u64) -> io::Result<Segment<F>> {
        let name = segment::name(number);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
        let file = storage.open(&name).map_err(named)?;
        let mut block = vec![0; HEADER_BYTES];
        let read = file.read_at(&mut block, 0).map_err(named)?;
        if let Some(version) = segment::later_version(&block[..read]) {
            let text = format!(
                "it is of version {version} of the journal, which this program does not know: use a later \
                 program"
            );
            return Err(named(io::Error::other(text)));
        }
        let header = SegmentHeader::parse(&block[..read]).filter(|header| header.number == number);
        let bytes = file.length()?;
        Ok(Segment { number, header, file, bytes })
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// If the segment is shorter than it was when it was created: the length that it should have, 0 if that
    /// is not known.
    pub(crate) fn truncated_from(&self) -> Option<u64> {
        let expected = self.header.as_ref().map_or(0, |header| header.bytes);
        (self.bytes < expected.max(HEADER_BYTES as u64)).then_some(expected)
    }

    /// The header of the frame at `at`; `None` if there is none.
    pub(crate) fn header_at(&self, at: u64) -> io::Result<Option<FrameHeader>> {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let read = self.file.read_at(&mut bytes, at)?;
        let header = FrameHeader::parse(&bytes[..read], self.number);
        Ok(header.filter(|header| at + header.frame_bytes() as u64 <= self.bytes))
    }

    /// The frame behind a missing or damaged one at `at`, and its position, if its first entry is one of
    /// `lsns`. The entries of a segment ascend, so what is missing has none from that one on.
    pub(crate) fn next_frame(
        &self,
        at: u64,
        lsns: RangeInclusive<u64>,
    ) -> io::Result<Option<(u64, FrameHeader)>> {
        let mut at = at + BLOCK_BYTES as u64;
        while !lsns.is_empty() && at < self.bytes {
            match self.header_at(at)? {
                Some(header) if header.first_lsn >= *lsns.start() => {
                    return Ok(lsns.contains(&header.first_lsn).then_some((at, header)));
                }
                header => at += header.map_or(BLOCK_BYTES, |header| header.frame_bytes()) as u64,
            }
        }
        Ok(None)
    }

    /// Reads the entries of the frame at `at` into `buffer`; `false` if they are incomplete or damaged.
    pub(crate) fn payload_at(&self, at: u64, header: &FrameHeader, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.resize(header.payload_bytes as usize, 0);
        let read = self.file.read_at(buffer, at + FRAME_HEADER_BYTES as u64)?;
        Ok(read == buffer.len() && header.matches_checksum(buffer))
    }

    /// Whether a frame whose first entry is `first_lsn` was begun at `at`, even if it is damaged.
    pub(crate) fn is_begun(&self, at: u64, epoch: u32, first_lsn: u64) -> io::Result<bool> {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let read = self.file.read_at(&mut bytes, at)?;
        Ok(FrameHeader::is_begun(&bytes[..read], self.number, epoch, first_lsn))
    }

    /// Reads the entries of the frame at `at` through `buffer` and appends them to `out`; `false` if they are
    /// incomplete or damaged.
    ///
    /// # Errors
    /// The disk's, or the entries are unknown; `out` is unchanged then.
    pub(crate) fn entries_at(
        &self,
        at: u64,
        header: &FrameHeader,
        buffer: &mut Vec<u8>,
        out: &mut Vec<Entry>,
    ) -> Result<bool, ReadError> {
        if !self.payload_at(at, header, buffer)? {
            return Ok(false);
        }
        let before = out.len();
        header.entries(buffer, out).map_err(|what| {
            out.truncate(before);
            self.malformed(what)
        })?;
        Ok(true)
    }

    /// Refuses entries of a later version, applied ones too.
    pub(crate) fn check_known(&self) -> Result<(), ReadError> {
        let (mut at, mut buffer) = (HEADER_BYTES as u64, Vec::new());
        while at < self.bytes {
            let header = self.header_at(at)?;
            if let Some(header) = header
                && self.payload_at(at, &header, &mut buffer)?
            {
                header.keys(&buffer, |_, _| ()).map_err(|what| self.malformed(what))?;
            }
            at += header.map_or(BLOCK_BYTES, |header| header.frame_bytes()) as u64;
        }
        Ok(())
    }

    /// The error of unknown contents in this segment.
    pub(super) fn malformed(&self, what: MalformedRecord) -> ReadError {
        ReadError::Malformed { segment: self.number, what }
    }

    /// The highest number up to which a frame says that all is durable.
    pub(crate) fn synced_lsn(&self) -> io::Result<u64> {
        let (mut at, mut synced_lsn) = (HEADER_BYTES as u64, 0);
        while at < self.bytes {
            let header = self.header_at(at)?;
            synced_lsn = synced_lsn.max(header.map_or(0, |header| header.synced_lsn));
            at += header.map_or(BLOCK_BYTES, |header| header.frame_bytes()) as u64;
        }
        Ok(synced_lsn)
    }

    /// Every intact frame that begins at `at` or later.
    ///
    /// # Errors
    /// The disk's, or the entries of one are unknown.
    pub(crate) fn frames_from(&self, mut at: u64) -> Result<Vec<Frame>, ReadError> {
        let (mut frames, mut buffer) = (Vec::new(), Vec::new());
        while at < self.bytes {
            let mut entries = Vec::new();
            match self.header_at(at)? {
                Some(header) if self.entries_at(at, &header, &mut buffer, &mut entries)? => {
                    at += header.frame_bytes() as u64;
                    frames.push(Frame { header, entries });
                }
                _ => at += BLOCK_BYTES as u64,
            }
        }
        Ok(frames)
    }
}

/// Follows a journal while it is written.
pub(crate) struct Reader<S: Storage> {
    shared: Arc<JournalState<S>>,
    segment: Option<Segment<S::File>>,
    at: u64,
    /// The number of the next entry to return.
    next_lsn: u64,
    buffer: Vec<u8>,
}

impl<S: Storage> Reader<S> {
    /// A reader whose next entry is `from`, or the first one of the journal if that is later.
    pub(crate) fn new(shared: Arc<JournalState<S>>, from: u64) -> Reader<S> {
        let next_lsn = from.max(shared.first_lsn());
        Reader::at(shared, next_lsn)
    }

    /// A reader whose next entry is `next_lsn`.
    pub(super) fn at(shared: Arc<JournalState<S>>, next_lsn: u64) -> Reader<S> {
        Reader { shared, segment: None, at: 0, next_lsn, buffer: Vec::new() }
    }

    /// The number of the next entry to return.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Appends the entries of the next durable frame to `out`, and returns the frame's epoch; `None` if no
    /// further frame is durable.
    ///
    /// # Errors
    /// The disk's, or a durable frame is missing or unknown.
    pub(crate) fn read(&mut self, out: &mut Vec<Entry>) -> Result<Option<u32>, ReadError> {
        if self.next_lsn > self.shared.durable() {
            return Ok(None);
        }
        let number = self.shared.segment_of(self.next_lsn).unwrap_or(0);
        let segment = match self.segment.take().filter(|segment| segment.number == number) {
            Some(segment) => segment,
            None => {
                self.at = HEADER_BYTES as u64;
                Segment::open(self.shared.storage(), number)?
            }
        };
        let epoch = self.read_in(&segment, out)?;
        self.segment = Some(segment);
        Ok(Some(epoch))
    }

    /// Behind a damaged entry, which is the next one: the next one that can be read, or the first one that is
    /// not durable.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn next_intact(&mut self) -> io::Result<u64> {
        let (lsn, behind_durable) = (self.next_lsn, self.shared.durable() + 1);
        let end = self.shared.begin_behind(lsn).unwrap_or(behind_durable).min(behind_durable);
        let segment = Segment::open(self.shared.storage(), self.shared.segment_of(lsn).unwrap_or(0))?;
        let mut at = 0;
        while let Some((next_at, header)) = segment.next_frame(at, lsn + 1..=end - 1)? {
            // A frame without entries has the number of the next entry, which may be damaged too.
            if header.count > 0 && segment.payload_at(next_at, &header, &mut self.buffer)? {
                return Ok(header.first_lsn);
            }
            at = next_at;
        }
        Ok(end)
    }

    fn read_in(&mut self, segment: &Segment<S::File>, out: &mut Vec<Entry>) -> Result<u32, ReadError> {
        loop {
            let damaged = ReadError::Damaged { segment: segment.number, at: self.at, lsn: self.next_lsn };
            let Some(header) = segment.header_at(self.at)? else {
                // Frames that were read before may be damaged.
                let Some((at, _)) = segment.next_frame(self.at, 0..=self.next_lsn)? else {
                    return Err(damaged);
                };
                self.at = at;
                continue;
            };
            if header.last_lsn() >= self.next_lsn {
                let before = out.len();
                let is_next = header.first_lsn <= self.next_lsn;
                if !is_next || !segment.entries_at(self.at, &header, &mut self.buffer, out)? {
                    return Err(damaged);
                }
                // The first ones may have been read before: rewritten entries may be grouped differently.
                out.drain(before..before + (self.next_lsn - header.first_lsn) as usize);
                self.at += header.frame_bytes() as u64;
                self.next_lsn = header.last_lsn() + 1;
                return Ok(header.epoch);
            }
            // A segment is read from its beginning: skip frames that were read before.
            self.at += header.frame_bytes() as u64;
        }
    }
}
