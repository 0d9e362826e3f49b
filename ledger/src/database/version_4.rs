//! Migrates schema version 4 of `ledger.db`, whose sums are by hour and user's name, to quarter-hours and
//! accounts.
//!
//! Guarantees: no byte is lost or doubled: what was counted in an hour belongs to its last quarter-hour from
//! then on. Each name gets an account, in the order of the names. Each row is read and written once.
//! Not handled here: consent to what damaged rows lose (`findings`).

pub(crate) mod damage;

use std::collections::BTreeSet;
use std::path::Path;

use rusqlite::Connection;
use sys::clock;

use super::accounts::Accounts;
use super::month::{HOUR_NS, last_quarter};
use super::rollups::{RollupFiller, SumKey};
use super::schema::{SchemaError, integer, sqlite};
use super::sums::Sums;
use super::version_1;
use super::watermarks;
use super::{checksum, hourly, live, run};
use damage::Damage;

/// Fills the new tables from those of version 4, and drops those.
pub(super) fn move_sums(connection: &Connection, path: &Path) -> Result<(), SchemaError> {
    let failed = |cause| sqlite(path, cause);
    let directory = path.parent().unwrap_or(Path::new("."));
    let has_flows = "SELECT count(*) FROM sqlite_schema WHERE name = 'flow_1'";
    let has_flows = connection.query_row(has_flows, [], |row| row.get::<_, i64>(0)).map_err(failed)? > 0;
    let damage = Damage::read(connection, "rollup_day_4").map_err(failed)?;
    let accounts = name_accounts(connection, &damage.users, has_flows).map_err(failed)?;
    move_hours(connection, &accounts, &damage)
        .and_then(|()| move_live(connection))
        .and_then(|()| move_runs(connection))
        .and_then(|()| hourly::note(connection, directory))
        .map_err(failed)?;
    if has_flows {
        version_1::move_flows(connection, path, &accounts)?;
    }
    let drop = "DROP TABLE rollup_hour; DROP TABLE rollup_day_4; DROP TABLE live_4; DROP TABLE run_4;";
    connection.execute_batch(drop).map_err(failed)
}

fn name_accounts(
    connection: &Connection,
    users: &BTreeSet<String>,
    has_flows: bool,
) -> rusqlite::Result<Accounts> {
    let flows = if has_flows { "UNION SELECT user FROM flow_1" } else { "" };
    let mut names = users.clone();
    let mut select = connection.prepare(&format!("SELECT user FROM live_4 {flows}"))?;
    for name in select.query_map([], |row| row.get(0))? {
        names.insert(name?);
    }
    let mut accounts = Accounts::default();
    let now = integer(clock::wall().0);
    for naming in accounts.assign(names.iter().map(|name| (name.as_str(), 0)), now) {
        naming.put(connection)?;
        accounts.note(naming);
    }
    Ok(accounts)
}

/// Moves the sums by hour. Those that are lost were accepted, and their months no longer match their details.
fn move_hours(connection: &Connection, accounts: &Accounts, damage: &Damage) -> rusqlite::Result<()> {
    let mut filler = RollupFiller::new(connection)?;
    let mut add = |hour: i64, user: &str, class: &str, sums: &Sums| {
        let account = accounts.find(user).unwrap_or(0);
        filler.add(last_quarter(hour), SumKey { account, class: class.to_owned().into(), set: 0 }, sums)
    };
    let mut restored = damage.restored.iter().peekable();
    damage::each_hour(connection, |row, is_intact| {
        if !is_intact {
            return Ok(());
        }
        let hour = row.get(damage::HOUR)?;
        while let Some(((at, user, class), sums)) = restored.next_if(|((at, ..), _)| *at <= hour) {
            add(*at, user, class, sums)?;
        }
        let (user, class) = (row.get_ref(damage::USER)?.as_str()?, row.get_ref(damage::CLASS)?.as_str()?);
        add(hour, user, class, &damage::hour_sums(row)?)
    })?;
    restored.try_for_each(|((hour, user, class), sums)| add(*hour, user, class, sums))?;
    filler.finish()?;
    damage.months().into_iter().try_for_each(|month| watermarks::mark_incomplete(connection, month))
}

/// Copies the rows of table `from` by `select` and `put`, once all of them were checked.
fn copy(connection: &Connection, from: &str, select: &str, put: &str) -> rusqlite::Result<()> {
    checksum::check_all(connection, from)?;
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
