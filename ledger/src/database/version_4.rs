//! Migrates schema version 4 of `ledger.db`, whose sums are by hour and user's name, to quarter-hours and
//! accounts.
//!
//! Guarantees: no byte is lost or doubled: what was counted in an hour belongs to its last quarter-hour from
//! then on. Each name gets an account, in the order of the names.

use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use sys::clock;

use super::accounts::Accounts;
use super::month::{HOUR_NS, last_quarter};
use super::schema::{SchemaError, integer, sqlite};
use super::sums::{Rollups, SumKey, Sums};
use super::version_1;
use super::watermarks::Source;
use super::{checksum, live, run};
use crate::limits::MOVE_ROWS_MAX;

/// Fills the new tables from those of version 4, and drops those.
pub(super) fn move_sums(connection: &Connection, path: &Path) -> Result<(), SchemaError> {
    let failed = |cause| sqlite(path, cause);
    let has_flows = "SELECT count(*) FROM sqlite_schema WHERE name = 'flow_1'";
    let has_flows = connection.query_row(has_flows, [], |row| row.get::<_, i64>(0)).map_err(failed)? > 0;
    let accounts = name_accounts(connection, has_flows).map_err(failed)?;
    move_hours(connection, &accounts)
        .and_then(|()| move_live(connection))
        .and_then(|()| move_runs(connection))
        .and_then(|()| note_hourly(connection))
        .map_err(failed)?;
    if has_flows {
        version_1::move_flows(connection, path, &accounts)?;
    }
    let drop = "DROP TABLE rollup_hour; DROP TABLE rollup_day_4; DROP TABLE live_4; DROP TABLE run_4;";
    connection.execute_batch(drop).map_err(failed)
}

fn name_accounts(connection: &Connection, has_flows: bool) -> rusqlite::Result<Accounts> {
    let flows = if has_flows { "UNION SELECT user FROM flow_1" } else { "" };
    let sql = format!("SELECT user FROM rollup_hour UNION SELECT user FROM live_4 {flows} ORDER BY user");
    let names: Vec<String> =
        connection.prepare(&sql)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut accounts = Accounts::default();
    let now = integer(clock::wall().0);
    for naming in accounts.assign(names.iter().map(|name| (name.as_str(), 0)), now) {
        naming.put(connection)?;
        accounts.note(naming);
    }
    Ok(accounts)
}

fn move_hours(connection: &Connection, accounts: &Accounts) -> rusqlite::Result<()> {
    let mut rollups = Rollups::default();
    let mut select = connection.prepare("SELECT *, 0 AS requests FROM rollup_hour")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        checksum::check(row, "rollup_hour")?;
        let user: String = row.get("user")?;
        let class: String = row.get("class")?;
        let key = SumKey { account: accounts.find(&user).unwrap_or(0), class: class.into(), set: 0 };
        rollups.add(last_quarter(row.get("hour")?), key, &Sums::read(row)?);
        if rollups.len() >= MOVE_ROWS_MAX {
            rollups.write(connection)?;
        }
    }
    rollups.write(connection)
}

/// Notes which entries were summed up by hour, for months that are made again from the journal.
fn note_hourly(connection: &Connection) -> rusqlite::Result<()> {
    let gateways: Vec<i64> = connection
        .prepare("SELECT gateway FROM source")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for gateway in gateways {
        if let Some(source) = Source::read(connection, gateway)? {
            let values = [gateway, source.applied_lsn].map(ValueRef::Integer);
            checksum::put(connection, "INSERT INTO hourly VALUES (?1, ?2, ?3)", &values)?;
        }
    }
    Ok(())
}

/// Copies the rows of table `from` by `select` and `put`, once all of them were checked.
fn copy(connection: &Connection, from: &str, select: &str, put: &str) -> rusqlite::Result<()> {
    let mut check = connection.prepare(&format!("SELECT * FROM {from}"))?;
    let mut rows = check.query([])?;
    while let Some(row) = rows.next()? {
        checksum::check(row, from)?;
    }
    let mut select = connection.prepare(select)?;
    let columns = select.column_count();
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|index| row.get_ref(index)).collect::<rusqlite::Result<Vec<_>>>()?;
        checksum::put(connection, put, &values)?;
    }
    Ok(())
}

fn move_live(connection: &Connection) -> rusqlite::Result<()> {
    let select = format!(
        "SELECT id, opened_ns, (SELECT account FROM account WHERE name = user), 0, 0, user, host, port,
                address, client, class, protocol, rule, cut, counted_ns,
                counted_ns / {HOUR_NS} * 4 + 3, 0, client_rx, upstream_tx, upstream_rx, client_tx,
                uncertain_up, uncertain_down, up_before, down_before, gateway, epoch
         FROM live_4"
    );
    copy(connection, "live_4", &select, live::PUT)
}

fn move_runs(connection: &Connection) -> rusqlite::Result<()> {
    let select =
        "SELECT gateway, epoch, began_lsn, began_ns, ended_lsn, ended_ns, zeroblob(16), 0 FROM run_4";
    copy(connection, "run_4", select, run::PUT)
}
