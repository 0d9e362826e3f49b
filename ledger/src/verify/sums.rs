//! Recomputes the rollups from their details and compares them.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Row};

use super::{MonthState, Problem, VerifyReport};
use crate::database::month::{HOUR_NS, Month};
use crate::database::month_file;
use crate::database::sums::Sums;
use crate::query::{QueryError, Usage};

/// The hour or day, the user and the class.
type Key = (i64, String, String);
type Totals = BTreeMap<Key, Sums>;

const HOURS: &str = "SELECT hour AS time, * FROM rollup_hour WHERE hour BETWEEN ?1 AND ?2";
const EVER: (i64, i64) = (0, i64::MAX);

/// Compares the rollup of each hour with the details of its month and the open flows.
pub(super) fn check_hours(
    report: &mut VerifyReport,
    usage: &Usage,
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
        if state.is_some_and(|state| state.aggregated) && is_ahead(usage, file)? {
            report.notes.push(format!("{month}: a batch is in progress; its sums were not compared"));
            continue;
        }
        check_month(report, usage, month, file)?;
    }
    Ok(())
}

/// Compares the rollups of the hours of `month` with the details in its file and the open flows.
pub(super) fn check_month(
    report: &mut VerifyReport,
    usage: &Usage,
    month: Month,
    file: Option<&Connection>,
) -> Result<(), QueryError> {
    let mut expected = Totals::new();
    if let Some(file) = file {
        report.flows += add_details(&mut expected, usage, file)?;
    }
    let span = (month.beginning_ns(), month.last_ns());
    add(&mut expected, &usage.connection, LIVE, span)?;
    let mut found = Totals::new();
    add(&mut found, &usage.connection, HOURS, (span.0 / HOUR_NS, span.1 / HOUR_NS))?;
    compare(report, "rollup_hour", &expected, &found);
    Ok(())
}

/// Compares the rollup of each day with those of its hours.
pub(super) fn check_days(report: &mut VerifyReport, usage: &Usage) -> Result<(), QueryError> {
    let (mut expected, mut found) = (Totals::new(), Totals::new());
    let hours = "SELECT hour / 24 AS time, * FROM rollup_hour WHERE hour BETWEEN ?1 AND ?2";
    add(&mut expected, &usage.connection, hours, EVER)?;
    let days = "SELECT day AS time, * FROM rollup_day WHERE day BETWEEN ?1 AND ?2";
    add(&mut found, &usage.connection, days, EVER)?;
    compare(report, "rollup_day", &expected, &found);
    Ok(())
}

const LIVE: &str = "SELECT counted_ns / 3600000000000 AS time, user, class, 0 AS flows,
     upstream_tx - up_before AS up, client_tx - down_before AS down, 0 AS uncertain_up, 0 AS uncertain_down
     FROM live WHERE counted_ns BETWEEN ?1 AND ?2";

const _: () = assert!(HOUR_NS == 3_600_000_000_000, "as in the query above");

/// Adds the rows of a month's file; returns the number of its flows.
fn add_details(totals: &mut Totals, usage: &Usage, file: &Connection) -> Result<u64, QueryError> {
    let visible = usage.is_visible();
    let flows = format!(
        "SELECT closed_ns / {HOUR_NS} AS time, user, class, 1 AS flows, upstream_tx - up_before AS up,
                client_tx - down_before AS down, uncertain_up, uncertain_down
         FROM flow WHERE {visible} AND closed_ns BETWEEN ?1 AND ?2"
    );
    let count = add(totals, file, &flows, EVER)?;
    let parts = format!(
        "SELECT hour AS time, user, class, 0 AS flows, up, down, 0 AS uncertain_up, 0 AS uncertain_down
         FROM part WHERE {visible} AND hour BETWEEN ?1 AND ?2"
    );
    add(totals, file, &parts, EVER)?;
    let aggregates = "SELECT hour AS time, * FROM aggregate WHERE hour BETWEEN ?1 AND ?2";
    add(totals, file, aggregates, EVER)?;
    Ok(count)
}

/// Adds rows with the columns `time`, `user`, `class` and sums; returns their number.
fn add(totals: &mut Totals, connection: &Connection, sql: &str, span: (i64, i64)) -> Result<u64, QueryError> {
    let key =
        |row: &Row<'_>| Ok::<_, rusqlite::Error>((row.get("time")?, row.get("user")?, row.get("class")?));
    let mut select = connection.prepare(sql)?;
    let mut rows = select.query([span.0, span.1])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        totals.entry(key(row)?).or_default().add(&Sums::read(row)?);
        count += 1;
    }
    Ok(count)
}

fn compare(report: &mut VerifyReport, table: &'static str, expected: &Totals, found: &Totals) {
    let text = |sums: Option<&Sums>| match sums {
        None => "nothing".to_owned(),
        Some(Sums { flows, up, down, uncertain_up, uncertain_down }) => {
            format!("{flows} flows, {up} up, {down} down, uncertain {uncertain_up} and {uncertain_down}")
        }
    };
    let keys: BTreeSet<&Key> = expected.keys().chain(found.keys()).collect();
    report.sums += keys.len() as u64;
    for key in keys {
        let (should, is) = (expected.get(key), found.get(key));
        // An open flow without bytes has a rollup of zeros, or none.
        if should.copied().unwrap_or_default() != is.copied().unwrap_or_default() {
            let (time, user, class) = key;
            let key = format!("{time} {user:?} {class}");
            report.problem(Problem::Sum { table, key, expected: text(should), found: text(is) });
        }
    }
}

/// The months that have rollups.
fn rolled_up(usage: &Usage) -> rusqlite::Result<BTreeSet<Month>> {
    let mut select = usage.connection.prepare("SELECT DISTINCT hour FROM rollup_hour")?;
    let hours = select.query_map([], |row| row.get::<_, i64>(0))?;
    hours.map(|hour| Ok(Month::containing(hour?.saturating_mul(HOUR_NS)))).collect()
}

/// Whether the file has later entries of a gateway than `ledger.db`.
fn is_ahead(usage: &Usage, file: Option<&Connection>) -> rusqlite::Result<bool> {
    let Some(file) = file else { return Ok(false) };
    for (gateway, applied_lsn) in &usage.applied {
        if month_file::applied(file, *gateway)? > *applied_lsn {
            return Ok(true);
        }
    }
    Ok(false)
}
