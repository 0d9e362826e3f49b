//! Reads a whole journal at a start, and decides where it ends.
//!
//! Guarantees: a frame that was torn before it was durable is distinguished from a durable one that is
//! damaged: a later frame, a later segment or the database says up to where all was durable. Entries behind
//! either are salvaged, since each stands for itself.
//!
//! A readable frame is not therefore durable, nor does another sync make it so. If the sync of the run that
//! wrote it failed, the kernel has the page in memory, clean, and never writes it again. So the journal ends
//! where a later frame, a segment or the database proves that all was durable. Entries read behind that are
//! rewritten.

use std::mem;

use super::corruption::Corruption;
pub(crate) use super::reader::ReadError;
use super::reader::{Frame, Segment, numbers};
use super::segment::{HEADER_BYTES, SegmentHeader};
use super::shared::ClosedSegment;
use super::walk::{Numbered, Walk};
use super::writer::JournalPosition;
use crate::entry::{Entry, EntryKey};
use crate::storage::{Storage, StorageFile};

/// The result of a scan.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The end of the part that is known to be durable.
    pub(crate) end: JournalPosition,
    /// Entries behind that, with their numbers: they can be read and are not known to be durable.
    pub(crate) tail: Vec<Numbered>,
    /// The gateway that wrote the journal; `None` for an empty journal.
    pub(crate) gateway: Option<u32>,
    /// The last run that wrote, 0 if none did.
    pub(crate) epoch: u32,
    /// The boot of the machine in which that run had its live table; 0 if that is not known.
    pub(crate) boot: u128,
    /// The first entry of the first segment that counts, 0 if there is none.
    pub(crate) first_lsn: u64,
    /// The same, but of all segments with entries, also of those that lost their header.
    pub(crate) first_readable: u64,
    /// The last entry that can be read, 0 if there is none.
    pub(crate) last_lsn: u64,
    /// The first entry of the last frame with entries: what a run writes with one call.
    pub(crate) last_frame: u64,
    /// Segments that are shorter than when they were created: number, length, and the length that they should
    /// have, or 0.
    pub(crate) short: Vec<(u64, u64, u64)>,
    /// The number that the last run drew; 0 if that is not known.
    pub(crate) run: u128,
    /// A segment of another gateway: its number and that gateway.
    pub(crate) foreign: Option<(u64, u32)>,
    /// Two segments of one epoch and different runs.
    pub(crate) forked: Option<(u64, u64)>,
    /// Entries that were read.
    pub(crate) entries: u64,
    /// Segments that do not continue the one before them by the hash of a frame's header.
    pub(crate) breaks: u64,
    /// The corruption behind the intact part, if there is any.
    pub(crate) corruption: Option<Corruption>,
}

/// Reads the journal, and calls `each` with the keys of the entries beyond `applied`, the last one that the
/// database has, which run `epoch` wrote.
///
/// # Errors
/// The disk's, or an entry of a later version of the program.
pub(crate) fn scan<S: Storage>(
    storage: &S,
    (epoch, applied): (u32, u64),
    mut each: impl FnMut(EntryKey<'_>),
) -> Result<Scan, ReadError> {
    let journal = Journal::open(storage)?;
    let mut scan = Scan::default();
    scan.end.next_segment = journal.next_segment;
    scan.note_headers(&journal);
    let mut walk = Walk::new(applied);
    if scan.begins_behind(applied) {
        // The database is older than the journal requires: the entries between them are lost.
        scan.end.next_lsn = applied + 1;
        scan.end.closed = journal.closed_segments(u64::MAX);
        return Ok(scan);
    }
    let start = journal.begun.iter().rposition(|(_, header)| header.first_lsn <= applied + 1);
    if start.is_none() {
        // The first entries are in segments without a header, or there are none.
        walk.next_lsn = if journal.begun.is_empty() { 1 } else { applied + 1 };
        scan.corruption = journal.find_corruption(None, walk.next_lsn, (epoch, applied))?;
    }
    let begun = journal.begun.iter().enumerate().skip(start.unwrap_or(journal.begun.len()));
    for (index, (segment, header)) in begun {
        // The frame that it names may be in a segment between the two, which holds nothing else and was left
        // out.
        let is_next = Some(index) > start && journal.begun[index - 1].0.number + 1 == segment.number;
        if is_next && !walk.is_continued_by(header) {
            scan.breaks += 1;
        }
        walk.begin(header);
        let limit = journal.begun.get(index + 1).map(|(_, next)| next.first_lsn);
        if let Some(at) = walk.walk_segment(segment, limit, &mut each)? {
            scan.corruption = journal.find_corruption(Some((index, at)), walk.next_lsn, (epoch, applied))?;
            break;
        }
    }
    scan.corruption = scan.corruption.or_else(|| journal.torn_behind(walk.next_lsn));
    let salvaged = scan.corruption.as_ref().map_or(&[][..], |corruption| &corruption.salvaged);
    scan.last_lsn = salvaged.last().map_or(0, |(lsn, _)| *lsn).max(walk.next_lsn - 1);
    scan.last_frame = walk.last_frame;
    scan.entries = walk.count + salvaged.len() as u64;
    scan.end.next_lsn = walk.durable.0 + 1;
    scan.end.previous = walk.durable.1;
    scan.end.closed = journal.closed_segments(walk.next_lsn);
    scan.tail = walk.into_tail()?;
    Ok(scan)
}

impl Scan {
    fn note_headers<F: StorageFile>(&mut self, journal: &Journal<F>) {
        self.short.clone_from(&journal.short);
        self.first_lsn = journal.begun.first().map_or(0, |(_, header)| header.first_lsn);
        self.first_readable = journal.first_without_header().unwrap_or(u64::MAX).min(self.first_lsn);
        let Some((_, last)) = journal.begun.last() else { return };
        (self.gateway, self.epoch, self.boot) = (Some(last.gateway), last.epoch, last.boot);
        self.run = last.run;
        self.forked = forked(&journal.begun);
        let foreign = journal.begun.iter().find(|(_, header)| header.gateway != last.gateway);
        self.foreign = foreign.map(|(segment, header)| (segment.number, header.gateway));
    }

    /// Whether entries behind `applied` are missing before the journal's first one.
    pub(crate) fn begins_behind(&self, applied: u64) -> bool {
        self.first_readable > applied + 1
    }
}

/// The paths of the live tables of runs, the last run's first.
///
/// # Errors
/// The disk's.
pub(crate) fn tables(storage: &impl Storage) -> Result<Vec<String>, ReadError> {
    let tables = headers(storage)?.into_iter().rev().map(|header| header.table);
    let mut tables: Vec<String> = tables.filter(|table| !table.is_empty()).collect();
    tables.dedup();
    Ok(tables)
}

/// Calls `each` with the entries behind `applied`, of run `epoch`, that a later frame or header proves to be
/// durable, as a start finds them: also behind damage, if it took none of them.
///
/// # Errors
/// The disk's, or one of them is missing.
pub(crate) fn each_proved<S: Storage>(
    storage: &S,
    (epoch, applied): (u32, u64),
    mut each: impl FnMut(&Entry),
) -> Result<(), ReadError> {
    let journal = Journal::open(storage)?;
    let proved = journal.proved_behind(applied)?;
    if proved <= applied {
        return Ok(());
    }
    let mut next_lsn = applied + 1;
    let read = journal.each_frame(next_lsn, proved, |_, first_lsn, entries| {
        (first_lsn..).zip(&entries).filter(|(lsn, _)| *lsn > applied).for_each(|(_, entry)| each(entry));
        next_lsn = first_lsn + entries.len() as u64;
    });
    let Err(ReadError::Damaged { segment, at, .. }) = read else { return read };
    let index = journal.begun.iter().position(|(begun, _)| begun.number == segment);
    let corruption = journal.find_corruption(index.map(|index| (index, at)), next_lsn, (epoch, applied))?;
    let salvaged = corruption.map(|corruption| corruption.salvaged).unwrap_or_default();
    let salvaged: Vec<Numbered> = salvaged.into_iter().filter(|(lsn, _)| *lsn <= proved).collect();
    if !salvaged.iter().map(|(lsn, _)| *lsn).eq(next_lsn..=proved) {
        return read;
    }
    salvaged.iter().for_each(|(_, entry)| each(entry));
    Ok(())
}

/// Calls `each`, frame by frame, with the entries `first` to `last`, their run and the number of the first.
///
/// # Errors
/// The disk's, or the journal is not intact up to there.
pub(crate) fn each_frame<S: Storage>(
    storage: &S,
    first: u64,
    last: u64,
    each: impl FnMut(u32, u64, Vec<Entry>),
) -> Result<(), ReadError> {
    Journal::open(storage)?.each_frame(first, last, each)
}

/// The gateway that wrote the journal; `None` for an empty journal.
///
/// # Errors
/// The disk's.
pub(crate) fn gateway(storage: &impl Storage) -> Result<Option<u32>, ReadError> {
    Ok(headers(storage)?.last().map(|header| header.gateway))
}

/// Refuses a journal with any entry of a later version of the program.
///
/// # Errors
/// There is one, or the disk's.
pub(crate) fn check_known(storage: &impl Storage) -> Result<(), ReadError> {
    numbers(storage)?.into_iter().try_for_each(|number| Segment::open(storage, number)?.check_known())
}

/// The headers of all segments that have one, in their order; none if there is no journal.
fn headers(storage: &impl Storage) -> Result<Vec<SegmentHeader>, ReadError> {
    let mut headers = Vec::new();
    for number in numbers(storage)? {
        headers.extend(Segment::open(storage, number)?.header);
    }
    Ok(headers)
}

impl SegmentHeader {
    /// Whether the entries that are rewritten in this segment continue in `later`.
    fn goes_on_in(&self, later: &SegmentHeader) -> bool {
        let same = (self.epoch, self.rewrites_to) == (later.epoch, later.rewrites_to);
        same && self.first_lsn < later.first_lsn
    }
}

/// Two segments that two copies of a ledger wrote.
fn forked<F>(begun: &[(Segment<F>, SegmentHeader)]) -> Option<(u64, u64)> {
    let are_forked = |one: &SegmentHeader, next: &SegmentHeader| {
        one.epoch == next.epoch && one.run != next.run && one.run != 0 && next.run != 0
    };
    let pairs = begun.iter().zip(begun.iter().skip(1));
    let mut forks = pairs.filter(|((_, one), (_, next))| are_forked(one, next));
    forks.next().map(|((one, _), (next, _))| (one.number, next.number))
}

/// The segments of a journal.
struct Journal<F> {
    /// Segments with a valid header, in their order.
    begun: Vec<(Segment<F>, SegmentHeader)>,
    /// Segments with frames and without a valid header.
    without_header: Vec<(u64, Vec<Frame>)>,
    /// Segments without a valid header whose frames nothing proves to be durable, with their last entry.
    torn: Vec<(u64, u64)>,
    /// Segments whose entries were all rewritten later, with their first entry.
    replaced: Vec<(u64, u64)>,
    /// Segments without anything that counts, and whether they were begun.
    unused: Vec<(u64, bool)>,
    /// Segments that are shorter than when they were created: number, length, and the length that they should
    /// have, or 0.
    short: Vec<(u64, u64, u64)>,
    next_segment: u64,
}

impl<F: StorageFile> Journal<F> {
    fn open<S: Storage<File = F>>(storage: &S) -> Result<Self, ReadError> {
        let numbers = numbers(storage)?;
        let next_segment = numbers.last().map_or(1, |last| last + 1);
        let mut journal = Self {
            begun: Vec::new(),
            without_header: Vec::new(),
            torn: Vec::new(),
            replaced: Vec::new(),
            unused: Vec::new(),
            short: Vec::new(),
            next_segment,
        };
        // The highest number that a later segment says was durable.
        let mut synced_lsn = 0;
        // The earliest segment so far of a confirmed rewrite.
        let mut rewriting: Option<SegmentHeader> = None;
        for number in numbers.into_iter().rev() {
            let segment = Segment::open(storage, number)?;
            if let Some(expected) = segment.truncated_from() {
                journal.short.push((number, segment.bytes(), expected));
            }
            match segment.header.clone() {
                Some(header) if header.rewrites_to == 0 => {
                    synced_lsn = synced_lsn.max(header.synced_lsn);
                    journal.begun.push((segment, header));
                }
                Some(header) => {
                    let synced_here = segment.synced_lsn()?;
                    let is_confirmed = synced_here >= header.rewrites_to
                        || rewriting.as_ref().is_some_and(|later| header.goes_on_in(later));
                    if is_confirmed {
                        synced_lsn = synced_lsn.max(synced_here);
                        rewriting = Some(header.clone());
                        journal.begun.push((segment, header));
                    } else {
                        // The rewrite is not confirmed: the earlier copies count.
                        journal.unused.push((number, true));
                    }
                }
                None => {
                    let frames = segment.frames_from(HEADER_BYTES as u64)?;
                    let first_lsn = frames.first().map_or(u64::MAX, |frame| frame.header.first_lsn);
                    synced_lsn =
                        frames.iter().map(|frame| frame.header.synced_lsn).fold(synced_lsn, u64::max);
                    match synced_lsn >= first_lsn {
                        true => journal.without_header.push((number, frames)),
                        // Torn before anything in it was durable, as far as is known, or never used.
                        false => {
                            let last_lsn = frames.iter().map(|frame| frame.header.last_lsn()).max();
                            journal.torn.extend(last_lsn.map(|last_lsn| (number, last_lsn)));
                            // A truncated file cannot be the spare.
                            let is_short = segment.truncated_from().is_some();
                            journal.unused.push((number, is_short || !frames.is_empty()));
                        }
                    }
                }
            }
        }
        journal.drop_replaced();
        journal.cut_without_header();
        journal.begun.reverse();
        journal.without_header.reverse();
        journal.unused.reverse();
        journal.short.reverse();
        Ok(journal)
    }

    /// Drops segments, of which the last is first here, whose entries a later segment has from their
    /// first one on.
    fn drop_replaced(&mut self) {
        let mut limit = u64::MAX;
        for (segment, header) in mem::take(&mut self.begun) {
            if header.first_lsn < limit {
                limit = header.first_lsn;
                self.begun.push((segment, header));
            } else {
                // Not to be reused before the rewritten entries are known to be durable.
                self.replaced.push((segment.number, header.first_lsn));
            }
        }
    }

    /// Cuts segments without a header where a later one begins, as is done with others: what was rewritten
    /// there may have other numbers.
    fn cut_without_header(&mut self) {
        for (number, mut frames) in mem::take(&mut self.without_header) {
            let later = self.begun.iter().filter(|(segment, _)| segment.number > number);
            let limit = later.map(|(_, header)| header.first_lsn).min().unwrap_or(u64::MAX);
            let first_lsn = frames.first().map_or(0, |frame| frame.header.first_lsn);
            frames.retain(|frame| frame.header.first_lsn < limit);
            if let Some(last) = frames.last_mut() {
                last.entries.truncate(usize::try_from(limit - last.header.first_lsn).unwrap_or(usize::MAX));
            }
            match frames.is_empty() {
                true => self.replaced.push((number, first_lsn)),
                false => self.without_header.push((number, frames)),
            }
        }
    }

    /// The corruption at frame `next_lsn`, which is missing in a segment of `begun` at a position, or else in
    /// the first segment without a header; `None` if that frame was never written, as far as is known.
    fn find_corruption(
        &self,
        missing_at: Option<(usize, u64)>,
        next_lsn: u64,
        (applied_epoch, applied): (u32, u64),
    ) -> Result<Option<Corruption>, ReadError> {
        let (mut frames, mut synced_lsn, mut began) = (Vec::new(), applied, false);
        let first_frame = self.without_header.iter().flat_map(|(_, frames)| frames).next();
        let (mut number, mut at, mut epoch) = (0, 0, first_frame.map_or(0, |frame| frame.header.epoch));
        if let Some((index, missing_at)) = missing_at {
            let (segment, header) = &self.begun[index];
            (number, at, epoch) = (segment.number, missing_at, header.epoch);
            synced_lsn = synced_lsn.max(header.synced_lsn);
            // A header without its entries is a frame that was begun, and so is a damaged one.
            began = segment.is_begun(at, epoch, next_lsn)?;
            frames.extend(segment.frames_from(at)?);
        }
        for (later, header) in self.begun.iter().skip(missing_at.map_or(0, |(index, _)| index + 1)) {
            synced_lsn = synced_lsn.max(header.synced_lsn);
            frames.extend(later.frames_from(HEADER_BYTES as u64)?);
        }
        let without_header = self.without_header.iter().filter(|(later, _)| *later >= number);
        let is_behind = |frame: &&Frame| frame.header.last_lsn() >= next_lsn;
        let has_behind = |(_, frames): &&(u64, Vec<Frame>)| frames.iter().any(|frame| is_behind(&frame));
        // A frame that was not begun may be missing because its segment lost the header.
        let without = without_header.clone().find(has_behind).filter(|_| !began);
        let (segment, at) = without.map_or((number, at), |(later, _)| (*later, 0));
        let without_header: Vec<&Frame> = without_header.flat_map(|(_, frames)| frames).collect();
        let mut frames: Vec<&Frame> = frames.iter().chain(without_header).filter(is_behind).collect();
        synced_lsn = frames.iter().map(|frame| frame.header.synced_lsn).fold(synced_lsn, u64::max);
        // Entries of earlier runs that the run of the last applied entry salvaged were rewritten with other
        // numbers.
        frames.retain(|frame| frame.header.epoch >= applied_epoch);
        let (salvaged, lost) = salvage(frames, next_lsn.max(applied + 1), synced_lsn);
        let corruption = Corruption { segment, at, first_lsn: next_lsn, epoch, lost, salvaged };
        let is_clean = !began && corruption.lost.is_empty() && corruption.salvaged.is_empty();
        Ok((!is_clean).then_some(corruption))
    }

    /// A segment behind all others that lost its header, and with it entries from `next_lsn` on. They are
    /// reported and not salvaged: without the header it is not known whether they counted.
    fn torn_behind(&self, next_lsn: u64) -> Option<Corruption> {
        let (last, epoch) = self.begun.last().map_or((0, 0), |(last, header)| (last.number, header.epoch));
        let is_behind = |(number, last_lsn): &&(u64, u64)| *number > last && *last_lsn >= next_lsn;
        let (segment, _) = self.torn.iter().find(is_behind).copied()?;
        Some(Corruption {
            segment,
            at: 0,
            first_lsn: next_lsn,
            epoch,
            lost: Vec::new(),
            salvaged: Vec::new(),
        })
    }

    /// The first entry of segments without a header that precede all others.
    fn first_without_header(&self) -> Option<u64> {
        let first_begun = self.begun.first().map_or(0, |(segment, _)| segment.number);
        let (_, frames) = self.without_header.first().filter(|(number, _)| *number < first_begun)?;
        frames.first().map(|frame| frame.header.first_lsn)
    }

    /// The number up to which frames and headers behind entry `applied` prove that all is durable.
    fn proved_behind(&self, applied: u64) -> Result<u64, ReadError> {
        let frames = self.without_header.iter().flat_map(|(_, frames)| frames);
        let mut proved = frames.map(|frame| frame.header.synced_lsn).max().unwrap_or(0);
        for (segment, header) in &self.begun[self.index_of(applied + 1)..] {
            let of_frames = segment.synced_lsn()?;
            // The confirmation of a rewritten segment is no proof that it was synced itself.
            let is_proof = header.rewrites_to == 0 || of_frames > header.rewrites_to;
            proved = proved.max(header.synced_lsn).max(if is_proof { of_frames } else { 0 });
        }
        Ok(proved)
    }

    /// The index in `begun` of the segment with entry `lsn`.
    fn index_of(&self, lsn: u64) -> usize {
        self.begun.iter().rposition(|(_, header)| header.first_lsn <= lsn).unwrap_or(0)
    }

    /// Calls `each` with the frames with entries `first` to `last`, the last one cut there: run, number,
    /// entries.
    fn each_frame(
        &self,
        first: u64,
        last: u64,
        mut each: impl FnMut(u32, u64, Vec<Entry>),
    ) -> Result<(), ReadError> {
        let (start, mut buffer) = (self.index_of(first), Vec::new());
        let mut next_lsn = self.begun.get(start).map_or(1, |(_, header)| header.first_lsn);
        if next_lsn > first {
            return Err(ReadError::Damaged { segment: self.next_segment, at: 0, lsn: first });
        }
        for (index, (segment, header)) in self.begun.iter().enumerate().skip(start) {
            let limit = self.begun.get(index + 1).map_or(u64::MAX, |(_, next)| next.first_lsn).min(last + 1);
            let mut at = HEADER_BYTES as u64;
            while next_lsn < limit {
                let damaged = ReadError::Damaged { segment: segment.number, at, lsn: next_lsn };
                let frame = segment.header_at(at)?.filter(|frame| frame.first_lsn == next_lsn);
                // Frames that were not requested may be damaged.
                if frame.is_none()
                    && let Some((behind, later)) = segment.next_frame(at, next_lsn..=first)?
                {
                    (at, next_lsn) = (behind, later.first_lsn);
                    continue;
                }
                let Some(frame) = frame.filter(|_| header.first_lsn <= next_lsn) else { return Err(damaged) };
                let mut entries = Vec::new();
                if frame.last_lsn() >= first && !segment.entries_at(at, &frame, &mut buffer, &mut entries)? {
                    return Err(damaged);
                }
                at += frame.frame_bytes() as u64;
                next_lsn = frame.last_lsn() + 1;
                // Entries that a later segment has again count there, and entries beyond `last` were not
                // requested.
                entries.truncate((limit - frame.first_lsn) as usize);
                if !entries.is_empty() {
                    each(frame.epoch, frame.first_lsn, entries);
                }
            }
            next_lsn = next_lsn.min(limit);
        }
        let missing = ReadError::Damaged { segment: self.next_segment, at: 0, lsn: next_lsn };
        if next_lsn > last { Ok(()) } else { Err(missing) }
    }

    /// All segments as closed ones, the last of which ends before `next_lsn`.
    fn closed_segments(&self, next_lsn: u64) -> Vec<ClosedSegment> {
        let next_firsts = self.begun.iter().skip(1).map(|(_, header)| header.first_lsn).chain([next_lsn]);
        let begun = self.begun.iter().zip(next_firsts).map(|((segment, header), next)| ClosedSegment {
            number: segment.number,
            first_lsn: header.first_lsn,
            // At least its first entry: even an empty segment must not be released yet.
            last_lsn: (next - 1).max(header.first_lsn),
            // The run that wrote it may have had a failed sync, which is not recorded.
            failed: true,
        });
        let without_header = self.without_header.iter().map(|(number, _)| (*number, next_lsn, true));
        let replaced = self.replaced.iter().map(|(number, first_lsn)| (*number, *first_lsn, true));
        let unused = self.unused.iter().map(|(number, was_begun)| (*number, 0, *was_begun)).chain(replaced);
        let nothing =
            |(number, last_lsn, failed)| ClosedSegment { number, first_lsn: u64::MAX, last_lsn, failed };
        let others = unused.chain(without_header).map(nothing);
        let mut closed: Vec<ClosedSegment> = begun.chain(others).collect();
        closed.sort_by_key(|closed| (closed.last_lsn, closed.number));
        closed
    }
}

/// The entries of `frames` from `first` on, by number, and the ranges up to `synced` that no frame has.
fn salvage(mut frames: Vec<&Frame>, first: u64, synced: u64) -> (Vec<Numbered>, Vec<(u64, u64)>) {
    frames.sort_by_key(|frame| (frame.header.first_lsn, frame.header.segment));
    let (mut salvaged, mut lost, mut next) = (Vec::new(), Vec::new(), first);
    for frame in frames {
        for (lsn, entry) in (frame.header.first_lsn..).zip(&frame.entries) {
            // After a failed sync the same entries are in two segments.
            if lsn < next {
                continue;
            }
            if lsn > next && next <= synced {
                lost.push((next, (lsn - 1).min(synced)));
            }
            salvaged.push((lsn, *entry));
            next = lsn + 1;
        }
    }
    if next <= synced {
        lost.push((next, synced));
    }
    (salvaged, lost)
}
