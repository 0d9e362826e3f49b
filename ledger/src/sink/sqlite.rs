//! The default sink: one SQLite database in WAL mode, written by this connection alone.
//!
//! Promises: the contract of [`Sink`]; readers are never blocked and never block. A process that dies
//! loses no applied batch; a power failure may take those since the last checkpoint, and damages nothing.
//! Leaves to others: when to checkpoint, and when to try again.
//!
//! Each opened sink is an epoch, a row of `source` whose `applied_lsn` moves in the transaction of the rows
//! that it covers: so a batch that is sent again is recognised, however its first attempt ended.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags, Row, Statement, TransactionBehavior, ffi, params};
use sys::clock;

use super::schema::{self, MIGRATIONS, SchemaError, integer};
use super::{Sink, SinkError};
use crate::limits::WRITER_BUSY_MAX;
use crate::record::Record;

/// See the file's header.
pub(crate) struct SqliteSink {
    connection: Connection,
    epoch: i64,
}

impl SqliteSink {
    /// Opens the database at `path`, brings it to our schema, and begins an epoch.
    pub(crate) fn open(path: &Path) -> Result<Self, SchemaError> {
        schema::check_sqlite()?;
        let failed = |cause| schema::sqlite(path, cause);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        connection.busy_timeout(WRITER_BUSY_MAX).map_err(failed)?;
        // Before the settings, one of which writes: a file of somebody else is left as it is.
        schema::migrate(&mut connection, path, MIGRATIONS)?;
        configure(&connection).map_err(failed)?;
        let epoch = begin_epoch(&connection).map_err(failed)?;
        Ok(Self { connection, epoch })
    }
}

impl Sink for SqliteSink {
    fn apply(&mut self, first_lsn: u64, records: &[Record]) -> Result<(), SinkError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let applied = transaction
            .prepare_cached("SELECT applied_lsn FROM source WHERE epoch = ?1")?
            .query_row([self.epoch], |row| row.get::<_, i64>(0))?;
        let fresh = &records[already_applied(applied, first_lsn, records.len())?..];
        if fresh.is_empty() {
            return Ok(());
        }
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            for record in fresh {
                insert_flow(&mut insert, record)?;
            }
            let last_lsn = integer(first_lsn) + integer(records.len() as u64) - 1;
            transaction
                .prepare_cached("UPDATE source SET applied_lsn = ?2 WHERE epoch = ?1")?
                .execute([self.epoch, last_lsn])?;
        }
        Ok(transaction.commit()?)
    }

    fn checkpoint(&mut self) -> Result<bool, SinkError> {
        Ok(self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], is_complete)?)
    }

    fn seal(&mut self) -> Result<(), SinkError> {
        // A checkpoint syncs only as far as the oldest reader permits. This commit syncs the whole log, so
        // that all is on the disk even if a reader keeps the checkpoint from finishing.
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        self.connection.execute(
            "UPDATE source SET sealed_ns = ?2 WHERE epoch = ?1",
            [self.epoch, integer(clock::wall().0)],
        )?;
        // For tidiness, no more: it leaves an empty log, unless a reader is in the way.
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], is_complete)?;
        Ok(())
    }
}

impl From<rusqlite::Error> for SinkError {
    fn from(error: rusqlite::Error) -> Self {
        let text = format!("SQLite: {error}");
        let Some(cause) = error.sqlite_error() else { return Self::Passing(text) };
        let damaged = matches!(cause.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase);
        // Linux marks pages clean whose write failed, so a second sync would succeed and mean nothing.
        let unsynced = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC].contains(&cause.extended_code);
        if damaged || unsynced { Self::Final(text) } else { Self::Passing(text) }
    }
}

const INSERT: &str = "INSERT INTO flow (id, opened_ns, closed_ns, user, host, port, address, client, class,
     protocol, rule, reason, cut, client_rx, upstream_tx, upstream_rx, client_tx)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";

fn insert_flow(insert: &mut Statement<'_>, record: &Record) -> rusqlite::Result<()> {
    let flow = record.flow();
    insert.execute(params![
        // Big-endian, so that ids sort in the database as they do here.
        flow.id.to_be_bytes(),
        integer(flow.opened.0),
        integer(flow.closed.0),
        flow.user,
        flow.host,
        flow.port,
        flow.address.map(|address| address.to_string()),
        flow.client.to_string(),
        flow.class.as_str(),
        flow.protocol.as_str(),
        flow.rule,
        flow.reason.as_str(),
        record.is_cut(),
        integer(flow.legs.client_rx),
        integer(flow.legs.upstream_tx),
        integer(flow.legs.upstream_rx),
        integer(flow.legs.client_tx),
    ])?;
    Ok(())
}

/// How many of `count` records from `first_lsn` on the database has, which has come to `applied`.
fn already_applied(applied: i64, first_lsn: u64, count: usize) -> Result<usize, SinkError> {
    let expected = applied.cast_unsigned() + 1;
    match expected.checked_sub(first_lsn) {
        Some(known) => Ok(usize::try_from(known).unwrap_or(usize::MAX).min(count)),
        None => Err(SinkError::Final(format!("record {expected} is due, and {first_lsn} came"))),
    }
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let text = format!("the file system does not permit WAL mode, only {mode}");
        let code = ffi::Error::new(ffi::SQLITE_CANTOPEN);
        return Err(rusqlite::Error::SqliteFailure(code, Some(text)));
    }
    // In WAL mode, NORMAL syncs at checkpoints only. Checkpoints are ours, for the one inside a commit
    // would hide a failed sync.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "trusted_schema", false)
}

fn begin_epoch(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row(
        "INSERT INTO source (epoch, started_ns, applied_lsn)
             SELECT ifnull(max(epoch), 0) + 1, ?1, 0 FROM source
             RETURNING epoch",
        [integer(clock::wall().0)],
        |row| row.get(0),
    )
}

/// Whether a checkpoint brought the whole log into the database: its row is (blocked, in log, done).
fn is_complete(row: &Row<'_>) -> rusqlite::Result<bool> {
    Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?)
}

#[cfg(test)]
mod tests;
