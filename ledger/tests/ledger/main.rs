//! The ledger from outside: flows are counted and closed, ledgers killed, copied, lost or damaged, and then
//! the bill is compared.
//!
//! `fixture.rs` is the ledger of a test, `barrier.rs` has questions right after a barrier, `losses.rs` has
//! files that are missing or older at a start, `numbers.rs` has the numbers of accounts, `quotas.rs` has
//! grants and notices, `readers.rs` has further readers of the journal, `versions.rs` has ledgers of earlier
//! versions, `later_version.rs` has journals of later ones.
//!
//! Guarantees: each test has its own directories for the ledger and the live table, and no test depends on
//! the speed of a thread.
//! Not handled here: failing disks and power (`src/simulation`), real kills (`tollgate/tests/crash`).

#![forbid(unsafe_code)]

mod barrier;
mod earlier;
mod fixture;
mod later_version;
mod losses;
mod numbers;
mod quotas;
mod readers;
mod versions;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;

use ledger::SqliteUsage;
use ledger::live_table::SLOT_BYTES;
use ledger::query::{Filter, Usage};
use ledger::{Durability, Ledger, LedgerError, OpenError, OpenSettings, RecoverError, Recovery};

use fixture::{
    Bill, Fixture, bill, billed, close, close_ledger, copy_files, count, identity, open, run_flow,
};

/// Many flows at a time in each thread, with fewer slots than flows, so that slots are reused.
fn flows_of_threads(durability: Durability) {
    const THREADS: usize = 4;
    const FLOWS: u128 = 2_000;
    let fixture = Fixture::new();
    let settings = OpenSettings { durability, ..fixture.settings(THREADS, 64) };
    let (ledger, writers) = Ledger::open(&settings).unwrap();
    let threads = writers.into_iter().zip(0_u128..).map(|(mut writer, thread)| {
        thread::spawn(move || {
            let mut flows = Vec::new();
            for number in 0..FLOWS {
                while !writer.has_capacity_for(1) {
                    thread::yield_now();
                }
                let mut flow = open(&mut writer, thread << 64 | number);
                count(&mut writer, &mut flow, 1 + number as usize, 5 << 20);
                flows.push(flow);
                if flows.len() == 32 {
                    flows.drain(..).for_each(|mut flow| {
                        count(&mut writer, &mut flow, 1_000, 5 << 20);
                        close(&mut writer, flow);
                    });
                }
            }
            flows.into_iter().for_each(|flow| close(&mut writer, flow));
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let summary = ledger.close().unwrap();
    assert_eq!(summary.records, THREADS as u64 * FLOWS as u64);
    let again = FLOWS - FLOWS % 32;
    let expected = |number: u128| match number < again {
        true => (1_001 + number as u64, 10 << 20, "client_closed".to_owned()),
        false => (1 + number as u64, 5 << 20, "client_closed".to_owned()),
    };
    let all = (0..THREADS as u128).flat_map(|thread| (0..FLOWS).map(move |number| (thread, number)));
    let expected: Bill = all.map(|(thread, number)| (thread << 64 | number, expected(number))).collect();
    assert!(fixture.bill() == expected, "some flow is billed differently");
    assert!(fixture.live_tables().is_empty(), "a table without flows is removed");
}

#[test]
fn flows_of_threads_are_billed_exactly() {
    flows_of_threads(Durability::Delayed);
}

#[test]
fn flows_of_threads_are_billed_exactly_synced() {
    flows_of_threads(Durability::Sync);
}

#[test]
fn open_flows_are_billed_by_the_next_start() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    run_flow(&mut writer, 1, 10, 20);
    let mut flow = open(&mut writer, 2);
    count(&mut writer, &mut flow, 300, 9 << 20);
    let _untouched = open(&mut writer, 3);
    close_ledger(ledger, writer);
    assert_eq!(fixture.live_tables().len(), 1);
    let recovery = fixture.restart();
    let expected = Recovery { epoch: 2, killed: 2, table: true, ..recovery.clone() };
    assert_eq!((recovery.clone(), recovery.damaged, recovery.corruption), (expected, 0, None));
    let expected = [(1, 10, 20, "client_closed"), (2, 300, 9 << 20, "killed"), (3, 0, 0, "killed")];
    assert_eq!(fixture.bill(), billed(&expected));
    assert_eq!(fixture.restart().killed, 0);
    assert_eq!(fixture.bill(), billed(&expected));
}

/// The bytes of the first slot in the file of a live table, behind a page of header.
const FIRST_SLOT: Range<usize> = 4096..4096 + SLOT_BYTES as usize;

#[test]
fn interrupted_call_is_reported_as_uncertain() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 1);
    count(&mut writer, &mut flow, 100, 200);
    let table = fixture.live_tables().remove(0);
    let mut during = Vec::new();
    let taken = writer.counters(&mut flow).up().1.around(77, || {
        during = fs::read(&table)?;
        Ok(0)
    });
    assert_eq!(taken.unwrap(), 0);
    close_ledger(ledger, writer);
    // Only the slot is as it was: a whole table from before the last interim would be an older copy.
    let mut at_end = fs::read(&table).unwrap();
    assert!(at_end[FIRST_SLOT] != during[FIRST_SLOT], "the call has ended");
    at_end[FIRST_SLOT].copy_from_slice(&during[FIRST_SLOT]);
    fs::write(&table, at_end).unwrap();
    assert_eq!(fixture.restart().uncertain, 77);
    assert_eq!(fixture.bill(), billed(&[(1, 100, 200, "killed")]));
    let flows = SqliteUsage::open(&fixture.directory()).unwrap().flows(&Filter::default(), 9).unwrap();
    assert_eq!((flows[0].uncertain_up, flows[0].uncertain_down), (77, 0));
}

#[test]
fn full_table_refuses_and_slots_are_reused() {
    let fixture = Fixture::new();
    let (ledger, mut writers) = Ledger::open(&fixture.settings(2, 4)).unwrap();
    let writer = &mut writers[0];
    for round in 0..50 {
        let mut flows: Vec<_> = (1..=4).map(|number| open(writer, round * 10 + number)).collect();
        assert!(!writer.has_capacity_for(1));
        assert!(writer.open(&identity(u128::MAX, "ci")).is_none());
        count(writer, &mut flows[3], 1, 2);
        flows.into_iter().for_each(|flow| close(writer, flow));
        while writer.unjournaled() > 0 {
            thread::yield_now();
        }
    }
    assert!(writers[1].has_capacity_for(1), "each thread has slots of its own");
    close_ledger(ledger, writers);
    assert_eq!(fixture.bill().len(), 200);
}

#[test]
fn second_owner_is_refused() {
    let fixture = Fixture::new();
    let (ledger, writer) = fixture.open();
    let refusal = fixture.refusal();
    assert!(matches!(refusal, OpenError::Locked { .. }), "{refusal}");
    assert!(refusal.to_string().contains(&format!("process {}", std::process::id())), "{refusal}");
    close_ledger(ledger, writer);
    fixture.restart();
}

#[test]
fn dropped_ledger_is_finished_by_the_next_start() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    (1..=9).for_each(|id| run_flow(&mut writer, id, id as usize, 0));
    drop((ledger, writer));
    fixture.restart();
    let expected: Vec<_> = (1..=9).map(|id| (id, id as u64, 0, "client_closed")).collect();
    assert_eq!(fixture.bill(), billed(&expected));
}

#[test]
fn consecutive_starts_have_increasing_epochs() {
    let fixture = Fixture::new();
    let epochs: Vec<u32> = (0..5).map(|_| fixture.restart().epoch).collect();
    assert_eq!(epochs, [1, 2, 3, 4, 5]);
}

/// A copy of the ledger's directory, as an operator makes it while the gateway runs.
fn copy(fixture: &Fixture) -> PathBuf {
    let copy = fixture.0.path().join("copy");
    ledger::backup::backup(&fixture.directory(), &copy).unwrap();
    fs::copy(fixture.directory().join("identity"), copy.join("identity")).unwrap();
    copy_files(&fixture.journal(), &copy.join("journal"));
    copy
}

#[test]
fn copy_in_use_is_refused_then_becomes_a_new_ledger() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    run_flow(&mut writer, 1, 10, 20);
    close_ledger(ledger, writer);
    let (ledger, mut writer) = fixture.open();
    let _open = open(&mut writer, 2);
    let copy = copy(&fixture);
    let settings = OpenSettings { directory: copy.clone(), ..fixture.settings(1, 16) };
    let refusal = Ledger::open(&settings).err().expect("the copy is refused");
    assert!(matches!(refusal, OpenError::TableInUse { .. }), "{refusal}");
    // As the refusal advises.
    assert!(refusal.to_string().contains("Remove `identity` and `journal` from the copy"), "{refusal}");
    fs::remove_file(copy.join("identity")).unwrap();
    fs::remove_dir_all(copy.join("journal")).unwrap();
    let (other, mut others) = Ledger::open(&settings).unwrap();
    assert_eq!((other.recovery().epoch, other.recovery().killed), (1, 0));
    run_flow(&mut others[0], 3, 30, 40);
    close_ledger(other, others);
    close_ledger(ledger, writer);
    fixture.restart();
    let shared = (1, 10, 20, "client_closed");
    assert_eq!(fixture.bill(), billed(&[shared, (2, 0, 0, "killed")]));
    assert_eq!(bill(&copy), billed(&[shared, (3, 30, 40, "client_closed")]));
}

fn flipped(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] ^= 4;
    bytes
}

#[test]
fn damaged_live_table_is_reported_and_kept() {
    let cases: [fn(Vec<u8>) -> Vec<u8>; 6] = [
        |_| b"garbage".to_vec(),
        |_| Vec::new(),
        |table| table[..9_000].to_vec(),
        |table| flipped(table, 8),
        |table| flipped(table, 16),
        |table| flipped(table, 60),
    ];
    for damage in cases {
        let (fixture, table) = killed_fixture();
        let damaged = damage(fs::read(&table).unwrap());
        fs::write(&table, &damaged).unwrap();
        let recovery = fixture.restart();
        assert_eq!((recovery.damaged_tables, recovery.killed), (1, 0));
        assert_eq!(fs::read(table.with_extension("damaged")).unwrap(), damaged);
        assert_eq!(fixture.restart().damaged_tables, 0, "it is reported once");
    }
}

#[test]
fn live_table_of_a_later_version_is_refused() {
    let (fixture, table) = killed_fixture();
    let whole = fs::read(&table).unwrap();
    let mut other = whole.clone();
    other[8] = 4;
    let check = crc32c::crc32c(&other[..56]);
    other[56..60].copy_from_slice(&check.to_le_bytes());
    fs::write(&table, other).unwrap();
    let refusal = fixture.refusal();
    assert!(matches!(refusal, OpenError::Table { .. }), "{refusal}");
    assert!(refusal.to_string().contains("later version"), "{refusal}");
    fs::write(&table, &whole).unwrap();
    assert_eq!(fixture.restart().killed, 1);
    assert_eq!(fixture.bill(), billed(&[(7, 70, 0, "killed")]));
}

/// A ledger that was closed with an open flow, and its live table.
fn killed_fixture() -> (Fixture, PathBuf) {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 7);
    count(&mut writer, &mut flow, 70, 0);
    close_ledger(ledger, writer);
    let table = fixture.live_tables().remove(0);
    (fixture, table)
}

#[test]
fn journal_of_another_gateway_is_refused() {
    let (fixture, (other, table)) = (Fixture::new(), killed_fixture());
    let before = fs::read(&table).unwrap();
    fixture.restart();
    fs::rename(fixture.journal(), fixture.directory().join("journal-own")).unwrap();
    copy_files(&other.journal(), &fixture.journal());
    let refusal = fixture.refusal();
    assert!(matches!(refusal, OpenError::Recover(RecoverError::Foreign { .. })), "{refusal}");
    assert!(fs::read(&table).unwrap() == before, "the table that the journal names was changed");
    fs::remove_dir_all(fixture.journal()).unwrap();
    fs::rename(fixture.directory().join("journal-own"), fixture.journal()).unwrap();
    assert_eq!(fixture.restart().epoch, 2);
}

#[test]
fn lost_identity_is_restored_from_the_journal() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 7);
    count(&mut writer, &mut flow, 70, 0);
    close_ledger(ledger, writer);
    let path = fixture.directory().join("identity");
    let identity = fs::read(&path).unwrap();
    for damaged in ["", "gateway", "gateway 123456789", "gateway xyz"] {
        fs::write(&path, damaged).unwrap();
        assert!(matches!(fixture.refusal(), OpenError::Directory { .. }), "{damaged}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(fixture.restart().killed, 1);
    assert_eq!(fs::read(&path).unwrap(), identity, "the journal has it too");
    assert_eq!(fixture.bill(), billed(&[(7, 70, 0, "killed")]));
}

fn remove_database(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().contains(".db") {
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn lost_databases_are_rebuilt_from_the_journal() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    (1..=5).for_each(|id| run_flow(&mut writer, id, 10 * id as usize, 1));
    let _open = open(&mut writer, 6);
    close_ledger(ledger, writer);
    let before = fixture.bill();
    assert_eq!(before.len(), 5);
    remove_database(&fixture.directory());
    let recovery = fixture.restart();
    assert_eq!((recovery.epoch, recovery.killed), (2, 1));
    let mut expected = before;
    expected.insert(6, (0, 0, "killed".to_owned()));
    assert_eq!(fixture.bill(), expected);
}

#[test]
fn ledger_continues_without_its_journal() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    run_flow(&mut writer, 1, 10, 20);
    let mut flow = open(&mut writer, 2);
    count(&mut writer, &mut flow, 30, 40);
    close_ledger(ledger, writer);
    fs::remove_dir_all(fixture.journal()).unwrap();
    let (ledger, mut writer) = fixture.open();
    assert_eq!((ledger.recovery().epoch, ledger.recovery().killed), (2, 1));
    run_flow(&mut writer, 3, 50, 60);
    close_ledger(ledger, writer);
    fixture.restart();
    let expected = [(1, 10, 20, "client_closed"), (2, 30, 40, "killed"), (3, 50, 60, "client_closed")];
    assert_eq!(fixture.bill(), billed(&expected));
}

/// Locks the database until the connection is dropped.
fn locked(fixture: &Fixture) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(fixture.directory().join("ledger.db")).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

/// Waits until all journaled entries are applied, at least one.
fn wait_until_applied(ledger: &Ledger) {
    loop {
        let status = ledger.status();
        if status.applied == status.appended && status.applied > 1 {
            return;
        }
        thread::yield_now();
    }
}

/// More than the bytes that request an interim.
const MOVED: usize = 9 << 20;

#[test]
fn unapplied_final_in_the_journal_is_not_lost() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 7);
    count(&mut writer, &mut flow, MOVED, 0);
    wait_until_applied(&ledger);
    let lock = locked(&fixture);
    close(&mut writer, flow);
    while writer.unjournaled() > 0 {
        thread::yield_now();
    }
    drop((ledger, writer, lock));
    let recovery = fixture.restart();
    assert_eq!((recovery.lost, recovery.killed, recovery.closed), (0, 0, 0));
    assert_eq!(fixture.bill(), billed(&[(7, MOVED as u64, 0, "client_closed")]));
}

#[test]
fn open_flow_without_its_table_is_lost_once() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 7);
    count(&mut writer, &mut flow, MOVED, 0);
    wait_until_applied(&ledger);
    close_ledger(ledger, writer);
    fixture.live_tables().iter().for_each(|table| fs::remove_file(table).unwrap());
    let recovery = fixture.restart();
    assert_eq!((recovery.table, recovery.lost), (false, 1));
    assert_eq!(fixture.restart().lost, 0);
    assert_eq!(fixture.bill(), billed(&[(7, MOVED as u64, 0, "lost")]));
}

/// Ends flows while the database is locked, until the journal is full and they take all slots. Returns the
/// number of all, and of those that a close leaves in the table; `None` if it left none, because a checkpoint
/// from before the lock released a segment meanwhile.
fn fill_journal(fixture: &Fixture, settings: &OpenSettings) -> Option<(u128, u64)> {
    let (ledger, mut writers) = Ledger::open(settings).unwrap();
    let (writer, user) = (&mut writers[0], "u".repeat(64));
    let _lock = locked(fixture);
    let mut id = 0;
    // What is left of the last segment has no room for so many.
    loop {
        let Some(mut flow) = writer.open(&identity(id + 1, &user)) else {
            if ledger.status().is_stuck { break } else { continue }
        };
        id += 1;
        count(writer, &mut flow, 1, id as usize);
        close(writer, flow);
    }
    assert!(ledger.status().failing.unwrap().contains("journal_max"));
    let error = ledger.close().unwrap_err();
    assert!(error.to_string().contains("the database cannot be written"), "{error}");
    let LedgerError::Unjournaled { flows, without_slot, cause, .. } = &error else { return None };
    assert!(*without_slot == 0 && cause.contains("journal_max"), "{error}");
    (*flows > 0).then_some((id, *flows))
}

#[test]
fn full_journal_keeps_flows_in_the_table() {
    let settings_of =
        |fixture: &Fixture| OpenSettings { journal_bytes_max: 2 << 20, ..fixture.settings(1, 1024) };
    let (fixture, (id, flows)) = loop {
        let fixture = Fixture::new();
        if let Some(filled) = fill_journal(&fixture, &settings_of(&fixture)) {
            break (fixture, filled);
        }
    };
    let settings = settings_of(&fixture);
    assert_eq!(fixture.live_tables().len(), 1);
    // The journal is as full as before, and yet can be opened.
    let (ledger, writers) = Ledger::open(&settings).unwrap();
    assert_eq!((ledger.recovery().closed, ledger.recovery().killed), (flows, 0));
    close_ledger(ledger, writers);
    let expected: Bill = (1..=id).map(|id| (id, (1, id as u64, "client_closed".to_owned()))).collect();
    assert!(fixture.bill() == expected, "some flow is billed differently");
}
