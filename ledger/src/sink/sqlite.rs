//! The default sink: SQLite in WAL mode, one file of totals, and one of details for each month.
//!
//! Promises: the contract of [`Sink`]; readers are never blocked and never block. A process that dies
//! loses no applied batch; a power failure may take those since the last checkpoint, which are sent again,
//! and damages nothing. Leaves to others: when to checkpoint, and when to try again.
//!
//! ```text
//!   entries --tally--> rows by month --> usage-202601.db   each commits first, with a watermark of its own
//!               |                    '-> usage-202602.db
//!               '----> live, rollups, source ------------> ledger.db commits last
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, ffi};

use super::live::LiveFlows;
use super::month::Month;
use super::month_file::{self, MonthFiles, Stamp};
use super::schema::{self, LEDGER, SchemaError, integer};
use super::tally::Tally;
use super::{Sink, SinkError, SinkSettings, checksum, retention};
use crate::directory;
use crate::entry::Entry;

/// See the file's header.
pub(crate) struct SqliteSink {
    directory: PathBuf,
    connection: Connection,
    live: LiveFlows,
    months: MonthFiles,
    gateway: i64,
    months_max: u32,
}

impl SqliteSink {
    /// Opens the ledger in `directory` for the entries of `gateway`, and brings it to our schema.
    pub(crate) fn open(directory: &Path, gateway: u32, settings: SinkSettings) -> Result<Self, SchemaError> {
        schema::check_sqlite()?;
        assert!(gateway != 0, "0 stands for flows that no entry brought");
        let path = directory::database(directory);
        month_file::make(&path)
            .map_err(|cause| SchemaError::Unmade { path: path.display().to_string(), cause })?;
        let mut connection = schema::connect(&path)?;
        schema::migrate(&mut connection, &path, LEDGER)?;
        schema::configure(&connection).map_err(|cause| schema::sqlite(&path, cause))?;
        let gateway = i64::from(gateway);
        let live = LiveFlows::read(&connection, gateway).map_err(|cause| schema::sqlite(&path, cause))?;
        let months = MonthFiles::new(directory, settings.rows_per_month_max);
        let (directory, months_max) = (directory.to_owned(), settings.detail_months);
        Ok(Self { directory, connection, live, months, gateway, months_max })
    }

    /// The gateway's flows that go on, as far as it has been told; exact until something is applied.
    pub(crate) fn open_flows(&self) -> HashSet<u128> {
        self.live.ids().clone()
    }

    /// Does all of an `apply` but the last commit; `None` if there is nothing new. Dropping what it returns
    /// leaves what a process leaves that dies at this point.
    fn stage(
        &mut self,
        epoch: u32,
        first_lsn: u64,
        entries: &[Entry],
    ) -> Result<Option<Transaction<'_>>, SinkError> {
        let Self { connection, live, months, gateway, .. } = self;
        let stamp = Stamp { gateway: *gateway, epoch: epoch.into() };
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let source = Source::read(&transaction, *gateway)?;
        let known = already_applied(source, stamp.epoch, first_lsn, entries.len())?;
        if known == entries.len() {
            return Ok(None);
        }
        let mut tally = Tally::new(&transaction, live, months, stamp);
        for (entry, lsn) in entries.iter().zip(integer(first_lsn)..).skip(known) {
            tally.add(lsn, entry)?;
        }
        let applied_lsn = integer(first_lsn) + integer(entries.len() as u64) - 1;
        for (month, lsn) in tally.finish(applied_lsn)? {
            put_month(&transaction, month, *gateway, lsn, false)?;
        }
        let durable_lsn = source.map_or(0, |source| source.durable_lsn);
        Source { gateway: *gateway, epoch: stamp.epoch, applied_lsn, durable_lsn }.write(&transaction)?;
        Ok(Some(transaction))
    }

    /// Brings the log of `ledger.db` to stable storage: months are there already. A checkpoint alone would
    /// sync only as far as the oldest reader permits; a commit in this mode syncs the whole log.
    fn sync(&mut self) -> Result<u64, SinkError> {
        let Some(source) = Source::read(&self.connection, self.gateway)? else { return Ok(0) };
        if source.durable_lsn < source.applied_lsn {
            self.connection.pragma_update(None, "synchronous", "FULL")?;
            Source { durable_lsn: source.applied_lsn, ..source }.write(&self.connection)?;
            self.connection.pragma_update(None, "synchronous", "NORMAL")?;
        }
        Ok(source.applied_lsn.cast_unsigned())
    }
}

impl Sink for SqliteSink {
    fn applied_lsn(&mut self) -> Result<Option<u64>, SinkError> {
        let source = Source::read(&self.connection, self.gateway)?;
        Ok(source.map(|source| source.applied_lsn.cast_unsigned()))
    }

    fn epoch(&mut self) -> Result<u32, SinkError> {
        let source = Source::read(&self.connection, self.gateway)?;
        Ok(source.map_or(0, |source| u32::try_from(source.epoch).unwrap_or(u32::MAX)))
    }

    fn apply(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]) -> Result<(), SinkError> {
        let Some(transaction) = self.stage(epoch, first_lsn, entries)? else { return Ok(()) };
        transaction.commit()?;
        self.live.committed();
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<u64, SinkError> {
        let durable_lsn = self.sync()?;
        self.months.checkpoint()?;
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        if self.months.take_made() {
            let Self { directory, connection, months, months_max, .. } = self;
            let reached = (self.gateway, integer(durable_lsn));
            retention::remove_oldest(connection, months, directory, *months_max, reached)?;
        }
        Ok(durable_lsn)
    }

    fn seal(&mut self) -> Result<(), SinkError> {
        self.checkpoint()?;
        // For tidiness, no more: it leaves empty logs, unless a reader is in the way.
        self.months.close()?;
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(())
    }
}

/// How far a gateway's entries have come: a row of `source`.
#[derive(Clone, Copy)]
struct Source {
    gateway: i64,
    epoch: i64,
    applied_lsn: i64,
    /// durable_lsn <= applied_lsn
    durable_lsn: i64,
}

impl Source {
    fn read(connection: &Connection, gateway: i64) -> rusqlite::Result<Option<Source>> {
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

    fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let put = "INSERT OR REPLACE INTO source VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = [self.gateway, self.epoch, self.applied_lsn, self.durable_lsn];
        checksum::put(connection, put, &values.map(ValueRef::Integer))
    }
}

/// How many of `count` entries from `first_lsn` on the database has.
fn already_applied(
    source: Option<Source>,
    epoch: i64,
    first_lsn: u64,
    count: usize,
) -> Result<usize, SinkError> {
    let Some(source) = source else { return Ok(0) };
    let expected = source.applied_lsn.cast_unsigned() + 1;
    let Some(known) = expected.checked_sub(first_lsn) else {
        return Err(SinkError::Final(format!("entry {expected} is due, and {first_lsn} came")));
    };
    let known = usize::try_from(known).unwrap_or(usize::MAX).min(count);
    // What is known already may be sent again by whom it may.
    if known < count && epoch < source.epoch {
        let text = format!("run {} of this gateway has taken over from run {epoch}", source.epoch);
        return Err(SinkError::Final(text));
    }
    Ok(known)
}

/// The file of `month` has come to `applied_lsn` of `gateway`, or is `dropped`, which it remains for ever.
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

/// Marks `months` as dropped, on stable storage.
pub(crate) fn drop_months(connection: &mut Connection, months: &[Month]) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for month in months {
        let mut gateways: Vec<(i64, i64)> = transaction
            .prepare_cached("SELECT gateway, applied_lsn FROM month WHERE month = ?1")?
            .query_map([month.number()], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        // A file that nobody told us of is marked too, in the name of no gateway.
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

impl From<rusqlite::Error> for SinkError {
    fn from(error: rusqlite::Error) -> Self {
        let text = format!("SQLite: {error}");
        // What SQLite did not say is ours: a column of another kind, a row that is not there.
        let Some(cause) = error.sqlite_error() else { return Self::Final(text) };
        let damaged = matches!(cause.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase);
        // Linux marks pages clean whose write failed, so a second sync would succeed and mean nothing.
        let unsynced = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC].contains(&cause.extended_code);
        if damaged || unsynced { Self::Final(text) } else { Self::Passing(text) }
    }
}

impl From<SchemaError> for SinkError {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::Sqlite { cause, .. } => cause.into(),
            error => Self::Final(error.to_string()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
