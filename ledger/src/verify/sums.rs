//! Recomputes the rollups from their details and compares them.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::{MonthState, Problem, VerifyReport};
use crate::database::derived::{self, Packed};
use crate::database::details::{self, DetailKind, DetailTables};
use crate::database::month::{Month, QUARTER_NS};
use crate::database::packed;
use crate::database::sums::Sums;
use crate::sqlite_usage::{QueryError, SqliteUsage};

/// The time, the account, the class and the set.
type Key = (i64, i64, String, i64);
type Totals = BTreeMap<Key, Sums>;

/// The rollups of a span of quarter-hours.
const QUARTERS: &str = "SELECT quarter AS time, * FROM rollup_quarter WHERE quarter BETWEEN ?1 AND ?2";

/// Compares the rollup of each quarter-hour with the details of its month and the open flows.
pub(super) fn check_quarters(
    report: &mut VerifyReport,
    usage: &SqliteUsage,
    months: &[MonthState],
) -> Result<(), QueryError> {
    let states: BTreeMap<Month, &MonthState> = months.iter().map(|state| (state.month, state)).collect();
    for month in rolled_up(usage)?.into_iter().chain(states.keys().copied()).collect::<BTreeSet<_>>() {
        let state = states.get(&month);
        if state.is_some_and(|state| !state.whole) {
            report.notes.push(format!("{month}: some flows are no longer kept; its sums were not compared"));
            continue;
        }
        let file = state.and_then(|state| state.file.as_ref());
        let has_aggregates = state.is_some_and(|state| state.aggregated);
        if has_aggregates && file.map(|file| usage.is_ahead(file)).transpose()? == Some(true) {
            report.notes.push(format!("{month}: a batch is in progress; its sums were not compared"));
            continue;
        }
        check_month(report, usage, month, file)?;
    }
    Ok(())
}

/// Compares the rollups of the quarter-hours of `month` with the details in its file and the open flows.
pub(super) fn check_month(
    report: &mut VerifyReport,
    usage: &SqliteUsage,
    month: Month,
    file: Option<&Connection>,
) -> Result<(), QueryError> {
    let mut expected = Totals::new();
    if let Some(file) = file {
        report.flows += add_details(&mut expected, usage, file)?;
    }
    let span = (month.beginning_ns() / QUARTER_NS, month.last_ns() / QUARTER_NS);
    let live =
        format!("SELECT quarter AS time, * FROM ({})", details::select_live("quarter BETWEEN ?1 AND ?2"));
    add(&mut expected, &usage.connection, &live, span)?;
    let mut found = Totals::new();
    add(&mut found, &usage.connection, QUARTERS, span)?;
    compare(report, "rollup_quarter", &expected, &found);
    Ok(())
}

/// Compares the rollups of days, of months and of all accounts with those of their quarter-hours.
pub(super) fn check_rollups(report: &mut VerifyReport, usage: &SqliteUsage) -> Result<(), QueryError> {
    let (mut days, mut months) = (Totals::new(), Totals::new());
    let mut totals: [Totals; 3] = Default::default();
    each(&usage.connection, QUARTERS, EVER, |(quarter, account, class, set), sums| {
        let month = Month::of_quarter(quarter).number();
        months.entry((month, account, class.clone(), set)).or_default().add(&sums);
        for (unit, totals) in [quarter, quarter / DAY_QUARTERS, month].into_iter().zip(&mut totals) {
            totals.entry((unit, 0, class.clone(), set)).or_default().add(&sums);
        }
        days.entry((quarter / DAY_QUARTERS, account, class, set)).or_default().add(&sums);
    })?;
    let mut tables = vec![
        ("rollup_day", "SELECT day AS time, * FROM rollup_day", &days),
        ("rollup_month", "SELECT month AS time, * FROM rollup_month", &months),
        ("total_quarter", "SELECT quarter AS time, 0 AS account, * FROM total_quarter", &totals[0]),
    ];
    if derived::exist(&usage.connection)? {
        tables.push(("total_day", "SELECT day AS time, 0 AS account, * FROM total_day", &totals[1]));
        tables.push(("total_month", "SELECT month AS time, 0 AS account, * FROM total_month", &totals[2]));
        Packed::ALL.into_iter().try_for_each(|kind| check_packed(report, usage, kind))?;
    }
    for (table, select, expected) in tables {
        let mut found = Totals::new();
        add(&mut found, &usage.connection, &format!("{select} WHERE ?1 <= ?2"), EVER)?;
        compare(report, table, expected, &found);
    }
    Ok(())
}

/// Compares packed values with the sums of which they were made.
fn check_packed(report: &mut VerifyReport, usage: &SqliteUsage, kind: Packed) -> Result<(), QueryError> {
    let mut select = usage.connection.prepare(&format!("SELECT * FROM {}", kind.table()))?;
    let mut values = select.query([])?;
    let mut sums = usage.connection.prepare(&kind.rows())?;
    while let Some(value) = values.next()? {
        let unit: i64 = value.get(0)?;
        let (mut expected, mut found) = (BTreeMap::new(), BTreeMap::new());
        let mut rows = sums.query([unit])?;
        while let Some(row) = rows.next()? {
            let total: &mut Sums = expected.entry(row.get("number")?).or_default();
            total.add(&Sums::read(row)?);
        }
        let packed = value.get_ref(1)?.as_blob().unwrap_or_default();
        let is_whole = packed::unpack(packed, |number, sums| _ = found.insert(number, *sums));
        report.sums += expected.len() as u64;
        if !is_whole || found != expected {
            let text = format!("{} of {unit} is not what its sums are", kind.table());
            report.problem(Problem::Damaged { file: "ledger.db".to_owned(), text });
        }
    }
    Ok(())
}

/// Quarter-hours of a day.
const DAY_QUARTERS: i64 = 96;
const EVER: (i64, i64) = (0, i64::MAX);

/// Adds the rows of a month's file; returns the number of its flows.
fn add_details(totals: &mut Totals, usage: &SqliteUsage, file: &Connection) -> Result<u64, QueryError> {
    let mut flows = 0;
    for table in DetailTables::read(file)?.all() {
        let visible = match table.kind {
            DetailKind::Aggregate => "TRUE".to_owned(),
            _ => usage.is_visible(),
        };
        let select = format!("SELECT quarter AS time, * FROM ({})", table.select(&visible));
        let count = add(totals, file, &format!("{select} WHERE ?1 <= ?2"), EVER)?;
        flows += if table.kind == DetailKind::Flow { count } else { 0 };
    }
    Ok(flows)
}

/// Adds rows with the columns `time`, `account`, `class`, `set_number` and sums; returns their number.
fn add(totals: &mut Totals, connection: &Connection, sql: &str, span: (i64, i64)) -> Result<u64, QueryError> {
    let mut count = 0;
    each(connection, sql, span, |key, sums| {
        totals.entry(key).or_default().add(&sums);
        count += 1;
    })?;
    Ok(count)
}

/// Calls `each` with the rows of `sql`, which has the parameters of `span`.
fn each(
    connection: &Connection,
    sql: &str,
    span: (i64, i64),
    mut each: impl FnMut(Key, Sums),
) -> Result<(), QueryError> {
    let mut select = connection.prepare(sql)?;
    let mut rows = select.query([span.0, span.1])?;
    while let Some(row) = rows.next()? {
        let account = row.get::<_, Option<i64>>("account")?.unwrap_or(0);
        let key = (row.get("time")?, account, row.get("class")?, row.get("set_number")?);
        each(key, Sums::read(row)?);
    }
    Ok(())
}

fn compare(report: &mut VerifyReport, table: &'static str, expected: &Totals, found: &Totals) {
    let text = |sums: Option<&Sums>| match sums {
        None => "nothing".to_owned(),
        Some(Sums { flows, requests, up, down, uncertain_up, uncertain_down }) => {
            let uncertain = format!("uncertain {uncertain_up} and {uncertain_down}");
            format!("{flows} flows, {requests} requests, {up} up, {down} down, {uncertain}")
        }
    };
    let keys: BTreeSet<&Key> = expected.keys().chain(found.keys()).collect();
    report.sums += keys.len() as u64;
    for key in keys {
        let (should, is) = (expected.get(key), found.get(key));
        // An open flow without bytes has a rollup of zeros, or none.
        if should.copied().unwrap_or_default() != is.copied().unwrap_or_default() {
            let (time, account, class, set) = key;
            let key = format!("{time}, account {account}, {class}, set {set}");
            report.problem(Problem::Sum { table, key, expected: text(should), found: text(is) });
        }
    }
}

/// The months that have rollups.
fn rolled_up(usage: &SqliteUsage) -> rusqlite::Result<BTreeSet<Month>> {
    let mut select = usage.connection.prepare("SELECT DISTINCT quarter FROM rollup_quarter")?;
    let quarters = select.query_map([], |row| row.get(0))?;
    quarters.map(|quarter| Ok(Month::of_quarter(quarter?))).collect()
}
