//! The ledger's directory: its creation, its lock, and its file names.
//!
//! Guarantees: while a [`Lock`] exists, no other process has one for the same directory. The kernel releases
//! it with the process, however that ends.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::OpenError;

/// The path of `ledger.db` of the ledger in `directory`.
pub(crate) fn database(directory: &Path) -> PathBuf {
    directory.join("ledger.db")
}

/// The lock of a ledger's directory: `flock` on the file `LOCK`, which names the owner, and on the directory
/// itself, since the file can be removed.
#[derive(Debug)]
pub(crate) struct Lock {
    /// Closing both releases the lock.
    _file: File,
    _directory: File,
}

impl Lock {
    /// Creates `directory` if it is missing, readable by this user alone, and locks it.
    pub(crate) fn acquire(directory: &Path) -> Result<Self, OpenError> {
        let failed = |cause| OpenError::Directory { directory: directory.to_owned(), cause };
        make(directory).map_err(failed)?;
        let path = directory.join("LOCK");
        let failed = |cause| OpenError::Directory { directory: path.clone(), cause };
        let mut file = open_private(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked { directory: directory.to_owned(), holder: holder(file) });
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        let itself = File::open(directory).map_err(failed)?;
        // Any other error means that the file system locks files only.
        if let Err(TryLockError::WouldBlock) = itself.try_lock() {
            let holder = "another process, whose file LOCK was removed".to_owned();
            return Err(OpenError::Locked { directory: directory.to_owned(), holder });
        }
        check_owner(directory)?;
        // For people only: the lock is the kernel's, so a stale number misleads no program.
        file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Self { _file: file, _directory: itself })
    }
}

/// Refuses a ledger whose files belong to another account. This account would not find the live table of that
/// one, and that one could not open new files of this one.
fn check_owner(directory: &Path) -> Result<(), OpenError> {
    let Some(owner) = owner_uid(directory) else { return Ok(()) };
    let user = sys::limits::effective_uid();
    if owner == user {
        return Ok(());
    }
    // Some file systems show another owner than the account that creates a file.
    let probe = directory.join("owner.new");
    let failed = |cause| OpenError::Directory { directory: probe.clone(), cause };
    let made = open_private(&probe).and_then(|file| file.metadata()).map_err(failed)?;
    fs::remove_file(&probe).map_err(failed)?;
    match made.uid() == owner {
        true => Ok(()),
        false => Err(OpenError::Owner { path: directory.join(IDENTITY), owner, user }),
    }
}

/// The name of `ledger.db` in an unfinished backup.
pub(crate) const PARTIAL: &str = "ledger.db.partial";

/// The name of the file of consents that are not in the journal yet.
pub(crate) const CONSENTS: &str = "consents";

/// The path of the journal of the ledger in `directory`.
pub(crate) fn journal(directory: &Path) -> PathBuf {
    directory.join("journal")
}

/// Creates the journal's directory if it is missing.
pub(crate) fn make_journal(directory: &Path) -> Result<PathBuf, OpenError> {
    let path = journal(directory);
    make(&path).map_err(|cause| OpenError::Directory { directory: path.clone(), cause })?;
    Ok(path)
}

/// The bytes of a small file; `None` if it does not exist.
///
/// # Errors
/// The disk's, or it is a directory or a pipe.
pub(crate) fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Opening a pipe would block.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is not a file: remove it"));
    }
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => bytes.map(Some),
    }
}

/// The permanent number of this directory's gateway: in its journal, its database, and the name of its live
/// table. Drawn at the first start; `None` before it.
pub(crate) fn gateway(directory: &Path) -> Result<Option<u32>, OpenError> {
    let path = directory.join(IDENTITY);
    let failed = |cause| OpenError::Directory { directory: path.clone(), cause };
    let Some(bytes) = read_file(&path).map_err(failed)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let number = text.trim().strip_prefix("gateway ").and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let damaged = "it should say `gateway` and eight hexadecimal digits; the journal says them too: remove \
         the file, and the next start writes it again";
    number.map(Some).ok_or_else(|| failed(io::Error::other(damaged)))
}

/// Stores `number` as this directory's gateway, on stable storage.
pub(crate) fn set_gateway(directory: &Path, number: u32) -> Result<(), OpenError> {
    let path = directory.join(IDENTITY);
    let unnamed = path.with_extension("new");
    let written = open_private(&unnamed)
        .and_then(|mut file| {
            file.set_len(0)?;
            writeln!(file, "gateway {number:08x}")?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&unnamed, &path))
        .and_then(|()| File::open(directory)?.sync_all());
    written.map_err(|cause| OpenError::Directory { directory: path, cause })
}

/// The account that owns the ledger in `directory`, if there is one.
pub(crate) fn owner_uid(directory: &Path) -> Option<u32> {
    fs::metadata(directory.join(IDENTITY)).ok().map(|found| found.uid())
}

/// The device and inode of a file when it was opened, to detect later that its path leads elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct PathIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl PathIdentity {
    /// The file at `path`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn at(path: &Path) -> io::Result<PathIdentity> {
        let found = fs::metadata(path)?;
        Ok(PathIdentity { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }

    /// Whether the path leads to another file, or to none.
    pub(crate) fn is_detached(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) != (self.device, self.inode),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

const IDENTITY: &str = "identity";

fn make(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    match directory.parent() {
        Some(parent) if parent != Path::new("") => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

pub(crate) fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn holder(file: File) -> String {
    let mut text = String::new();
    match file.take(20).read_to_string(&mut text) {
        Ok(_) if !text.is_empty() => format!("process {text}"),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_is_refused_with_its_holder() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("a/b");
        let lock = Lock::acquire(&directory).unwrap();
        let refusal = Lock::acquire(&directory).unwrap_err().to_string();
        assert!(refusal.contains(directory.to_str().unwrap()), "{refusal}");
        assert!(refusal.contains(&format!("process {}", std::process::id())), "{refusal}");
        drop(lock);
        Lock::acquire(&directory).unwrap();
    }

    #[test]
    fn created_files_are_private() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("data");
        let _lock = Lock::acquire(&directory).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join("LOCK")), 0o600);
    }

    #[test]
    fn file_at_the_directory_path_is_named() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        std::fs::write(&path, "").unwrap();
        let refusal = Lock::acquire(&path).unwrap_err();
        assert!(matches!(&refusal, OpenError::Directory { directory, .. } if *directory == path));
    }
}
