//! The location of the live table: found again after a crash, created anew at each start.
//!
//! Guarantees: a table is never shortened, and never used by two processes. A found table is locked while it
//! is read, and removed only on request. Files of other users are not read.
//!
//! A new table lies in the configured directory (`[ledger] live_table`), or without one in the first of these
//! that has space:
//!
//! 1. `/dev/shm`,
//! 2. `$RUNTIME_DIRECTORY`, which systemd sets. It comes second, for without `RuntimeDirectoryPreserve`
//!    systemd removes it when a service ends, also after a crash,
//! 3. the ledger's own directory, on a disk.
//!
//! Old tables are searched in all of them, and at the paths in the journal. A table's name ends with an
//! unpredictable number, so that no other user can create the file first.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sys::clock;
use sys::mapping::{SYMLINK_ERRNO, SharedView, SharedWords, WORD_BYTES, is_tmpfs};

use super::{LATER_VERSION, LiveTable, SlotLayout, TableHeader};
use crate::directory;
use crate::journal::scan;
use crate::storage::file::Directory;
use crate::{OpenError, OpenSettings};

const SHM: &str = "/dev/shm";

/// How long a start waits for a lock that readers of an old table hold.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

/// The directories and paths where tables of a gateway may lie.
#[derive(Clone, Debug)]
pub(crate) struct TableLocations {
    gateway: u32,
    /// The account that owns the ledger, if it exists: for a reader with another account.
    owner: Option<u32>,
    /// The directories in which a new table is tried, in this order.
    directories: Vec<PathBuf>,
    /// The paths in the journal's segment headers.
    recorded: Vec<PathBuf>,
}

/// The tables that were found.
#[derive(Default)]
pub(crate) struct FoundTables {
    pub(crate) tables: Vec<OldTable>,
    /// Files with the name of a table and without its contents.
    pub(crate) damaged: Vec<PathBuf>,
    /// Whether a running process has one of the tables.
    pub(crate) is_running: bool,
}

/// A table that an earlier run left, and its lock.
pub(crate) struct OldTable {
    pub(crate) path: PathBuf,
    pub(crate) header: TableHeader,
    pub(crate) layout: SlotLayout,
    pub(crate) view: SharedView,
    _locked: File,
}

/// A new table and its lock. It is removed on drop unless it was kept.
pub(crate) struct NewTable {
    /// The table and its lock; `None` once it is kept.
    table: Option<(LiveTable, File)>,
    pub(crate) medium: Medium,
    pub(crate) path: PathBuf,
}

/// The medium of a live table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Medium {
    /// The table is in the kernel's memory: a store never waits for a disk.
    pub is_tmpfs: bool,
    /// The pages cannot be swapped out.
    pub is_locked: bool,
}

impl TableLocations {
    /// The locations for `gateway`, whose ledger `settings` describe.
    ///
    /// # Errors
    /// The journal's headers cannot be read.
    pub(crate) fn for_ledger(
        gateway: u32,
        settings: &OpenSettings,
    ) -> Result<TableLocations, scan::ReadError> {
        let OpenSettings { directory, live_table, runtime_directory, .. } = settings;
        let found = [Some(Path::new(SHM)), runtime_directory.as_deref(), Some(directory)];
        let directories = match live_table {
            Some(configured) => vec![configured.clone()],
            None => found.into_iter().flatten().map(Path::to_owned).collect(),
        };
        let storage = Directory::for_reading(&directory::journal(directory));
        let recorded = scan::tables(&storage)?.into_iter().map(PathBuf::from).collect();
        Ok(TableLocations { gateway, owner: directory::owner_uid(directory), directories, recorded })
    }

    /// The directories in which a new table is tried, in this order.
    pub(super) fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Finds and locks every table of this gateway that earlier runs left, and finds the files with such a
    /// name that hold none. Changes nothing.
    ///
    /// # Errors
    /// A table is in use by another process, or cannot be read.
    pub(crate) fn lock_all(&self) -> Result<FoundTables, OpenError> {
        self.each_file(|file, path| lock_with_timeout(file, path).map(|()| true))
    }

    /// As [`TableLocations::lock_all`], without waiting for a lock or keeping one: a table in use is reported
    /// and not read.
    ///
    /// # Errors
    /// A table cannot be read.
    pub(crate) fn read_unlocked(&self) -> Result<FoundTables, OpenError> {
        self.each_file(|file, path| {
            // Shared, and released at once: a start may want it.
            if matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
                return Ok(false);
            }
            file.unlock().map_err(|cause| OpenError::Table { path: path.to_owned(), cause })?;
            Ok(true)
        })
    }

    /// Reads each table for which `may_read` returns true.
    fn each_file(
        &self,
        may_read: impl Fn(&File, &Path) -> Result<bool, OpenError>,
    ) -> Result<FoundTables, OpenError> {
        let (mut found, mut seen) = (FoundTables::default(), Vec::new());
        for path in self.candidates() {
            let failed = |cause| OpenError::Table { path: path.clone(), cause };
            let Some((file, identity)) = self.open(&path).map_err(failed)? else { continue };
            // The same file may have two paths.
            if seen.contains(&identity) {
                continue;
            }
            seen.push(identity);
            if !may_read(&file, &path)? {
                found.is_running = true;
                continue;
            }
            match read_header(&file) {
                Ok((header, layout, view)) if header.gateway == self.gateway => {
                    found.tables.push(OldTable { path, header, layout, view, _locked: file });
                }
                // The table of another gateway, whose journal was put here: it is left alone.
                Ok(_) => {}
                // An interrupted start left it, or a power failure took its pages.
                Err(error) if error.kind() == DAMAGED => found.damaged.push(path),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(found)
    }

    /// Opens the file at `path` if it belongs to this user or to the ledger's account; returns its device and
    /// inode too.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(&self, path: &Path) -> io::Result<Option<(File, (u64, u64))>> {
        let user = sys::limits::effective_uid();
        open_if_owned(path, [user, self.owner.unwrap_or(user)])
    }

    /// Paths of tables, the last run's first.
    pub(crate) fn candidates(&self) -> Vec<PathBuf> {
        let prefix = format!("tollgate-{:08x}-", self.gateway);
        let is_ours = |name: &str| name.starts_with(&prefix) && name.ends_with(".live");
        let mut candidates = self.recorded.clone();
        for directory in self.directories.iter().map(PathBuf::as_path).chain([Path::new(SHM)]) {
            // A directory that cannot be listed has no file that can be opened.
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let ours = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_ours));
            candidates.extend(ours.map(|entry| entry.path()));
        }
        candidates
    }

    /// Creates the table that `header` describes in the first directory with enough space. Returns `None` if
    /// an earlier directory has enough without those of the `old` tables that lie there.
    ///
    /// # Errors
    /// No directory has enough space; the error of the last one.
    pub(crate) fn make(&self, header: TableHeader, old: &[OldTable]) -> Result<Option<NewTable>, OpenError> {
        let random = getrandom::u64().map_err(|error| OpenError::Thread(io::Error::other(error)))?;
        let name = format!("tollgate-{:08x}-{random:016x}.live", self.gateway);
        let mut failure = None;
        for directory in &self.directories {
            let path = std::path::absolute(directory.join(&name)).unwrap_or_else(|_| directory.join(&name));
            match make_at(&path, header) {
                Ok((table, medium, locked)) => {
                    return Ok(Some(NewTable { table: Some((table, locked)), medium, path }));
                }
                Err(cause) => {
                    let _ = fs::remove_file(&path);
                    let is_in_same_directory = |old: &OldTable| old.path.parent() == path.parent();
                    if cause.kind() == ErrorKind::StorageFull && old.iter().any(is_in_same_directory) {
                        return Ok(None);
                    }
                    failure = Some(OpenError::Table { path, cause });
                }
            }
        }
        Err(failure.expect("there is at least one directory"))
    }
}

/// Renames a file that must not be read again; returns a sentence if that fails. A file of zeros, which an
/// interrupted start leaves, is removed: the next table may need its space.
pub(crate) fn set_aside(path: &Path) -> Option<String> {
    let is_empty = File::open(path)
        .and_then(|file| SharedView::from_file(&file))
        .is_ok_and(|view| !view.is_empty() && (0..view.len()).all(|index| view.word(index) == 0));
    let done =
        if is_empty { fs::remove_file(path) } else { fs::rename(path, path.with_extension("damaged")) };
    let error = done.err()?;
    Some(format!("{} holds no live table, and cannot be renamed: {error}", path.display()))
}

impl OldTable {
    /// Removes the table, whose flows are all in the journal; returns a sentence if that fails. A later start
    /// tries again, and does not trust the table.
    pub(crate) fn remove(self) -> Option<String> {
        let error = fs::remove_file(&self.path).err()?;
        let path = self.path.display();
        Some(format!(
            "the old live table {path} cannot be removed: {error}. The journal has its flows, and the next \
             start tries again. Check the permissions of its directory"
        ))
    }
}

impl NewTable {
    /// Keeps the table: returns it with its lock.
    pub(crate) fn keep(mut self) -> (LiveTable, File) {
        self.table.take().expect("a new table is kept once")
    }
}

impl Drop for NewTable {
    fn drop(&mut self) {
        if self.table.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the file at `path` and returns its device and inode. `None` if it is missing, belongs to an account
/// that is not one of `users`, or others may use it. A link or a pipe is not opened.
fn open_if_owned(path: &Path, users: [u32; 2]) -> io::Result<Option<(File, (u64, u64))>> {
    const FLAGS: i32 = sys::mapping::SAFE_OPEN_FLAGS;
    let file = match OpenOptions::new().read(true).custom_flags(FLAGS).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // A symbolic link, or another user's.
        Err(error) if error.raw_os_error() == Some(SYMLINK_ERRNO) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    let is_owned = metadata.is_file() && users.contains(&metadata.uid()) && metadata.mode() & 0o077 == 0;
    Ok(is_owned.then(|| (file, (metadata.dev(), metadata.ino()))))
}

/// The header of the table in `file`, the layout of its slots, and the whole table.
///
/// # Errors
/// Of the kind [`DAMAGED`] if the file holds no table. Otherwise the file cannot be read, or is of a later
/// version.
pub(crate) fn read_header(file: &File) -> io::Result<(TableHeader, SlotLayout, SharedView)> {
    let damaged = |what| Err(io::Error::new(DAMAGED, what));
    if file.metadata()?.len() < (TableHeader::WORDS * WORD_BYTES) as u64 {
        return damaged("it is shorter than a header");
    }
    let view = SharedView::from_file(file)?;
    let word = |index: usize| if index < view.len() { view.word(index) } else { 0 };
    match TableHeader::parse(word) {
        Ok((header, layout)) if header.fits(view.len()) => Ok((header, layout, view)),
        Ok(_) => damaged("it is shorter than its header says"),
        Err(what) if what == LATER_VERSION => Err(io::Error::other(what)),
        Err(what) => damaged(what),
    }
}

/// The error kind of a file that holds no table.
const DAMAGED: ErrorKind = ErrorKind::InvalidData;

fn make_at(path: &Path, header: TableHeader) -> io::Result<(LiveTable, Medium, File)> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::Error(cause) => cause,
        TryLockError::WouldBlock => ErrorKind::WouldBlock.into(),
    })?;
    sys::mapping::disable_copy_on_write(&file)?;
    let words = SharedWords::from_file(&file, header.table_words())?;
    let is_locked = words.lock().is_ok();
    Ok((LiveTable::create(words, header), Medium { is_tmpfs: is_tmpfs(&file), is_locked }, file))
}

/// Locks an old table. Its readers may hold the lock for a moment.
fn lock_with_timeout(file: &File, path: &Path) -> Result<(), OpenError> {
    let deadline = clock::monotonic() + LOCK_WAIT_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if clock::monotonic() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::TableInUse { path: path.to_owned() });
            }
            Err(TryLockError::Error(cause)) => {
                return Err(OpenError::Table { path: path.to_owned(), cause });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_own_private_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("own"), "x").unwrap();
        fs::set_permissions(path("own"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(path("shared"), "x").unwrap();
        fs::set_permissions(path("shared"), fs::Permissions::from_mode(0o644)).unwrap();
        symlink(path("own"), path("link")).unwrap();
        fs::create_dir(path("directory")).unwrap();
        let user = sys::limits::effective_uid();
        assert!(open_if_owned(&path("own"), [user, user]).unwrap().is_some());
        assert!(open_if_owned(&path("own"), [user + 1, user]).unwrap().is_some());
        assert!(open_if_owned(&path("own"), [user + 1, user + 2]).unwrap().is_none());
        for other in ["shared", "link", "directory", "absent"] {
            assert!(open_if_owned(&path(other), [user, user]).unwrap().is_none(), "{other}");
        }
    }
}
