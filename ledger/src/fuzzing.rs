//! Entry points of the fuzz targets: the bytes of entries, and journals in memory.
//!
//! Only builds with the feature `fuzzing` have this module. `fuzz/src` states what must hold.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use sys::clock::WallNanos;

use crate::consent::Consent;
use crate::entry::{Entry, EntryKey, EntryVersion};
use crate::journal::reader::Reader;
use crate::journal::writer::JournalPosition;
use crate::journal::{Settings, TableReference, Writer, scan};
use crate::record::MalformedRecord;
use crate::recover::{self, Applied, Start};
use crate::storage::Storage;
use crate::storage::memory::Memory;

/// The gateway of every journal here.
pub const GATEWAY: u32 = 1;

/// The run that writes a [`Journal`].
pub const EPOCH: u32 = 1;

const BYTES_MAX: u64 = 1 << 30;

/// The entry at the beginning of `bytes`, and its length; of version 1 if `is_old`.
///
/// # Errors
/// The bytes are no entry.
pub fn read_entry(bytes: &[u8], is_old: bool) -> Result<(Entry, usize), MalformedRecord> {
    Entry::read(bytes, version(is_old))
}

fn version(is_old: bool) -> EntryVersion {
    if is_old { EntryVersion::V1 } else { EntryVersion::V2 }
}

/// Appends the bytes of `entry` to `out`.
pub fn write_entry(entry: &Entry, out: &mut Vec<u8>) {
    entry.write(out);
}

/// Reads the part of an entry that recovery reads; whether that is the key and the length of `entry`, or is
/// refused where the entry is.
pub fn has_key_of(bytes: &[u8], is_old: bool, entry: Option<(&Entry, usize)>) -> bool {
    let key = EntryKey::read(bytes, version(is_old)).ok();
    key == entry.map(|(entry, length)| (EntryKey::from(entry), length))
}

/// A consent to continue without the entries of `lsns`, the first and the last.
pub fn consent(at: WallNanos, lsns: (u64, u64), author: &str, what: &str) -> Consent {
    Consent::new(EPOCH, at, lsns, author, what)
}

/// The segments of a journal: their names and their bytes.
pub type Files = BTreeMap<String, Vec<u8>>;

/// An entry and its number.
pub type Numbered = (u64, Entry);

/// A journal that is written in memory, and read behind its writer.
pub struct Journal {
    writer: Writer<Memory>,
    reader: Reader<Memory>,
}

impl Journal {
    /// A journal without entries, in segments of so many bytes.
    pub fn new(segment_bytes: u64) -> Journal {
        let settings = settings(EPOCH, segment_bytes);
        let begin = JournalPosition { next_lsn: 1, next_segment: 1, ..JournalPosition::default() };
        let (table, readers) = (TableReference::default(), Arc::default());
        let mut writer = Writer::open(Memory::default(), settings, table, (&begin, 0), readers)
            .expect("a disk in memory takes every write");
        writer.confirm().expect("a disk in memory takes every write");
        let reader = Reader::new(writer.shared().clone(), 1);
        Journal { writer, reader }
    }

    /// Appends a frame of `entries`.
    pub fn append(&mut self, entries: &[Entry]) {
        let mut frame = self.writer.buffer();
        entries.iter().for_each(|entry| frame.push(entry));
        self.writer.append(frame).expect("a disk in memory takes every write");
        self.writer.shared().announce(self.writer.next_lsn() - 1);
    }

    /// Begins another segment.
    pub fn begin_segment(&mut self) {
        self.writer.set_table(TableReference::default()).expect("a disk in memory takes every write");
    }

    /// Makes everything durable.
    pub fn sync(&mut self) {
        self.writer.shared().sync_and_announce().expect("a disk in memory takes every write");
    }

    /// The durable entries since the last call, as the applier reads them.
    pub fn read(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        while self.reader.read(&mut entries).expect("an undamaged journal is read").is_some() {}
        entries
    }

    /// Its segments, as a start finds them after a kill.
    pub fn files(&self) -> Files {
        contents(self.writer.shared().storage())
    }
}

/// What a start reads of a journal.
#[derive(Debug, PartialEq)]
pub struct ReadBack {
    /// The number up to which all is known to be durable.
    pub durable_lsn: u64,
    /// The last entry that can be read.
    pub last_lsn: u64,
    /// The entries behind `durable_lsn` and before a damaged frame.
    pub tail: Vec<Numbered>,
    /// The entries of intact frames behind a damaged one.
    pub salvaged: Vec<Numbered>,
    /// Whether every segment is as long as when it was created.
    pub is_complete: bool,
    /// Whether nothing else is reported: no damaged frame, no break of the chain, and no entries missing at
    /// the beginning.
    pub is_intact: bool,
}

/// Reads a journal as a start does whose databases have the entries up to `applied`.
///
/// # Errors
/// A frame holds an unknown entry.
pub fn scan(files: &Files, applied: u64) -> Result<ReadBack, String> {
    let scan = scan::scan(&disk(files), (0, applied), |_| {}).map_err(|error| error.to_string())?;
    let begins_behind = scan.begins_behind(applied);
    let is_intact = scan.corruption.is_none() && scan.breaks == 0 && !begins_behind;
    Ok(ReadBack {
        durable_lsn: scan.end.next_lsn - 1,
        last_lsn: scan.last_lsn,
        tail: scan.tail,
        salvaged: scan.corruption.map(|corruption| corruption.salvaged).unwrap_or_default(),
        is_complete: scan.short.is_empty(),
        is_intact,
    })
}

/// The entries of the frames with entries `first` to `last`, up to the first damage, and whether there is
/// none.
pub fn entries(files: &Files, first: u64, last: u64) -> (Vec<Numbered>, bool) {
    let mut found = Vec::new();
    let outcome = scan::each_frame(&disk(files), first, last, |_, first_lsn, entries| {
        found.extend((first_lsn..).zip(entries));
    });
    (found, outcome.is_ok())
}

/// The entries that the journal proves to be durable, and whether none is missing.
pub fn proved(files: &Files) -> (Vec<Entry>, bool) {
    let mut found = Vec::new();
    let outcome = scan::each_proved(&disk(files), (0, 0), |entry| found.push(*entry));
    (found, outcome.is_ok())
}

/// The paths of live tables in the headers of segments.
pub fn tables(files: &Files) -> Vec<String> {
    scan::tables(&disk(files)).expect("a disk in memory is read")
}

/// The segments after a start with empty databases: the run that begins writes what earlier ones left. `None`
/// if the start is refused, because entries are lost or it cannot read the journal.
pub fn recovered(files: &Files, segment_bytes: u64) -> Option<Files> {
    let storage = disk(files);
    let applied = Applied { epoch: 0, lsn: 0, is_ended: false, has_begun: false };
    let scan = recover::scan(&storage, GATEWAY, applied, HashSet::new(), &[]).ok()?;
    if !scan.losses(0, 0, &[]).is_empty() {
        return None;
    }
    let epoch = scan.epoch(&[]);
    let settings = settings(epoch, segment_bytes);
    let (table, readers) = (TableReference::default(), Arc::default());
    let start = Start { settings, table, boot: 0, tables: &[], consents: &[], readers };
    let recovered = scan.recover(storage, start).expect("a disk in memory takes every write");
    Some(contents(recovered.journal.shared().storage()))
}

fn settings(epoch: u32, segment_bytes: u64) -> Settings {
    Settings { gateway: GATEWAY, epoch, run: epoch.into(), segment_bytes, bytes_max: BYTES_MAX }
}

fn disk(files: &Files) -> Memory {
    let memory = Memory::default();
    for (name, bytes) in files {
        memory.create(name).expect("a disk in memory takes every file");
        memory.put_content(name, bytes.clone());
    }
    memory
}

fn contents(memory: &Memory) -> Files {
    let names = memory.names().expect("a disk in memory is read");
    names.into_iter().filter_map(|name| memory.content(&name).map(|bytes| (name, bytes))).collect()
}
