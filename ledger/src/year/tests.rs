//! A year of few flows.

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};

use super::*;
use crate::database::month::Month;
use crate::query::{Filter, GroupBy, Row, Usage};
use crate::sqlite_usage::SqliteUsage;
use crate::verify::verify;

fn made(seed: u64) -> (tempfile::TempDir, YearReport) {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("year");
    let settings = YearSettings { directory, seed, users: 7, flows: 100, days: 40 };
    let report = make(&settings, |_| {}).unwrap();
    (parent, report)
}

/// All rows of a table, without the moments at which this test wrote them.
fn rows(path: &std::path::Path, table: &str) -> Vec<Vec<Value>> {
    let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut select = file.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let columns = select.column_count();
    let found = select.query_map([], |row| (0..columns).map(|column| row.get(column)).collect()).unwrap();
    found.collect::<rusqlite::Result<_>>().unwrap()
}

fn contents(parent: &tempfile::TempDir) -> Vec<Vec<Vec<Value>>> {
    let directory = parent.path().join("year");
    let ledger = directory::database(&directory);
    let sums = ["rollup_quarter", "rollup_day", "rollup_month", "total_quarter", "source"];
    let mut contents: Vec<_> = sums.iter().map(|table| rows(&ledger, table)).collect();
    for month in Month::files(&directory).unwrap() {
        contents.extend(["flow", "part"].map(|table| rows(&month.path(&directory), table)));
    }
    contents
}

#[test]
fn seed_gives_the_same_rows_each_time() {
    let [(first, report), (second, _), (other, _)] = [1, 1, 2].map(made);
    assert_eq!(report.flows, 100);
    assert!(contents(&first) == contents(&second), "the same seed");
    assert!(contents(&first) != contents(&other), "another seed");
}

#[test]
fn usage_of_a_year_equals_what_was_made() {
    let (parent, report) = made(1);
    let directory = parent.path().join("year");
    let usage = SqliteUsage::open_with_journal(&directory).unwrap();
    let total = usage.total(&Filter::default()).unwrap();
    assert_eq!((total.flows, total.up, total.down, total.live), (100, report.up, report.down, 0));
    for key in [GroupBy::User, GroupBy::Host, GroupBy::Day] {
        let rows = usage.rows(&Filter::default(), &[key]).unwrap().rows;
        let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
        assert_eq!((sum(|row| row.up), sum(|row| row.down)), (report.up, report.down), "{key:?}");
    }
    assert!(verify(&directory).unwrap().is_clean());
}
