//! Writes the journal: frames into segments, one segment after another, and the reaction to disk failures.
//!
//! Guarantees: appended entries stay in memory until they are durable, and are rewritten to another segment
//! after a failure. A file that failed is never relied on again. [`JournalState::sync`] may run on another
//! thread beside [`Writer::append`].

use std::collections::VecDeque;
use std::sync::Arc;

use sys::clock;
use sys::crash::point;
use sys::sync::Mutex;
use sys::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::frame::{FRAME_HEADER_BYTES, FrameBuffer, FrameHeader};
use super::segment::{self, BLOCK_BYTES, HEADER_BYTES, SegmentHeader};
use super::shared::{ClosedSegment, JournalState, Segments, lock};
use super::{JournalError, Settings, TableReference};
use crate::entry::{Entry, EntryVersion};
use crate::readers::Readers;
use crate::record::Record;
use crate::storage::{Storage, StorageFile};

/// The appending end of the journal.
pub(crate) struct Writer<S: Storage> {
    shared: Arc<JournalState<S>>,
    /// `None` after a failure, until another segment is begun.
    current: Option<Current<S::File>>,
    next_lsn: u64,
    /// The hash of the header of the frame that the next one continues.
    previous: u64,
    /// The same of the last frame with entries, which the next segment continues. A frame without entries may
    /// never reach the disk although the segment behind it does.
    entries_previous: u64,
    /// The same of the last durable frame with entries.
    durable_previous: u64,
    /// Frames that are not known to be durable, oldest first.
    undurable: VecDeque<(FrameHeader, FrameBuffer)>,
    undurable_bytes: usize,
    /// Buffers for reuse.
    buffers: Vec<FrameBuffer>,
    /// During a rewrite of earlier entries: the last of them; otherwise 0.
    rewrites_to: u64,
    /// False until the rewrite of a start is confirmed. Until then the bound does not apply: a full journal
    /// shrinks only when the database is written, which is later.
    is_open: bool,
    /// The location of the live table.
    table: TableReference,
    /// Entries up to this one are proved by a frame: see [`Writer::proved`].
    proved: u64,
}

struct Current<F> {
    file: Arc<F>,
    number: u64,
    /// The position of the next frame.
    at: u64,
    /// The last entry that it rewrites from another segment, 0 if there is none.
    rewrites_to: u64,
}

/// The position at which a journal continues.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct JournalPosition {
    /// The number of the next entry.
    pub(crate) next_lsn: u64,
    /// The hash of the last frame's header.
    pub(crate) previous: u64,
    /// The number of the next segment.
    pub(crate) next_segment: u64,
    /// All present segments, oldest first.
    pub(crate) closed: Vec<ClosedSegment>,
}

impl<S: Storage> Writer<S> {
    /// Continues at `end` in a new segment, with `rewritten` entries that are already behind `end`, or should
    /// be. They count when [`Writer::confirm`] has succeeded.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn open(
        storage: S,
        settings: Settings,
        table: TableReference,
        (end, rewritten): (&JournalPosition, u64),
        readers: Arc<Readers>,
    ) -> Result<Writer<S>, JournalError> {
        let last_lsn = end.next_lsn - 1;
        let counted = end.closed.iter().filter(|closed| closed.first_lsn < u64::MAX);
        let segments = Segments {
            next: end.next_segment,
            spare: None,
            synced: counted.map(|closed| closed.number).max().unwrap_or(0),
            closed: end.closed.clone().into(),
            current: None,
        };
        let shared = JournalState {
            storage,
            settings,
            appended: AtomicU64::new(last_lsn),
            durable: AtomicU64::new(last_lsn),
            readers,
            storing: Mutex::new(false),
            unsynced: Mutex::default(),
            syncing: Mutex::default(),
            is_whole: AtomicBool::new(true),
            unfinished: Mutex::new(None),
            segments: Mutex::new(segments),
        };
        let mut writer = Writer {
            shared: Arc::new(shared),
            current: None,
            next_lsn: end.next_lsn,
            previous: end.previous,
            entries_previous: end.previous,
            durable_previous: end.previous,
            undurable: VecDeque::new(),
            undurable_bytes: 0,
            buffers: Vec::new(),
            rewrites_to: last_lsn + rewritten,
            is_open: false,
            table,
            proved: 0,
        };
        writer.begin_segment(end.next_lsn)?;
        Ok(writer)
    }

    /// Begins a segment that names the live table, which was created only now.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn set_table(&mut self, table: TableReference) -> Result<(), JournalError> {
        self.table = table;
        self.begin_segment(self.next_lsn)
    }

    /// The state that other threads share.
    pub(crate) fn shared(&self) -> &Arc<JournalState<S>> {
        &self.shared
    }

    /// The number of the next entry.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Entries up to this one are proved: each reader of the journal finds them, and they are durable. A
    /// frame proves what it says was durable, unless that was rewritten into its own segment.
    pub(crate) fn proved(&self) -> u64 {
        self.proved
    }

    /// An empty frame.
    pub(crate) fn buffer(&mut self) -> FrameBuffer {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// The largest number of bytes of a frame.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        let capacity = self.shared.settings.segment_bytes as usize - HEADER_BYTES;
        crate::limits::FRAME_BYTES_MAX.min(capacity / 4 / BLOCK_BYTES * BLOCK_BYTES)
    }

    /// Bytes in memory that are not durable yet.
    pub(crate) fn undurable_bytes(&mut self) -> usize {
        self.drop_durable();
        self.undurable_bytes
    }

    /// Appends a frame without announcing it: see [`JournalState::announce`]. After an error the frame is
    /// kept, and [`Writer::fail_over`] writes it.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn append(&mut self, frame: FrameBuffer) -> Result<(), JournalError> {
        self.drop_durable();
        let durable = self.shared.durable();
        self.push(frame, durable);
        if self.current.is_none() {
            return self.fail_over();
        }
        self.ensure_fit()?;
        self.write_last()
    }

    /// Seals a frame and appends it to those that are to be written.
    fn push(&mut self, mut frame: FrameBuffer, synced_lsn: u64) {
        let header = frame.seal(|count, payload_bytes, payload_crc| FrameHeader {
            version: EntryVersion::V2,
            epoch: self.shared.settings.epoch,
            count,
            segment: self.current.as_ref().map_or(0, |current| current.number),
            first_lsn: self.next_lsn,
            synced_lsn,
            previous: self.previous,
            payload_bytes,
            payload_crc,
            written: clock::wall(),
        });
        self.next_lsn += u64::from(header.count);
        self.undurable_bytes += frame.bytes().len();
        self.undurable.push_back((header, frame));
    }

    /// Begins another segment if the last frame does not fit into this one.
    fn ensure_fit(&mut self) -> Result<(), JournalError> {
        match (self.current.as_ref(), self.undurable.back()) {
            (Some(current), Some((header, _))) if !self.fits(current, header) => {
                let first_lsn = header.first_lsn;
                self.begin_segment(first_lsn)
            }
            _ => Ok(()),
        }
    }

    /// Gives up the files whose contents are in doubt, and rewrites everything that is not durable to a new
    /// one.
    ///
    /// # Errors
    /// The disk's: nothing more is appended until this succeeds.
    pub(crate) fn fail_over(&mut self) -> Result<(), JournalError> {
        // If only the next segment could not be created, the present files are not in doubt, and may have to
        // serve for long. If they are in doubt, the sync fails.
        if self.shared.is_whole() {
            let _ = self.shared.sync_and_announce();
        }
        let first_rewritten = lock(&self.shared.segments).next;
        let outcome = self.rewrite_undurable(first_rewritten);
        if outcome.is_err() {
            // The attempt does not count, and nothing may be written behind it.
            let durable = self.shared.durable();
            self.end_current(durable, true);
            self.remove_from(first_rewritten);
        }
        outcome
    }

    /// Writes everything that is not durable to segments from number `first_rewritten` on.
    fn rewrite_undurable(&mut self, first_rewritten: u64) -> Result<(), JournalError> {
        let shared = Arc::clone(&self.shared);
        let _syncing = lock(&shared.syncing);
        shared.is_whole.store(false, Ordering::Release);
        // No entry can be announced as durable while this is held.
        let durable = self.shared.durable();
        self.drop_durable();
        // Frames without entries confirmed an earlier attempt: they must not be repeated.
        self.undurable.retain(|(header, _)| header.count > 0);
        self.undurable_bytes = self.undurable.iter().map(|(_, frame)| frame.bytes().len()).sum();
        lock(&self.shared.unsynced).clear();
        // Until the rewrite is complete and confirmed, the first copies are the only ones that a start would
        // find after a kill.
        self.end_current(self.next_lsn - 1, true);
        self.entries_previous = self.durable_previous;
        self.rewrites_to = self.next_lsn - 1;
        self.begin_segment(durable + 1)?;
        for index in 0..self.undurable.len() {
            let header = self.undurable[index].0;
            if self.current.as_ref().is_some_and(|current| !self.fits(current, &header)) {
                self.begin_segment(header.first_lsn)?;
            }
            self.write(index)?;
        }
        self.confirm()?;
        self.mark_failed_before(first_rewritten, durable);
        shared.is_whole.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes the rewritten entries durable, and lets them count from now on. Does not announce them.
    ///
    /// # Errors
    /// The disk's: then the earlier copies still count.
    pub(crate) fn confirm(&mut self) -> Result<(), JournalError> {
        let files = lock(&self.shared.unsynced).clone();
        files.iter().try_for_each(|file| file.sync())?;
        // Twice, so that one damaged block does not invalidate the whole rewrite.
        for _ in 0..2 {
            let (frame, synced_lsn) = (self.buffer(), self.rewrites_to);
            self.push(frame, synced_lsn);
            self.ensure_fit()?;
            self.write_last()?;
        }
        let files = lock(&self.shared.unsynced).clone();
        files.iter().try_for_each(|file| file.sync())?;
        lock(&self.shared.segments).note_synced();
        (self.rewrites_to, self.is_open) = (0, true);
        Ok(())
    }

    /// Drops the copies of frames that are not durable: for a start, which begins again if it fails.
    pub(crate) fn drop_copies(&mut self) {
        self.undurable.clear();
        self.undurable_bytes = 0;
        self.durable_previous = self.entries_previous;
    }

    /// The finals that were appended and are not durable.
    pub(crate) fn undurable_finals(&mut self) -> Vec<Record> {
        self.drop_durable();
        let mut entries = Vec::new();
        for (header, frame) in &self.undurable {
            let payload = &frame.bytes()[FRAME_HEADER_BYTES..][..header.payload_bytes as usize];
            header.entries(payload, &mut entries).expect("a frame sealed in memory is intact");
        }
        let finals = entries.into_iter().filter_map(|entry| match entry {
            Entry::Final(record) => Some(record),
            _ => None,
        });
        finals.collect()
    }

    /// Whether frames can be appended: all of the journal is in files whose syncs have not failed.
    pub(crate) fn is_whole(&self) -> bool {
        self.current.is_some() && self.shared.is_whole()
    }

    fn fits(&self, current: &Current<S::File>, header: &FrameHeader) -> bool {
        current.at + header.frame_bytes() as u64 <= self.shared.settings.segment_bytes
    }

    fn write_last(&mut self) -> Result<(), JournalError> {
        self.write(self.undurable.len() - 1)
    }

    /// Writes frame `index` of the undurable ones to the end of the segment.
    fn write(&mut self, index: usize) -> Result<(), JournalError> {
        let Some(current) = self.current.as_mut() else { return Ok(()) };
        let (header, frame) = &mut self.undurable[index];
        if (header.segment, header.previous) != (current.number, self.previous) {
            (header.segment, header.previous) = (current.number, self.previous);
            frame.reseal(header);
        }
        point("journal.before-write");
        if sys::crash::ENABLED {
            let half = frame.bytes().len() / 2;
            current.file.write_at(&frame.bytes()[..half], current.at)?;
            point("journal.half-written");
        }
        if let Err(error) = current.file.write_at(frame.bytes(), current.at) {
            // How much of it is on the disk is unknown: the segment is given up, and its earlier frames
            // count.
            let last_lsn = header.first_lsn - 1;
            self.end_current(last_lsn, true);
            return Err(error.into());
        }
        point("journal.written");
        current.at += frame.bytes().len() as u64;
        self.previous = header.hash();
        if header.count > 0 {
            self.entries_previous = self.previous;
        }
        if current.rewrites_to == 0 || header.synced_lsn > current.rewrites_to {
            self.proved = self.proved.max(header.synced_lsn);
        }
        Ok(())
    }

    /// Begins the next segment with entry `first_lsn`.
    fn begin_segment(&mut self, first_lsn: u64) -> Result<(), JournalError> {
        self.end_current(first_lsn - 1, false);
        point("segment.switch");
        let (number, file) = self.shared.take_spare(!self.is_open)?;
        self.previous = self.entries_previous;
        let header = SegmentHeader {
            gateway: self.shared.settings.gateway,
            number,
            epoch: self.shared.settings.epoch,
            first_lsn,
            synced_lsn: self.shared.durable(),
            previous: self.previous,
            begun: clock::wall(),
            rewrites_to: self.rewrites_to,
            table: self.table.path.clone(),
            boot: self.table.boot,
            bytes: self.shared.settings.segment_bytes,
            run: self.shared.settings.run,
        };
        let written = file.write_at(&header.write(), 0);
        lock(&self.shared.unsynced).push(Arc::clone(&file));
        lock(&self.shared.segments).current = Some((number, first_lsn));
        self.current = Some(Current { file, number, at: HEADER_BYTES as u64, rewrites_to: self.rewrites_to });
        if let Err(error) = written {
            self.end_current(first_lsn - 1, true);
            return Err(error.into());
        }
        Ok(())
    }

    /// Closes the current segment: its entries up to `last_lsn` count.
    fn end_current(&mut self, last_lsn: u64, failed: bool) {
        self.current = None;
        let mut segments = lock(&self.shared.segments);
        if let Some((number, first_lsn)) = segments.current.take() {
            segments.closed.push_back(ClosedSegment { number, first_lsn, last_lsn, failed });
        }
    }

    /// Marks segments before `number` with entries beyond `durable` as failed: those entries were rewritten,
    /// and such a file must not be reused.
    fn mark_failed_before(&self, number: u64, durable: u64) {
        let mut segments = lock(&self.shared.segments);
        let earlier = segments.closed.iter_mut().filter(|closed| closed.number < number);
        for closed in earlier.filter(|closed| closed.last_lsn > durable) {
            (closed.last_lsn, closed.failed) = (durable, true);
        }
    }

    /// Removes the segments of a failed attempt, from `number` on: otherwise attempts would fill the journal
    /// to its bound, and none could succeed any more. The last one first: without it those before it are not
    /// confirmed.
    fn remove_from(&self, number: u64) {
        let mut segments = lock(&self.shared.segments);
        while let Some(last) = segments.closed.back().filter(|closed| closed.number >= number) {
            if self.shared.storage.remove(&segment::name(last.number)).is_err() {
                break;
            }
            segments.closed.pop_back();
        }
    }

    /// Drops frames that have become durable.
    fn drop_durable(&mut self) {
        let durable = self.shared.durable();
        while let Some((header, _)) = self.undurable.front() {
            if header.last_lsn() > durable {
                break;
            }
            // A frame without entries counts as durable with the entry before it, and may not be on the disk.
            if header.count > 0 {
                self.durable_previous = header.hash();
            }
            let Some((_, frame)) = self.undurable.pop_front() else { break };
            self.undurable_bytes -= frame.bytes().len();
            if self.buffers.len() < crate::limits::FRAME_BUFFERS_MAX {
                self.buffers.push(frame);
            }
        }
    }
}
