//! How far entries are applied, as `ledger.db` stores it: by gateway in `source`, by month and gateway in
//! `month`.
//!
//! Guarantees: a damaged row is refused. A month that was marked as dropped stays marked.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::checksum;
use super::month::Month;

/// How far a gateway's entries are applied: a row of `source`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) gateway: i64,
    pub(crate) epoch: i64,
    pub(crate) applied_lsn: i64,
    /// durable_lsn <= applied_lsn
    pub(crate) durable_lsn: i64,
}

impl Source {
    /// Reads the row of `gateway`, if it has one.
    pub(crate) fn read(connection: &Connection, gateway: i64) -> rusqlite::Result<Option<Source>> {
        let mut select = connection.prepare_cached("SELECT * FROM source WHERE gateway = ?1")?;
        select
            .query_row([gateway], |row| {
                checksum::check(row, "source")?;
                Ok(Source {
                    gateway,
                    epoch: row.get("epoch")?,
                    applied_lsn: row.get("applied_lsn")?,
                    durable_lsn: row.get("durable_lsn")?,
                })
            })
            .optional()
    }

    /// Writes the row.
    pub(crate) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let put = "INSERT OR REPLACE INTO source VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = [self.gateway, self.epoch, self.applied_lsn, self.durable_lsn];
        checksum::put(connection, put, &values.map(ValueRef::Integer))
    }
}

/// Stores that the file of `month` has the entries of `gateway` up to `applied_lsn`, or is `dropped`, which
/// it stays forever.
pub(crate) fn put_month(
    connection: &Connection,
    month: Month,
    gateway: i64,
    applied_lsn: i64,
    dropped: bool,
) -> rusqlite::Result<()> {
    let known = "SELECT * FROM month WHERE month = ?1 AND gateway = ?2";
    let known: Option<bool> = connection
        .prepare_cached(known)?
        .query_row([month.number(), gateway], |row| {
            checksum::check(row, "month")?;
            row.get("dropped")
        })
        .optional()?;
    let dropped = i64::from(dropped || known.unwrap_or(false));
    let put = "INSERT OR REPLACE INTO month VALUES (?1, ?2, ?3, ?4, ?5)";
    checksum::put(connection, put, &[month.number(), gateway, applied_lsn, dropped].map(ValueRef::Integer))
}

/// Marks a month as dropped, if it has had a file: its sums lack what its details have.
pub(super) fn mark_incomplete(connection: &Connection, month: Month) -> rusqlite::Result<()> {
    let gateways: Vec<(i64, i64)> = connection
        .prepare("SELECT gateway, applied_lsn FROM month WHERE month = ?1")?
        .query_map([month.number()], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    gateways.into_iter().try_for_each(|(gateway, lsn)| put_month(connection, month, gateway, lsn, true))
}

/// Marks `months` as dropped, on stable storage.
pub(crate) fn drop_months(connection: &mut Connection, months: &[Month]) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for month in months {
        let mut gateways: Vec<(i64, i64)> = transaction
            .prepare_cached("SELECT gateway, applied_lsn FROM month WHERE month = ?1")?
            .query_map([month.number()], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        // An unregistered file is marked too, for no gateway.
        if gateways.is_empty() {
            gateways.push((0, 0));
        }
        for (gateway, applied_lsn) in gateways {
            put_month(&transaction, *month, gateway, applied_lsn, true)?;
        }
    }
    transaction.commit()?;
    connection.pragma_update(None, "synchronous", "NORMAL")
}
