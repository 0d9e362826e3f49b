//! Grants and notices: tables `quota_grant` and `quota_notice`.
//!
//! Guarantees: a row is never changed. What is applied again changes nothing.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use sys::clock::WallNanos;

use super::checksum;
use super::schema::integer;
use crate::quota::{Grant, Notice, Owner};

/// Stores a grant, unless its id has one.
pub(crate) fn put_grant(connection: &Connection, grant: &Grant) -> rusqlite::Result<()> {
    let Grant { id, at, owner, quota, bytes, from, until, author, reason } = grant;
    let ((account, team), id) = (owner.parts(), id.to_be_bytes());
    let [given, bytes, from, until] =
        [at.0, *bytes, from.0, until.0].map(|number| ValueRef::Integer(integer(number)));
    let [team, quota, author, reason] =
        [team, quota, author, reason].map(|text| ValueRef::Text(text.as_bytes()));
    let account = ValueRef::Integer(account.into());
    let values = [ValueRef::Blob(&id), given, account, team, quota, bytes, from, until, author, reason];
    let insert = "INSERT OR IGNORE INTO quota_grant VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    checksum::put(connection, insert, &values)
}

/// Stores a notice, unless its owner has one of the same quota, period and percentage.
pub(crate) fn put_notice(connection: &Connection, notice: &Notice) -> rusqlite::Result<()> {
    let Notice { at, owner, quota, period_start, percent, used, limit } = notice;
    let (account, team) = owner.parts();
    let [reached, period, used, limit] =
        [at.0, period_start.0, *used, *limit].map(|number| ValueRef::Integer(integer(number)));
    let [team, quota] = [team, quota].map(|text| ValueRef::Text(text.as_bytes()));
    let [account, percent] = [account, u32::from(*percent)].map(|number| ValueRef::Integer(number.into()));
    let values = [account, team, quota, period, percent, reached, used, limit];
    let insert = "INSERT OR IGNORE INTO quota_notice VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    checksum::put(connection, insert, &values)
}

/// Whether the file has these tables; one of an earlier version has not.
pub(crate) fn exist(connection: &Connection) -> rusqlite::Result<bool> {
    connection.table_exists(None, "quota_notice")
}

/// The grant of a row.
pub(crate) fn grant(row: &Row<'_>) -> rusqlite::Result<Grant> {
    Ok(Grant {
        id: u128::from_be_bytes(row.get("id")?),
        at: moment(row, "given_ns")?,
        owner: owner(row)?,
        quota: row.get("quota")?,
        bytes: count(row, "bytes")?,
        from: moment(row, "from_ns")?,
        until: moment(row, "until_ns")?,
        author: row.get("author")?,
        reason: row.get("reason")?,
    })
}

/// The notice of a row.
pub(crate) fn notice(row: &Row<'_>) -> rusqlite::Result<Notice> {
    Ok(Notice {
        at: moment(row, "reached_ns")?,
        owner: owner(row)?,
        quota: row.get("quota")?,
        period_start: moment(row, "period_ns")?,
        percent: row.get("percent")?,
        used: count(row, "used")?,
        limit: count(row, "limit_bytes")?,
    })
}

fn owner(row: &Row<'_>) -> rusqlite::Result<Owner> {
    Ok(Owner::from_parts(row.get("account")?, &row.get::<_, String>("team")?))
}

fn count(row: &Row<'_>, name: &str) -> rusqlite::Result<u64> {
    row.get::<_, i64>(name).map(|count| u64::try_from(count).unwrap_or(0))
}

fn moment(row: &Row<'_>, name: &str) -> rusqlite::Result<WallNanos> {
    count(row, name).map(WallNanos)
}
