//! Migrates schema version 1, in which all flows were in `ledger.db`, to files by month.
//!
//! Guarantees: no row is lost or doubled, wherever the migration is interrupted. Each month's file stores the
//! last row that it took as the watermark of gateway 0. The rows are deleted from `ledger.db` in the
//! transaction that fills the rollups.

use std::path::Path;

use rusqlite::{Connection, params};

use super::accounts::Accounts;
use super::columns::{CounterColumns, FlowColumns};
use super::month::{Month, QUARTER_NS};
use super::month_file::{MonthFiles, Origin};
use super::rollups::{Rollups, SumKey};
use super::schema::SchemaError;
use super::sums::Sums;
use super::watermarks::put_month;
use crate::limits::MOVE_ROWS_MAX;
use crate::sink::SinkError;

/// The origin of flows without an entry.
pub(crate) const ORIGIN: Origin = Origin { gateway: 0, epoch: 0 };

/// The columns that such a flow lacks; its account is found by its user.
const CURRENT_COLUMNS: &str = "SELECT rowid, *, 0 AS account, 0 AS policy, 0 AS set_number, 0 AS requests,
     closed_ns / 900000000000 AS quarter, 0 AS uncertain_up, 0 AS uncertain_down, 0 AS up_before,
     0 AS down_before FROM flow_1";
const _: () = assert!(QUARTER_NS == 900_000_000_000);

/// Moves every flow of `flow_1` to the file of its month, fills the rollups, and drops the old tables.
pub(super) fn move_flows(
    connection: &Connection,
    path: &Path,
    accounts: &Accounts,
) -> Result<(), SchemaError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut months = MonthFiles::new(directory, u64::MAX);
    move_to_months(connection, &mut months, accounts)
        .and_then(|()| months.close())
        .and_then(|()| Ok(fill_rollups(connection, accounts)?))
        .and_then(|()| Ok(connection.execute_batch("DROP TABLE flow_1; DROP TABLE source_1;")?))
        .map_err(|error| SchemaError::Move(error.to_string()))
}

fn move_to_months(
    connection: &Connection,
    months: &mut MonthFiles,
    accounts: &Accounts,
) -> Result<(), SinkError> {
    let mut next: Option<i64> = Some(i64::MIN);
    while let Some(from_ns) = next {
        let first = "SELECT min(closed_ns) FROM flow_1 WHERE closed_ns > ?1";
        let first: Option<i64> = connection.query_row(first, [from_ns], |row| row.get(0))?;
        if let Some(moment) = first {
            let month = Month::containing(moment);
            while move_rows(connection, months, month, accounts)? {}
            put_month(connection, month, ORIGIN.gateway, months.applied(month, ORIGIN.gateway)?, false)?;
        }
        next = first.map(|moment| Month::containing(moment).last_ns());
    }
    Ok(())
}

/// Moves the next rows of the month; returns whether there were any.
fn move_rows(
    connection: &Connection,
    months: &mut MonthFiles,
    month: Month,
    accounts: &Accounts,
) -> Result<bool, SinkError> {
    let applied = months.applied(month, ORIGIN.gateway)?;
    let span = params![applied, month.beginning_ns(), month.last_ns(), MOVE_ROWS_MAX as i64];
    let last = "SELECT max(rowid) FROM (SELECT rowid FROM flow_1
         WHERE rowid > ?1 AND closed_ns BETWEEN ?2 AND ?3 ORDER BY rowid LIMIT ?4)";
    let last: Option<i64> = connection.query_row(last, span, |row| row.get(0))?;
    let Some(last) = last else { return Ok(false) };
    months.append(month, ORIGIN, last, |file| {
        let sql =
            format!("{CURRENT_COLUMNS} WHERE rowid > ?1 AND rowid <= ?2 AND closed_ns BETWEEN ?3 AND ?4");
        let mut select = connection.prepare_cached(&sql)?;
        let mut rows = select.query(params![applied, last, month.beginning_ns(), month.last_ns()])?;
        while let Some(row) = rows.next()? {
            let reason = row.get_ref("reason")?.as_str().map_err(rusqlite::Error::from)?;
            let counters = CounterColumns::read(row, "closed_ns")?;
            let columns = FlowColumns::read(row)?;
            let columns = FlowColumns { account: accounts.find(columns.user).unwrap_or(0), ..columns };
            file.flow(row.get("rowid")?, &columns, &counters, reason)?;
        }
        Ok(())
    })?;
    Ok(true)
}

fn fill_rollups(connection: &Connection, accounts: &Accounts) -> rusqlite::Result<()> {
    let mut rollups = Rollups::default();
    let mut select = connection.prepare("SELECT user, class, closed_ns, up, down FROM flow_1")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let sums = Sums { flows: 1, up: row.get("up")?, down: row.get("down")?, ..Sums::default() };
        let quarter = row.get::<_, i64>("closed_ns")? / QUARTER_NS;
        let account = accounts.find(&row.get::<_, String>("user")?).unwrap_or(0);
        let class = row.get::<_, String>("class")?.into();
        rollups.add(quarter, SumKey { account, class, set: 0 }, &sums);
        if rollups.len() >= MOVE_ROWS_MAX {
            rollups.write_in_version_5(connection)?;
        }
    }
    rollups.write_in_version_5(connection)
}
