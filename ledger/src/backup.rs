//! Copies the databases of a ledger while a gateway writes.
//!
//! Guarantees: the copy is a ledger as of one entry, which can be read, verified and written. It records that
//! it is a copy, and as of when. Each file in it is on stable storage, and nothing is overwritten.
//!
//! A read transaction on each file fixes the snapshot. The transactions begin one after another while a
//! gateway commits months first and `ledger.db` last, so a month may be ahead of the snapshot of `ledger.db`:
//! then all begin again. SQLite's logs cannot be emptied until the copy is complete.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::Backup;
use rusqlite::types::ValueRef;
use sys::clock;
use thiserror::Error;

use crate::database::month::Month;
use crate::database::schema::integer;
use crate::database::{checksum, month_file};
use crate::directory;
use crate::journal::scan;
use crate::sqlite_usage::{QueryError, SqliteUsage};
use crate::storage::file::Directory;

/// The result of [`backup`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BackupReport {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries of the journal that the databases and the copy lack; `None` if the journal cannot be read.
    pub left_out: Option<u64>,
}

/// Why a backup failed.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The target exists and is not an empty directory.
    #[error("{} exists and is not an empty directory: a backup overwrites nothing", .0.display())]
    TargetNotEmpty(PathBuf),
    /// The ledger cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A month of the ledger is missing.
    #[error(
        "{0} is missing: `tollgate ledger verify` names the losses, and `tollgate ledger repair` the remedy"
    )]
    Missing(String),
    /// A file could not be copied.
    #[error("{}: {cause}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        cause: rusqlite::Error,
    },
    /// A file could not be written.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// Copies the databases of the ledger in `directory` to `target`, which is created, or empty. An unfinished
/// copy has no `ledger.db`, and no start takes it for a ledger.
///
/// # Errors
/// See [`BackupError`].
pub fn backup(directory: &Path, target: &Path) -> Result<BackupReport, BackupError> {
    copy_all(directory, target, || ())
}

/// Calls `between` when the snapshot is fixed, and after each file.
fn copy_all(directory: &Path, target: &Path, mut between: impl FnMut()) -> Result<BackupReport, BackupError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| BackupError::Io { path, cause }
    };
    let snapshot = Snapshot::take(directory)?;
    claim_target(target)
        .map_err(failed(target))?
        .then_some(())
        .ok_or(BackupError::TargetNotEmpty(target.to_owned()))?;
    between();
    // Counted now: entries that are applied while files are copied would no longer be in the journal only.
    let left_out = left_out(directory, &snapshot.usage.applied);
    let mut report = BackupReport { left_out, ..BackupReport::default() };
    let (partial, ledger) = (target.join(directory::PARTIAL), directory::database(target));
    // First, so that an interrupted copy is recognized.
    copy(&mut report, &snapshot.usage.connection, &partial, |copy| mark(copy, &snapshot.usage.applied))?;
    between();
    for (month, file) in &snapshot.months {
        copy(&mut report, file, &month.path(target), |copy| {
            let applied = &snapshot.usage.applied;
            applied.iter().try_for_each(|(gateway, lsn)| month_file::remove_beyond(copy, *gateway, *lsn))
        })?;
        between();
    }
    fs::rename(&partial, &ledger).map_err(failed(&ledger))?;
    File::open(target).and_then(|target| target.sync_all()).map_err(failed(target))?;
    Ok(report)
}

/// How many entries of the journal are beyond `applied`; `None` if it cannot be read.
fn left_out(directory: &Path, applied: &[(i64, i64)]) -> Option<u64> {
    let journal = Directory::for_reading(&directory::journal(directory));
    let Some(gateway) = scan::gateway(&journal).ok()? else { return Some(0) };
    let found = applied.iter().find(|(of, _)| *of == i64::from(gateway));
    let lsn = found.map_or(0, |(_, lsn)| lsn.cast_unsigned());
    scan::scan(&journal, (0, lsn), |_| ()).ok().map(|scan| scan.entries)
}

/// The databases as of one moment: a read transaction on each.
struct Snapshot {
    usage: SqliteUsage,
    months: Vec<(Month, Connection)>,
}

impl Snapshot {
    /// Takes a snapshot in which no month is ahead.
    fn take(directory: &Path) -> Result<Snapshot, BackupError> {
        for attempt in 1..ATTEMPTS_MAX {
            let snapshot = Snapshot::begin(directory)?;
            let missing = snapshot.missing()?;
            if missing.is_none() && snapshot.is_consistent()? {
                return Ok(snapshot);
            }
            // A month beyond retention may be removed meanwhile; one that stays away is missing.
            if let Some(month) = missing.filter(|_| attempt >= CHECKS_MAX) {
                return Err(BackupError::Missing(month.file_name()));
            }
            drop(snapshot);
            thread::sleep(ATTEMPT_PAUSE);
        }
        Snapshot::begin(directory)
    }

    fn begin(directory: &Path) -> Result<Snapshot, BackupError> {
        let usage = SqliteUsage::open(directory)?;
        let mut months = Vec::new();
        for month in usage.months()?.into_keys() {
            months.extend(usage.month(month)?.map(|file| (month, file)));
        }
        Ok(Snapshot { usage, months })
    }

    /// A month that `ledger.db` has and the directory lacks.
    fn missing(&self) -> Result<Option<Month>, BackupError> {
        let is_present = |month: &Month| self.months.iter().any(|(other, _)| other == month);
        let mut months = self.usage.months().map_err(BackupError::Query)?.into_iter();
        Ok(months.find(|(month, is_dropped)| !is_dropped && !is_present(month)).map(|(month, _)| month))
    }

    /// Whether no month is ahead of `ledger.db`.
    fn is_consistent(&self) -> Result<bool, BackupError> {
        for (gateway, applied_lsn) in &self.usage.applied {
            for (_, file) in &self.months {
                if month_file::applied(file, *gateway).map_err(QueryError::from)? > *applied_lsn {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Attempts at a snapshot in which no month is ahead: some 10 s of a gateway that commits all the time. From
/// the last one the copy is made without the rows that a month has beyond it.
const ATTEMPTS_MAX: u32 = 500;
/// Checks of a month before it counts as missing.
const CHECKS_MAX: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// Marks a copy as one: a gateway that starts on it expects no journal.
fn mark(copy: &Connection, applied: &[(i64, i64)]) -> rusqlite::Result<()> {
    let made_ns = integer(clock::wall().0);
    for (gateway, applied_lsn) in applied {
        let values = [*gateway, *applied_lsn, made_ns].map(ValueRef::Integer);
        checksum::put(copy, "INSERT OR REPLACE INTO backup VALUES (?1, ?2, ?3, ?4)", &values)?;
    }
    Ok(())
}

/// Creates the directory, or finds it empty; `false` if it has contents.
fn claim_target(target: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok(target.is_dir() && fs::read_dir(target)?.next().is_none())
        }
        made => made.map(|()| true),
    }
}

/// Copies the snapshot of `source` to a new file, and calls `finish` to complete it.
fn copy(
    report: &mut BackupReport,
    source: &Connection,
    target: &Path,
    finish: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> Result<(), BackupError> {
    let failed = |cause| BackupError::Sqlite { path: target.to_owned(), cause };
    let unwritten = |cause| BackupError::Io { path: target.to_owned(), cause };
    // SQLite writes into the empty file, which only its owner can read.
    month_file::make(target).map_err(unwritten)?;
    let mut copy = Connection::open(target).map_err(failed)?;
    Backup::new(source, &mut copy)
        .and_then(|backup| backup.run_to_completion(PAGES_AT_ONCE, Duration::ZERO, None))
        .and_then(|()| finish(&copy))
        .map_err(failed)?;
    copy.close().map_err(|(_, cause)| failed(cause))?;
    let copied = File::open(target).map_err(unwritten)?;
    copied.sync_all().map_err(unwritten)?;
    report.files += 1;
    report.bytes += copied.metadata().map_err(unwritten)?.len();
    Ok(())
}

/// Pages that are copied in one step.
const PAGES_AT_ONCE: i32 = 4096;

#[cfg(test)]
mod tests;
