//! The state that the journal's threads share: its progress, its files, and the next segment.
//!
//! Guarantees: an announced durable entry is durable. A segment is prepared in steps, between which the
//! preparing thread can sync. A failed preparation keeps no disk space.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, PoisonError};

use sys::crash::point;
use sys::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sys::sync::{Mutex, MutexGuard};

use super::segment;
use super::{JournalError, Settings};
use crate::limits::{RELEASED_KEPT, ZEROES_BYTES};
use crate::readers::Readers;
use crate::storage::{Storage, StorageFile};

/// The state that the journal's threads share.
pub(crate) struct JournalState<S: Storage> {
    pub(super) storage: S,
    pub(super) settings: Settings,
    /// The number of the last entry that is written and announced.
    pub(super) appended: AtomicU64,
    /// The number up to which everything survives a power failure. durable <= appended
    pub(super) durable: AtomicU64,
    /// Which entries are still needed, and by which reader.
    pub(super) readers: Arc<Readers>,
    /// Held while the positions of readers are stored; whether none is stored any more.
    pub(super) storing: Mutex<bool>,
    /// Files with frames that are not known to be durable, the current one last.
    pub(super) unsynced: Mutex<Vec<Arc<S::File>>>,
    /// Held during a sync: meanwhile no thread gives up a file whose sync may succeed, or syncs again a file
    /// whose sync has failed.
    pub(super) syncing: Mutex<()>,
    /// Whether everything announced is in files: false after a failure until it was rewritten. Changes while
    /// `syncing` is held.
    pub(super) is_whole: AtomicBool,
    /// The next segment while it is created, and how far it is written. Held by the thread that creates it.
    pub(super) unfinished: Mutex<Option<(S::File, u64)>>,
    pub(super) segments: Mutex<Segments<S::File>>,
}

/// The segments besides the current one.
pub(super) struct Segments<F> {
    /// The number of the next segment.
    pub(super) next: u64,
    /// The next segment, prepared.
    pub(super) spare: Option<Arc<F>>,
    /// Closed segments, oldest first.
    pub(super) closed: VecDeque<ClosedSegment>,
    /// The current segment: its number and its first entry.
    pub(super) current: Option<(u64, u64)>,
    /// The last segment that was synced while it was current. It stays until another one is: without any, the
    /// journal would look lost after a power failure.
    pub(super) synced: u64,
}

impl<F> Segments<F> {
    /// Notes that the current segment was synced.
    pub(super) fn note_synced(&mut self) {
        self.synced = self.current.map_or(self.synced, |(number, _)| number);
    }

    /// The first entry of the journal.
    pub(super) fn first_lsn(&self) -> u64 {
        let closed = self.closed.iter().map(|closed| closed.first_lsn);
        closed.chain(self.current.map(|(_, first_lsn)| first_lsn)).min().unwrap_or(1)
    }

    /// The closed segments that are kept for further readers alone.
    fn kept(&self, readers: &Readers) -> impl Iterator<Item = &ClosedSegment> {
        let kept = readers.released() + 1..=readers.database();
        self.closed
            .iter()
            .filter(move |closed| kept.contains(&closed.last_lsn) && closed.number != self.synced)
    }

    /// The number of closed segments that count for the bound of the journal.
    fn counted(&self, readers: &Readers) -> u64 {
        (self.closed.len() - self.kept(readers).count()) as u64
    }

    /// The oldest closed segment, if its entries are released.
    fn first_reusable(&self, released: u64) -> Option<ClosedSegment> {
        let is_done = |closed: &ClosedSegment| closed.last_lsn <= released && closed.number != self.synced;
        self.closed.front().copied().filter(is_done)
    }
}

/// A segment to which nothing is written any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ClosedSegment {
    pub(crate) number: u64,
    /// Its first entry; `u64::MAX` if none of its entries counts.
    pub(crate) first_lsn: u64,
    /// Its last entry that counts.
    pub(crate) last_lsn: u64,
    /// Whether a write or sync of it failed, so that it must not be reused.
    pub(crate) failed: bool,
}

impl<S: Storage> JournalState<S> {
    /// The number of the last written entry.
    pub(crate) fn appended(&self) -> u64 {
        // Acquire pairs with the Release in `announce`: a thread that sees the number finds the frame.
        self.appended.load(Ordering::Acquire)
    }

    /// The number up to which everything survives a power failure.
    pub(crate) fn durable(&self) -> u64 {
        // Acquire pairs with the Release in `announce_durable`.
        self.durable.load(Ordering::Acquire)
    }

    /// The database has the entries up to `lsn` on stable storage, and releases them. Each further reader
    /// releases for itself.
    pub(crate) fn release(&self, lsn: u64) {
        self.readers.release_database(lsn);
    }

    /// Gives up what is kept for further readers alone. Its segments are removed when the next one is made.
    pub(crate) fn give_up_kept(&self) {
        self.readers.lapse_to(self.readers.database());
    }

    /// The readers of the journal.
    pub(crate) fn readers(&self) -> &Arc<Readers> {
        &self.readers
    }

    /// The storage of the segments.
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

    /// The first entry of the segment behind the one in which entry `lsn` counts, if there is any.
    pub(super) fn begin_behind(&self, lsn: u64) -> Option<u64> {
        let segments = lock(&self.segments);
        let closed = segments.closed.iter().map(|closed| closed.first_lsn);
        let begins = closed.chain(segments.current.map(|(_, first_lsn)| first_lsn));
        begins.filter(|first_lsn| *first_lsn > lsn).min()
    }

    /// The first entry of the journal.
    pub(crate) fn first_lsn(&self) -> u64 {
        lock(&self.segments).first_lsn()
    }

    /// Closed segments, without those that the database has released and a further reader holds. The last
    /// synced one is needed at any rate.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn needed_by_database(&self) -> u64 {
        let (segments, database) = (lock(&self.segments), self.readers.database());
        let held = self.readers.status().iter().map(|reader| reader.released).min().unwrap_or(u64::MAX);
        let is_needed = |closed: &&ClosedSegment| {
            closed.last_lsn > database || closed.last_lsn <= held || closed.number == segments.synced
        };
        segments.closed.iter().filter(is_needed).count() as u64
    }

    /// Announces that entries up to `lsn` are written.
    pub(crate) fn announce(&self, lsn: u64) {
        self.appended.store(lsn, Ordering::Release);
    }

    /// Announces that entries up to `lsn` survive a power failure.
    pub(crate) fn announce_durable(&self, lsn: u64) {
        self.durable.fetch_max(lsn, Ordering::Release);
    }

    /// Syncs everything that was announced; returns the number up to which all is durable then, without
    /// announcing it.
    ///
    /// # Errors
    /// The disk's. The files concerned must not be written again: see [`super::Writer::fail_over`].
    pub(crate) fn sync(&self) -> io::Result<u64> {
        let _syncing = lock(&self.syncing);
        self.sync_files()
    }

    /// As [`JournalState::sync`], and announces it before these files can be given up: a thread that does
    /// that rewrites from behind what is durable.
    ///
    /// # Errors
    /// As [`JournalState::sync`].
    pub(crate) fn sync_and_announce(&self) -> io::Result<()> {
        let _syncing = lock(&self.syncing);
        let lsn = self.sync_files()?;
        self.announce_durable(lsn);
        Ok(())
    }

    /// Whether everything announced is in files, so that a sync can succeed.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    fn sync_files(&self) -> io::Result<u64> {
        if !self.is_whole() {
            return Err(io::Error::other("it failed before, and is not rewritten yet"));
        }
        let target = self.appended();
        let files = lock(&self.unsynced).clone();
        point("journal.before-sync");
        let synced = match self.storage.is_in_place() {
            true => files.iter().try_for_each(|file| sync_linked(&**file)),
            false => Err(io::Error::other(MOVED)),
        };
        if let Err(error) = synced {
            // The kernel has dropped what it could not write: another sync would succeed and prove nothing.
            self.is_whole.store(false, Ordering::Release);
            return Err(error);
        }
        point("journal.synced");
        // All but the last are closed, and need no further sync.
        let closed = files.len().saturating_sub(1);
        let mut unsynced = lock(&self.unsynced);
        let last = unsynced.last().zip(files.last());
        if last.is_some_and(|(now, synced)| Arc::ptr_eq(now, synced)) {
            lock(&self.segments).note_synced();
        }
        unsynced.retain(|file| !files[..closed].iter().any(|synced| Arc::ptr_eq(synced, file)));
        Ok(target)
    }

    /// Whether the next segment is not prepared.
    pub(crate) fn lacks_spare(&self) -> bool {
        lock(&self.segments).spare.is_none()
    }

    /// Does one step of preparing the next segment, and removes segments that are not needed; returns whether
    /// both are done. The caller can sync between two steps.
    ///
    /// # Errors
    /// The disk's, or the bound on segments is reached.
    pub(crate) fn prepare(&self) -> Result<bool, JournalError> {
        let outcome = self.prepare_step();
        let goes_on = matches!(outcome, Ok(false));
        if !goes_on && (lock(&self.unfinished).take().is_some() || outcome.is_err()) {
            // Unfinished, and not needed or failed: it must not keep disk space.
            let _ = self.storage.remove(UNFINISHED_NAME);
        }
        outcome
    }

    fn prepare_step(&self) -> Result<bool, JournalError> {
        {
            let mut segments = lock(&self.segments);
            self.drop_released(&mut segments)?;
            if segments.spare.is_none() {
                // A segment that was kept for a further reader did not count before.
                self.check_count(segments.counted(&self.readers) + u64::from(segments.current.is_some()))?;
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

    /// Writes a part of a new segment; the last part makes it the spare.
    pub(super) fn extend_unfinished(&self) -> Result<bool, JournalError> {
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
        // Once more: the committer may have needed a segment meanwhile, and made one.
        self.check_bound(&segments)?;
        let name = segment::name(segments.next);
        self.storage.rename(UNFINISHED_NAME, &name)?;
        self.storage.sync_names()?;
        segments.spare = Some(Arc::new(file));
        Ok(true)
    }

    /// Removes released segments, except some that will be reused.
    pub(super) fn drop_released(&self, segments: &mut Segments<S::File>) -> Result<(), JournalError> {
        let ends: Vec<u64> = segments.closed.iter().map(|closed| closed.last_lsn).collect();
        self.readers.enforce_bounds(&ends, self.settings.segment_bytes);
        let released = self.readers.released();
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

    /// The next segment, made from a released one if there is any.
    fn reuse(&self, segments: &mut Segments<S::File>) -> Result<Option<S::File>, JournalError> {
        let reusable = segments.first_reusable(self.readers.released()).filter(|closed| !closed.failed);
        let Some(reusable) = reusable else { return Ok(None) };
        let (released, name) = (segment::name(reusable.number), segment::name(segments.next));
        let file = self.storage.open(&released)?;
        // A file that was cut, or that was made with another setting, would look cut while it is written.
        if file.length()? != self.settings.segment_bytes {
            self.storage.remove(&released)?;
            segments.closed.pop_front();
            return Ok(None);
        }
        self.storage.rename(&released, &name)?;
        segments.closed.pop_front();
        self.storage.sync_names()?;
        Ok(Some(file))
    }

    /// Whether another segment is permitted.
    pub(super) fn check_bound(&self, segments: &Segments<S::File>) -> Result<(), JournalError> {
        // The closed ones, the current one unless the committer has ended it for the new one, and that.
        self.check_count(segments.counted(&self.readers) + u64::from(segments.current.is_some()) + 1)
    }

    fn check_count(&self, segments: u64) -> Result<(), JournalError> {
        let bytes = segments * self.settings.segment_bytes;
        match bytes > self.settings.bytes_max {
            true => Err(JournalError::Full { bytes_max: self.settings.bytes_max }),
            false => Ok(()),
        }
    }

    /// Creates a file with the disk space of a segment.
    fn create_reserved(&self, name: &str) -> io::Result<S::File> {
        let file = self.storage.create(name)?;
        file.reserve(self.settings.segment_bytes)?;
        Ok(file)
    }

    /// Writes zeros to a file from `at` on, so that later writes change neither its length nor its blocks;
    /// returns the position that it has come to.
    fn write_zeroes(&self, file: &S::File, at: u64) -> io::Result<u64> {
        let remaining = self.settings.segment_bytes - at;
        let bytes = ZEROES_BYTES.min(usize::try_from(remaining).unwrap_or(usize::MAX));
        file.write_at(&vec![0; bytes], at)?;
        // Each part by itself, so that no sync takes long.
        file.sync()?;
        Ok(at + bytes as u64)
    }

    /// Creates a segment for a writer that cannot wait for its preparation: it has its disk space and no
    /// zeros, so that syncs of it cost more.
    fn create_unzeroed(&self, name: &str) -> io::Result<S::File> {
        let made = self.create_reserved(URGENT_NAME).and_then(|file| {
            // Syncs the length: a file with the name of a segment has a segment's length.
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

    /// The next segment; `beyond_bound` permits it beyond the bound.
    pub(super) fn take_spare(&self, beyond_bound: bool) -> Result<(u64, Arc<S::File>), JournalError> {
        let mut segments = lock(&self.segments);
        let file = match segments.spare.take() {
            Some(spare) => spare,
            // The preparation is late, or has failed.
            None => Arc::new(self.replace_spare(&mut segments, beyond_bound)?),
        };
        let number = segments.next;
        segments.next += 1;
        Ok((number, file))
    }

    /// Makes the next segment at once. Where no file can be created, what is kept for further readers goes:
    /// the committer must not wait for them.
    fn replace_spare(
        &self,
        segments: &mut Segments<S::File>,
        beyond_bound: bool,
    ) -> Result<S::File, JournalError> {
        self.drop_released(segments)?;
        if !beyond_bound {
            // A segment that was kept for a further reader did not count before.
            self.check_count(segments.counted(&self.readers))?;
        }
        if let Some(reused) = self.reuse(segments)? {
            return Ok(reused);
        }
        if !beyond_bound {
            self.check_bound(segments)?;
        }
        let error = match self.create_unzeroed(&segment::name(segments.next)) {
            Ok(created) => return Ok(created),
            Err(error) => error,
        };
        // The database may need the space too.
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let kept = segments.kept(&self.readers).map(|closed| closed.last_lsn);
        let given_up = if is_full { kept.max() } else { kept.min() };
        if given_up.is_some_and(|last_lsn| self.readers.lapse_to(last_lsn)) {
            self.drop_released(segments)?;
            if let Some(reused) = self.reuse(segments)? {
                return Ok(reused);
            }
            // Segments of an earlier run are removed and not reused.
            return Ok(self.create_unzeroed(&segment::name(segments.next))?);
        }
        Err(error.into())
    }
}

/// Syncs a file, and fails if it was removed: the next start would not find it.
fn sync_linked(file: &impl StorageFile) -> io::Result<()> {
    file.sync()?;
    match file.is_linked()? {
        true => Ok(()),
        false => Err(io::Error::other("a segment was removed while it was written")),
    }
}

/// The error of a sync when the journal's path leads to another directory, or to none.
const MOVED: &str =
    "the directory `journal` was moved, removed or replaced while it was written: put it back";

/// The names of unfinished segments.
const UNFINISHED_NAME: &str = "segment-new";
const URGENT_NAME: &str = "segment-new-now";

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves valid data behind: each holder keeps it valid at every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
