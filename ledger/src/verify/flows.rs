//! Checks that each flow exists once, and that its parts sum up to what its row says.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Row};

use super::{MonthState, Problem, VerifyReport};
use crate::database::details::{DetailKind, DetailTable, DetailTables};
use crate::database::month::Month;
use crate::sqlite_usage::{QueryError, SqliteUsage, each};

/// Bytes up and down.
type Bytes = (i64, i64);

/// A flow's id, its bytes before its last hour, and the months of its opening and its last count.
struct Before {
    id: u128,
    bytes: Bytes,
    first: Month,
    last: Month,
}

/// Checks that what each flow moved before its last hour is the sum of its parts. The oldest month comes
/// first: only the parts of flows that are open at that point are in memory.
pub(super) fn check_parts(
    report: &mut VerifyReport,
    usage: &SqliteUsage,
    months: &[MonthState],
) -> Result<(), QueryError> {
    let uncertain_months: BTreeSet<Month> =
        months.iter().filter(|state| !state.whole || state.aggregated).map(|state| state.month).collect();
    let visible = usage.is_visible();
    let mut parts: BTreeMap<u128, Bytes> = BTreeMap::new();
    let mut check = |parts: &mut BTreeMap<u128, Bytes>, flow: Before| {
        let expected = parts.remove(&flow.id).unwrap_or_default();
        let sure = uncertain_months.range(flow.first.min(flow.last)..=flow.last).next().is_none();
        if sure && expected != flow.bytes {
            report.problem(Problem::Parts { flow: flow.id, expected, found: flow.bytes });
        }
    };
    for file in months.iter().filter_map(|state| state.file.as_ref()) {
        each(file, &selected(file, DetailKind::Part, "id, up, down", &visible)?, |row| {
            let sum = parts.entry(id(row)?).or_default();
            *sum = (sum.0.saturating_add(row.get(1)?), sum.1.saturating_add(row.get(2)?));
            Ok(())
        })?;
        let columns = "id, up_before, down_before, opened_ns, closed_ns";
        each(file, &selected(file, DetailKind::Flow, columns, &visible)?, |row| {
            let flow = before(row)?;
            if flow.bytes != (0, 0) || parts.contains_key(&flow.id) {
                check(&mut parts, flow);
            }
            Ok(())
        })?;
    }
    let live = "SELECT id, up_before, down_before, opened_ns, counted_ns FROM live";
    each(&usage.connection, live, |row| {
        check(&mut parts, before(row)?);
        Ok(())
    })?;
    // Where some flows are kept as sums only, their parts have no flow row.
    if uncertain_months.is_empty() {
        for (flow, expected) in parts {
            report.problem(Problem::Parts { flow, expected, found: (0, 0) });
        }
    }
    Ok(())
}

/// Checks that no flow exists twice: in one month, in two, or both open and closed.
pub(super) fn check_duplicates(
    report: &mut VerifyReport,
    usage: &SqliteUsage,
    months: &[MonthState],
) -> Result<(), QueryError> {
    let visible = usage.is_visible();
    let mut doubled = BTreeSet::new();
    // The rows of each flow that may be in more than one file: of two months, at most one is the month of its
    // opening.
    let mut counts: BTreeMap<u128, u32> = BTreeMap::new();
    each(&usage.connection, "SELECT id FROM live", |row| {
        counts.insert(id(row)?, 1);
        Ok(())
    })?;
    for state in months {
        let Some(file) = &state.file else { continue };
        let flows = selected(file, DetailKind::Flow, "id, opened_ns", &visible)?;
        let twice = format!("SELECT id FROM ({flows}) GROUP BY id HAVING count(*) > 1");
        each(file, &twice, |row| {
            doubled.insert(id(row)?);
            Ok(())
        })?;
        let (first, last) = (state.month.beginning_ns(), state.month.last_ns());
        let opened_elsewhere =
            format!("SELECT id FROM ({flows}) WHERE opened_ns NOT BETWEEN {first} AND {last}");
        each(file, &opened_elsewhere, |row| {
            counts.entry(id(row)?).or_default();
            Ok(())
        })?;
    }
    for file in months.iter().filter_map(|state| state.file.as_ref()) {
        each(file, &selected(file, DetailKind::Flow, "id", &visible)?, |row| {
            if let Some(count) = counts.get_mut(&id(row)?) {
                *count += 1;
            }
            Ok(())
        })?;
    }
    doubled.extend(counts.into_iter().filter(|(_, count)| *count > 1).map(|(flow, _)| flow));
    doubled.into_iter().for_each(|flow| report.problem(Problem::Duplicate { flow }));
    Ok(())
}

/// The visible rows of a kind.
fn selected(file: &Connection, kind: DetailKind, columns: &str, visible: &str) -> rusqlite::Result<String> {
    let tables = DetailTables::read(file)?;
    let select = |table: DetailTable| format!("SELECT {columns} FROM {} WHERE {visible}", table.name);
    Ok(tables.of(kind).map(select).collect::<Vec<_>>().join(" UNION ALL "))
}

fn id(row: &Row<'_>) -> rusqlite::Result<u128> {
    Ok(u128::from_be_bytes(row.get(0)?))
}

fn before(row: &Row<'_>) -> rusqlite::Result<Before> {
    let month = |column| Ok::<_, rusqlite::Error>(Month::containing(row.get(column)?));
    Ok(Before { id: id(row)?, bytes: (row.get(1)?, row.get(2)?), first: month(3)?, last: month(4)? })
}
