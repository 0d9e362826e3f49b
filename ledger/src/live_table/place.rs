//! Where the live table lies: found again after a crash, made anew at each start.
//!
//! Promises: a table is never shortened or used by two processes; one that is found is locked while it is
//! read, and removed only when asked. Leaves to others: what is in it.
//!
//! The first of these directories in which it can be made, and every one of them, besides those that the
//! journal remembers, when an old one is looked for:
//!
//! 1. the configured one (`[ledger] live_table`, else `$RUNTIME_DIRECTORY`, as systemd gives it),
//! 2. `/dev/shm`,
//! 3. the ledger's own directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sys::mapping::{SharedView, SharedWords, is_in_memory};

use super::{LiveTable, TableHeader};
use crate::OpenError;
use crate::directory;
use crate::journal::scan;
use crate::storage::file::Directory;

/// Where tables of a gateway may lie.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    directories: Vec<PathBuf>,
    name: String,
}

/// A table that an earlier run left, and its lock.
pub(crate) struct OldTable {
    pub(crate) path: PathBuf,
    pub(crate) header: TableHeader,
    pub(crate) view: SharedView,
    _locked: File,
}

/// A table that was made, and its lock.
pub(crate) struct NewTable {
    pub(crate) table: LiveTable,
    pub(crate) medium: Medium,
    pub(crate) path: PathBuf,
    pub(crate) locked: File,
}

/// On what a live table lies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Medium {
    /// Memory of the kernel: a store never waits for a disk.
    pub is_tmpfs: bool,
    /// The pages cannot be swapped out.
    pub is_locked: bool,
}

impl Places {
    /// Those of `gateway`, whose ledger is in `directory`.
    pub(crate) fn of(gateway: u32, configured: Option<&Path>, directory: &Path) -> Places {
        let directories = [configured, Some(Path::new("/dev/shm")), Some(directory)];
        let directories = directories.into_iter().flatten().map(Path::to_owned).collect();
        Places { directories, name: format!("tollgate-{gateway:08x}.live") }
    }

    /// The paths at which a table may be, the first of which is tried first for a new one.
    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.directories.iter().map(|directory| directory.join(&self.name))
    }

    /// The paths at which the last run's table may be: those of the journal in `directory` first.
    pub(crate) fn remembered(&self, directory: &Path) -> Vec<PathBuf> {
        let storage = Directory::at(&directory::journal(directory));
        let tables = scan::tables(&storage).unwrap_or_default();
        tables.into_iter().map(PathBuf::from).chain(self.paths()).collect()
    }

    /// Every table that earlier runs left, at these places and at `remembered` paths. What is no live table
    /// of ours is passed over.
    ///
    /// # Errors
    /// A table is in use by another process, or cannot be read.
    pub(crate) fn find(&self, remembered: &[String], gateway: u32) -> Result<Vec<OldTable>, OpenError> {
        let mut paths: Vec<PathBuf> = remembered.iter().map(PathBuf::from).chain(self.paths()).collect();
        let mut found: Vec<OldTable> = Vec::new();
        paths.sort();
        paths.dedup();
        for path in paths {
            let failed = |cause| OpenError::Table { path: path.clone(), cause };
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            lock(&file, &path)?;
            let view = SharedView::of_file(&file).map_err(failed)?;
            let words = |index: usize| if index < view.len() { view.word(index) } else { 0 };
            let header = TableHeader::parse(&std::array::from_fn(words));
            let whole =
                |header: &TableHeader| header.gateway == gateway && header.table_words() <= view.len();
            let header = match header {
                Ok(header) if whole(&header) => header,
                // Not to be taken for ours, nor to be lost: it is told of, and stays.
                Ok(_) => return Err(failed(io::Error::other("it is another gateway's live table"))),
                Err(what) => return Err(failed(io::Error::other(what))),
            };
            found.push(OldTable { path, header, view, _locked: file });
        }
        Ok(found)
    }

    /// Makes the table that `header` describes in the first place that has room, beside any old one.
    ///
    /// # Errors
    /// No place has room; the last one's failure.
    pub(crate) fn make(&self, header: TableHeader) -> Result<NewTable, OpenError> {
        let mut failure = None;
        for path in self.paths() {
            match make_at(&path, header) {
                Ok(table) => return Ok(table),
                Err(cause) => failure = Some(OpenError::Table { path, cause }),
            }
        }
        Err(failure.expect("there is at least the ledger's own directory"))
    }
}

impl OldTable {
    /// Removes the table.
    ///
    /// # Errors
    /// It cannot be removed: then it must not be forgotten either.
    pub(crate) fn remove(self) -> Result<(), OpenError> {
        remove(&self.path)
    }
}

impl NewTable {
    /// Gives the table its name, in place of an old one, which is done with.
    ///
    /// # Errors
    /// The directory's.
    pub(crate) fn publish(&self) -> Result<(), OpenError> {
        let failed = |cause| OpenError::Table { path: self.path.clone(), cause };
        fs::rename(unnamed(&self.path), &self.path).map_err(failed)
    }
}

/// Removes the table at `path`.
pub(crate) fn remove(path: &Path) -> Result<(), OpenError> {
    fs::remove_file(path).map_err(|cause| OpenError::Table { path: path.to_owned(), cause })
}

fn make_at(path: &Path, header: TableHeader) -> io::Result<NewTable> {
    let unnamed = unnamed(path);
    // Of a start that was cut short; nobody can have used it.
    let _ = fs::remove_file(&unnamed);
    let made = fill(&unnamed, header).map(|(table, medium, locked)| NewTable {
        table,
        medium,
        path: path.to_owned(),
        locked,
    });
    if made.is_err() {
        let _ = fs::remove_file(&unnamed);
    }
    made
}

fn fill(path: &Path, header: TableHeader) -> io::Result<(LiveTable, Medium, File)> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::Error(cause) => cause,
        TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
    })?;
    let words = SharedWords::of_file(&file, header.table_words())?;
    let is_locked = words.lock().is_ok();
    let is_tmpfs = is_in_memory(&file);
    Ok((LiveTable::create(words, header), Medium { is_tmpfs, is_locked }, file))
}

fn unnamed(path: &Path) -> PathBuf {
    path.with_extension("live-new")
}

fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenError::TableInUse { path: path.to_owned() }),
        Err(TryLockError::Error(cause)) => Err(OpenError::Table { path: path.to_owned(), cause }),
    }
}
