//! A copy of a ledger's database, made while a gateway writes.
//!
//! Promises: the copy is a ledger as of one moment, to be read, verified, or written on from where it was;
//! each file in it is compact and on stable storage; nothing is overwritten. Leaves to others: the journal,
//! and where copies go.
//!
//! `ledger.db` is copied first and the months after it, so that each month has at least what `ledger.db` says
//! of it. What it has beyond that is passed over by readers, and by a sink to which it is sent again. Each
//! file is written by `VACUUM INTO`: unlike the backup API it does not begin anew when somebody writes.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use thiserror::Error;

use crate::directory;
use crate::limits::READER_BUSY_MAX;
use crate::query::{QueryError, Usage};
use crate::sink::month::Month;
use crate::sink::month_file;

/// What [`backup`] wrote.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BackupReport {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why there is no backup.
#[derive(Debug, Error)]
pub enum BackupError {
    /// There is something already.
    #[error("{} exists and is not an empty directory: a backup overwrites nothing", .0.display())]
    Occupied(PathBuf),
    /// The ledger cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A file could not be copied.
    #[error("{}: {cause}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        cause: rusqlite::Error,
    },
    /// A file could not be written.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// Copies the databases of the ledger in `directory` to `target`, which is made, or empty. A copy that was
/// not finished has no `ledger.db`.
pub fn backup(directory: &Path, target: &Path) -> Result<BackupReport, BackupError> {
    copy_all(directory, target, || ())
}

/// Calls `between` after each file.
fn copy_all(directory: &Path, target: &Path, mut between: impl FnMut()) -> Result<BackupReport, BackupError> {
    // Whether it is ours, and of a version that we know.
    drop(Usage::open(directory)?);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| BackupError::Io { path, cause }
    };
    occupy(target).map_err(failed(target))?.then_some(()).ok_or(BackupError::Occupied(target.to_owned()))?;
    let mut report = BackupReport::default();
    let (partial, ledger) = (target.join("ledger.db.partial"), directory::database(target));
    copy(&mut report, &directory::database(directory), &partial)?;
    between();
    for month in Month::files(directory).map_err(failed(directory))? {
        copy(&mut report, &month.path(directory), &month.path(target))?;
        between();
    }
    fs::rename(&partial, &ledger).map_err(failed(&ledger))?;
    File::open(target).and_then(|target| target.sync_all()).map_err(failed(target))?;
    Ok(report)
}

/// Makes the directory, or finds it empty; `false` if there is something.
fn occupy(target: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok(target.is_dir() && fs::read_dir(target)?.next().is_none())
        }
        made => made.map(|()| true),
    }
}

fn copy(report: &mut BackupReport, source: &Path, target: &Path) -> Result<(), BackupError> {
    let failed = |cause| BackupError::Sqlite { path: source.to_owned(), cause };
    let unwritten = |cause| BackupError::Io { path: target.to_owned(), cause };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match Connection::open_with_flags(source, flags) {
        // The oldest month, removed since we looked.
        Err(_) if !source.exists() => return Ok(()),
        opened => opened.map_err(failed)?,
    };
    connection.busy_timeout(READER_BUSY_MAX).map_err(failed)?;
    // SQLite writes into an empty file; this one is readable by its owner alone.
    month_file::make(target).map_err(unwritten)?;
    let name = target.to_str().ok_or_else(|| unwritten(io::Error::other("its name is not UTF-8")))?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(failed)?;
    let copied = File::open(target).map_err(unwritten)?;
    copied.sync_all().map_err(unwritten)?;
    report.files += 1;
    report.bytes += copied.metadata().map_err(unwritten)?.len();
    Ok(())
}

#[cfg(test)]
mod tests;
