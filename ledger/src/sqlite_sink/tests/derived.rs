//! Sums that are made of others: in files of the version that had none, beside damage, and as packed values.

use super::hosts::{answers, hourly};
use super::tables::FEBRUARY;
use super::*;
use crate::verify::verify;

/// Takes the migrations behind `version`, which made `tables`, back from a file.
fn take_back(path: &Path, version: i64, tables: &[&str]) {
    let file = Connection::open(path).unwrap();
    for table in tables {
        file.execute_batch(&format!("DROP TABLE {table}")).unwrap();
    }
    file.execute("DELETE FROM migration WHERE version > ?1", [version]).unwrap();
    file.pragma_update(None, "user_version", version).unwrap();
}

const OF_LEDGER: [&str; 8] = [
    "total_day",
    "total_month",
    "packed_quarter",
    "packed_day",
    "packed_month",
    "account_team",
    "quota_grant",
    "quota_notice",
];
const OF_MONTH: [&str; 6] =
    ["row_range", "host", "host_source", "host_day", "packed_host_day", "packed_host_month"];

fn check_clean(store: &Store) {
    let report = verify(store.directory.path()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// A closed ledger with these entries.
fn sealed(entries: &[Entry]) -> Store {
    let mut store = Store::new();
    store.sink.apply(1, 1, entries).unwrap();
    store.sink.seal().unwrap();
    store
}

fn count(connection: &Connection, what: &str) -> i64 {
    connection.query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn ledger_without_derived_sums_is_read_and_migrated() {
    let entries = hourly(200);
    let mut store = sealed(&entries[..150]);
    let expected = answers(store.directory.path());
    let path = store.directory.path().join("ledger.db");
    take_back(&path, 6, &OF_LEDGER);
    assert_eq!(answers(store.directory.path()), expected, "before the migration");
    check_clean(&store);
    store.reopen();
    assert!(count(&store.ledger(), "total_day") > 0 && count(&store.ledger(), "total_month") > 0);
    assert_eq!(answers(store.directory.path()), expected);
    check_clean(&store);
    store.sink.apply(1, 151, &entries[150..]).unwrap();
    store.sink.seal().unwrap();
    check_clean(&store);
    assert!(count(&store.ledger(), "packed_day") > 0);
    assert_eq!(answers(store.directory.path()), answers(sealed(&entries).directory.path()));
}

/// The sums that the migration cannot know are missing in an answer, which says so.
#[test]
fn damage_in_a_migrated_ledger_is_still_reported() {
    let mut store = sealed(&finals(3));
    take_back(&store.directory.path().join("ledger.db"), 6, &OF_LEDGER);
    store.ledger().execute_batch("UPDATE total_quarter SET up = up + 1").unwrap();
    store.reopen();
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    assert_eq!(usage.total(&Filter::default()).unwrap().flows, 0);
    assert!(usage.completeness().has_damaged_rows);
}

#[test]
fn month_without_ranges_is_read_and_migrated() {
    let entries = hourly(200);
    let mut store = sealed(&entries[..150]);
    let expected = answers(store.directory.path());
    let months = Month::files(store.directory.path()).unwrap();
    assert_eq!(months.len(), 2);
    months.iter().for_each(|month| take_back(&month.path(store.directory.path()), 3, &OF_MONTH));
    assert_eq!(answers(store.directory.path()), expected, "before the migration");
    check_clean(&store);
    // January keeps its version.
    store.sink.apply(1, 151, &entries[150..]).unwrap();
    let all = answers(sealed(&entries).directory.path());
    assert_eq!(answers(store.directory.path()), all, "the older rows have no range");
    check_clean(&store);
    store.sink.seal().unwrap();
    assert_eq!(answers(store.directory.path()), all, "the older rows are summed up");
    check_clean(&store);
    let version = |month: &Month| -> i64 {
        let file = Connection::open(month.path(store.directory.path())).unwrap();
        file.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    assert_eq!(version(&months[0]) + 1, version(&months[1]));
}

/// What can be made again is, and no entry waits for it.
#[test]
fn damaged_derived_sums_do_not_stop_the_applier() {
    for (file, damage) in [
        ("ledger.db", "UPDATE total_day SET requests = 9 WHERE day = 20489"),
        ("ledger.db", "UPDATE total_month SET flows = 7 WHERE month = 202602"),
        ("usage-202602.db", "UPDATE row_range SET flow_last = 0 WHERE quarter = 1966960"),
        ("usage-202602.db", "UPDATE host_day SET up = up + 1"),
        ("usage-202602.db", "UPDATE host_day SET class = 'internal' WHERE class = 'external'"),
        ("usage-202602.db", "UPDATE packed_host_day SET sums = x'00'"),
        ("usage-202602.db", "UPDATE packed_host_month SET sums = x'00'"),
        ("usage-202602.db", "UPDATE host SET crc = crc + 1"),
        ("usage-202602.db", "UPDATE host_source SET flow_last = flow_last + 1"),
    ] {
        let mut store = sealed(&hourly(150));
        let changed =
            Connection::open(store.directory.path().join(file)).unwrap().execute(damage, []).unwrap();
        assert!(changed > 0, "{damage}");
        // The second seal discards damaged sums, the last one has made them again.
        for (entry, lsn) in (0..4).map(in_the_same_hour).zip(151..) {
            store.sink.apply(1, lsn, &[entry]).unwrap();
            store.sink.seal().unwrap();
        }
        let report = verify(store.directory.path()).unwrap();
        assert!(report.is_clean(), "{damage}: {:#?}", report.problems);
    }
}

/// A flow with the keys of one of [`hourly`], in one class and the other.
fn in_the_same_hour(number: u128) -> Entry {
    let closed = WallNanos(FEBRUARY + 100 * super::tables::HOUR);
    let class = if number.is_multiple_of(2) { Class::External } else { Class::Internal };
    last(&Flow { id: 1 << 90 | number, closed, user: "bob", host: "d.example", class, ..FLOW })
}

#[test]
fn packed_values_equal_the_rows_they_are_made_of() {
    let entries = hourly(200);
    let mut store = sealed(&entries);
    for (kind, values) in [("packed_quarter", 8), ("packed_day", 8), ("packed_month", 1)] {
        assert_eq!(count(&store.ledger(), kind), values, "{kind}");
    }
    let from_values = answers(store.directory.path());
    check_clean(&store);
    let delete = "DELETE FROM packed_quarter; DELETE FROM packed_day; DELETE FROM packed_month";
    store.ledger().execute_batch(delete).unwrap();
    assert_eq!(from_values, answers(store.directory.path()));
    // A start makes all of them.
    store.reopen();
    store.sink.checkpoint().unwrap();
    assert_eq!(count(&store.ledger(), "packed_day"), 8);
    // A late flow of a day that is over.
    let late = Flow { id: 7 << 80, closed: WallNanos(FEBRUARY + 1), ..FLOW };
    store.sink.apply(1, 201, &[last(&late)]).unwrap();
    assert_eq!(count(&store.ledger(), "packed_day"), 7);
    check_clean(&store);
    let with_late = answers(store.directory.path());
    store.reopen();
    store.sink.seal().unwrap();
    assert_eq!(count(&store.ledger(), "packed_day"), 8);
    assert_eq!(with_late, answers(store.directory.path()));
    // A damaged value is reported by `verify`, and its rows are read.
    store.ledger().execute_batch("UPDATE packed_day SET sums = x'00'").unwrap();
    assert_eq!(with_late, answers(store.directory.path()));
    assert!(!verify(store.directory.path()).unwrap().is_clean());
    // A start makes it again.
    store.reopen();
    store.sink.checkpoint().unwrap();
    assert_eq!(count(&store.ledger(), "packed_day"), 8);
    check_clean(&store);
}

/// Nothing is made of it: an answer says that it lacks something.
#[test]
fn day_with_a_damaged_row_is_not_packed() {
    let mut store = sealed(&hourly(100));
    let damage = "UPDATE rollup_day SET up = up + 1 WHERE account = 1; DELETE FROM packed_day";
    store.ledger().execute_batch(damage).unwrap();
    store.reopen();
    store.sink.checkpoint().unwrap();
    assert_eq!(count(&store.ledger(), "packed_day"), 0);
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    usage.rows(&Filter::default(), &[GroupBy::User, GroupBy::Day]).unwrap();
    assert!(usage.completeness().has_damaged_rows);
}
