//! The table of flows that go on: what was last counted of each, from which the next count's difference is
//! made.
//!
//! Promises: a row that is damaged is never computed with. Leaves to others: the transaction, and what a
//! difference means (`tally`).

use std::collections::HashSet;

use rusqlite::{Connection, params};

use super::begun::{Begun, Counted};
use super::checksum;
use super::month_file::Stamp;
use crate::record::Record;

const FIND: &str = "SELECT * FROM live WHERE id = ?1";
const PUT: &str = "INSERT OR REPLACE INTO live VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
     ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)";
const REMOVE: &str = "DELETE FROM live WHERE id = ?1";
const IDS: &str = "SELECT id FROM live WHERE gateway = ?1";
const OF_EPOCHS: &str = "SELECT * FROM live
     WHERE gateway = ?1 AND epoch <= ?2 AND counted_ns BETWEEN ?3 AND ?4";
const REMOVE_EPOCHS: &str = "DELETE FROM live WHERE gateway = ?1 AND epoch <= ?2";

/// The gateway's flows that go on.
pub(crate) fn ids(connection: &Connection, gateway: i64) -> rusqlite::Result<HashSet<u128>> {
    let mut select = connection.prepare(IDS)?;
    let ids = select.query_map([gateway], |row| row.get(0).map(u128::from_be_bytes))?;
    ids.collect()
}

/// What was last counted of the flow with this id, unless it is over or unknown.
pub(crate) fn find(connection: &Connection, id: u128) -> rusqlite::Result<Option<Counted>> {
    let mut select = connection.prepare_cached(FIND)?;
    let mut rows = select.query([id.to_be_bytes()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    checksum::check(row, "live")?;
    Counted::read(row, "counted_ns").map(Some)
}

/// The flow of `record` goes on and has come to `counted`.
pub(crate) fn put(
    connection: &Connection,
    stamp: Stamp,
    record: &Record,
    counted: &Counted,
) -> rusqlite::Result<()> {
    let begun = Begun::of(record);
    let mut values = Vec::with_capacity(22);
    values.extend(begun.values());
    values.extend(counted.values());
    values.extend(stamp.values());
    checksum::put(connection, PUT, &values)
}

/// The flow is over.
pub(crate) fn remove(connection: &Connection, id: u128) -> rusqlite::Result<()> {
    connection.prepare_cached(REMOVE)?.execute([id.to_be_bytes()])?;
    Ok(())
}

/// Calls `each` with the flows of the gateway's runs up to `epoch` that were last counted in the span, both
/// ends included.
pub(crate) fn each_of_epochs<E: From<rusqlite::Error>>(
    connection: &Connection,
    gateway: i64,
    epoch: i64,
    span_ns: (i64, i64),
    mut each: impl FnMut(&Begun<'_>, &Counted) -> Result<(), E>,
) -> Result<(), E> {
    let mut select = connection.prepare_cached(OF_EPOCHS)?;
    let mut rows = select.query(params![gateway, epoch, span_ns.0, span_ns.1])?;
    while let Some(row) = rows.next()? {
        checksum::check(row, "live")?;
        each(&Begun::read(row)?, &Counted::read(row, "counted_ns")?)?;
    }
    Ok(())
}

/// All flows of the gateway's runs up to `epoch` are over.
pub(crate) fn remove_epochs(connection: &Connection, gateway: i64, epoch: i64) -> rusqlite::Result<()> {
    connection.prepare_cached(REMOVE_EPOCHS)?.execute([gateway, epoch])?;
    Ok(())
}
