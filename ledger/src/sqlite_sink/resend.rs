//! Completes a month that is behind `ledger.db` from the journal.
//!
//! Guarantees: the month's file is replaced by one whose flows and parts match the sums of `ledger.db`, or
//! stays as it is.
//!
//! ```text
//!   months up to entry F - 1 --rebuild--> totals in memory  <--apply-- entries F.. of the journal
//!                                              '--rows--> copy of the month --sums equal?--> the month
//! ```
//!
//! F is the first entry in the journal. The earlier counts of flows are known only as far as their parts are.
//! Where that is not enough, the sums differ and the copy is discarded.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use super::batch::BatchAggregator;
use super::rebuild::rebuild;
use crate::database::hourly;
use crate::database::live::LiveFlows;
use crate::database::month::Month;
use crate::database::month_file::{self, MonthFiles, Origin};
use crate::database::registry::Registry;
use crate::database::schema::ledger_db::LEDGER;
use crate::database::schema::{self, integer};
use crate::entry::Entry;
use crate::limits::BATCH_ENTRIES_MAX;
use crate::sink::SinkError;
use crate::sqlite_usage::{self, SqliteUsage};
use crate::verify;

/// The name of the directory for the copies.
const DIRECTORY: &str = "month-being-mended";

/// A month that is being completed.
pub(crate) struct Resend {
    directory: PathBuf,
    gateway: i64,
    month: Month,
    /// `ledger.db` as it was before the journal's first entry, advanced by each batch.
    totals: Connection,
    registry: Registry,
    /// The last entry that an earlier version counted by hour.
    hourly_to: i64,
    live: LiveFlows,
    months: MonthFiles,
    /// The copies; removed on drop.
    copies: CopyDirectory,
    batch: Batch,
}

/// Consecutive entries of one run.
#[derive(Default)]
struct Batch {
    epoch: u32,
    first_lsn: u64,
    entries: Vec<Entry>,
}

/// The directory of the copies.
struct CopyDirectory(PathBuf);

impl CopyDirectory {
    fn make(directory: &Path) -> Result<CopyDirectory, SinkError> {
        let copies = directory.join(DIRECTORY);
        // Left by an interrupted attempt.
        let _ = fs::remove_dir_all(&copies).or_else(|_| fs::remove_file(&copies));
        DirBuilder::new().mode(0o700).create(&copies).map_err(failed(&copies))?;
        Ok(CopyDirectory(copies))
    }
}

impl Drop for CopyDirectory {
    fn drop(&mut self) {
        // If the removal fails, the next attempt removes it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Resend {
    /// Begins with a copy of `month` in `directory`, for entries of `gateway` from `first_lsn` on.
    ///
    /// # Errors
    /// A database cannot be read or copied.
    pub(crate) fn begin(
        directory: &Path,
        gateway: u32,
        month: Month,
        first_lsn: u64,
    ) -> Result<Resend, SinkError> {
        let gateway = i64::from(gateway);
        let copies = CopyDirectory::make(directory)?;
        copy(&month.path(directory), &month.path(&copies.0))?;
        let mut totals = schema::new_in_memory(LEDGER)?;
        let known = SqliteUsage::open(directory)?;
        let hourly_to = hourly::read(&known.connection, gateway)?;
        Registry::read(&known.connection)?.accounts.store(&totals)?;
        rebuild(&mut totals, directory, gateway, integer(first_lsn) - 1)?;
        let registry = Registry::read(&totals)?;
        let live = LiveFlows::read(&totals, gateway)?;
        let months = MonthFiles::new(&copies.0, u64::MAX);
        let (directory, batch) = (directory.to_owned(), Batch { first_lsn, ..Batch::default() });
        Ok(Resend { directory, gateway, month, totals, registry, hourly_to, live, months, copies, batch })
    }

    /// Adds the next entries, which run `epoch` wrote.
    ///
    /// # Errors
    /// A copy cannot be written.
    pub(crate) fn add(
        &mut self,
        epoch: u32,
        first_lsn: u64,
        mut entries: Vec<Entry>,
    ) -> Result<(), SinkError> {
        if epoch != self.batch.epoch || self.batch.entries.len() >= BATCH_ENTRIES_MAX {
            self.flush()?;
            self.batch = Batch { epoch, first_lsn, entries: Vec::new() };
        }
        self.batch.entries.append(&mut entries);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let Batch { epoch, first_lsn, entries } = &self.batch;
        if entries.is_empty() {
            return Ok(());
        }
        let origin = Origin { gateway: self.gateway, epoch: (*epoch).into() };
        let transaction = self.totals.transaction()?;
        let Self { registry, live, months, .. } = self;
        let mut aggregator =
            BatchAggregator::new(&transaction, registry, live, months, origin).with_hourly(self.hourly_to);
        let first_lsn = integer(*first_lsn);
        for (entry, lsn) in entries.iter().zip(first_lsn..) {
            aggregator.add(lsn, entry)?;
        }
        aggregator.finish(first_lsn + integer(entries.len() as u64) - 1)?;
        transaction.commit()?;
        self.live.committed();
        Ok(())
    }

    /// Replaces the month by the copy, if the copy matches the sums.
    ///
    /// # Errors
    /// It does not match, or a file cannot be written; then the month is as it was.
    pub(crate) fn finish(mut self) -> Result<(), SinkError> {
        self.flush()?;
        self.months.close()?;
        check_copy(&self.copies.0, &self.directory, self.month)?;
        replace(&self.month.path(&self.copies.0), &self.month.path(&self.directory))
    }
}

/// Checks that the month in `copies` matches the `ledger.db` of `directory`.
fn check_copy(copies: &Path, directory: &Path, month: Month) -> Result<(), SinkError> {
    let usage = SqliteUsage::open(directory)?;
    let file = sqlite_usage::open_month(copies, month)?
        .ok_or_else(|| SinkError::Fatal("the journal has no entries of it".to_owned()))?;
    match verify::month_problem(&usage, month, &file)? {
        None => Ok(()),
        Some(problem) => {
            Err(SinkError::Fatal(format!("with the journal's entries its sums do not match: {problem}")))
        }
    }
}

/// Copies a snapshot of a database, its log included; no copy if it is missing or was never finished.
fn copy(source: &Path, target: &Path) -> Result<(), SinkError> {
    if !sqlite_usage::has_content(source) {
        return Ok(());
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let from = Connection::open_with_flags(source, flags)?;
    if schema::is_blank(&from).is_err_and(|error| schema::is_half_made(&error)) {
        return Ok(());
    }
    month_file::make(target).map_err(failed(target))?;
    let mut to = Connection::open(target)?;
    Backup::new(&from, &mut to)?.run_to_completion(PAGES, std::time::Duration::ZERO, None)?;
    to.close().map_err(|(_, error)| SinkError::from(error))
}

/// Pages that are copied in one step.
const PAGES: i32 = 4096;

/// Replaces a database, if it exists, by a closed one. The old log is first copied into the old file and
/// removed, since SQLite would replay it into the new one: a replacement that fails loses nothing.
fn replace(new: &Path, old: &Path) -> Result<(), SinkError> {
    File::open(new).and_then(|file| file.sync_all()).map_err(failed(new))?;
    if sqlite_usage::has_content(old) {
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: bool = schema::connect(old)?.query_row(checkpoint, [], |row| row.get(0))?;
        if is_busy {
            return Err(SinkError::Retryable(format!("{}: another process reads it", old.display())));
        }
    }
    let directory: PathBuf = old.parent().map_or_else(|| ".".into(), Path::to_owned);
    month_file::remove_logs(old)
        .and_then(|()| fs::rename(new, old))
        .and_then(|()| File::open(&directory)?.sync_all())
        .map_err(failed(old))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> SinkError {
    let path = path.display().to_string();
    move |cause| SinkError::Retryable(format!("{path}: {cause}"))
}
