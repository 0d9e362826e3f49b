//! The bill: what the ledger of a data directory has of each flow.
//!
//! Guarantees: returns every row of every `flow` table in the directory, whether one database holds all or
//! each month has its own, with or without the columns of uncertain bytes. `oracle` judges it.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

/// A final row, as far as a kill test checks it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Row {
    pub(crate) id: Vec<u8>,
    pub(crate) address: IpAddr,
    pub(crate) client: SocketAddr,
    pub(crate) reason: String,
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) uncertain_up: u64,
    pub(crate) uncertain_down: u64,
}

/// Reads the bill of a gateway that has stopped.
pub(crate) fn read(directory: &Path) -> rusqlite::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for path in databases(directory) {
        let connection = open(&path)?;
        if has(&connection, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'flow'")? {
            read_database(&connection, &mut rows)?;
        }
    }
    Ok(rows)
}

/// A row of `live`: the id of an open flow, and its bytes in both directions.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) id: Vec<u8>,
    pub(crate) up: u64,
    pub(crate) down: u64,
}

/// Reads the open flows; empty if there is no database yet.
pub(crate) fn live(directory: &Path) -> rusqlite::Result<Vec<Live>> {
    let row = |row: &rusqlite::Row<'_>| {
        let count = |at: usize| row.get::<_, i64>(at).map(|count| u64::try_from(count).unwrap_or(u64::MAX));
        Ok(Live { id: row.get(0)?, up: count(1)?, down: count(2)? })
    };
    query(directory, "live", "SELECT id, upstream_tx, client_tx FROM live", row)
}

/// How far the journal's entries are applied to the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// The last applied entry.
    pub(crate) applied: u64,
    /// Gap entries: their own LSN, and that of the first missing entry.
    pub(crate) gaps: Vec<(u64, u64)>,
}

/// Reads the progress of a gateway that has stopped.
pub(crate) fn progress(directory: &Path) -> rusqlite::Result<Progress> {
    let number = |row: &rusqlite::Row<'_>, at: usize| row.get::<_, i64>(at).map(|it| it as u64);
    let applied = query(directory, "source", "SELECT applied_lsn FROM source", |row| number(row, 0))?;
    let gaps = query(directory, "gap", "SELECT lsn, first_lsn FROM gap", |row| {
        Ok((number(row, 0)?, number(row, 1)?))
    })?;
    Ok(Progress { applied: applied.into_iter().max().unwrap_or(0), gaps })
}

fn query<T>(
    directory: &Path,
    table: &str,
    text: &str,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    let path = directory.join("ledger.db");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let connection = open(&path)?;
    let table_exists =
        format!("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = '{table}'");
    // A database whose tables were not created yet when the power failed.
    if !has(&connection, &table_exists)? {
        return Ok(Vec::new());
    }
    connection.prepare(text)?.query_map([], read)?.collect()
}

fn databases(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).expect("the data directory can be read");
    let paths = entries.map(|entry| entry.expect("a directory's entry can be read").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "db"))
}

/// Opens a database that no other process has open, without mapping a file: it may lie on the test disk
/// (`disk`).
fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    Ok(connection)
}

fn read_database(connection: &Connection, rows: &mut Vec<Row>) -> rusqlite::Result<()> {
    let table_exists = "SELECT count(*) FROM pragma_table_info('flow') WHERE name = 'uncertain_up'";
    let uncertain = if has(connection, table_exists)? { "uncertain_up, uncertain_down" } else { "0, 0" };
    let query = format!("SELECT id, address, client, reason, up, down, {uncertain} FROM flow");
    let mut statement = connection.prepare(&query)?;
    let found = statement.query_map([], |row| {
        let text = |at: usize| row.get::<_, String>(at);
        let count = |at: usize| row.get::<_, i64>(at).map(|count| u64::try_from(count).unwrap_or(u64::MAX));
        Ok(Row {
            id: row.get(0)?,
            address: text(1)?.parse().expect("the column `address` is an IP address"),
            client: text(2)?.parse().expect("the column `client` is an address and a port"),
            reason: text(3)?,
            up: count(4)?,
            down: count(5)?,
            uncertain_up: count(6)?,
            uncertain_down: count(7)?,
        })
    })?;
    for row in found {
        rows.push(row?);
    }
    Ok(())
}

fn has(connection: &Connection, query: &str) -> rusqlite::Result<bool> {
    connection.query_row(query, [], |row| row.get::<_, i64>(0)).map(|count| count > 0)
}
