//! The files of details, one per month, and the few of them that are kept open for writing.
//!
//! Promises: rows reach a file once, whatever is sent again, by a watermark of its own that moves in their
//! transaction; they are on stable storage when [`MonthFiles::append`] returns. Leaves to others: which rows
//! belong to which month, and the commit of `ledger.db`, which comes after these.
//!
//! Commits over several files in WAL mode are not one: after a crash a month may be ahead of `ledger.db`,
//! and readers pass over what is. It must never be behind, for what made its rows (`live`) is gone by then:
//! hence a month's commit is synced, and that of `ledger.db` comes later.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, OptionalExtension, TransactionBehavior};

use super::SinkError;
use super::checksum;
use super::columns::{CounterColumns, FlowColumns, columns};
use super::month::Month;
use super::pairing::{self, Checkpoint};
use super::schema;
use super::schema::month_db::MONTH;
use super::sums::{AGGREGATE, Sums};
use sys::crash::point;

use crate::directory::PathIdentity;
use crate::limits::MONTHS_OPEN_MAX;

/// Who says it: the gateway, and its run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) gateway: i64,
    pub(crate) epoch: i64,
}

impl Origin {
    pub(crate) fn values(self) -> [ValueRef<'static>; 2] {
        [ValueRef::Integer(self.gateway), ValueRef::Integer(self.epoch)]
    }
}

/// A month's file that is open.
struct OpenMonth {
    month: Month,
    connection: Connection,
    path_identity: PathIdentity,
}

/// The month files of one ledger.
pub(crate) struct MonthFiles {
    directory: PathBuf,
    /// The directory as it was: another one that takes its path gets none of our rows.
    directory_identity: Option<PathIdentity>,
    rows_max: i64,
    /// The one that was used last is the last. len <= MONTHS_OPEN_MAX
    open: Vec<OpenMonth>,
    /// Whether a file was made since [`MonthFiles::take_made`].
    made: bool,
}

impl MonthFiles {
    pub(crate) fn new(directory: &Path, rows_max: u64) -> Self {
        let rows_max = schema::integer(rows_max);
        let directory_identity = PathIdentity::at(directory).ok();
        Self { directory: directory.to_owned(), directory_identity, rows_max, open: Vec::new(), made: false }
    }

    /// Runs `write` in a transaction on the month's file, unless the file has everything up to `last_lsn`.
    /// What `write` appends and the file has already is passed over.
    pub(crate) fn append(
        &mut self,
        month: Month,
        origin: Origin,
        last_lsn: i64,
        write: impl FnOnce(&mut Appender<'_>) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let rows_max = self.rows_max;
        let connection = self.file(month)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let applied_lsn = applied(&transaction, origin.gateway)?;
        if applied_lsn >= last_lsn {
            return Ok(());
        }
        let rows =
            "SELECT ifnull((SELECT max(rowid) FROM flow), 0) + ifnull((SELECT max(rowid) FROM part), 0)";
        let rows: i64 = transaction.prepare_cached(rows)?.query_row([], |row| row.get(0))?;
        write(&mut Appender {
            connection: &transaction,
            insert_flow: transaction.prepare_cached(INSERT_FLOW)?,
            origin,
            applied_lsn,
            rows_free: rows_max.saturating_sub(rows),
        })?;
        let source = [ValueRef::Integer(origin.gateway), ValueRef::Integer(last_lsn)];
        checksum::put(&transaction, PUT_SOURCE, &source)?;
        transaction.commit()?;
        point("apply.month-committed");
        Ok(())
    }

    /// Takes out of the month's file what entries of `gateway` beyond `lsn` brought, to be brought again. One
    /// that keeps some of its flows as sums only stays as it is.
    pub(crate) fn remove_beyond(&mut self, month: Month, gateway: i64, lsn: i64) -> Result<(), SinkError> {
        let transaction = self.file(month)?.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let sums: i64 = transaction.query_row("SELECT count(*) FROM aggregate", [], |row| row.get(0))?;
        if sums == 0 {
            remove_beyond(&transaction, gateway, lsn)?;
            transaction.commit()?;
        }
        Ok(())
    }

    /// How far the month's file has come with entries of `gateway`; 0 if it has none.
    pub(crate) fn applied(&mut self, month: Month, gateway: i64) -> Result<i64, SinkError> {
        Ok(applied(self.file(month)?, gateway)?)
    }

    /// Fails if an open file was removed, or replaced by another.
    pub(crate) fn check_linked(&self) -> Result<(), SinkError> {
        self.open.iter().try_for_each(|open| check_linked(&open.path_identity))
    }

    /// Empties the logs of the open files as far as their readers permit.
    pub(crate) fn checkpoint(&self) -> Result<(), SinkError> {
        for OpenMonth { connection, .. } in &self.open {
            pairing::checkpoint(connection, Checkpoint::Passive)?;
        }
        Ok(())
    }

    /// Closes every file, with an empty log unless a reader is in the way.
    pub(crate) fn close(&mut self) -> Result<(), SinkError> {
        while let Some(open) = self.open.pop() {
            close(open.connection)?;
        }
        Ok(())
    }

    /// Whether a file was made since the last call.
    pub(crate) fn take_made(&mut self) -> bool {
        std::mem::take(&mut self.made)
    }

    /// Removes the month's file. The log goes first: one that outlived its database would be replayed into
    /// the next of that name.
    pub(crate) fn remove(&mut self, month: Month) -> Result<(), SinkError> {
        if let Some(index) = self.open.iter().position(|open| open.month == month) {
            close(self.open.remove(index).connection)?;
        }
        let path = month.path(&self.directory);
        remove_logs(&path).and_then(|()| fs::remove_file(&path)).map_err(|cause| failed(&path, &cause))
    }

    #[cfg(test)]
    pub(super) fn each_open(&self, each: impl FnMut(&Connection)) {
        self.open.iter().map(|open| &open.connection).for_each(each);
    }

    fn file(&mut self, month: Month) -> Result<&mut Connection, SinkError> {
        match self.open.iter().position(|open| open.month == month) {
            Some(index) => self.open[index..].rotate_left(1),
            None => {
                if self.open.len() >= MONTHS_OPEN_MAX {
                    close(self.open.remove(0).connection)?;
                }
                self.directory_identity.as_ref().map_or(Ok(()), check_linked)?;
                let path = month.path(&self.directory);
                self.made |= make(&path).map_err(|cause| failed(&path, &cause))?;
                let connection = open(&path)?;
                let path_identity = PathIdentity::at(&path).map_err(|cause| failed(&path, &cause))?;
                self.open.push(OpenMonth { month, connection, path_identity });
            }
        }
        let last = self.open.last_mut().expect("it was moved or pushed to the end");
        Ok(&mut last.connection)
    }
}

/// Fails if a database or its directory was removed, or replaced by another, while it is open.
pub(crate) fn check_linked(path_identity: &PathIdentity) -> Result<(), SinkError> {
    match path_identity.is_detached() {
        false => Ok(()),
        true => Err(SinkError::Fatal(format!(
            "{} was removed or replaced while it is open: stop the gateway, put it back or restore a backup",
            path_identity.path().display()
        ))),
    }
}

/// A transaction on a month's file.
pub(crate) struct Appender<'a> {
    connection: &'a Connection,
    /// Looked up once: finding it takes a tenth of what a row costs.
    insert_flow: CachedStatement<'a>,
    origin: Origin,
    applied_lsn: i64,
    /// Rows that may still be kept one by one.
    rows_free: i64,
}

impl Appender<'_> {
    /// The flow is over.
    pub(crate) fn flow(
        &mut self,
        lsn: i64,
        flow_columns: &FlowColumns<'_>,
        counters: &CounterColumns,
        reason: &str,
    ) -> rusqlite::Result<()> {
        if lsn <= self.applied_lsn {
            return Ok(());
        }
        if self.rows_free <= 0 {
            let (up, down) = counters.in_last_hour();
            let CounterColumns { uncertain_up, uncertain_down, .. } = *counters;
            let sums = Sums { flows: 1, up, down, uncertain_up, uncertain_down };
            return self.aggregate(counters.hour(), flow_columns, &sums);
        }
        self.rows_free -= 1;
        let [gateway, epoch] = self.origin.values();
        let last = [ValueRef::Text(reason.as_bytes()), gateway, epoch, ValueRef::Integer(lsn)];
        let values = flow_columns.values().into_iter().chain(counters.values()).chain(last);
        checksum::run(&mut self.insert_flow, values)
    }

    /// The flow had moved `up` and `down` in an hour that it has left.
    pub(crate) fn part(
        &mut self,
        lsn: i64,
        flow_columns: &FlowColumns<'_>,
        hour: i64,
        (up, down): (i64, i64),
    ) -> rusqlite::Result<()> {
        if lsn <= self.applied_lsn {
            return Ok(());
        }
        if self.rows_free <= 0 {
            return self.aggregate(hour, flow_columns, &Sums { up, down, ..Sums::default() });
        }
        self.rows_free -= 1;
        let Origin { gateway, epoch } = self.origin;
        let values = [
            ValueRef::Blob(&flow_columns.id),
            ValueRef::Integer(hour),
            ValueRef::Text(flow_columns.user.as_bytes()),
            ValueRef::Text(flow_columns.host.as_bytes()),
            ValueRef::Text(flow_columns.class.as_bytes()),
            ValueRef::Integer(up),
            ValueRef::Integer(down),
            ValueRef::Integer(gateway),
            ValueRef::Integer(epoch),
            ValueRef::Integer(lsn),
        ];
        checksum::put(self.connection, INSERT_PART, &values)
    }

    fn aggregate(&self, hour: i64, flow_columns: &FlowColumns<'_>, sums: &Sums) -> rusqlite::Result<()> {
        let key = [
            ValueRef::Integer(hour),
            ValueRef::Text(flow_columns.user.as_bytes()),
            ValueRef::Text(flow_columns.class.as_bytes()),
            ValueRef::Text(flow_columns.host.as_bytes()),
        ];
        AGGREGATE.add(self.connection, &key, sums)
    }
}

const INSERT_FLOW: &str = concat!(
    "INSERT INTO flow (",
    columns!("closed_ns"),
    ", reason, gateway, epoch, lsn, crc) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13,
     ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)"
);
const INSERT_PART: &str = "INSERT INTO part VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
const PUT_SOURCE: &str = "INSERT OR REPLACE INTO source VALUES (?1, ?2, ?3)";

/// The watermark of `gateway` in a month's file.
pub(crate) fn applied(connection: &Connection, gateway: i64) -> rusqlite::Result<i64> {
    let mut select = connection.prepare_cached("SELECT * FROM source WHERE gateway = ?1")?;
    let applied = select.query_row([gateway], |row| {
        checksum::check(row, "source")?;
        row.get("applied_lsn")
    });
    Ok(applied.optional()?.unwrap_or(0))
}

/// Takes out of a copy of a month's file what entries of `gateway` beyond `lsn` brought; sums of single flows
/// stay.
pub(crate) fn remove_beyond(copy: &Connection, gateway: i64, lsn: i64) -> rusqlite::Result<()> {
    if applied(copy, gateway)? <= lsn {
        return Ok(());
    }
    for table in ["flow", "part"] {
        let delete = format!("DELETE FROM {table} WHERE gateway = ?1 AND lsn > ?2");
        copy.execute(&delete, [gateway, lsn])?;
    }
    checksum::put(copy, PUT_SOURCE, &[gateway, lsn].map(ValueRef::Integer))
}

/// Makes a database's file, readable by this user alone, and sees to it that its name outlives a power
/// failure; whether it was missing. SQLite gives its other files the mode of this one.
pub(crate) fn make(path: &Path) -> io::Result<bool> {
    if path.exists() {
        return Ok(false);
    }
    remove_logs(path)?;
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let synced = match path.parent() {
        Some(directory) if directory != Path::new("") => File::open(directory)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    };
    // Without its file, the next attempt begins anew, and syncs again.
    synced.or_else(|cause| fs::remove_file(path).and(Err(cause)))?;
    Ok(true)
}

fn open(path: &Path) -> Result<Connection, SinkError> {
    let mut connection = schema::connect(path)?;
    schema::migrate(&mut connection, path, MONTH)?;
    schema::configure(&connection)?;
    pairing::begin(&connection, path)?;
    // Each commit is synced: see the file's header.
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

fn close(connection: Connection) -> Result<(), SinkError> {
    // The one that closing does would hide a failed sync.
    pairing::checkpoint(&connection, Checkpoint::Truncate)?;
    connection.close().map_err(|(_, error)| error.into())
}

/// Removes what SQLite keeps beside the database at `path`.
pub(crate) fn remove_logs(path: &Path) -> io::Result<()> {
    for suffix in schema::BESIDE {
        match fs::remove_file(schema::beside(path, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn failed(path: &Path, cause: &io::Error) -> SinkError {
    SinkError::Retryable(format!("{}: {cause}", path.display()))
}
