//! The walk of a scan through the frames of a journal, from the database's last entry on.
//!
//! Guarantees: an entry behind that one counts only if its frame is intact and continues the one before. What
//! the database has is not needed, and may be damaged. Frames that nothing proves to be durable are kept, to
//! be rewritten.

use std::collections::VecDeque;
use std::mem;

use super::frame::FrameHeader;
use super::reader::{ReadError, Segment};
use super::segment::{HEADER_BYTES, SegmentHeader};
use crate::entry::{Entry, EntryKey};
use crate::storage::StorageFile;

/// An entry and its number.
pub(super) type Numbered = (u64, Entry);

/// The state of a walk.
pub(super) struct Walk {
    pub(super) next_lsn: u64,
    previous: u64,
    /// Entries behind `applied`.
    pub(super) count: u64,
    /// The database's last entry.
    applied: u64,
    /// The number up to which all is known to be durable, and the hash of that frame's header.
    pub(super) durable: (u64, u64),
    /// The last entry of each frame of the segment, and the hash of the frame's header.
    ends: Vec<(u64, u64)>,
    /// The first entry of the last frame with entries.
    pub(super) last_frame: u64,
    /// Frames beyond the durable part, except applied ones.
    tail: VecDeque<Tail>,
    /// The buffer for the next payload.
    buffer: Vec<u8>,
}

/// A frame that is not known to be durable.
struct Tail {
    header: FrameHeader,
    payload: Vec<u8>,
}

impl Tail {
    /// Appends its entries beyond `applied` to `out`.
    fn read(&self, applied: u64, out: &mut Vec<Numbered>) -> Result<(), ReadError> {
        let mut entries = Vec::new();
        let segment = self.header.segment;
        let malformed = |what| ReadError::Malformed { segment, what };
        self.header.entries(&self.payload, &mut entries).map_err(malformed)?;
        out.extend((self.header.first_lsn..).zip(entries).filter(|(lsn, _)| *lsn > applied));
        Ok(())
    }
}

impl Walk {
    /// A walk behind entry `applied`, which the database has.
    pub(super) fn new(applied: u64) -> Walk {
        Walk {
            next_lsn: 1,
            previous: 0,
            count: 0,
            applied,
            durable: (applied, 0),
            ends: Vec::new(),
            last_frame: 0,
            tail: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// Begins a segment. A jump forward is a new run after a journal that was lost or repaired.
    pub(super) fn begin(&mut self, header: &SegmentHeader) {
        self.ends.clear();
        (self.next_lsn, self.previous) = (header.first_lsn, header.previous);
        self.note_proved(header.synced_lsn);
    }

    /// The entries behind `applied` that are not known to be durable.
    ///
    /// # Errors
    /// One of them is unknown.
    pub(super) fn into_tail(self) -> Result<Vec<Numbered>, ReadError> {
        let mut entries = Vec::new();
        self.tail.iter().try_for_each(|frame| frame.read(self.applied, &mut entries))?;
        Ok(entries)
    }

    /// Notes that all entries up to `lsn` were durable once.
    fn note_proved(&mut self, lsn: u64) {
        while let Some(frame) =
            self.tail.pop_front_if(|frame| frame.header.last_lsn() <= lsn.max(self.applied))
        {
            // Nothing proves a frame without entries: a power failure may take it and keep the segment behind
            // it.
            if frame.header.count > 0 {
                self.durable = (frame.header.last_lsn().max(self.durable.0), frame.header.hash());
            }
            self.buffer = frame.payload;
        }
    }

    /// Walks through the frames of a segment up to `limit`, where the next one begins. Returns the position
    /// at which the next frame is not intact; behind the last frame of the last segment, that is its end.
    pub(super) fn walk_segment<F: StorageFile>(
        &mut self,
        segment: &Segment<F>,
        limit: Option<u64>,
        each: &mut impl FnMut(EntryKey<'_>),
    ) -> Result<Option<u64>, ReadError> {
        let mut at = HEADER_BYTES as u64;
        let rewrites_to = segment.header.as_ref().map_or(0, |header| header.rewrites_to);
        while limit.is_none_or(|limit| self.next_lsn < limit) {
            let Some(header) = segment.header_at(at)?.filter(|header| self.is_next(header)) else {
                match self.resume(segment, at)? {
                    Some(behind) => at = behind,
                    None => return Ok(Some(at)),
                }
                continue;
            };
            // The payload of an applied frame is not needed, and may be damaged. The buffer is empty then,
            // since no payload of an earlier frame was read.
            if header.last_lsn() > self.applied && !self.read_payload(segment, at, &header, each)? {
                return Ok(Some(at));
            }
            self.tail.push_back(Tail { header, payload: mem::take(&mut self.buffer) });
            // The confirmation of a rewritten segment is no proof that it was synced itself.
            if header.count > 0 || header.synced_lsn > rewrites_to {
                self.note_proved(header.synced_lsn);
            }
            self.ends.push((header.last_lsn(), header.hash()));
            if header.count > 0 {
                self.last_frame = header.first_lsn;
            }
            (self.next_lsn, self.previous) = (header.last_lsn() + 1, header.hash());
            at += header.frame_bytes() as u64;
        }
        // Frames without entries may follow, and the next segment may name the last of them.
        while let Some(header) =
            segment.header_at(at)?.filter(|header| self.is_next(header) && header.count == 0)
        {
            self.ends.push((header.last_lsn(), header.hash()));
            self.previous = header.hash();
            at += header.frame_bytes() as u64;
        }
        Ok(None)
    }

    /// Reads the payload of a frame into `buffer` and calls `each` with the keys of the entries behind
    /// `applied`; returns `false` if it is damaged.
    ///
    /// # Errors
    /// The disk's, or an entry of a later version: nothing of it may be passed over as damage.
    fn read_payload<F: StorageFile>(
        &mut self,
        segment: &Segment<F>,
        at: u64,
        header: &FrameHeader,
        each: &mut impl FnMut(EntryKey<'_>),
    ) -> Result<bool, ReadError> {
        if !segment.payload_at(at, header, &mut self.buffer)? {
            return Ok(false);
        }
        let Walk { applied, count, .. } = self;
        let show = |lsn: u64, key: EntryKey<'_>| {
            if lsn > *applied {
                *count += 1;
                each(key);
            }
        };
        header.keys(&self.buffer, show).map_err(|what| segment.malformed(what))?;
        Ok(true)
    }

    /// Continues behind a frame that is missing at `at` if the database has all that is missing; returns the
    /// position there.
    fn resume<F: StorageFile>(&mut self, segment: &Segment<F>, at: u64) -> Result<Option<u64>, ReadError> {
        let next = segment.next_frame(at, self.next_lsn..=self.applied + 1)?;
        let Some((behind, header)) = next else { return Ok(None) };
        (self.next_lsn, self.previous) = (header.first_lsn, header.previous);
        Ok(Some(behind))
    }

    /// Whether a segment names a frame that ends where it begins. (A segment that begins later names
    /// another.)
    pub(super) fn is_continued_by(&self, header: &SegmentHeader) -> bool {
        let continues =
            |(last_lsn, hash): &(u64, u64)| *last_lsn + 1 == header.first_lsn && *hash == header.previous;
        header.first_lsn != self.next_lsn || self.ends.is_empty() || self.ends.iter().any(continues)
    }

    fn is_next(&self, header: &FrameHeader) -> bool {
        header.first_lsn == self.next_lsn && header.previous == self.previous
    }
}
