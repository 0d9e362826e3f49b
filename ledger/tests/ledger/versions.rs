//! Ledgers that earlier versions of the program wrote: this one starts on them and bills the same.
//!
//! `testdata/README.md` says what each has and how it was made.

use std::fs;
use std::path::Path;

use ledger::repair::inspect;
use ledger::{Ledger, OpenSettings};

use super::earlier::{SEGMENT_CRC, expected, unpacked, usage};
use super::fixture::{Fixture, close_ledger, copy_files, run_flow};
use super::losses::wait_for;

#[test]
fn stopped_ledger_is_continued() {
    let name = "version-1-stopped";
    let fixture = unpacked(name);
    let recovery = fixture.restart();
    assert_eq!((recovery.killed, recovery.lost, recovery.table_missing), (0, 0, false), "{recovery:?}");
    assert_eq!(usage(&fixture), expected(name));
}

#[test]
fn killed_ledger_is_recovered_to_the_byte() {
    let name = "version-1-killed";
    let fixture = unpacked(name);
    let recovery = fixture.restart();
    assert!(recovery.table && recovery.killed == 4 && recovery.entries > 0, "{recovery:?}");
    assert!(fixture.live_tables().is_empty());
    assert_eq!(usage(&fixture), expected(name));
}

/// As after a power failure: what is in the table alone is lost, and nothing else.
#[test]
fn killed_ledger_without_its_table_has_what_was_journaled() {
    let name = "version-1-killed";
    let fixture = unpacked(name);
    fixture.live_tables().iter().for_each(|table| fs::remove_file(table).unwrap());
    let recovery = fixture.restart();
    assert!(recovery.table_missing && recovery.lost > 0, "{recovery:?}");
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (found, whole) = (lines(usage(&fixture)), lines(expected(name)));
    assert_eq!(found.len(), whole.len());
    for (found, whole) in found.iter().zip(&whole) {
        let sums =
            |line: &str| -> Vec<u64> { line.split('\t').skip(3).map(|sum| sum.parse().unwrap()).collect() };
        assert!(sums(found).iter().zip(&sums(whole)).all(|(found, whole)| found <= whole), "{found} {whole}");
    }
}

/// Segments of both versions: a start on those of version 1 is killed before the database has them.
#[test]
fn killed_migration_is_continued() {
    let name = "version-1-killed";
    let fixture = unpacked(name);
    let database = fixture.directory().join("ledger.db");
    let killed = Fixture::new();
    {
        let (ledger, mut writer) = fixture.open();
        let lock = rusqlite::Connection::open(&database).unwrap();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        let before = ledger.status().durable;
        run_flow(&mut writer, 1, 10, 20);
        wait_for(|| ledger.status().durable > before);
        copy_files(&fixture.directory(), &killed.directory());
        copy_files(&fixture.tables(), &killed.tables());
        drop(lock);
        close_ledger(ledger, writer);
    }
    killed.restart();
    let without = |text: String| -> Vec<String> {
        text.lines().filter(|line| !line.contains("\tci\t")).map(str::to_owned).collect()
    };
    for fixture in [fixture, killed] {
        assert_eq!(without(usage(&fixture)), without(expected(name)));
        assert_eq!(fixture.bill()[&1], (10, 20, "client_closed".to_owned()));
    }
}

/// The month has entries that `ledger.db` lacks: the last version was killed between the two commits. Sums of
/// single flows cannot be removed from a month, and counted by hour beside sums by quarter-hour.
#[test]
fn month_ahead_of_an_older_ledger_db_counts_as_the_sums_do() {
    let name = "version-1-killed";
    for has_aggregates in [false, true] {
        let fixture = unpacked(name);
        remove_database(&fixture, "ledger.db");
        let older = unpacked("version-1-stopped");
        fs::copy(older.directory().join("ledger.db"), fixture.directory().join("ledger.db")).unwrap();
        if has_aggregates {
            add_aggregate(&fixture.directory().join("usage-202611.db"));
        }
        fixture.restart();
        assert_eq!(usage(&fixture), expected(name), "aggregates: {has_aggregates}");
    }
}

/// Adds sums of no flow to a month of version 2.
fn add_aggregate(month: &Path) {
    let hour = 1_795_680_000 / 3600_i64;
    let texts = ["bob", "external", "example.com"];
    let mut sealed = [&[1][..], &hour.to_le_bytes()].concat();
    for text in texts {
        sealed.extend([&[3][..], &text.len().to_le_bytes(), text.as_bytes()].concat());
    }
    sealed.extend([&[1][..], &[0; 8]].concat().repeat(5));
    let connection = rusqlite::Connection::open(month).unwrap();
    let insert = "INSERT INTO aggregate VALUES (?1, ?2, ?3, ?4, 0, 0, 0, 0, 0, ?5)";
    let values = (hour, texts[0], texts[1], texts[2], crc32c::crc32c(&sealed));
    connection.execute(insert, values).unwrap();
}

#[test]
fn lost_ledger_db_is_made_again_before_and_after_the_migration() {
    let name = "version-1-killed";
    for is_migrated in [false, true] {
        let fixture = unpacked(name);
        if is_migrated {
            fixture.restart();
        }
        remove_database(&fixture, "ledger.db");
        fixture.restart();
        assert_eq!(usage(&fixture), expected(name), "migrated: {is_migrated}");
    }
}

#[test]
fn lost_month_is_made_again_before_and_after_the_migration() {
    let name = "version-1-killed";
    for month in ["usage-202610.db", "usage-202611.db"] {
        for is_migrated in [false, true] {
            let fixture = unpacked(name);
            if is_migrated {
                fixture.restart();
            }
            remove_database(&fixture, month);
            fixture.restart();
            assert_eq!(usage(&fixture), expected(name), "{month}, migrated: {is_migrated}");
        }
    }
}

/// Removes a database and the files that SQLite keeps beside it.
fn remove_database(fixture: &Fixture, name: &str) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(fixture.directory().join(format!("{name}{suffix}")));
    }
}

/// The version before can still use what was refused.
#[test]
fn start_refused_for_a_later_version_migrates_nothing() {
    let fixture = unpacked("version-1-killed");
    let segment = fixture.journal().join("segment-000000000001");
    let mut later = fs::read(&segment).unwrap();
    later[8] = 3;
    let crc = crc32c::crc32c(&later[..SEGMENT_CRC]);
    later[SEGMENT_CRC..SEGMENT_CRC + 4].copy_from_slice(&crc.to_le_bytes());
    fs::write(&segment, later).unwrap();
    let refusal = fixture.refusal().to_string();
    assert!(refusal.contains("version 3 of the journal"), "{refusal}");
    let database = rusqlite::Connection::open(fixture.directory().join("ledger.db")).unwrap();
    let version: i64 = database.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 4);
}

/// Two databases of version 4: a file, and a log that continues a later one.
fn mismatch(path: &Path) -> Vec<u8> {
    let older = fs::read(path).unwrap();
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    let number: i64 = connection.query_row("SELECT number FROM log_begun", [], |row| row.get(0)).unwrap();
    let sealed = [1_i64, number + 7].map(|value| [&[1][..], &value.to_le_bytes()].concat()).concat();
    let put = "UPDATE log_begun SET number = ?1, crc = ?2";
    connection.execute(put, (number + 7, crc32c::crc32c(&sealed))).unwrap();
    let log = path.with_file_name(format!("{}-wal", path.file_name().unwrap().display()));
    let newer = fs::read(&log).unwrap();
    drop(connection);
    fs::write(path, older).unwrap();
    fs::write(log, &newer).unwrap();
    newer
}

/// The log was copied into the file, and both were migrated, before the start compared them.
#[test]
fn older_file_beside_newer_log_is_refused_before_its_migration() {
    for name in ["ledger.db", "usage-202611.db"] {
        let fixture = unpacked("version-1-stopped");
        let path = fixture.directory().join(name);
        let older = fs::read(&path).unwrap();
        let log = mismatch(&path);
        let refusal = fixture.refusal().to_string();
        assert!(refusal.contains("of different moments"), "{refusal}");
        assert_eq!(fs::read(&path).unwrap(), older, "{name}");
        assert_eq!(fs::read(path.with_file_name(format!("{name}-wal"))).unwrap(), log, "{name}");
        let settings = OpenSettings { accept_loss: Some("root".to_owned()), ..fixture.settings(1, 64) };
        let (ledger, writers) = Ledger::open(&settings).unwrap();
        close_ledger(ledger, writers);
        let report = ledger::verify::verify(&fixture.directory()).unwrap();
        assert!(report.is_clean() && report.accepted.len() == 1, "{report:?}");
    }
}

/// The first row of `rollup_hour`.
const FIRST_HOUR: &str = "(hour, user, class) = (SELECT hour, user, class FROM rollup_hour LIMIT 1)";

/// A ledger of version 4 whose `ledger.db` was changed without its checksums.
fn damaged(sql: &str) -> Fixture {
    let fixture = unpacked("version-1-killed");
    let connection = rusqlite::Connection::open(fixture.directory().join("ledger.db")).unwrap();
    connection.execute_batch(sql).unwrap();
    fixture
}

/// Starts with consent; returns the accepted losses. Nothing else is wrong then.
fn accepted(fixture: &Fixture) -> Vec<String> {
    let settings = OpenSettings { accept_loss: Some("root".to_owned()), ..fixture.settings(1, 64) };
    let (ledger, writers) = Ledger::open(&settings).unwrap();
    close_ledger(ledger, writers);
    let report = ledger::verify::verify(&fixture.directory()).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    report.accepted
}

/// A start refused it, and a repair asked for a start.
#[test]
fn damaged_hour_is_restored_from_its_day() {
    for column in ["up", "flows", "uncertain_down", "crc"] {
        let fixture = damaged(&format!("UPDATE rollup_hour SET {column} = {column} + 1 WHERE {FIRST_HOUR}"));
        let recovery = fixture.restart();
        assert!(recovery.notes.iter().any(|note| note.contains("were restored")), "{:?}", recovery.notes);
        assert_eq!(usage(&fixture), expected("version-1-killed"), "{column}");
    }
}

#[test]
fn damaged_days_lose_nothing() {
    let fixture = damaged("UPDATE rollup_day SET up = up + 1");
    fixture.restart();
    assert_eq!(usage(&fixture), expected("version-1-killed"));
}

#[test]
fn damaged_hour_that_no_day_has_is_left_out_with_consent() {
    let damage = "UPDATE rollup_hour SET up = up + 1 WHERE ";
    let fixture = damaged(&format!("UPDATE rollup_day SET up = up + 1; {damage} {FIRST_HOUR}"));
    let path = fixture.directory().join("ledger.db");
    let before = fs::read(&path).unwrap();
    let refusal = fixture.refusal().to_string();
    assert!(refusal.contains("they are left out") && refusal.contains("repair"), "{refusal}");
    let found = inspect(&fixture.settings(1, 64)).unwrap();
    assert!(refusal.contains(&found.losses.0[0].to_string()), "{found:?}");
    assert_eq!(fs::read(&path).unwrap(), before);
    let accepted = accepted(&fixture);
    assert!(accepted.len() == 1 && accepted[0].contains("they are left out"), "{accepted:?}");
    let (found, whole) = (usage(&fixture), expected("version-1-killed"));
    let whole: Vec<&str> = whole.lines().collect();
    let differing = found.lines().filter(|line| !whole.contains(line)).count();
    assert!(whole.len() - found.lines().count() + differing == 1, "{found}");
}

#[test]
fn damaged_key_of_an_hour_counts_in_its_day_with_consent() {
    let fixture = damaged(&format!("UPDATE rollup_hour SET user = 'another' WHERE {FIRST_HOUR}"));
    let refusal = fixture.refusal().to_string();
    assert!(refusal.contains("in the last one of their day"), "{refusal}");
    assert_eq!(accepted(&fixture).len(), 2, "the claimed row, and the real one");
    let by_user = |text: String| {
        let mut sums = std::collections::BTreeMap::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            *sums.entry(fields[1].to_owned()).or_insert(0) += fields[4].parse::<u64>().unwrap();
        }
        sums
    };
    assert_eq!(by_user(usage(&fixture)), by_user(expected("version-1-killed")));
}

/// As in a database of this version: it is set aside, and made again from the months.
#[test]
fn damaged_open_flow_is_refused_then_used_by_repair() {
    for table in ["live", "run"] {
        let fixture = damaged(&format!("UPDATE {table} SET crc = crc + 1"));
        let found = inspect(&fixture.settings(1, 64)).unwrap();
        assert!(found.losses.0[0].to_string().contains(&format!("a row of `{table}`")), "{found:?}");
        let refusal = fixture.refusal().to_string();
        assert!(refusal.contains("ledger.db is damaged"), "{refusal}");
        assert_eq!(accepted(&fixture).len(), 1);
    }
}
