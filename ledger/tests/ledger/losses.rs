//! Files that are missing, older, cut, or another ledger's: what a start reports, and what a repair leaves.
//!
//! Guarantees: each test knows what every flow moved. A wrong bill is reported by a refusal, by the start, or
//! by `verify`.
//! Not handled here: random damage under a real gateway (`tollgate/tests/damage`).

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ledger::SqliteUsage;
use ledger::query::{Filter, GroupBy, Usage};
use ledger::repair::{examine, inspect, repair};
use ledger::{Ledger, Loss, OpenError, OpenSettings, Recovery};
use sys::clock::WallNanos;

use crate::fixture::{Bill, Fixture, bill, billed, close, close_ledger, copy_files, count, open, run_flow};
use crate::{flipped, locked};

/// The month in which [`crate::fixture::close`] closes flows.
const MONTH: &str = "usage-202605.db";

/// A ledger of 60 flows whose journal lacks its beginning: its first segments were reused.
fn recycled_fixture() -> Fixture {
    let fixture = Fixture::new();
    run_flows_until_recycled(&fixture, 1..=60);
    fixture
}

/// Runs flows with small segments, each flow in a frame of its own, until the first segment was reused.
fn run_flows_until_recycled(fixture: &Fixture, ids: RangeInclusive<u128>) {
    let (ledger, mut writers) = Ledger::open(&small_segments(fixture)).unwrap();
    let writer = &mut writers[0];
    let middle = ids.start() + 30;
    for id in ids {
        if id == middle {
            // Applied entries have a checkpoint a second later.
            std::thread::sleep(Duration::from_millis(1500));
        }
        let before = ledger.status().durable;
        run_flow(writer, id, 10, 20);
        wait_for(|| ledger.status().durable > before);
    }
    let first = fixture.journal().join("segment-000000000001");
    wait_for(|| !first.exists());
    close_ledger(ledger, writers);
}

fn small_segments(fixture: &Fixture) -> OpenSettings {
    OpenSettings { segment_bytes: 64 << 10, ..fixture.settings(1, 64) }
}

/// The same files in another fixture, as after a kill of the gateway.
pub(crate) fn copied(fixture: &Fixture) -> Fixture {
    let copy = Fixture::new();
    copy_files(&fixture.directory(), &copy.directory());
    copy_files(&fixture.tables(), &copy.tables());
    copy
}

/// The files of a killed ledger with 20 closed flows and an open one, all journaled.
fn killed_fixture() -> Fixture {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    (1..=20).for_each(|id| run_flow(&mut writer, id, 10, 20));
    let mut flow = open(&mut writer, 21);
    count(&mut writer, &mut flow, 70, 80);
    wait_for(|| ledger.status().durable >= 20);
    let killed = copied(&fixture);
    close(&mut writer, flow);
    close_ledger(ledger, writer);
    killed
}

pub(crate) fn wait_for(mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the condition did not become true within 10 s");
}

/// The last entry of a run with 20 flows, of which each has one: the first says that the run began.
const ALL_APPLIED: u64 = 21;

fn all_flows(killed: bool) -> Bill {
    let mut flows: Vec<_> = (1..=20).map(|id| (id, 10, 20, "client_closed")).collect();
    flows.extend(killed.then_some((21, 70, 80, "killed")));
    billed(&flows)
}

fn losses(fixture: &Fixture) -> Vec<Loss> {
    let reported = inspect(&fixture.settings(1, 64)).unwrap().losses;
    match fixture.refusal() {
        OpenError::Incomplete(losses) => {
            assert_eq!(losses, reported, "an inspection and a start report the same");
            losses.0
        }
        other => panic!("{other}"),
    }
}

fn repaired(fixture: &Fixture) -> Recovery {
    assert!(!examine(&fixture.settings(1, 64)).unwrap().losses.0.is_empty());
    let (copy, recovery) = repair(&fixture.settings(1, 64), "root", WallNanos(7)).unwrap();
    assert!(copy.is_dir());
    recovery
}

/// The accepted losses that `verify` lists.
fn accepted(fixture: &Fixture) -> Vec<String> {
    let report = ledger::verify::verify(&fixture.directory()).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    report.accepted
}

fn remove(directory: &Path, file: &str) {
    for name in [file.to_owned(), format!("{file}-wal"), format!("{file}-shm")] {
        let _ = fs::remove_file(directory.join(name));
    }
}

/// The segments that were begun, in order.
pub(crate) fn begun_segments(fixture: &Fixture) -> Vec<PathBuf> {
    let mut segments: Vec<PathBuf> =
        fs::read_dir(fixture.journal()).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| fs::read(path).unwrap().starts_with(b"TOLLJRNL"));
    segments.sort();
    segments
}

#[test]
fn missing_month_is_rebuilt_from_the_journal() {
    let fixture = killed_fixture();
    fixture.restart();
    remove(&fixture.directory(), MONTH);
    let recovery = fixture.restart();
    assert!(recovery.notes.iter().any(|note| note.contains(MONTH)), "{:?}", recovery.notes);
    assert_eq!(fixture.bill(), all_flows(true));
}

#[test]
fn older_month_is_rebuilt_from_the_journal() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    run_flow(&mut writer, 1, 10, 20);
    close_ledger(ledger, writer);
    let old = fs::read(fixture.directory().join(MONTH)).unwrap();
    let (ledger, mut writer) = fixture.open();
    (2..=20).for_each(|id| run_flow(&mut writer, id, 10, 20));
    close_ledger(ledger, writer);
    fs::write(fixture.directory().join(MONTH), old).unwrap();
    assert!(!fixture.restart().notes.is_empty());
    assert_eq!(fixture.bill(), all_flows(false));
}

#[test]
fn unrecoverable_month_is_refused_and_loss_recorded() {
    let fixture = recycled_fixture();
    remove(&fixture.directory(), MONTH);
    assert!(matches!(&losses(&fixture)[..], [Loss::Missing { file, .. }] if file == MONTH));
    repaired(&fixture);
    assert_eq!(accepted(&fixture).len(), 1);
    let usage = SqliteUsage::open(&fixture.directory()).unwrap();
    assert_eq!(usage.total(&Filter::default()).unwrap().flows, 60, "the sums are kept");
    assert_eq!(usage.rows(&Filter::default(), &[GroupBy::Host]).unwrap().missing, ["2026-05"]);
    fixture.restart();
    assert_eq!(accepted(&fixture).len(), 1);
}

#[test]
fn missing_ledger_db_is_rebuilt_from_its_months() {
    let fixture = recycled_fixture();
    let before = fixture.bill();
    remove(&fixture.directory(), "ledger.db");
    assert!(matches!(losses(&fixture)[..], [Loss::Between { applied: 0, first_lsn: 2.. }]));
    repaired(&fixture);
    assert_eq!(fixture.bill(), before);
    assert_eq!(SqliteUsage::open(&fixture.directory()).unwrap().total(&Filter::default()).unwrap().up, 600);
    assert_eq!(accepted(&fixture).len(), 1);
}

#[test]
fn older_ledger_db_catches_up_by_months_and_journal() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 99);
    count(&mut writer, &mut flow, 9 << 20, 0);
    wait_for(|| ledger.status().applied >= 2);
    let old = copied(&fixture);
    count(&mut writer, &mut flow, 5, 5);
    close(&mut writer, flow);
    close_ledger(ledger, writer);
    run_flows_until_recycled(&fixture, 1..=60);
    let before = fixture.bill();
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        remove(&fixture.directory(), name);
        if old.directory().join(name).exists() {
            fs::copy(old.directory().join(name), fixture.directory().join(name)).unwrap();
        }
    }
    assert!(matches!(losses(&fixture)[..], [Loss::Between { applied: 1.., .. }]), "{:?}", losses(&fixture));
    repaired(&fixture);
    assert_eq!(fixture.bill(), before);
}

/// How many logs were begun beside a database, by the header of the last one (SQLite's file format, 4.1). A
/// query would keep the log from beginning anew.
fn logs_begun(file: &Path) -> u32 {
    let log = fs::read(format!("{}-wal", file.display())).unwrap_or_default();
    log.get(12..16).map_or(0, |number| 1 + u32::from_be_bytes(number.try_into().unwrap()))
}

/// As after `ledger.db` was restored from a copy, and its newer log stayed beside it.
#[test]
fn older_database_beside_newer_log_is_rebuilt() {
    for name in ["ledger.db", MONTH] {
        let fixture = Fixture::new();
        let (ledger, mut writer) = fixture.open();
        let file = fixture.directory().join(name);
        let mut older = None;
        for id in 1..=20 {
            // Read before the flow: once its log is copied, nothing begins another one.
            let before = logs_begun(&file).max(1);
            run_flow(&mut writer, id, 10, 20);
            if [1, 10].contains(&id) {
                // The next log begins when the checkpoint is complete; until then a copy of the file is torn.
                wait_for(|| logs_begun(&file) > before);
                older.get_or_insert_with(|| fs::read(&file).unwrap());
            }
        }
        wait_for(|| ledger.status().applied >= ALL_APPLIED);
        let mixed = copied(&fixture);
        close_ledger(ledger, writer);
        fs::write(mixed.directory().join(name), older.unwrap()).unwrap();
        match &losses(&mixed)[..] {
            [Loss::Damaged { file, text }] => {
                assert_eq!(file, name);
                assert!(text.contains("of different moments"), "{text}");
            }
            others => panic!("{others:?}"),
        }
        repaired(&mixed);
        let is_whole = mixed.bill() == all_flows(false);
        assert_eq!(is_whole, name == "ledger.db", "{:?}", mixed.bill());
        assert_eq!(accepted(&mixed).len(), 1);
    }
}

#[test]
fn missing_databases_are_refused() {
    let fixture = recycled_fixture();
    remove(&fixture.directory(), "ledger.db");
    remove(&fixture.directory(), MONTH);
    assert!(matches!(losses(&fixture)[..], [Loss::Between { applied: 0, .. }]));
    repaired(&fixture);
    assert_eq!(accepted(&fixture).len(), 1, "the accepted loss is listed");
}

#[test]
fn missing_journal_end_is_detected_after_a_kill() {
    type Cut = fn(&Path);
    let cuts: [(&str, Cut); 4] = [
        ("deleted", |path| fs::remove_file(path).unwrap()),
        ("cut to nothing", |path| fs::write(path, "").unwrap()),
        ("zeros", |path| fs::write(path, vec![0; 1 << 20]).unwrap()),
        ("cut behind its header", |path| {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
        }),
    ];
    for (kind, cut) in cuts {
        let fixture = Fixture::new();
        let (ledger, mut writer) = fixture.open();
        // The database is locked: only the journal has the following entries.
        let lock = rusqlite::Connection::open(fixture.directory().join("ledger.db")).unwrap();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        (1..=20).for_each(|id| run_flow(&mut writer, id, 10, 20));
        wait_for(|| ledger.status().durable >= 20 && ledger.status().waiting == 0);
        let killed = copied(&fixture);
        lock.execute_batch("COMMIT").unwrap();
        drop(lock);
        close_ledger(ledger, writer);
        cut(begun_segments(&killed).last().unwrap());
        println!("{kind}");
        let lost = losses(&killed);
        assert!(
            lost.iter().any(|loss| matches!(
                loss,
                Loss::JournalEnd { last_lsn: Some(20..), .. } | Loss::Journal { .. }
            )),
            "{kind}: {lost:?}"
        );
        repaired(&killed);
        assert!(!accepted(&killed).is_empty(), "{kind}");
        assert_eq!(killed.restart().epoch, 3, "{kind}");
    }
}

#[test]
fn missing_live_table_is_reported_after_a_kill() {
    let fixture = killed_fixture();
    fixture.live_tables().iter().for_each(|path| fs::remove_file(path).unwrap());
    assert!(fixture.restart().table_missing);
    assert!(!fixture.restart().table_missing, "once");
    let reported = accepted(&fixture);
    assert!(
        matches!(&reported[..], [text] if text.contains("live table of the last run is missing")),
        "{reported:?}"
    );
}

#[test]
fn older_live_table_is_not_trusted() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 1);
    count(&mut writer, &mut flow, 70, 80);
    let early = copied(&fixture);
    close(&mut writer, flow);
    for id in 2..=20 {
        run_flow(&mut writer, id, 10, 20);
        wait_for(|| ledger.status().durable >= id as u64);
    }
    let killed = copied(&fixture);
    close_ledger(ledger, writer);
    let (old, table) = (early.live_tables().remove(0), killed.live_tables().remove(0));
    fs::copy(old, table).unwrap();
    let recovery = killed.restart();
    assert_eq!(recovery.damaged_tables, 1, "{recovery:?}");
    assert_eq!(killed.bill().get(&1), Some(&(70, 80, "client_closed".to_owned())), "once, and whole");
}

#[test]
fn zeroed_slots_count_as_damaged() {
    let fixture = killed_fixture();
    let table = fixture.live_tables().remove(0);
    let mut bytes = fs::read(&table).unwrap();
    bytes[4096..].fill(0);
    fs::write(&table, bytes).unwrap();
    assert!(fixture.restart().damaged > 0);
}

#[test]
fn databases_of_another_ledger_are_refused() {
    let (fixture, other) = (recycled_fixture(), recycled_fixture());
    for file in ["ledger.db", MONTH] {
        let damaged = copied(&fixture);
        remove(&damaged.directory(), file);
        fs::copy(other.directory().join(file), damaged.directory().join(file)).unwrap();
        let lost = losses(&damaged);
        assert!(matches!(&lost[..], [Loss::Foreign { file: found, .. }] if found == file), "{lost:?}");
        repaired(&damaged);
        assert_eq!(accepted(&damaged).len(), 1);
        let total = SqliteUsage::open(&damaged.directory()).unwrap().total(&Filter::default()).unwrap();
        assert_eq!((total.flows, total.up), (60, 600), "{file}");
    }
}

#[test]
fn backup_restores_with_and_without_identity() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    run_flow(&mut writer, 1, 10, 20);
    let mut flow = open(&mut writer, 2);
    count(&mut writer, &mut flow, 9 << 20, 40);
    wait_for(|| ledger.status().applied >= 3);
    let copies = tempfile::tempdir().unwrap();
    let target = copies.path().join("backup");
    ledger::backup::backup(&fixture.directory(), &target).unwrap();
    close(&mut writer, flow);
    close_ledger(ledger, writer);
    for with_identity in [false, true] {
        let restored = Fixture::new();
        copy_files(&target, &restored.directory());
        if with_identity {
            fs::copy(fixture.directory().join("identity"), restored.directory().join("identity")).unwrap();
        }
        let (ledger, mut writer) = restored.open();
        run_flow(&mut writer, 3, 50, 60);
        close_ledger(ledger, writer);
        let shared = [(1, 10, 20, "client_closed"), (2, 9 << 20, 40, "lost"), (3, 50, 60, "client_closed")];
        assert_eq!(restored.bill(), billed(&shared), "with its identity: {with_identity}");
        assert!(accepted(&restored)[0].contains("restored from the backup of"), "{:?}", accepted(&restored));
        // A backup is marked once: a journal that is missing later is detected.
        let (ledger, mut writer) = restored.open();
        let flow = open(&mut writer, 4);
        let killed = copied(&restored);
        close(&mut writer, flow);
        close_ledger(ledger, writer);
        fs::remove_dir_all(killed.journal()).unwrap();
        killed.live_tables().iter().for_each(|path| fs::remove_file(path).unwrap());
        assert!(matches!(losses(&killed)[..], [Loss::Journal { .. }]), "{:?}", losses(&killed));
    }
}

#[test]
fn missing_identity_and_journal_are_detected() {
    let fixture = recycled_fixture();
    let before = fixture.bill();
    fs::remove_file(fixture.directory().join("identity")).unwrap();
    fs::remove_dir_all(fixture.journal()).unwrap();
    assert!(matches!(losses(&fixture)[..], [Loss::Identity { .. }]), "{:?}", losses(&fixture));
    repaired(&fixture);
    assert_eq!(fixture.bill(), before);
}

#[test]
fn usage_includes_unapplied_journal_entries() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 50);
    count(&mut writer, &mut flow, 9 << 20, 1);
    wait_for(|| ledger.status().applied >= 2);
    let lock = rusqlite::Connection::open(fixture.directory().join("ledger.db")).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    (1..=20).for_each(|id| run_flow(&mut writer, id, 10, 20));
    count(&mut writer, &mut flow, 9 << 20, 1);
    wait_for(|| ledger.status().durable >= 23 && ledger.status().waiting == 0);
    // The next frame proves that they are durable.
    std::thread::sleep(Duration::from_secs(1));
    let sums = |usage: &SqliteUsage, keys: &[GroupBy]| {
        let rows = usage.rows(&Filter::default(), keys).unwrap().rows;
        rows.iter().fold((0, 0, 0, 0), |sum, row| {
            (sum.0 + row.flows, sum.1 + row.live, sum.2 + row.up, sum.3 + row.down)
        })
    };
    assert_eq!(sums(&SqliteUsage::open(&fixture.directory()).unwrap(), &[GroupBy::User]).0, 0);
    let usage = SqliteUsage::open_with_journal(&fixture.directory()).unwrap();
    assert_eq!(usage.completeness().unread.as_deref(), None);
    let expected = (20, 1, (18 << 20) + 200, 402);
    for keys in
        [&[GroupBy::User][..], &[GroupBy::Host], &[GroupBy::Port, GroupBy::Protocol], &[GroupBy::Hour]]
    {
        assert_eq!(sums(&usage, keys), expected, "{keys:?}");
    }
    let total = usage.total(&Filter::default()).unwrap();
    assert_eq!((total.flows, total.live, total.up, total.down), expected);
    drop(usage);
    lock.execute_batch("COMMIT").unwrap();
    drop(lock);
    close(&mut writer, flow);
    close_ledger(ledger, writer);
    let usage = SqliteUsage::open_with_journal(&fixture.directory()).unwrap();
    assert!(!usage.completeness().includes_unapplied);
    assert_eq!(sums(&usage, &[GroupBy::Host]), (21, 0, expected.2, expected.3));
    assert_eq!(bill(&fixture.directory()).len(), 21);
}

#[test]
fn inspecting_an_open_ledger_reports_no_loss() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    for id in 1..200 {
        run_flow(&mut writer, id, 1, 1);
        wait_for(|| writer.has_capacity_for(4));
        let inspection = inspect(&fixture.settings(1, 64)).unwrap();
        assert_eq!((inspection.losses.0, inspection.breaks), (Vec::new(), 0), "{id}");
    }
    close_ledger(ledger, writer);
    Ledger::open(&fixture.settings(1, 64)).map(drop).unwrap();
}

#[test]
fn databases_removed_while_open_are_detected() {
    for file in ["ledger.db", MONTH] {
        let fixture = Fixture::new();
        let (ledger, mut writer) = fixture.open();
        run_flow(&mut writer, 1, 10, 20);
        wait_for(|| ledger.status().applied >= 2);
        remove(&fixture.directory(), file);
        run_flow(&mut writer, 2, 10, 20);
        wait_for(|| ledger.status().failing.is_some());
        let failing = ledger.status().failing.unwrap();
        assert!(failing.contains(file) && failing.contains("was removed"), "{failing}");
        drop(writer);
        let error = ledger.close().unwrap_err().to_string();
        assert!(error.contains("durable in the journal"), "{error}");
        // Here the journal has all entries from the first on: no consent is needed.
        fixture.restart();
        assert_eq!(fixture.bill().len(), 2, "{file}");
    }
}

#[test]
fn segment_removed_while_written_is_rewritten() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    run_flow(&mut writer, 1, 10, 20);
    wait_for(|| ledger.status().applied >= 2);
    fs::remove_file(begun_segments(&fixture).last().unwrap()).unwrap();
    (2..=20).for_each(|id| run_flow(&mut writer, id, 10, 20));
    wait_for(|| ledger.status().applied >= 21 && ledger.status().failing.is_none());
    let killed = copied(&fixture);
    close_ledger(ledger, writer);
    killed.restart();
    assert_eq!(killed.bill(), all_flows(false));
    assert_eq!(fixture.bill(), all_flows(false));
}

#[test]
fn live_table_removed_while_in_use_is_reported() {
    let fixture = Fixture::new();
    let (ledger, writer) = fixture.open();
    assert!(!ledger.status().table_is_missing);
    fixture.live_tables().iter().for_each(|path| fs::remove_file(path).unwrap());
    let status = ledger.status();
    assert!(status.table_is_missing && status.warning.unwrap().contains("was removed while it is in use"));
    let handle = ledger.status_handle();
    close_ledger(ledger, writer);
    assert!(!handle.status().table_is_missing, "closing removes the table too");
}

/// As after an interrupted copy, or with mixed-up directories.
#[test]
fn months_alone_are_refused_then_used_by_repair() {
    let fixture = recycled_fixture();
    let before = fixture.bill();
    remove(&fixture.directory(), "ledger.db");
    remove(&fixture.directory(), "identity");
    fs::remove_dir_all(fixture.journal()).unwrap();
    let lost = losses(&fixture);
    assert!(matches!(&lost[..], [Loss::Missing { file, .. }] if file == "ledger.db"), "{lost:?}");
    let reported = SqliteUsage::open(&fixture.directory()).unwrap_err().to_string();
    assert!(reported.contains("ledger.db is missing"), "{reported}");
    repaired(&fixture);
    assert_eq!(fixture.bill(), before);
    assert_eq!(SqliteUsage::open(&fixture.directory()).unwrap().total(&Filter::default()).unwrap().up, 600);
    assert_eq!(accepted(&fixture).len(), 1);
}

#[test]
fn unfinished_backup_is_refused() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.directory()).unwrap();
    fs::write(fixture.directory().join("ledger.db.partial"), "").unwrap();
    let lost = losses(&fixture);
    assert!(matches!(&lost[..], [Loss::Damaged { file, .. }] if file == "ledger.db.partial"), "{lost:?}");
    repaired(&fixture);
    assert_eq!(accepted(&fixture).len(), 1);
}

#[test]
fn rebuilt_ledger_db_has_sums_of_both_gateways() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    (1..=5).for_each(|id| run_flow(&mut writer, id, 10, 20));
    wait_for(|| ledger.status().applied >= 6);
    let restored = Fixture::new();
    ledger::backup::backup(&fixture.directory(), &restored.directory()).unwrap();
    close_ledger(ledger, writer);
    let (ledger, mut writer) = restored.open();
    (6..=8).for_each(|id| run_flow(&mut writer, id, 10, 20));
    close_ledger(ledger, writer);
    let before = restored.bill();
    assert_eq!(before.len(), 8);
    remove(&restored.directory(), "ledger.db");
    let lost = losses(&restored);
    assert!(matches!(&lost[..], [Loss::Missing { file, .. }] if file == "ledger.db"), "{lost:?}");
    repaired(&restored);
    assert_eq!(restored.bill(), before);
    assert_eq!(SqliteUsage::open(&restored.directory()).unwrap().total(&Filter::default()).unwrap().up, 80);
}

#[test]
fn month_under_another_name_is_refused() {
    let fixture = recycled_fixture();
    let copy = fixture.directory().join("usage-202604.db");
    fs::copy(fixture.directory().join(MONTH), &copy).unwrap();
    remove(&fixture.directory(), "ledger.db");
    let error = repair(&fixture.settings(1, 64), "root", WallNanos(6)).unwrap_err().to_string();
    assert!(error.contains("usage-202604.db has flows of another month: move it"), "{error}");
    fs::remove_file(copy).unwrap();
    repaired(&fixture);
    assert_eq!(SqliteUsage::open(&fixture.directory()).unwrap().total(&Filter::default()).unwrap().up, 600);
}

/// A power failure during the creation of a month leaves a rollback journal of SQLite beside a file without
/// pages. SQLite would roll back the restored file by it.
#[test]
fn stale_rollback_journal_does_not_undo_a_month() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    (1..=20).for_each(|id| run_flow(&mut writer, id, 10, 20));
    wait_for(|| ledger.status().applied >= ALL_APPLIED);
    let killed = copied(&fixture);
    close_ledger(ledger, writer);
    // Magic, no records, no salt, no pages, sectors of 512 bytes, pages of 4,096.
    let mut journal = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7".to_vec();
    [0_u32, 0, 0, 512, 4096].iter().for_each(|field| journal.extend(field.to_be_bytes()));
    journal.resize(512, 0);
    for pages in [0, 8] {
        let failed = copied(&killed);
        remove(&failed.directory(), MONTH);
        fs::write(failed.directory().join(MONTH), vec![0; pages * 4096]).unwrap();
        fs::write(failed.directory().join(format!("{MONTH}-journal")), &journal).unwrap();
        failed.restart();
        assert_eq!(failed.bill(), all_flows(false), "{pages} pages");
        assert_eq!(
            SqliteUsage::open(&failed.directory()).unwrap().total(&Filter::default()).unwrap().flows,
            20
        );
    }
}

/// The month that was lost first has less than the journal, which only the lost `ledger.db` recorded.
#[test]
fn lost_month_and_ledger_db_are_rebuilt_from_journal() {
    let fixture = recycled_fixture();
    remove(&fixture.directory(), MONTH);
    repaired(&fixture);
    let (ledger, mut writer) = fixture.open();
    (61..=65).for_each(|id| run_flow(&mut writer, id, 10, 20));
    close_ledger(ledger, writer);
    remove(&fixture.directory(), "ledger.db");
    let (copy, _) = repair(&fixture.settings(1, 64), "root", WallNanos(8)).unwrap();
    assert!(copy.is_dir());
    let bill = fixture.bill();
    let total = SqliteUsage::open(&fixture.directory()).unwrap().total(&Filter::default()).unwrap();
    assert_eq!((total.flows, total.up), (bill.len() as u64, bill.len() as u64 * 10));
    assert!((60..=65).all(|id| bill.contains_key(&id)), "the journal has the end of the first run: {bill:?}");
}

/// Entries behind the damage get new numbers, and months have them by the old ones.
#[test]
fn damaged_journal_and_lost_ledger_db_bill_once() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    for id in 1..=20 {
        let before = ledger.status().durable;
        run_flow(&mut writer, id, 10, 20);
        wait_for(|| ledger.status().durable > before);
    }
    wait_for(|| ledger.status().applied >= ALL_APPLIED);
    let killed = copied(&fixture);
    close_ledger(ledger, writer);
    let segment = begun_segments(&killed).pop().unwrap();
    let whole = fs::read(&segment).unwrap();
    let is_frame = |at: &usize| whole[*at..].starts_with(b"FRM2");
    let frames: Vec<usize> = (4096..whole.len()).step_by(4096).filter(is_frame).collect();
    for damaged in [frames[8], frames[frames.len() - 2]] {
        let broken = copied(&killed);
        let mut bytes = whole.clone();
        bytes[damaged..damaged + 4096].fill(0);
        fs::write(broken.journal().join(segment.file_name().unwrap()), bytes).unwrap();
        remove(&broken.directory(), "ledger.db");
        repaired(&broken);
        assert_eq!(broken.bill(), all_flows(false), "the month has all flows");
        assert_eq!(
            SqliteUsage::open(&broken.directory()).unwrap().total(&Filter::default()).unwrap().up,
            200
        );
    }
}

/// As after a repair that was killed between the databases and the journal.
#[test]
fn consent_of_an_interrupted_repair_is_recorded() {
    let fixture = killed_fixture();
    fs::write(fixture.directory().join("consents"), "7\t3\t4\troot\tthe month is gone\n").unwrap();
    fixture.restart();
    assert!(!fixture.directory().join("consents").exists());
    let reported = accepted(&fixture);
    assert!(
        matches!(&reported[..], [text] if text.contains("root") && text.contains("the month")),
        "{reported:?}"
    );
}

#[test]
fn copied_live_tables_are_billed_once() {
    let fixture = killed_fixture();
    let table = fixture.live_tables().remove(0);
    let name = table.file_name().unwrap().to_str().unwrap().replace(".live", "0.live");
    fs::copy(&table, table.with_file_name(name)).unwrap();
    assert_eq!(fixture.restart().killed, 1);
    assert_eq!(fixture.bill(), all_flows(true));
    assert_eq!(fixture.live_tables().len(), 0);
}

#[test]
fn directory_stays_locked_without_its_lock_file() {
    let fixture = Fixture::new();
    let (ledger, writer) = fixture.open();
    fs::remove_file(fixture.directory().join("LOCK")).unwrap();
    let refusal = fixture.refusal();
    assert!(matches!(refusal, OpenError::Locked { .. }), "{refusal}");
    close_ledger(ledger, writer);
    fixture.restart();
}

#[test]
fn journal_moved_while_written_is_reported() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    (1..=20).for_each(|id| run_flow(&mut writer, id, 10, 20));
    wait_for(|| ledger.status().durable >= 20 && ledger.status().waiting == 0);
    let moved = fixture.directory().with_file_name("moved");
    fs::rename(fixture.directory(), &moved).unwrap();
    fs::create_dir_all(fixture.journal()).unwrap();
    run_flow(&mut writer, 21, 70, 80);
    wait_for(|| ledger.status().failing.is_some());
    drop(writer);
    ledger.close().unwrap_err();
    assert_eq!(fs::read_dir(fixture.journal()).unwrap().count(), 0);
    fs::remove_dir_all(fixture.directory()).unwrap();
    fs::rename(moved, fixture.directory()).unwrap();
    fixture.restart();
    let mut all = all_flows(false);
    all.insert(21, (70, 80, "client_closed".to_owned()));
    assert_eq!(fixture.bill(), all);
}

#[test]
fn non_file_in_place_of_a_file_is_named() {
    let fixture = recycled_fixture();
    for name in ["segment-000000000900", "identity"] {
        let damaged = copied(&fixture);
        let path = match name {
            "identity" => damaged.directory().join(name),
            _ => damaged.journal().join(name),
        };
        let _ = fs::remove_file(&path);
        fs::create_dir(path).unwrap();
        let refusal = damaged.refusal().to_string();
        assert!(refusal.contains(name) && refusal.contains("it is not a file: remove it"), "{refusal}");
    }
}

#[test]
fn usage_without_a_damaged_row_says_so() {
    let fixture = recycled_fixture();
    let month = rusqlite::Connection::open(fixture.directory().join(MONTH)).unwrap();
    // SQLite returns a damaged row even where a column may not be null.
    month
        .execute_batch(
            "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '');
             -- Without sums by host the rows are read.
             DELETE FROM host_source; DELETE FROM host_day;
             DELETE FROM packed_host_day; DELETE FROM packed_host_month",
        )
        .unwrap();
    drop(month);
    let filter = Filter::default();
    for (damage, rows, flows) in [
        ("SELECT 1", 60, 60),
        ("UPDATE flow SET client_tx = client_tx + (1 << 40) WHERE rowid = 7", 59, 60),
        ("UPDATE flow SET lsn = NULL, crc = NULL WHERE rowid = 8", 58, 60),
        (
            "UPDATE rollup_quarter SET flows = flows + 1; UPDATE rollup_month SET flows = flows + 1;
         UPDATE total_quarter SET flows = flows + 1; UPDATE total_month SET flows = flows + 1",
            58,
            0,
        ),
    ] {
        let file = if damage.contains("rollup") { "ledger.db" } else { MONTH };
        let database = rusqlite::Connection::open(fixture.directory().join(file)).unwrap();
        database.execute_batch(damage).unwrap();
        let is_broken = |query: &dyn Fn(&SqliteUsage) -> u64, due: u64| {
            let usage = SqliteUsage::open(&fixture.directory()).unwrap();
            assert_eq!(query(&usage), due, "{damage}");
            usage.completeness().has_damaged_rows
        };
        assert_eq!(is_broken(&|usage| usage.total(&filter).unwrap().flows, flows), flows < 60);
        let by_host = |usage: &SqliteUsage| {
            let answer = usage.rows(&filter, &[GroupBy::Host]).unwrap();
            assert!(answer.rows.iter().all(|row| row.down < 1 << 30));
            answer.rows.iter().map(|row| row.flows).sum()
        };
        assert_eq!(is_broken(&by_host, rows), rows < 60);
        let listed = |usage: &SqliteUsage| usage.flows(&filter, 100).unwrap().len() as u64;
        assert_eq!(is_broken(&listed, rows), rows < 60);
    }
}

/// Flips a bit of a file.
pub(crate) fn flip(path: &Path, at: usize) {
    fs::write(path, flipped(fs::read(path).unwrap(), at)).unwrap();
}

/// The positions of the frames with entries in a segment.
pub(crate) fn frames_with_entries(segment: &Path) -> Vec<usize> {
    let bytes = fs::read(segment).unwrap();
    let is_frame = |at: &usize| bytes[*at..].starts_with(b"FRM2") && bytes[at + 12..at + 16] != [0; 4];
    (4096..bytes.len()).step_by(4096).filter(is_frame).collect()
}

/// A segment that is not begun has no header with its length. While it was written, it looked cut, and the
/// applier could not read it.
#[test]
fn truncated_spare_segment_is_not_reused() {
    let fixture = recycled_fixture();
    let last = begun_segments(&fixture).pop().unwrap();
    let number: u64 = last.to_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap();
    fs::write(last.with_file_name(format!("segment-{:012}", number + 1)), [0; 8192]).unwrap();
    run_flows_until_recycled(&fixture, 61..=120);
    for segment in begun_segments(&fixture) {
        assert_eq!(fs::metadata(&segment).unwrap().len(), 64 << 10, "{}", segment.display());
    }
    let expected: Vec<_> = (1..=120).map(|id| (id, 10, 20, "client_closed")).collect();
    assert_eq!(fixture.bill(), billed(&expected));
}

/// The database has the entries of the frame. It looked like the journal's end, or the start took what the
/// applier then could not read.
#[test]
fn damaged_frame_that_is_applied_has_no_effect() {
    type Choice = fn(&[usize]) -> usize;
    let cases: [(&str, Choice); 3] = [
        ("a header", |frames| frames[1] + 20),
        ("entries", |frames| frames[1] + 100),
        ("the last header", |frames| frames.last().unwrap() + 20),
    ];
    for (part, byte) in cases {
        let fixture = Fixture::new();
        let (ledger, mut writer) = fixture.open();
        let mut run_flows = |ids: RangeInclusive<u128>| {
            for id in ids {
                let before = ledger.status().durable;
                run_flow(&mut writer, id, 10, 20);
                wait_for(|| ledger.status().durable > before);
            }
        };
        run_flows(1..=10);
        wait_for(|| ledger.status().applied == ledger.status().appended);
        let lock = locked(&fixture);
        let segment = begun_segments(&fixture).pop().unwrap();
        flip(&segment, byte(&frames_with_entries(&segment)));
        run_flows(11..=20);
        let found = inspect(&fixture.settings(1, 64)).unwrap();
        assert!(found.losses.0.is_empty() && found.notes.is_empty(), "{part}: {found:?}");
        let killed = copied(&fixture);
        drop(lock);
        close_ledger(ledger, writer);
        killed.live_tables().iter().for_each(|table| fs::remove_file(table).unwrap());
        assert_eq!(killed.restart().corruption, None, "{part}");
        for fixture in [fixture, killed] {
            assert_eq!(fixture.bill(), all_flows(false), "{part}");
        }
    }
}

/// The files of a killed ledger with 60 closed flows in several segments, which no database has.
pub(crate) fn unapplied_fixture() -> Fixture {
    unapplied(&Fixture::new(), 1..=60)
}

/// The files of a ledger that was killed after it closed flows, in several segments, which no database has.
fn unapplied(fixture: &Fixture, ids: RangeInclusive<u128>) -> Fixture {
    let (ledger, mut writers) = Ledger::open(&small_segments(fixture)).unwrap();
    wait_for(|| ledger.status().applied == ledger.status().appended);
    let lock = locked(fixture);
    for id in ids {
        let before = ledger.status().durable;
        run_flow(&mut writers[0], id, 10, 20);
        wait_for(|| ledger.status().durable > before);
    }
    let killed = copied(fixture);
    drop(lock);
    close_ledger(ledger, writers);
    killed
}

/// The number of flows that `usage` shows, of the journal too.
fn flows_in_usage(fixture: &Fixture) -> u64 {
    let usage = SqliteUsage::open_with_journal(&fixture.directory()).unwrap();
    assert_eq!(usage.completeness().unread.as_deref(), None);
    usage.total(&Filter::default()).unwrap().flows
}

#[test]
fn damaged_header_of_a_segment_takes_no_proved_entry() {
    let fixture = unapplied_fixture();
    let shown = flows_in_usage(&fixture);
    assert!(shown > 50, "{shown}: each frame is proved by the next one");
    let segments = begun_segments(&fixture);
    assert!(segments.len() > 3, "{segments:?}");
    for segment in &segments[..segments.len() - 1] {
        let damaged = copied(&fixture);
        flip(&damaged.journal().join(segment.file_name().unwrap()), 200);
        assert_eq!(flows_in_usage(&damaged), shown, "{}", segment.display());
        damaged.restart();
        let expected: Vec<_> = (1..=60).map(|id| (id, 10, 20, "client_closed")).collect();
        assert_eq!(damaged.bill(), billed(&expected), "{}", segment.display());
    }
}

/// What a start kept of such a segment has other numbers in the next one, and counts there alone.
#[test]
fn entries_of_a_damaged_segment_count_once() {
    let fixture = unapplied_fixture();
    for segment in begun_segments(&fixture) {
        let damaged = copied(&fixture);
        flip(&damaged.journal().join(segment.file_name().unwrap()), 200);
        let (ledger, mut writers) = Ledger::open(&small_segments(&damaged)).unwrap();
        let lock = locked(&damaged);
        for id in 61..=63 {
            let before = ledger.status().durable;
            run_flow(&mut writers[0], id, 10, 20);
            wait_for(|| ledger.status().durable > before);
        }
        let killed = copied(&damaged);
        drop(lock);
        close_ledger(ledger, writers);
        let shown = flows_in_usage(&killed);
        assert!((60..=63).contains(&shown), "{}: {shown}", segment.display());
        killed.restart();
        let expected: Vec<_> = (1..=63).map(|id| (id, 10, 20, "client_closed")).collect();
        for fixture in [damaged, killed] {
            assert_eq!(fixture.bill(), billed(&expected), "{}", segment.display());
        }
    }
}

#[test]
fn usage_without_identity_includes_the_journal() {
    let fixture = unapplied_fixture();
    let shown = flows_in_usage(&fixture);
    fs::remove_file(fixture.directory().join("identity")).unwrap();
    assert_eq!(flows_in_usage(&fixture), shown);
}

/// As its bits are whole, it is no damage, and must not be repaired or written again.
#[test]
fn segment_of_a_later_version_is_refused_unchanged() {
    let fixture = killed_fixture();
    let segment = begun_segments(&fixture).pop().unwrap();
    let whole = fs::read(&segment).unwrap();
    let mut later = whole.clone();
    later[8] = 3;
    let crc = crc32c::crc32c(&later[..4092]);
    later[4092..4096].copy_from_slice(&crc.to_le_bytes());
    fs::write(&segment, &later).unwrap();
    let refusal = fixture.refusal().to_string();
    assert!(refusal.contains("version 3 of the journal"), "{refusal}");
    let accepted = OpenSettings { accept_loss: Some("root".to_owned()), ..fixture.settings(1, 64) };
    assert!(Ledger::open(&accepted).is_err());
    assert_eq!(fs::read(&segment).unwrap(), later);
    fs::write(&segment, &whole).unwrap();
    fixture.restart();
    assert_eq!(fixture.bill(), all_flows(true));
}

/// A frame with an entry of a later version, behind those of this one.
fn add_later_entry(fixture: &Fixture, kind: u8) {
    let segment = begun_segments(fixture).pop().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let last = *frames_with_entries(&segment).last().unwrap();
    let payload_bytes = u32::from_le_bytes(bytes[last + 48..][..4].try_into().unwrap());
    let entry = [&16_u16.to_le_bytes()[..], &[kind, 0], &[7; 12]].concat();
    let behind = last + 64 + payload_bytes as usize;
    bytes[behind..behind + 16].copy_from_slice(&entry);
    let count = u32::from_le_bytes(bytes[last + 12..][..4].try_into().unwrap()) + 1;
    bytes[last + 12..][..4].copy_from_slice(&count.to_le_bytes());
    bytes[last + 48..][..4].copy_from_slice(&(payload_bytes + 16).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[last + 64..behind + 16]);
    bytes[last + 52..][..4].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[last + 8..last + 64]);
    bytes[last + 4..][..4].copy_from_slice(&crc.to_le_bytes());
    // Nothing else is behind it.
    bytes[(behind + 16).next_multiple_of(4096)..].fill(0);
    fs::write(&segment, bytes).unwrap();
}

#[test]
fn entries_of_a_later_version_are_skipped_or_refused_as_they_say() {
    let killed = killed_fixture();
    for (kind, is_skipped) in [(200, true), (100, false)] {
        let fixture = copied(&killed);
        add_later_entry(&fixture, kind);
        if is_skipped {
            fixture.restart();
            assert_eq!(fixture.bill(), all_flows(true));
            continue;
        }
        let refusal = fixture.refusal().to_string();
        assert!(refusal.contains("unknown kind") && refusal.contains("later version"), "{refusal}");
        let accepted = OpenSettings { accept_loss: Some("root".to_owned()), ..fixture.settings(1, 64) };
        assert!(Ledger::open(&accepted).is_err());
    }
}

/// Two copies of a ledger went on with the same epoch and numbers.
#[test]
fn journals_of_two_copies_are_not_mixed() {
    let original = killed_fixture();
    let copies = [copied(&original), copied(&original)].map(|copy| unapplied(&copy, 101..=160));
    let [whole, mixed] = &copies;
    let segment = begun_segments(whole).pop().unwrap();
    fs::copy(&segment, mixed.journal().join(segment.file_name().unwrap())).unwrap();
    let refusal = mixed.refusal().to_string();
    assert!(refusal.contains("two copies"), "{refusal}");
    whole.restart();
    let flows =
        all_flows(true).into_iter().chain((101..=160).map(|id| (id, (10, 20, "client_closed".to_owned()))));
    assert_eq!(whole.bill(), flows.collect());
}

#[test]
fn live_table_of_a_copied_ledger_is_not_billed() {
    let original = killed_fixture();
    let copy = copied(&original);
    let running = copied(&original);
    let taken = [&copy, &running].map(|fixture| {
        let (ledger, mut writer) = fixture.open();
        let mut flow = open(&mut writer, 40);
        count(&mut writer, &mut flow, 10, 20);
        let killed = copied(fixture);
        close(&mut writer, flow);
        close_ledger(ledger, writer);
        killed
    });
    let [copy, running] = taken;
    running.live_tables().iter().for_each(|table| fs::remove_file(table).unwrap());
    copy_files(&copy.tables(), &running.tables());
    let recovery = running.restart();
    assert_eq!((recovery.damaged_tables, recovery.killed), (1, 0), "{recovery:?}");
}
