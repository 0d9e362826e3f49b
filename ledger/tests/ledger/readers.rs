//! A further reader of the journal over restarts.
//!
//! Guarantees: each test waits for segments that must go, which a wrong hold of others would keep too.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ledger::entry::Entry;
use ledger::{
    FlowWriter, FollowError, FollowReadError, Follower, Ledger, OpenError, OpenSettings, ReaderSettings,
};

use crate::fixture::{Fixture, close_ledger, copy_files, run_flow};

/// A ledger whose segments have at most 15 frames of one flow each.
struct Journal {
    fixture: Fixture,
    /// What may be kept for the reader; `None` if it is not registered.
    kept_bytes_max: Option<u64>,
    next_flow: u128,
}

const READER: &str = "archive";
const UNBOUNDED: u64 = u64::MAX;
/// What precedes the entries of a frame.
const FRAME_HEADER_BYTES: usize = 64;

impl Journal {
    fn new() -> Journal {
        Journal { fixture: Fixture::new(), kept_bytes_max: Some(UNBOUNDED), next_flow: 1 }
    }

    fn open(&self) -> (Ledger, FlowWriter) {
        let name = READER.to_owned();
        let reader = self.kept_bytes_max.map(|kept_bytes_max| ReaderSettings { name, kept_bytes_max });
        let readers = reader.into_iter().collect();
        let settings = OpenSettings { segment_bytes: 64 << 10, readers, ..self.fixture.settings(1, 64) };
        let (ledger, mut writers) = Ledger::open(&settings).unwrap();
        (ledger, writers.remove(0))
    }

    /// Runs flows until `is_done`.
    fn run_until(&mut self, ledger: &Ledger, writer: &mut FlowWriter, mut is_done: impl FnMut() -> bool) {
        for _ in 0..2_000 {
            if is_done() {
                return;
            }
            let before = ledger.status().durable;
            run_flow(writer, self.next_flow, 10, 20);
            self.next_flow += 1;
            while ledger.status().durable == before {
                thread::sleep(Duration::from_millis(1));
            }
            // Segments are released by checkpoints, one in a second.
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the condition did not become true with {} flows", self.next_flow);
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.fixture.journal().join(format!("segment-{number:012}"))
    }

    /// The numbers of the first and the last segment.
    fn segments(&self) -> (u64, u64) {
        let names = fs::read_dir(self.fixture.journal()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let numbers = names.filter_map(|name| name.strip_prefix("segment-")?.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        (*numbers.iter().min().unwrap(), *numbers.iter().max().unwrap())
    }

    /// Runs flows until segment `number` exists, in a run of its own.
    fn run_beyond_segment(&mut self, number: u64) {
        let (ledger, mut writer) = self.open();
        let later = self.segment(number);
        self.run_until(&ledger, &mut writer, || later.exists());
        close_ledger(ledger, writer);
    }
}

/// Reads to the end; returns how many finals there were, and the first lapse.
fn read(follower: &mut Follower) -> (usize, Option<(u64, u64)>) {
    let (mut entries, mut lapse) = (Vec::new(), None);
    loop {
        match follower.read(&mut entries) {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(FollowReadError::Lapsed { first_lsn, next_lsn }) => lapse = Some((first_lsn, next_lsn)),
            Err(error) => panic!("{error}"),
        }
    }
    (entries.iter().filter(|entry| matches!(entry, Entry::Final(_))).count(), lapse)
}

#[test]
fn start_keeps_what_a_reader_needs() {
    let mut journal = Journal::new();
    journal.run_beyond_segment(6);
    let (ledger, mut writer) = journal.open();
    let mut follower = ledger.follow(READER, None).unwrap();
    assert_eq!(read(&mut follower), (journal.next_flow as usize - 1, None));
    let released = follower.next_lsn() / 2;
    follower.release(released).unwrap();
    drop(follower);
    // Segments that it has released go, also before it has read the others.
    let first = journal.segment(1);
    journal.run_until(&ledger, &mut writer, || !first.exists());
    close_ledger(ledger, writer);

    for _ in 0..2 {
        let (ledger, mut writer) = journal.open();
        let later = journal.segment(journal.segments().1 + 3);
        journal.run_until(&ledger, &mut writer, || later.exists());
        let mut follower = ledger.follow(READER, None).unwrap();
        assert_eq!(follower.next_lsn(), released + 1);
        let (_, lapse) = read(&mut follower);
        assert_eq!(lapse, None);
        assert_eq!(ledger.status().readers[0].released, released);
        drop(follower);
        close_ledger(ledger, writer);
    }

    // Without its registration it holds nothing.
    journal.kept_bytes_max = None;
    let held = journal.segments().0;
    let (ledger, mut writer) = journal.open();
    assert!(matches!(ledger.follow(READER, None), Err(FollowError::Unknown(_))));
    let (held, next) = (journal.segment(held), journal.segment(held + 1));
    journal.run_until(&ledger, &mut writer, || !held.exists() && !next.exists());
    close_ledger(ledger, writer);

    // It comes back: what it missed meanwhile is said.
    journal.kept_bytes_max = Some(UNBOUNDED);
    let (ledger, writer) = journal.open();
    let missed = released + 1;
    let notes = &ledger.recovery().notes;
    assert!(notes.iter().any(|note| note.contains(&format!("misses entry {missed}:"))), "{notes:?}");
    let status = ledger.status().readers.remove(0);
    assert_eq!((status.name.as_str(), status.missed_from, status.lapses), (READER, missed, 1));
    let mut follower = ledger.follow(READER, None).unwrap();
    let (_, lapse) = read(&mut follower);
    assert!(matches!(lapse, Some((first, next)) if first == missed && next > missed), "{lapse:?}");
    drop(follower);
    close_ledger(ledger, writer);
}

#[test]
fn unreadable_positions_stop_no_start() {
    let mut journal = Journal::new();
    journal.run_beyond_segment(3);
    let file = journal.fixture.journal().join("readers");
    let whole = fs::read(&file).unwrap();
    let mut cases: Vec<Vec<u8>> = vec![Vec::new(), vec![0; 100], whole[..whole.len() - 1].to_vec()];
    cases.push(b"tollgate readers 2\ncrc 00000000\n".to_vec());
    // The file of another ledger.
    let mut other = Journal::new();
    other.run_beyond_segment(2);
    cases.push(fs::read(other.fixture.journal().join("readers")).unwrap());
    for case in cases {
        fs::write(&file, &case).unwrap();
        let (ledger, writer) = journal.open();
        assert!(ledger.recovery().notes.iter().any(|note| note.contains("`readers`")));
        let mut follower = ledger.follow(READER, None).unwrap();
        assert_eq!(read(&mut follower), (journal.next_flow as usize - 1, None), "{case:?}");
        drop(follower);
        close_ledger(ledger, writer);
    }
    // A directory of its name, which cannot be replaced: nothing is released, and nothing fails.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let (ledger, writer) = journal.open();
    let mut follower = ledger.follow(READER, None).unwrap();
    assert_eq!(read(&mut follower), (journal.next_flow as usize - 1, None));
    let released = ledger.status().readers[0].released;
    follower.release(follower.next_lsn() - 1).unwrap_err();
    assert_eq!(ledger.status().readers[0].released, released);
    drop(follower);
    close_ledger(ledger, writer);
}

#[test]
fn position_beyond_the_journal_is_refused() {
    let mut journal = Journal::new();
    journal.run_beyond_segment(2);
    let (backup, earlier) = (journal.fixture.0.path().join("backup"), journal.next_flow as usize - 1);
    copy_files(&journal.fixture.directory(), &backup);
    journal.run_beyond_segment(4);
    let (ledger, writer) = journal.open();
    let ahead = ledger.follow(READER, Some(1_000_000)).err();
    assert!(matches!(ahead, Some(FollowError::Ahead { position: 1_000_000, .. })), "{ahead:?}");
    let mut follower = ledger.follow(READER, None).unwrap();
    assert_eq!(read(&mut follower), (journal.next_flow as usize - 1, None));
    follower.release(follower.next_lsn() - 1).unwrap();
    drop(follower);
    close_ledger(ledger, writer);
    // The ledger of an earlier moment, beside the position of a later one.
    let positions = journal.fixture.journal().join("readers");
    let later = fs::read(&positions).unwrap();
    fs::remove_dir_all(journal.fixture.directory()).unwrap();
    copy_files(&backup, &journal.fixture.directory());
    fs::write(positions, later).unwrap();
    let (ledger, writer) = journal.open();
    let notes = &ledger.recovery().notes;
    assert!(notes.iter().any(|note| note.contains("the journal ends at")), "{notes:?}");
    let mut follower = ledger.follow(READER, None).unwrap();
    assert_eq!(follower.next_lsn(), 1);
    assert_eq!(read(&mut follower), (earlier, None));
    drop(follower);
    close_ledger(ledger, writer);
}

#[test]
fn damage_names_the_hole_and_where_to_go_on() {
    let mut journal = Journal::new();
    journal.run_beyond_segment(6);
    // The database has these entries, so that a start does not miss them. Of three frames, of which not all
    // are without entries, nothing is left; of three others the entries are damaged.
    let files = [journal.segment(2), journal.segment(3)];
    let [mut lost, mut flipped] = files.each_ref().map(|file| fs::read(file).unwrap());
    lost[8 << 10..20 << 10].fill(0);
    for block in [8, 12, 16] {
        flipped[(block << 10) + FRAME_HEADER_BYTES] ^= 1;
    }
    fs::write(&files[0], lost).unwrap();
    fs::write(&files[1], flipped).unwrap();
    let (ledger, writer) = journal.open();
    let (mut position, mut holes, mut entries) = (None, 0, Vec::new());
    loop {
        let mut follower = ledger.follow(READER, position).unwrap();
        let error = loop {
            match follower.read(&mut entries) {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let Some(FollowReadError::Damaged { first_lsn, next_lsn, cause }) = error else {
            assert!(error.is_none(), "{error:?}");
            break;
        };
        let segment = format!("damaged in segment {} at byte", 2 + holes);
        assert!(cause.contains(&segment), "{cause}");
        assert!(first_lsn < next_lsn && position.is_none_or(|position| first_lsn > position), "{cause}");
        // It does not go on by itself, nor does another handle from the same position.
        let again = follower.read(&mut entries).unwrap_err();
        let text = format!("follow from position {}", next_lsn - 1);
        assert!(again.to_string().starts_with(&cause) && again.to_string().ends_with(&text), "{again}");
        follower.release(first_lsn - 1).unwrap();
        (position, holes) = (Some(next_lsn - 1), holes + 1);
    }
    assert_eq!(holes, 2);
    let finals = entries.iter().filter(|entry| matches!(entry, Entry::Final(_))).count();
    let missing = journal.next_flow as usize - 1 - finals;
    assert!((1..=6).contains(&missing), "{missing} flows are missing");
    close_ledger(ledger, writer);
}

#[test]
fn closed_ledger_is_not_released() {
    let mut journal = Journal::new();
    journal.run_beyond_segment(2);
    let (ledger, writer) = journal.open();
    let mut follower = ledger.follow(READER, None).unwrap();
    read(&mut follower);
    close_ledger(ledger, writer);
    let before = fs::read(journal.fixture.journal().join("readers")).unwrap();
    follower.release(follower.next_lsn() - 1).unwrap_err();
    assert_eq!(fs::read(journal.fixture.journal().join("readers")).unwrap(), before);
}

#[test]
fn two_readers_of_one_name_are_refused() {
    let fixture = Fixture::new();
    let reader = ReaderSettings { name: READER.to_owned(), kept_bytes_max: 0 };
    let settings = OpenSettings { readers: vec![reader.clone(), reader], ..fixture.settings(1, 64) };
    assert!(matches!(Ledger::open(&settings), Err(OpenError::Readers(_))));
}
