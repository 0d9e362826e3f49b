//! Readers of a small journal in memory: what is kept for them, and when they lapse.

use sys::clock::WallNanos;
use sys::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::journal::reader::numbers;
use crate::journal::writer::JournalPosition;
use crate::journal::{JournalError, Settings, TableReference, Writer};
use crate::limits::{READERS_MAX, ZEROES_BYTES};
use crate::random::Random;
use crate::readers::{ReaderSettings, ReaderStatus, Readers};
use crate::storage::faulty::{Call, Fault, Faulty};
use crate::storage::memory::Memory;

/// A header and four frames of one entry each.
const SEGMENT: u64 = 20 << 10;
const UNBOUNDED: u64 = u64::MAX;

struct Journal {
    writer: Writer<Faulty>,
    /// While set, no file can be created.
    is_disk_full: Arc<AtomicBool>,
}

impl Journal {
    /// A journal of at most `segments` segments, with readers for which so many bytes may be kept.
    fn new(segments: u64, kept: &[(&str, u64)]) -> Journal {
        Journal::of_segments(SEGMENT, segments, kept)
    }

    fn of_segments(segment_bytes: u64, segments: u64, kept: &[(&str, u64)]) -> Journal {
        let is_disk_full = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&is_disk_full);
        let plan = Box::new(move |call, _| {
            (call == Call::Reserve && fails.load(Ordering::Relaxed)).then_some(Fault::Full)
        });
        let storage = Faulty::new(Memory::default(), Random::from_seed(1), plan);
        let bytes_max = segments * segment_bytes;
        let settings = Settings { gateway: 1, epoch: 1, run: 1, segment_bytes, bytes_max };
        let begin = JournalPosition { next_lsn: 1, next_segment: 1, ..JournalPosition::default() };
        let kept = kept.iter().map(|(name, kept_bytes_max)| ReaderSettings {
            name: (*name).to_owned(),
            kept_bytes_max: *kept_bytes_max,
        });
        let readers = Arc::new(Readers::new(&kept.collect::<Vec<_>>()).unwrap());
        assert_eq!(positions::place(&storage, 1, &readers, (1, 0)), Vec::<String>::new());
        let table = TableReference::default();
        let mut writer = Writer::open(storage, settings, table, (&begin, 0), readers).unwrap();
        writer.confirm().unwrap();
        Journal { writer, is_disk_full }
    }

    fn shared(&self) -> &Arc<JournalState<Faulty>> {
        self.writer.shared()
    }

    /// Appends an entry in a frame of its own, and makes it durable.
    fn append(&mut self) -> Result<(), JournalError> {
        let mut frame = self.writer.buffer();
        frame.push(&Entry::RunEnded { epoch: 1, at: WallNanos(self.writer.next_lsn()) });
        self.writer.append(frame)?;
        self.shared().announce(self.writer.next_lsn() - 1);
        Ok(self.shared().sync_and_announce()?)
    }

    /// Appends entries, which the database applies at once, and prepares segments.
    fn run(&mut self, entries: u64) {
        for _ in 0..entries {
            self.append().unwrap();
            self.shared().release(self.shared().durable());
            while !self.shared().prepare().unwrap() {}
        }
    }

    fn follow(&self, name: &str, position: Option<u64>) -> Follower<Faulty> {
        Follower::new(self.shared(), name, position).unwrap()
    }

    fn segments(&self) -> usize {
        numbers(self.shared().storage()).unwrap().len()
    }

    fn status(&self, name: &str) -> ReaderStatus {
        self.shared().readers().status().into_iter().find(|status| status.name == name).unwrap()
    }
}

/// Reads to the end: the numbers of the entries, and `Err` with the bounds of a lapse.
fn read(follower: &mut Follower<Faulty>) -> Vec<Result<u64, (u64, u64)>> {
    let (mut read, mut entries) = (Vec::new(), Vec::new());
    loop {
        match follower.read(&mut entries) {
            Ok(None) => return read,
            Ok(Some(_)) => read.extend(entries.drain(..).map(|entry| match entry {
                Entry::RunEnded { at, .. } => Ok(at.0),
                other => panic!("{other:?} was not written"),
            })),
            Err(ReadError::Lapsed { first_lsn, next_lsn }) => read.push(Err((first_lsn, next_lsn))),
            Err(error) => panic!("{error}"),
        }
    }
}

fn all(lsns: std::ops::RangeInclusive<u64>) -> Vec<Result<u64, (u64, u64)>> {
    lsns.map(Ok).collect()
}

#[test]
fn segment_is_kept_until_every_reader_released_it() {
    let mut journal = Journal::new(64, &[("a", UNBOUNDED), ("b", UNBOUNDED)]);
    journal.run(80);
    assert!(journal.segments() >= 20);
    let (mut a, mut b) = (journal.follow("a", None), journal.follow("b", None));
    assert_eq!(read(&mut a), all(1..=80));
    a.release(80).unwrap();
    journal.run(8);
    assert!(journal.segments() >= 22, "the other reader holds all");
    assert_eq!(read(&mut b), all(1..=88));
    b.release(60).unwrap();
    journal.run(8);
    assert_eq!(read(&mut b), all(89..=96));
    b.release(96).unwrap();
    a.release(96).unwrap();
    assert_eq!(journal.status("a").released, 80, "what it has not read is not released");
    read(&mut a);
    a.release(96).unwrap();
    journal.run(8);
    assert!(journal.segments() <= 5, "{} segments are left", journal.segments());
    assert_eq!((journal.status("a").lapses, journal.status("b").lapses), (0, 0));
}

#[test]
fn journal_is_not_full_of_what_is_kept() {
    // The reader's bound is ten times that of the journal.
    let mut journal = Journal::new(4, &[("a", 40 * SEGMENT)]);
    journal.run(120);
    assert!(journal.segments() >= 30);
    // The database's own bound holds as without a reader.
    let full = (0..40).find_map(|_| journal.append().err()).expect("the database applies nothing");
    assert!(matches!(full, JournalError::Full { .. }), "{full}");
    assert_eq!(journal.status("a").lapses, 0);
    assert_eq!(read(&mut journal.follow("a", None)).first(), Some(&Ok(1)));
    // The journal is used again as far as its bound permits, and no further.
    journal.shared().readers().release(0, 120);
    let needed = journal.shared().needed_by_database();
    let _ = journal.shared().prepare();
    assert!(journal.segments() as u64 <= needed + 2);
}

/// Also where the flusher is late, so that the committer makes each segment itself.
#[test]
fn bound_is_the_same_without_preparation() {
    let fill = |prepares: bool| {
        let mut journal = Journal::new(3, &[]);
        let mut entries = 0;
        while journal.append().is_ok() {
            entries += 1;
            let _ = prepares.then(|| journal.shared().prepare());
        }
        (entries, journal.segments())
    };
    let (entries, segments) = fill(true);
    assert!(entries > 8 && segments == 3, "{entries} entries in {segments} segments");
    assert_eq!(fill(false), (entries, segments));
}

/// The committer needs a segment while the flusher makes one, and makes it itself: two of them do not fit.
#[test]
fn bound_holds_while_the_flusher_is_late() {
    let mut journal = Journal::of_segments(2 * ZEROES_BYTES as u64, 3, &[]);
    while journal.segments() < 2 {
        journal.append().unwrap();
    }
    assert_eq!(journal.shared().prepare().ok(), Some(false), "a part of a segment");
    while journal.segments() < 3 {
        journal.append().unwrap();
    }
    // The last part, which the flusher began before that.
    assert!(matches!(journal.shared().extend_unfinished(), Err(JournalError::Full { .. })));
    assert!(matches!(journal.shared().prepare(), Err(JournalError::Full { .. })));
    while journal.append().is_ok() {}
    let names = journal.shared().storage().names().unwrap();
    assert_eq!(names.iter().filter(|name| name.starts_with("segment")).count(), 3, "{names:?}");
}

#[test]
fn reader_beyond_its_bound_lapses_once_and_goes_on() {
    let mut journal = Journal::new(64, &[("a", 3 * SEGMENT), ("b", UNBOUNDED)]);
    let mut a = journal.follow("a", None);
    journal.run(4);
    assert_eq!(read(&mut a), all(1..=4));
    a.release(2).unwrap();
    journal.run(36);
    let status = journal.status("a");
    assert_eq!((status.lapses, status.missed_from, status.is_lapsed), (1, 3, true));
    let found = read(&mut a);
    let Some(Err((5, next_lsn))) = found.first() else { panic!("{found:?}") };
    assert_eq!(found[1..], all(*next_lsn..=40));
    assert!((40 - next_lsn) / 4 >= 2, "it kept what it may keep");
    assert_eq!(status.released + 1, *next_lsn);
    a.release(40).unwrap();
    assert!(!journal.status("a").is_lapsed);
    assert_eq!(journal.status("b").lapses, 0);
    assert_eq!(read(&mut journal.follow("b", None)), all(1..=40));
}

#[test]
fn reader_that_has_read_ahead_misses_nothing() {
    let mut journal = Journal::new(64, &[("a", 0)]);
    let mut a = journal.follow("a", None);
    for lsn in 1..=40 {
        journal.run(1);
        assert_eq!(read(&mut a), all(lsn..=lsn));
    }
    assert!(journal.status("a").is_lapsed, "it has released nothing");
    a.release(40).unwrap();
    assert!(!journal.status("a").is_lapsed);
}

#[test]
fn full_disk_takes_what_is_kept() {
    let mut journal = Journal::new(64, &[("a", UNBOUNDED)]);
    journal.run(40);
    journal.is_disk_full.store(true, Ordering::Relaxed);
    for _ in 0..40 {
        // The preparation fails, and takes nothing from the reader by itself.
        journal.append().unwrap();
        journal.shared().release(journal.shared().durable());
        let _ = journal.shared().prepare();
    }
    let status = journal.status("a");
    assert!(status.is_lapsed && status.missed_from == 1, "{status:?}");
    journal.is_disk_full.store(false, Ordering::Relaxed);
    let found = read(&mut journal.follow("a", None));
    let Some(Err((1, next_lsn))) = found.first() else { panic!("{found:?}") };
    assert_eq!(found[1..], all(*next_lsn..=80));
}

#[test]
fn given_up_segments_go() {
    let mut journal = Journal::new(64, &[("a", UNBOUNDED)]);
    journal.run(80);
    assert!(journal.segments() >= 20);
    // What the database needs stays.
    (0..8).for_each(|_| journal.append().unwrap());
    journal.shared().give_up_kept();
    while !journal.shared().prepare().unwrap() {}
    assert!(journal.segments() <= 6, "{} segments are left", journal.segments());
    let found = read(&mut journal.follow("a", None));
    assert_eq!(found[0], Err((1, 81)));
    assert_eq!(found[1..], all(81..=88));
}

#[test]
fn position_decides_where_a_reader_begins() {
    let mut journal = Journal::new(64, &[("a", UNBOUNDED)]);
    journal.run(40);
    let a = journal.follow("a", Some(30));
    assert_eq!(a.next_lsn(), 31);
    let again = Follower::new(journal.shared(), "a", None).err();
    assert!(matches!(again, Some(FollowError::Followed(_))), "{again:?}");
    let unknown = Follower::new(journal.shared(), "c", None).err();
    assert!(matches!(unknown, Some(FollowError::Unknown(_))), "{unknown:?}");
    drop(a);
    let ahead = Follower::new(journal.shared(), "a", Some(41)).err();
    assert!(matches!(ahead, Some(FollowError::Ahead { last_lsn: 40, .. })), "{ahead:?}");
    // What is still there is held again.
    assert_eq!(read(&mut journal.follow("a", Some(20))), all(21..=40));
    journal.follow("a", Some(40));
    journal.run(20);
    let found = read(&mut journal.follow("a", Some(3)));
    let Some(Err((4, next_lsn))) = found.first() else { panic!("{found:?}") };
    assert_eq!(found[1..], all(*next_lsn..=60));
}

/// A release of fewer entries replaced the stored position, and the next start found entries missing that the
/// reader had released.
#[test]
fn stored_position_goes_back_by_following_alone() {
    let mut journal = Journal::new(64, &[("a", UNBOUNDED)]);
    journal.run(20);
    // As a start finds it, which has no other reader.
    let stored = |journal: &Journal| {
        let readers = Readers::new(&[ReaderSettings { name: "a".to_owned(), kept_bytes_max: 0 }]).unwrap();
        assert_eq!(positions::place(journal.shared().storage(), 1, &readers, (1, 20)), Vec::<String>::new());
        readers.status()[0].released
    };
    let mut a = journal.follow("a", None);
    read(&mut a);
    a.release(15).unwrap();
    a.release(9).unwrap();
    assert_eq!((journal.status("a").released, stored(&journal)), (15, 15));
    drop(a);
    // Its store was restored: what it has now counts.
    drop(journal.follow("a", Some(9)));
    assert_eq!((journal.status("a").released, stored(&journal)), (9, 9));
}

#[test]
fn closed_journal_stores_no_position() {
    let mut journal = Journal::new(64, &[("a", UNBOUNDED)]);
    journal.run(4);
    let mut a = journal.follow("a", None);
    read(&mut a);
    journal.shared().end_readers();
    let error = a.release(4).unwrap_err();
    assert!(error.to_string().contains("the ledger was closed"), "{error}");
    assert_eq!(journal.status("a").released, 0);
}

#[test]
fn names_are_told_apart() {
    let settings = |name: &str| ReaderSettings { name: name.to_owned(), kept_bytes_max: 0 };
    let refused = |names: &[&str]| {
        let settings: Vec<ReaderSettings> = names.iter().map(|name| settings(name)).collect();
        Readers::new(&settings).is_err()
    };
    assert!(!refused(&["a", "b-2_c"]));
    for names in [&["a", "a"][..], &["sqlite"], &[""], &["A"], &["a b"], &["a\n"], &[&"a".repeat(33)]] {
        assert!(refused(names), "{names:?}");
    }
    let many: Vec<String> = (0..=READERS_MAX).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(!refused(&many[1..]) && refused(&many));
}
