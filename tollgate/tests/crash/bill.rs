//! The bill: what the ledger of a data directory says of each flow.
//!
//! Promises: every row of every `flow` table in the directory, whether one database holds all or each month
//! has its own, with or without the columns of what is uncertain. Leaves to others: whether it is right.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

/// A final row, as far as a kill test looks at it.
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
    let entries = fs::read_dir(directory).expect("the data directory can be read");
    let paths = entries.map(|entry| entry.expect("a directory's entry can be read").path());
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "db")) {
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        if has(&connection, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'flow'")? {
            read_database(&connection, &mut rows)?;
        }
    }
    Ok(rows)
}

fn read_database(connection: &Connection, rows: &mut Vec<Row>) -> rusqlite::Result<()> {
    let asked = "SELECT count(*) FROM pragma_table_info('flow') WHERE name = 'uncertain_up'";
    let uncertain = if has(connection, asked)? { "uncertain_up, uncertain_down" } else { "0, 0" };
    let query = format!("SELECT id, address, client, reason, up, down, {uncertain} FROM flow");
    let mut statement = connection.prepare(&query)?;
    let found = statement.query_map([], |row| {
        let text = |at: usize| row.get::<_, String>(at);
        let count = |at: usize| row.get::<_, i64>(at).map(|count| u64::try_from(count).unwrap_or(u64::MAX));
        Ok(Row {
            id: row.get(0)?,
            address: text(1)?.parse().expect("a flow was dialled at an address"),
            client: text(2)?.parse().expect("a client has an address and a port"),
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
