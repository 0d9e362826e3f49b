//! How far a version had come whose sums were by hour: table `hourly`.
//!
//! Guarantees: entries up to there belong to the last quarter-hour of their hour, whenever they are applied:
//! again, because a month is ahead of `ledger.db`, or because a file is lost and made again. So their sums
//! are those of the rows that the months have.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::checksum;
use super::details::{DetailKind, DetailTables};
use super::month::Month;
use super::watermarks::Source;
use crate::limits::READER_BUSY_MAX;

/// The last entry of `gateway` that an earlier version counted by hour; 0 if there is none.
pub(crate) fn read(connection: &Connection, gateway: i64) -> rusqlite::Result<i64> {
    let mut select = connection.prepare("SELECT * FROM hourly WHERE gateway = ?1")?;
    let last = select.query_row([gateway], |row| {
        checksum::check(row, "hourly")?;
        row.get("applied_lsn")
    });
    Ok(last.optional()?.unwrap_or(0))
}

/// Notes it at the migration of the `ledger.db` in `directory`, or when a new one is made. A month may be
/// ahead of it.
pub(super) fn note(connection: &Connection, directory: &Path) -> rusqlite::Result<()> {
    let gateways: Vec<i64> = connection
        .prepare("SELECT gateway FROM source")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut last = BTreeMap::new();
    for gateway in gateways {
        let source = Source::read(connection, gateway)?;
        last.insert(gateway, source.map_or(0, |source| source.applied_lsn));
    }
    for month in Month::files(directory).unwrap_or_default() {
        // The start reports a damaged month, and is refused.
        for (gateway, lsn) in of_month(&month.path(directory)).unwrap_or_default() {
            let last = last.entry(gateway).or_default();
            *last = lsn.max(*last);
        }
    }
    for (gateway, lsn) in last.into_iter().filter(|(_, lsn)| *lsn > 0) {
        let values = [gateway, lsn].map(ValueRef::Integer);
        checksum::put(connection, "INSERT INTO hourly VALUES (?1, ?2, ?3)", &values)?;
    }
    Ok(())
}

/// The last entry of each gateway in a month's file that was counted by hour.
fn of_month(path: &Path) -> rusqlite::Result<Vec<(i64, i64)>> {
    // SQLite would remove the log of an empty file.
    if fs::metadata(path).is_ok_and(|found| found.len() == 0) {
        return Ok(Vec::new());
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let file = Connection::open_with_flags(path, flags)?;
    file.busy_timeout(READER_BUSY_MAX)?;
    file.execute_batch("BEGIN")?;
    let tables = DetailTables::read(&file)?;
    let select = match tables.all().all(|table| table.is_hourly) {
        true => "SELECT gateway, applied_lsn FROM source".to_owned(),
        false => {
            let hourly = tables.all().filter(|table| table.is_hourly && table.kind != DetailKind::Aggregate);
            let rows: Vec<_> =
                hourly.map(|table| format!("SELECT gateway, lsn FROM {}", table.name)).collect();
            match rows.is_empty() {
                true => return Ok(Vec::new()),
                false => {
                    format!("SELECT gateway, max(lsn) FROM ({}) GROUP BY gateway", rows.join(" UNION ALL "))
                }
            }
        }
    };
    let mut select = file.prepare(&select)?;
    let lasts = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    lasts.collect()
}
