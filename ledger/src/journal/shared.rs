//! What the journal's threads share: how far it is, its files, and the segment that comes next.
//!
//! Promises: what is said to be durable is; a segment is prepared in parts, between which whoever prepares
//! it can sync, and its making keeps no room after it failed. Leaves to others: what is written (`writer`).

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, PoisonError};

use sys::crash::point;
use sys::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sys::sync::{Mutex, MutexGuard};

use super::segment;
use super::{JournalError, Settings};
use crate::limits::{RELEASED_KEPT, ZEROES_BYTES};
use crate::storage::{Storage, StorageFile};

/// What the journal's threads share.
pub(crate) struct Shared<S: Storage> {
    pub(super) storage: S,
    pub(super) settings: Settings,
    /// The number of the last entry that is written and announced.
    pub(super) appended: AtomicU64,
    /// The number up to which everything survives a power failure. durable <= appended
    pub(super) durable: AtomicU64,
    /// The number up to which nobody needs the journal any more.
    pub(super) released: AtomicU64,
    /// Files with frames that are not known to be durable, the one that is written now last.
    pub(super) unsynced: Mutex<Vec<Arc<S::File>>>,
    /// Held during a sync, so that nobody gives up a file whose sync is about to be believed, nor syncs one
    /// again whose sync has failed.
    pub(super) syncing: Mutex<()>,
    /// Whether what was announced is all in files: not after a failure, until it was written again. Changes
    /// while `syncing` is held.
    pub(super) is_whole: AtomicBool,
    /// The next segment while it is made, and how far it is written. Held by the thread that makes it.
    pub(super) unfinished: Mutex<Option<(S::File, u64)>>,
    pub(super) segments: Mutex<Segments<S::File>>,
}

/// The segments besides the one that is written.
pub(super) struct Segments<F> {
    /// The number of the one to be begun next.
    pub(super) next: u64,
    /// That one, prepared.
    pub(super) spare: Option<Arc<F>>,
    /// Those that are ended, oldest first.
    pub(super) closed: VecDeque<ClosedSegment>,
    /// The one that is written: its number and its first entry.
    pub(super) current: Option<(u64, u64)>,
    /// The last one that was synced while it was written. It stays until another one is: a power failure in
    /// which all were gone would look like a journal that was lost.
    pub(super) synced: u64,
}

impl<F> Segments<F> {
    /// The one that is written was synced.
    pub(super) fn note_synced(&mut self) {
        self.synced = self.current.map_or(self.synced, |(number, _)| number);
    }

    /// The oldest ended segment, if its entries are released.
    fn first_reusable(&self, released: u64) -> Option<ClosedSegment> {
        let is_done = |closed: &ClosedSegment| closed.last_lsn <= released && closed.number != self.synced;
        self.closed.front().copied().filter(is_done)
    }
}

/// A segment that is written no more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ClosedSegment {
    pub(crate) number: u64,
    /// Its first entry; beyond every number if it holds none that counts.
    pub(crate) first_lsn: u64,
    /// Its last entry that counts.
    pub(crate) last_lsn: u64,
    /// Whether it failed, so that it must not be used again.
    pub(crate) failed: bool,
}

impl<S: Storage> Shared<S> {
    /// The number of the last entry that is written.
    pub(crate) fn appended(&self) -> u64 {
        // Acquire pairs with the Release in `announce`: who sees the number finds the frame.
        self.appended.load(Ordering::Acquire)
    }

    /// The number up to which everything survives a power failure.
    pub(crate) fn durable(&self) -> u64 {
        // Acquire pairs with the Release in `announce_durable`.
        self.durable.load(Ordering::Acquire)
    }

    /// Says that entries up to `lsn` are not needed here any more.
    pub(crate) fn release(&self, lsn: u64) {
        self.released.fetch_max(lsn, Ordering::Relaxed);
    }

    /// Where the files are.
    pub(crate) fn storage(&self) -> &S {
        &self.storage
    }

    /// The number of the segment in which entry `lsn` counts: the last one that begins with it or before.
    pub(crate) fn segment_of(&self, lsn: u64) -> Option<u64> {
        let segments = lock(&self.segments);
        let closed = segments.closed.iter().map(|closed| (closed.number, closed.first_lsn));
        closed
            .chain(segments.current)
            .filter(|(_, first_lsn)| *first_lsn <= lsn)
            .map(|(number, _)| number)
            .max()
    }

    /// The first entry that there is.
    pub(crate) fn first_lsn(&self) -> u64 {
        let segments = lock(&self.segments);
        let closed = segments.closed.iter().map(|closed| closed.first_lsn);
        closed.chain(segments.current.map(|(_, first_lsn)| first_lsn)).min().unwrap_or(1)
    }

    /// Tells others that entries up to `lsn` are written.
    pub(crate) fn announce(&self, lsn: u64) {
        self.appended.store(lsn, Ordering::Release);
    }

    /// Tells others that entries up to `lsn` survive a power failure.
    pub(crate) fn announce_durable(&self, lsn: u64) {
        self.durable.fetch_max(lsn, Ordering::Release);
    }

    /// Brings to stable storage all that was announced; returns the number up to which that is. Nobody is
    /// told of it yet.
    ///
    /// # Errors
    /// The disk's. No file that is concerned may be written again: see [`super::Writer::fail_over`].
    pub(crate) fn sync(&self) -> io::Result<u64> {
        let _syncing = lock(&self.syncing);
        self.sync_files()
    }

    /// As [`Shared::sync`], and tells others. Told of before anybody may give up these files: who does so
    /// begins anew behind what is durable.
    ///
    /// # Errors
    /// As [`Shared::sync`].
    pub(crate) fn sync_and_announce(&self) -> io::Result<()> {
        let _syncing = lock(&self.syncing);
        let lsn = self.sync_files()?;
        self.announce_durable(lsn);
        Ok(())
    }

    /// Whether what was announced is all in files, so that a sync can succeed.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    fn sync_files(&self) -> io::Result<u64> {
        if !self.is_whole() {
            return Err(io::Error::other("it failed before, and was not written again yet"));
        }
        let target = self.appended();
        let files = lock(&self.unsynced).clone();
        point("journal.before-sync");
        let synced = match self.storage.is_in_place() {
            true => files.iter().try_for_each(|file| sync_linked(&**file)),
            false => Err(io::Error::other(MOVED)),
        };
        if let Err(error) = synced {
            // The kernel has forgotten what it could not write: another sync would succeed and prove nothing.
            self.is_whole.store(false, Ordering::Release);
            return Err(error);
        }
        point("journal.synced");
        // All but the last are ended, and need no further sync.
        let closed = files.len().saturating_sub(1);
        let mut unsynced = lock(&self.unsynced);
        let last = unsynced.last().zip(files.last());
        if last.is_some_and(|(now, synced)| Arc::ptr_eq(now, synced)) {
            lock(&self.segments).note_synced();
        }
        unsynced.retain(|file| !files[..closed].iter().any(|synced| Arc::ptr_eq(synced, file)));
        Ok(target)
    }

    /// Whether the segment for when the current one is full is to be made.
    pub(crate) fn lacks_spare(&self) -> bool {
        lock(&self.segments).spare.is_none()
    }

    /// Does a part of what has a segment ready for when the current one is full, and removes those that
    /// nobody needs; returns whether that is done. Whoever calls it can sync between two parts.
    ///
    /// # Errors
    /// The disk's, or that there may be no further segment.
    pub(crate) fn prepare(&self) -> Result<bool, JournalError> {
        let outcome = self.prepare_step();
        let goes_on = matches!(outcome, Ok(false));
        if !goes_on && (lock(&self.unfinished).take().is_some() || outcome.is_err()) {
            // Half made, and not needed or not to be had: it must not keep the room that others need.
            let _ = self.storage.remove(UNFINISHED_NAME);
        }
        outcome
    }

    fn prepare_step(&self) -> Result<bool, JournalError> {
        {
            let mut segments = lock(&self.segments);
            self.drop_released(&mut segments)?;
            if segments.spare.is_none() {
                let reused = self.reuse(&mut segments)?;
                segments.spare = reused.map(Arc::new);
            }
            if segments.spare.is_some() {
                return Ok(true);
            }
            self.check_bound(&segments)?;
        }
        self.extend_unfinished()
    }

    /// Writes a part of a new segment; when that was the last, makes it the spare.
    fn extend_unfinished(&self) -> Result<bool, JournalError> {
        let mut unfinished = lock(&self.unfinished);
        let (file, at) = match unfinished.take() {
            Some(unfinished) => unfinished,
            None => (self.create_reserved(UNFINISHED_NAME)?, 0),
        };
        let at = self.write_zeroes(&file, at)?;
        if at < self.settings.segment_bytes {
            *unfinished = Some((file, at));
            return Ok(false);
        }
        let mut segments = lock(&self.segments);
        let name = segment::name(segments.next);
        self.storage.rename(UNFINISHED_NAME, &name)?;
        self.storage.sync_names()?;
        segments.spare = Some(Arc::new(file));
        Ok(true)
    }

    /// Removes ended segments that nobody needs, but for some that will be used again.
    pub(super) fn drop_released(&self, segments: &mut Segments<S::File>) -> Result<(), JournalError> {
        let released = self.released.load(Ordering::Relaxed);
        let is_done = |closed: &ClosedSegment| closed.last_lsn <= released;
        while segments.closed.iter().filter(|closed| is_done(closed)).count() > RELEASED_KEPT
            || segments.closed.front().is_some_and(|closed| closed.failed && is_done(closed))
        {
            let Some(done) = segments.first_reusable(released) else { break };
            self.storage.remove(&segment::name(done.number))?;
            segments.closed.pop_front();
        }
        Ok(())
    }

    /// The next segment, from one that nobody needs, if there is any.
    fn reuse(&self, segments: &mut Segments<S::File>) -> Result<Option<S::File>, JournalError> {
        let released = self.released.load(Ordering::Relaxed);
        let reusable = segments.first_reusable(released).filter(|closed| !closed.failed);
        let Some(reusable) = reusable else { return Ok(None) };
        let name = segment::name(segments.next);
        self.storage.rename(&segment::name(reusable.number), &name)?;
        segments.closed.pop_front();
        self.storage.sync_names()?;
        Ok(Some(self.storage.open(&name)?))
    }

    /// Whether there may be another segment.
    pub(super) fn check_bound(&self, segments: &Segments<S::File>) -> Result<(), JournalError> {
        // The ended ones, the one that is written, and the new one.
        let bytes = (segments.closed.len() as u64 + 2) * self.settings.segment_bytes;
        match bytes > self.settings.bytes_max {
            true => Err(JournalError::Full { bytes_max: self.settings.bytes_max }),
            false => Ok(()),
        }
    }

    /// A new file that has the room of a segment.
    fn create_reserved(&self, name: &str) -> io::Result<S::File> {
        let file = self.storage.create(name)?;
        file.reserve(self.settings.segment_bytes)?;
        Ok(file)
    }

    /// Writes zeros to a file from `at` on, so that writing to it later changes neither its length nor its
    /// blocks; returns how far that came.
    fn write_zeroes(&self, file: &S::File, at: u64) -> io::Result<u64> {
        let remaining = self.settings.segment_bytes - at;
        let bytes = ZEROES_BYTES.min(usize::try_from(remaining).unwrap_or(usize::MAX));
        file.write_at(&vec![0; bytes], at)?;
        // Each part by itself, so that no sync is a long one.
        file.sync()?;
        Ok(at + bytes as u64)
    }

    /// A new segment for who cannot wait until one is prepared: it has its room and no zeros, so that syncs
    /// of it have more to do.
    fn create_unzeroed(&self, name: &str) -> io::Result<S::File> {
        let made = self.create_reserved(URGENT_NAME).and_then(|file| {
            // Its length, which is a segment's as long as it has the name of one.
            file.sync()?;
            self.storage.rename(URGENT_NAME, name)?;
            self.storage.sync_names()?;
            Ok(file)
        });
        if made.is_err() {
            let _ = self.storage.remove(URGENT_NAME);
        }
        made
    }

    /// The segment to be begun next, also `beyond_bound`.
    pub(super) fn take_spare(&self, beyond_bound: bool) -> Result<(u64, Arc<S::File>), JournalError> {
        let mut segments = lock(&self.segments);
        let spare = match segments.spare.take() {
            Some(spare) => Some(spare),
            // The one who prepares is behind, or has failed.
            None => {
                self.drop_released(&mut segments)?;
                self.reuse(&mut segments)?.map(Arc::new)
            }
        };
        let file = match spare {
            Some(spare) => spare,
            None => {
                if !beyond_bound {
                    self.check_bound(&segments)?;
                }
                Arc::new(self.create_unzeroed(&segment::name(segments.next))?)
            }
        };
        let number = segments.next;
        segments.next += 1;
        Ok((number, file))
    }
}

/// Brings a file to stable storage where the next start will find it.
fn sync_linked(file: &impl StorageFile) -> io::Result<()> {
    file.sync()?;
    match file.is_linked()? {
        true => Ok(()),
        false => Err(io::Error::other("a segment was removed while it was written")),
    }
}

/// What a sync fails with where another directory, or none, has the journal's path.
const MOVED: &str =
    "the directory `journal` was moved, removed or replaced while it was written: put it back";

/// The names of segments that are being made.
const UNFINISHED_NAME: &str = "segment-new";
const URGENT_NAME: &str = "segment-new-now";

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread left is as good as before: each holder leaves it whole at every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
