//! The readers of a journal: how far each has released it, and which of them lapsed.
//!
//! Guarantees: an entry is released only when every reader that holds it has released it. A further reader
//! holds no more ended segments for itself than its bound permits; what it misses then is recorded here, and
//! told to it. No lock is held during a call of the disk.
//!
//! ```text
//!   entries      1 ........ 40 ........ 80 ........ 120 ........ 160
//!   database     released ------------------------> |               holds the rest: the journal may fill up
//!   further      released --> |   kept for it alone |               holds both: beyond its bound it lapses
//! ```

use std::sync::PoisonError;

use sys::sync::atomic::{AtomicU64, Ordering};
use sys::sync::{Mutex, MutexGuard};
use thiserror::Error;

use crate::limits::{READER_NAME_BYTES_MAX, READERS_MAX};

/// The name of the first reader, the applier into SQLite. It must get every entry, and has no bound.
pub(crate) const DATABASE: &str = "sqlite";

/// A further reader of the journal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReaderSettings {
    /// Its name, of 1 to 32 characters: `a` to `z`, digits, `-` and `_`.
    pub name: String,
    /// Bytes of ended segments that are kept for it alone. Beyond that it lapses.
    pub kept_bytes_max: u64,
}

/// The state of a further reader.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ReaderStatus {
    /// Its name.
    pub name: String,
    /// It holds the entries behind this one.
    pub released: u64,
    /// How often it has lapsed since the ledger was opened.
    pub lapses: u64,
    /// The first entry that it missed in its last lapse; 0 without one.
    pub missed_from: u64,
    /// Whether it has not gone on since.
    pub is_lapsed: bool,
}

/// Why a set of readers is refused.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum ReaderNameError {
    /// The name has no permitted form.
    #[error("a reader of the journal has the name {0:?}: use 1 to 32 of `a` to `z`, digits, `-` and `_`")]
    Malformed(String),
    /// Another reader has the name.
    #[error("two readers of the journal have the name {0:?}")]
    Duplicate(String),
    /// There are too many.
    #[error("the journal has {0} further readers: {READERS_MAX} are permitted")]
    TooMany(usize),
}

/// Why a reader cannot follow the journal from a position.
#[derive(Debug, Error)]
pub enum FollowError {
    /// No reader of that name is registered.
    #[error("the journal has no reader of the name {0:?}")]
    Unknown(String),
    /// Another handle follows the journal by that name.
    #[error("the reader {0:?} follows the journal already")]
    Followed(String),
    /// The position is not of this journal: it was restored from an older copy, or lost its end.
    #[error(
        "the reader {name:?} has entries up to {position}, and the journal ends at {last_lsn}: it was \
         restored, and gives the numbers behind that to other entries. Bring the reader's store back to that \
         entry or an earlier one, and follow from there"
    )]
    Ahead {
        /// The reader.
        name: String,
        /// Its position.
        position: u64,
        /// The journal's last durable entry.
        last_lsn: u64,
    },
    /// The position cannot be stored.
    #[error("the positions of the journal's readers cannot be stored: {0}")]
    Io(#[from] std::io::Error),
}

/// The registry of a journal's readers.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// The database has everything up to this number on stable storage.
    database: AtomicU64,
    further: Mutex<Vec<ReaderState>>,
}

#[derive(Debug)]
struct ReaderState {
    settings: ReaderSettings,
    /// It has released everything up to this number itself.
    position: u64,
    /// Its position in the file.
    stored: u64,
    /// Its position, or the end of its last lapse: it holds what is behind.
    released: u64,
    /// The last number that it lost its hold on by a lapse.
    lapsed_to: u64,
    missed_from: u64,
    lapses: u64,
    is_followed: bool,
}

/// What a start found of a reader's position in the journal.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub(crate) enum Placement {
    /// It is beyond the journal's end.
    #[error(
        "the reader {name:?} has released entry {position}, and the journal ends at {last_lsn}: it was \
         restored; the reader holds the whole journal"
    )]
    Ahead { name: String, position: u64, last_lsn: u64 },
    /// It is before the journal's beginning.
    #[error("the reader {name:?} misses entry {missed_from}: the journal begins at {first_lsn}")]
    Behind { name: String, missed_from: u64, first_lsn: u64 },
}

impl Readers {
    /// The registry of the database and of `further` readers.
    pub(crate) fn new(further: &[ReaderSettings]) -> Result<Readers, ReaderNameError> {
        if further.len() > READERS_MAX {
            return Err(ReaderNameError::TooMany(further.len()));
        }
        let is_permitted = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        let mut states: Vec<ReaderState> = Vec::new();
        for settings in further {
            let name = &settings.name;
            if !(1..=READER_NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_permitted) {
                return Err(ReaderNameError::Malformed(name.clone()));
            }
            if name == DATABASE || states.iter().any(|state| state.name() == name) {
                return Err(ReaderNameError::Duplicate(name.clone()));
            }
            states.push(ReaderState::new(settings.clone()));
        }
        Ok(Readers { database: AtomicU64::new(0), further: Mutex::new(states) })
    }

    /// Places each further reader at its position in `stored`, in a journal that has the entries `first_lsn`
    /// to `last_lsn`. A reader without a position begins with all of it. If positions are unknown (`None`),
    /// it holds all of it too, and may miss what was before.
    pub(crate) fn place(
        &self,
        stored: Option<&[(String, u64)]>,
        (first_lsn, last_lsn): (u64, u64),
    ) -> Vec<Placement> {
        let mut found = Vec::new();
        for reader in self.lock().iter_mut() {
            let name = reader.name().to_owned();
            let of_name = |stored: &[(String, u64)]| {
                stored.iter().find(|(of, _)| *of == name).map(|(_, position)| *position)
            };
            let position = stored.map_or(Some(0), of_name);
            (reader.position, reader.released) = (first_lsn - 1, first_lsn - 1);
            reader.stored = position.unwrap_or(first_lsn - 1);
            match position {
                Some(position) if position > last_lsn => {
                    found.push(Placement::Ahead { name, position, last_lsn });
                }
                Some(position) => {
                    (reader.position, reader.released) = (position, position);
                    if reader.lapse_to(first_lsn - 1) {
                        found.push(Placement::Behind { name, missed_from: position + 1, first_lsn });
                    }
                }
                None => {}
            }
        }
        found
    }

    /// The database has everything up to `lsn` on stable storage.
    pub(crate) fn release_database(&self, lsn: u64) {
        self.database.fetch_max(lsn, Ordering::Relaxed);
    }

    /// The number up to which the database needs no entry any more.
    pub(crate) fn database(&self) -> u64 {
        self.database.load(Ordering::Relaxed)
    }

    /// The number up to which no reader needs an entry any more.
    pub(crate) fn released(&self) -> u64 {
        let further = self.lock().iter().map(|reader| reader.released).min();
        self.database().min(further.unwrap_or(u64::MAX))
    }

    /// Ends the hold of each further reader on the oldest of the ended segments beyond its bound. `ends` are
    /// the last entries of ended segments, of `segment_bytes` each, in ascending order.
    pub(crate) fn enforce_bounds(&self, ends: &[u64], segment_bytes: u64) {
        let database = self.database();
        for reader in self.lock().iter_mut() {
            let released = reader.released;
            let kept: Vec<u64> =
                ends.iter().copied().filter(|end| (released + 1..=database).contains(end)).collect();
            let permitted = reader.settings.kept_bytes_max / segment_bytes;
            let permitted = usize::try_from(permitted).unwrap_or(usize::MAX);
            if let Some(excess) = kept.len().checked_sub(permitted).filter(|excess| *excess > 0) {
                reader.lapse_to(kept[excess - 1]);
            }
        }
    }

    /// Ends the hold of all further readers on the entries up to `lsn`; returns whether there was any.
    pub(crate) fn lapse_to(&self, lsn: u64) -> bool {
        let mut any = false;
        for reader in self.lock().iter_mut() {
            any |= reader.lapse_to(lsn);
        }
        any
    }

    /// Begins to follow the journal, of which the entries `first_lsn` to `last_lsn` can be read, by the name
    /// of a reader that has all entries up to `position`, or up to the stored one. From an older position it
    /// holds what is still there; a newer one is not a release yet. Returns the reader's index and its
    /// position.
    pub(crate) fn follow(
        &self,
        name: &str,
        position: Option<u64>,
        (first_lsn, last_lsn): (u64, u64),
    ) -> Result<(usize, u64), FollowError> {
        let mut further = self.lock();
        let Some(index) = further.iter().position(|reader| reader.name() == name) else {
            return Err(FollowError::Unknown(name.to_owned()));
        };
        let reader = &mut further[index];
        if reader.is_followed {
            return Err(FollowError::Followed(name.to_owned()));
        }
        let position = position.unwrap_or(reader.position);
        if position > last_lsn {
            return Err(FollowError::Ahead { name: name.to_owned(), position, last_lsn });
        }
        reader.is_followed = true;
        if position < reader.position {
            (reader.position, reader.released) = (position, position);
            reader.lapse_to(reader.lapsed_to.max(first_lsn - 1));
            reader.missed_from = reader.missed_from.min(position + 1);
        }
        Ok((index, position))
    }

    /// Ends what [`Readers::follow`] began.
    pub(crate) fn unfollow(&self, index: usize) {
        self.lock()[index].is_followed = false;
    }

    /// The positions of all further readers.
    pub(crate) fn positions(&self) -> Vec<(String, u64)> {
        self.lock().iter().map(|reader| (reader.name().to_owned(), reader.position)).collect()
    }

    /// The positions to store before reader `index` releases the entries up to `lsn`; `None` if the file has
    /// its position. No release takes a position back: segments went because of it.
    pub(crate) fn positions_to_store(&self, index: usize, lsn: u64) -> Option<Vec<(String, u64)>> {
        let mut positions = self.positions();
        positions[index].1 = positions[index].1.max(lsn);
        (positions[index].1 != self.lock()[index].stored).then_some(positions)
    }

    /// The file has `positions`, of all further readers.
    pub(crate) fn note_stored(&self, positions: &[(String, u64)]) {
        for (reader, (_, position)) in self.lock().iter_mut().zip(positions) {
            reader.stored = *position;
        }
    }

    /// Reader `index` has released the entries up to `lsn`.
    pub(crate) fn release(&self, index: usize, lsn: u64) {
        let reader = &mut self.lock()[index];
        reader.position = reader.position.max(lsn);
        reader.released = reader.released.max(lsn);
        if lsn >= reader.lapsed_to {
            reader.lapsed_to = 0;
        } else {
            reader.missed_from = reader.missed_from.max(lsn + 1);
        }
    }

    /// If reader `index`, whose next entry is `lsn`, lapsed: its next readable entry.
    pub(crate) fn lapsed_beyond(&self, index: usize, lsn: u64) -> Option<u64> {
        let lapsed_to = self.lock()[index].lapsed_to;
        (lapsed_to >= lsn).then_some(lapsed_to + 1)
    }

    /// The state of each further reader.
    pub(crate) fn status(&self) -> Vec<ReaderStatus> {
        let status = |reader: &ReaderState| ReaderStatus {
            name: reader.name().to_owned(),
            released: reader.released,
            lapses: reader.lapses,
            missed_from: reader.missed_from,
            is_lapsed: reader.lapsed_to > 0,
        };
        self.lock().iter().map(status).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ReaderState>> {
        self.further.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaderState {
    fn new(settings: ReaderSettings) -> ReaderState {
        ReaderState {
            settings,
            position: 0,
            stored: 0,
            released: 0,
            lapsed_to: 0,
            missed_from: 0,
            lapses: 0,
            is_followed: false,
        }
    }

    fn name(&self) -> &str {
        &self.settings.name
    }

    /// Ends its hold on the entries up to `lsn`; returns whether it had any.
    fn lapse_to(&mut self, lsn: u64) -> bool {
        if lsn <= self.released {
            return false;
        }
        if self.lapsed_to == 0 {
            (self.missed_from, self.lapses) = (self.released + 1, self.lapses + 1);
        }
        (self.released, self.lapsed_to) = (lsn, lsn);
        true
    }
}
