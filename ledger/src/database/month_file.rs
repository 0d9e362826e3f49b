//! The files of details, one for each month, of which a few are open for writing.
//!
//! Guarantees: rows reach a file once, whatever is sent again: each file has a watermark of its own that
//! moves in their transaction. Rows are on stable storage when [`MonthFiles::append`] returns.
//!
//! Commits of several files in WAL mode are not atomic. After a crash a month may be ahead of `ledger.db`,
//! and readers skip the rows beyond it. A month must never be behind: the live rows from which its rows were
//! made are gone by then. So a month's commit is synced, and that of `ledger.db` comes later.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, OptionalExtension, TransactionBehavior};

use super::columns::{CounterColumns, FlowColumns, columns};
use super::details::{DetailKind, DetailTables};
use super::host_sums::{self, Appended};
use super::month::{DAY_NS, Month};
use super::packed_hosts;
use super::pairing::{self, Checkpoint};
use super::row_ranges::NewRows;
use super::schema;
use super::schema::month_db::MONTH;
use super::sums::{AGGREGATE, Sums};
use super::{checksum, unless_full};
use sys::clock;
use sys::crash::point;

use crate::directory::PathIdentity;
use crate::limits::{HOST_SUM_ROWS_MIN, MONTHS_OPEN_MAX};
use crate::sink::SinkError;

/// The writer of a row: the gateway and its run.
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

/// An open file of a month.
struct OpenMonth {
    month: Month,
    connection: Connection,
    /// Rows of an earlier version, which get no more.
    hourly_rows: i64,
    path_identity: PathIdentity,
    /// The day on which all was packed that could be; 0 if there may be more by now.
    packed_on: i64,
    /// Days that cannot be packed: a row is damaged, or there are too many hosts.
    unpackable: BTreeSet<i64>,
    /// What was appended and not summed up by host; `None` if rows are to be read for that.
    appended: Option<Appended>,
}

impl OpenMonth {
    fn open(directory: &Path, month: Month) -> Result<OpenMonth, SinkError> {
        let path = month.path(directory);
        let connection = open(&path)?;
        let path_identity = PathIdentity::at(&path).map_err(|cause| failed(&path, &cause))?;
        let hourly_rows = hourly_rows(&connection)?;
        packed_hosts::delete_damaged(&connection)?;
        let appended = Appended::begin(&connection);
        let (packed_on, unpackable) = (0, BTreeSet::new());
        Ok(OpenMonth { month, connection, hourly_rows, path_identity, packed_on, unpackable, appended })
    }

    /// Sums up what the file has by host, if at least `rows_min` rows wait, and packs the days that are over.
    fn sum_up(&mut self, rows_min: i64) -> Result<(), SinkError> {
        let now_ns = schema::integer(clock::wall().0);
        let summed = host_sums::sum_up(&mut self.connection, &mut self.appended, rows_min);
        let is_changed = unless_full(summed)?.unwrap_or(false);
        if is_changed || self.packed_on != now_ns / DAY_NS {
            let packed = packed_hosts::pack(&mut self.connection, self.month, now_ns, &mut self.unpackable);
            let is_done = unless_full(packed)?.unwrap_or(false);
            self.packed_on = if is_done { now_ns / DAY_NS } else { 0 };
        }
        Ok(())
    }

    fn close(mut self) -> Result<(), SinkError> {
        self.sum_up(1)?;
        // The checkpoint in SQLite's close would hide a failed sync.
        pairing::checkpoint(&self.connection, Checkpoint::Truncate)?;
        self.connection.close().map_err(|(_, error)| error.into())
    }
}

/// The month files of one ledger.
pub(crate) struct MonthFiles {
    directory: PathBuf,
    /// The directory as it was when opened: rows are never written to another one at its path.
    directory_identity: Option<PathIdentity>,
    rows_max: i64,
    /// The last used file is the last. len <= MONTHS_OPEN_MAX
    open: Vec<OpenMonth>,
    /// Whether a file was created since [`MonthFiles::take_made`].
    made: bool,
}

impl MonthFiles {
    pub(crate) fn new(directory: &Path, rows_max: u64) -> Self {
        let rows_max = schema::integer(rows_max);
        let directory_identity = PathIdentity::at(directory).ok();
        Self { directory: directory.to_owned(), directory_identity, rows_max, open: Vec::new(), made: false }
    }

    /// Runs `write` in a transaction on the month's file, unless the file has everything up to `last_lsn`.
    /// Rows that the file already has are skipped.
    pub(crate) fn append(
        &mut self,
        month: Month,
        origin: Origin,
        last_lsn: i64,
        write: impl FnOnce(&mut Appender<'_>) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let rows_max = self.rows_max;
        let OpenMonth { connection, hourly_rows, appended, .. } = self.file(month)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let applied_lsn = applied(&transaction, origin.gateway)?;
        if applied_lsn >= last_lsn {
            return Ok(());
        }
        let rows =
            "SELECT ifnull((SELECT max(rowid) FROM flow), 0) + ifnull((SELECT max(rowid) FROM part), 0)";
        let rows: i64 = transaction.prepare_cached(rows)?.query_row([], |row| row.get(0))?;
        let mut appender = Appender {
            connection: &transaction,
            insert_flow: transaction.prepare_cached(INSERT_FLOW)?,
            origin,
            applied_lsn,
            rows_free: rows_max.saturating_sub(rows).saturating_sub(*hourly_rows),
            new_rows: NewRows::default(),
            // Unless the transaction commits, rows are read.
            appended: appended.take(),
        };
        write(&mut appender)?;
        std::mem::take(&mut appender.new_rows).write(&transaction)?;
        let committed = appender.appended.take();
        drop(appender);
        let source = [ValueRef::Integer(origin.gateway), ValueRef::Integer(last_lsn)];
        checksum::put(&transaction, PUT_SOURCE, &source)?;
        transaction.commit()?;
        *appended = committed;
        point("apply.month-committed");
        Ok(())
    }

    /// Deletes the rows of `gateway`'s entries beyond `lsn` from the month's file; they will be sent again. A
    /// file that keeps some of its flows as sums only is unchanged.
    pub(crate) fn remove_beyond(&mut self, month: Month, gateway: i64, lsn: i64) -> Result<(), SinkError> {
        let OpenMonth { connection, appended, .. } = self.file(month)?;
        *appended = None;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if !has_aggregates(&transaction)? {
            remove_beyond(&transaction, gateway, lsn)?;
            transaction.commit()?;
        }
        Ok(())
    }

    /// The last entry of `gateway` in the month's file; 0 if it has none.
    pub(crate) fn applied(&mut self, month: Month, gateway: i64) -> Result<i64, SinkError> {
        Ok(applied(&self.file(month)?.connection, gateway)?)
    }

    /// Fails if an open file was removed, or replaced by another.
    pub(crate) fn check_linked(&self) -> Result<(), SinkError> {
        self.open.iter().try_for_each(|open| check_linked(&open.path_identity))
    }

    /// Sums up what the open files have by host, if that is much, packs days that are over, and copies their
    /// logs into them, as far as readers permit.
    pub(crate) fn checkpoint(&mut self) -> Result<(), SinkError> {
        for open in &mut self.open {
            open.sum_up(HOST_SUM_ROWS_MIN)?;
            pairing::checkpoint(&open.connection, Checkpoint::Passive)?;
        }
        Ok(())
    }

    /// Sums up and packs what a file has that is not open.
    pub(crate) fn pack(&mut self, month: Month) -> Result<(), SinkError> {
        match self.open.iter().any(|open| open.month == month) {
            true => Ok(()),
            false => OpenMonth::open(&self.directory, month)?.close(),
        }
    }

    /// Closes every file, with an empty log unless a reader blocks it.
    pub(crate) fn close(&mut self) -> Result<(), SinkError> {
        while let Some(open) = self.open.pop() {
            open.close()?;
        }
        Ok(())
    }

    /// Whether a file was created since the last call.
    pub(crate) fn take_made(&mut self) -> bool {
        std::mem::take(&mut self.made)
    }

    /// Removes the month's file. The log goes first: SQLite would replay a remaining log into the next file
    /// of that name.
    pub(crate) fn remove(&mut self, month: Month) -> Result<(), SinkError> {
        if let Some(index) = self.open.iter().position(|open| open.month == month) {
            self.open.remove(index).close()?;
        }
        let path = month.path(&self.directory);
        remove_logs(&path).and_then(|()| fs::remove_file(&path)).map_err(|cause| failed(&path, &cause))
    }

    #[cfg(test)]
    pub(crate) fn each_open(&self, each: impl FnMut(&Connection)) {
        self.open.iter().map(|open| &open.connection).for_each(each);
    }

    fn file(&mut self, month: Month) -> Result<&mut OpenMonth, SinkError> {
        match self.open.iter().position(|open| open.month == month) {
            Some(index) => self.open[index..].rotate_left(1),
            None => {
                if self.open.len() >= MONTHS_OPEN_MAX {
                    self.open.remove(0).close()?;
                }
                self.directory_identity.as_ref().map_or(Ok(()), check_linked)?;
                let path = month.path(&self.directory);
                self.made |= make(&path).map_err(|cause| failed(&path, &cause))?;
                self.open.push(OpenMonth::open(&self.directory, month)?);
            }
        }
        Ok(self.open.last_mut().expect("the file was moved or pushed to the end"))
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

/// An open transaction on a month's file.
pub(crate) struct Appender<'a> {
    connection: &'a Connection,
    /// Prepared once: finding it costs a tenth of an insert.
    insert_flow: CachedStatement<'a>,
    origin: Origin,
    applied_lsn: i64,
    /// Rows that may still be kept one by one.
    rows_free: i64,
    new_rows: NewRows,
    appended: Option<Appended>,
}

impl Appender<'_> {
    /// Adds a closed flow.
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
            return self.aggregate(counters.quarter, flow_columns, &counters.sums_at_end());
        }
        self.rows_free -= 1;
        let [gateway, epoch] = self.origin.values();
        let last = [ValueRef::Text(reason.as_bytes()), gateway, epoch, ValueRef::Integer(lsn)];
        let values = flow_columns.values().into_iter().chain(counters.values()).chain(last);
        checksum::run(&mut self.insert_flow, values)?;
        let number = self.connection.last_insert_rowid();
        self.new_rows.add_flow(counters.quarter, number);
        let row = (DetailKind::Flow, number);
        let appended = self.appended.take();
        self.appended =
            appended.and_then(|rows| rows.add(row, counters.quarter, flow_columns, &counters.sums_at_end()));
        Ok(())
    }

    /// Adds the bytes that a flow moved in a quarter-hour before its last one.
    pub(crate) fn part(
        &mut self,
        lsn: i64,
        flow_columns: &FlowColumns<'_>,
        quarter: i64,
        (up, down): (i64, i64),
    ) -> rusqlite::Result<()> {
        if lsn <= self.applied_lsn {
            return Ok(());
        }
        if self.rows_free <= 0 {
            return self.aggregate(quarter, flow_columns, &Sums { up, down, ..Sums::default() });
        }
        self.rows_free -= 1;
        let Origin { gateway, epoch } = self.origin;
        let values = [
            ValueRef::Blob(&flow_columns.id),
            ValueRef::Integer(quarter),
            ValueRef::Integer(flow_columns.account),
            ValueRef::Integer(flow_columns.set),
            ValueRef::Text(flow_columns.user.as_bytes()),
            ValueRef::Text(flow_columns.host.as_bytes()),
            ValueRef::Text(flow_columns.class.as_bytes()),
            ValueRef::Integer(up),
            ValueRef::Integer(down),
            ValueRef::Integer(gateway),
            ValueRef::Integer(epoch),
            ValueRef::Integer(lsn),
        ];
        checksum::put(self.connection, INSERT_PART, &values)?;
        let number = self.connection.last_insert_rowid();
        self.new_rows.add_part(quarter, number);
        let sums = Sums { up, down, ..Sums::default() };
        let appended = self.appended.take();
        self.appended =
            appended.and_then(|rows| rows.add((DetailKind::Part, number), quarter, flow_columns, &sums));
        Ok(())
    }

    fn aggregate(&self, quarter: i64, flow_columns: &FlowColumns<'_>, sums: &Sums) -> rusqlite::Result<()> {
        let key = [
            ValueRef::Integer(quarter),
            ValueRef::Integer(flow_columns.account),
            ValueRef::Text(flow_columns.user.as_bytes()),
            ValueRef::Text(flow_columns.class.as_bytes()),
            ValueRef::Integer(flow_columns.set),
            ValueRef::Text(flow_columns.host.as_bytes()),
        ];
        AGGREGATE.add(self.connection, &key, sums)
    }
}

const INSERT_FLOW: &str = concat!(
    "INSERT INTO flow (",
    columns!("closed_ns"),
    ", reason, gateway, epoch, lsn, crc) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13,
     ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30)"
);
const INSERT_PART: &str = "INSERT INTO part VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
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

/// The rows of single flows and parts that an earlier version wrote.
fn hourly_rows(file: &Connection) -> rusqlite::Result<i64> {
    let mut rows = 0;
    for table in DetailTables::read(file)?.all() {
        if table.is_hourly && table.kind != DetailKind::Aggregate {
            let last = format!("SELECT ifnull(max(rowid), 0) FROM {}", table.name);
            rows += file.query_row(&last, [], |row| row.get::<_, i64>(0))?;
        }
    }
    Ok(rows)
}

/// Whether a month's file keeps some of its flows as sums only.
pub(crate) fn has_aggregates(file: &Connection) -> rusqlite::Result<bool> {
    for table in DetailTables::read(file)?.of(DetailKind::Aggregate) {
        if !table.is_empty(file)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes the rows of `gateway`'s entries beyond `lsn` from a copy of a month's file; sums of single flows
/// stay.
pub(crate) fn remove_beyond(copy: &Connection, gateway: i64, lsn: i64) -> rusqlite::Result<()> {
    if applied(copy, gateway)? <= lsn {
        return Ok(());
    }
    let tables = DetailTables::read(copy)?;
    if tables.have_sums() {
        host_sums::discard_beyond(copy, gateway, lsn)?;
    }
    for table in tables.single_rows() {
        let delete = format!("DELETE FROM {table} WHERE gateway = ?1 AND lsn > ?2");
        copy.execute(&delete, [gateway, lsn])?;
    }
    checksum::put(copy, PUT_SOURCE, &[gateway, lsn].map(ValueRef::Integer))
}

/// Creates a database's file, readable by this user alone, and syncs its name; returns whether it was
/// missing. SQLite gives its other files the mode of this one.
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
    // Without the file, the next attempt creates and syncs it again.
    synced.or_else(|cause| fs::remove_file(path).and(Err(cause)))?;
    Ok(true)
}

fn open(path: &Path) -> Result<Connection, SinkError> {
    let connection = pairing::open(path, MONTH)?;
    // Each commit is synced: see the file's header.
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// Removes the files that SQLite keeps beside the database at `path`.
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
