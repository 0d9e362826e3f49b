//! Makes the sums by host again from their flows and parts, a day at a time, and compares them.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::{MonthState, Problem, VerifyReport};
use crate::database::details::{DetailKind, DetailTables};
use crate::database::host_sums::SummedTo;
use crate::database::packed::{self, HostEntries, HostSums};
use crate::database::packed_hosts::PackedHosts;
use crate::database::row_ranges::RowRanges;
use crate::database::sums::{DAY_QUARTERS, Sums};
use crate::sqlite_usage::QueryError;

/// The account, the host, the class and the set.
type Key = (i64, String, String, i64);
type Totals = BTreeMap<Key, Sums>;

/// Checks the sums by host in each month's file.
pub(super) fn check(report: &mut VerifyReport, months: &[MonthState]) -> Result<(), QueryError> {
    for state in months {
        let Some(file) = &state.file else { continue };
        if !DetailTables::read(file)?.have_sums() {
            continue;
        }
        let differences = differences(report, file)?;
        if differences > 0 {
            let text = format!("{differences} of its sums by host are not those of its flows");
            report.problem(Problem::Damaged { file: state.name.clone(), text });
        }
    }
    Ok(())
}

/// The number of sums that differ from what they are made of.
fn differences(report: &mut VerifyReport, file: &Connection) -> Result<usize, QueryError> {
    // A damaged row was reported, and is read as if nothing were summed up.
    let to = SummedTo::read(file).unwrap_or_default();
    let days = format!(
        "SELECT day FROM host_day UNION SELECT quarter / {DAY_QUARTERS} FROM flow
         UNION SELECT quarter / {DAY_QUARTERS} FROM part UNION SELECT day FROM packed_host_day ORDER BY 1"
    );
    let days: Vec<i64> =
        file.prepare(&days)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let tables = DetailTables::read(file)?;
    // A damaged range was reported too: all rows are read then.
    let ranges = RowRanges::read(file, &tables).unwrap_or_default();
    let (mut month, mut differences) = (Totals::new(), 0);
    let mut compare = |expected: &Totals, found: &Totals| {
        report.sums += expected.len().max(found.len()) as u64;
        let is_missing = |(key, _): &(&Key, &Sums)| !expected.contains_key(*key);
        differences += found.iter().filter(is_missing).count();
        differences += expected.iter().filter(|(key, sums)| found.get(*key) != Some(*sums)).count();
    };
    for day in days {
        let expected = details_of(file, (&tables, &ranges), day, to)?;
        compare(&expected, &sums_of(file, day)?);
        let mut of_all = Totals::new();
        for ((_, host, class, set), sums) in expected {
            let key = (0, host, class, set);
            month.entry(key.clone()).or_default().add(&sums);
            of_all.entry(key).or_default().add(&sums);
        }
        if let Some(value) = PackedHosts::Day.read(file, day)? {
            compare(&of_all, &unpacked(&value));
        }
    }
    let of_month: Option<i64> =
        file.query_row("SELECT max(month) FROM packed_host_month", [], |row| row.get(0))?;
    if let Some(value) = of_month.and_then(|number| PackedHosts::Month.read(file, number).transpose()) {
        compare(&month, &unpacked(&value?));
    }
    Ok(differences)
}

/// The sums in a packed value; none if it cannot be read, or its order is not that of the hashes.
fn unpacked(value: &[u8]) -> Totals {
    let (mut totals, mut before) = (Totals::new(), (0, ""));
    let mut entries = HostEntries::new(value);
    let is_in_order = entries.by_ref().all(|HostSums { hash, name, class, set, sums }| {
        totals.entry((0, name.to_owned(), class.as_str().to_owned(), set)).or_default().add(&sums);
        (hash, name) >= std::mem::replace(&mut before, (hash, name)) && hash == packed::hash(name)
    });
    if is_in_order && entries.is_at_end() { totals } else { Totals::new() }
}

/// The sums of the flows and parts of a day that are summed up.
fn details_of(
    file: &Connection,
    (tables, ranges): (&DetailTables, &RowRanges),
    day: i64,
    to: SummedTo,
) -> Result<Totals, QueryError> {
    let mut totals = Totals::new();
    let (first, last) = (day * DAY_QUARTERS, (day + 1) * DAY_QUARTERS - 1);
    for table in tables.all() {
        if table.is_hourly || table.kind == DetailKind::Aggregate {
            continue;
        }
        let range = ranges.of(table.kind, (first, last));
        let rows = format!(
            "quarter BETWEEN {first} AND {last} AND rowid BETWEEN {} AND {}",
            range.0,
            range.1.min(to.of(table.kind))
        );
        add(&mut totals, file, &table.select(&rows))?;
    }
    Ok(totals)
}

/// The stored sums of a day.
fn sums_of(file: &Connection, day: i64) -> Result<Totals, QueryError> {
    let mut totals = Totals::new();
    let sql = format!(
        "SELECT account, ifnull((SELECT name FROM host WHERE number = sums.host), '') AS host, class,
                set_number, flows, requests, up, down, uncertain_up, uncertain_down
         FROM host_day AS sums WHERE day = {day}"
    );
    add(&mut totals, file, &sql)?;
    Ok(totals)
}

fn add(totals: &mut Totals, file: &Connection, sql: &str) -> Result<(), QueryError> {
    let mut select = file.prepare(sql)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let key = (row.get("account")?, row.get("host")?, row.get("class")?, row.get("set_number")?);
        totals.entry(key).or_default().add(&Sums::read(row)?);
    }
    Ok(())
}
