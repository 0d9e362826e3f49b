//! Checks one file at a time: its structure, its schema, each row's checksum, and its watermark.

use rusqlite::Connection;

use super::{MonthState, Problem, VerifyReport, damaged};
use crate::database::checksum;
use crate::database::details::DetailTables;
use crate::database::schema::month_db::{self, HOURLY, MONTH};
use crate::database::schema::{self, Migration};
use crate::database::{month_file, row_ranges};
use crate::sqlite_usage::{QueryError, SqliteUsage};

/// Checks one file by itself; returns whether all of it could be read.
pub(super) fn check(
    report: &mut VerifyReport,
    name: &str,
    file: &Connection,
    migrations: &[Migration],
) -> bool {
    report.files += 1;
    let checked = check_structure(report, name, file)
        .and_then(|()| check_schema(report, name, file, migrations))
        .and_then(|tables| tables.iter().try_for_each(|table| check_rows(report, name, file, table)));
    if let Err(error) = &checked {
        report.problem(damaged(name, error));
    }
    checked.is_ok()
}

fn check_structure(report: &mut VerifyReport, name: &str, file: &Connection) -> Result<(), QueryError> {
    let mut select = file.prepare("PRAGMA integrity_check")?;
    for line in select.query_map([], |row| row.get::<_, String>(0))? {
        let text = line?;
        if text != "ok" {
            report.problem(Problem::Damaged { file: name.to_owned(), text });
        }
    }
    Ok(())
}

/// Compares the schema with that of a new file; returns the tables whose rows have checksums.
fn check_schema(
    report: &mut VerifyReport,
    name: &str,
    file: &Connection,
    migrations: &[Migration],
) -> Result<Vec<String>, QueryError> {
    // A month without later writes keeps its version.
    let version: i64 = file.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let applied = usize::try_from(version).unwrap_or(0).min(migrations.len());
    let mut expected = objects(&schema::new_in_memory(&migrations[..applied])?)?;
    let found = objects(file)?;
    // A month that an earlier version had begun keeps that version's tables beside the present ones.
    expected.extend(kept(&found)?);
    expected.sort();
    if found != expected {
        let text = "its schema differs from that of a new file".to_owned();
        report.problem(Problem::Damaged { file: name.to_owned(), text });
    }
    let sealed = expected.into_iter().filter(|[kind, _, sql]| kind == "table" && sql.contains(" crc "));
    Ok(sealed.map(|[_, table, _]| table).collect())
}

/// Type, name and definition of every object in a schema.
fn objects(connection: &Connection) -> rusqlite::Result<Vec<[String; 3]>> {
    let sql = "SELECT type, name, ifnull(sql, '') FROM sqlite_schema";
    let mut select = connection.prepare(sql)?;
    let objects = select.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?;
    let mut objects: Vec<[String; 3]> = objects.collect::<rusqlite::Result<_>>()?;
    objects.sort();
    Ok(objects)
}

/// The tables of an earlier version that `found` has, as that version defined them.
fn kept(found: &[[String; 3]]) -> Result<Vec<[String; 3]>, QueryError> {
    let names = || HOURLY.into_iter().filter(|table| found.iter().any(|[_, name, _]| name == table));
    if names().next().is_none() {
        return Ok(Vec::new());
    }
    let earlier = schema::new_in_memory(&MONTH[..month_db::HOURLY_VERSION])?;
    for name in names() {
        earlier.execute_batch(&format!("ALTER TABLE {} RENAME TO {name}", name.trim_end_matches("_2")))?;
    }
    let is_kept = |object: &[String; 3]| names().any(|name| name == object[1]);
    Ok(objects(&earlier)?.into_iter().filter(is_kept).collect())
}

fn check_rows(
    report: &mut VerifyReport,
    name: &str,
    file: &Connection,
    table: &str,
) -> Result<(), QueryError> {
    let mut select = file.prepare(&format!("SELECT * FROM {table}"))?;
    let mut rows = select.query([])?;
    let mut number = 0;
    while let Some(row) = rows.next()? {
        number += 1;
        if !checksum::is_intact(row)? {
            let (file, table) = (name.to_owned(), table.to_owned());
            report.problem(Problem::Row { file, table, row: number });
        }
    }
    report.rows += number;
    Ok(())
}

/// Checks that a question which reads the rows of a quarter-hour alone finds all of them.
pub(super) fn check_row_ranges(report: &mut VerifyReport, months: &[MonthState]) -> Result<(), QueryError> {
    for state in months {
        let Some(file) = &state.file else { continue };
        if !DetailTables::read(file)?.have_sums() {
            continue;
        }
        let misplaced = row_ranges::misplaced(file)?;
        if misplaced > 0 {
            let text = format!("{misplaced} rows lie outside the range of their quarter-hour");
            report.problem(Problem::Damaged { file: state.name.clone(), text });
        }
    }
    Ok(())
}

/// Checks that each file has come as far as `ledger.db` says, and has no rows beyond its own watermark.
pub(super) fn check_watermarks(
    report: &mut VerifyReport,
    usage: &SqliteUsage,
    months: &[MonthState],
) -> Result<(), QueryError> {
    let mut impossible = |file: &str, text: String| {
        report.problem(Problem::Watermark { file: file.to_owned(), text });
    };
    let ahead = "SELECT count(*) FROM source WHERE durable_lsn > applied_lsn";
    if usage.connection.query_row(ahead, [], |row| row.get::<_, i64>(0))? > 0 {
        impossible("ledger.db", "its `durable_lsn` is beyond its `applied_lsn`".to_owned());
    }
    for state in months.iter().filter(|state| state.whole) {
        let Some(file) = &state.file else { continue };
        let mut select =
            usage.connection.prepare("SELECT gateway, applied_lsn FROM month WHERE month = ?1")?;
        let gateways = select.query_map([state.month.number()], |row| Ok((row.get(0)?, row.get(1)?)))?;
        for gateway in gateways {
            let (gateway, expected): (i64, i64) = gateway?;
            let found = month_file::applied(file, gateway)?;
            if found < expected {
                let text = format!("it had come to entry {expected} of gateway {gateway}, and is at {found}");
                impossible(&state.name, text);
            }
            let rows = DetailTables::read(file)?;
            let rows = rows.single_rows().map(|table| format!("SELECT lsn, gateway FROM {table}"));
            let rows = rows.collect::<Vec<_>>().join(" UNION ALL ");
            let last = format!("SELECT max(lsn) FROM ({rows}) WHERE gateway = ?1");
            let last: Option<i64> = file.query_row(&last, [gateway], |row| row.get(0))?;
            if last.is_some_and(|last| last > found) {
                impossible(&state.name, format!("it has rows beyond entry {found} of gateway {gateway}"));
            }
        }
    }
    Ok(())
}
