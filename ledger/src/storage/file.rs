//! Storage in a directory of the file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sys::mapping::{SAFE_OPEN_FLAGS, SYMLINK_ERRNO};

use super::{Storage, StorageFile};
use crate::directory::PathIdentity;

/// The files of one directory, readable by this user alone.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The open directory, if it is written.
    opened: Option<OpenedDirectory>,
}

/// An open directory, which stays the same when its path leads to another.
#[derive(Clone, Debug)]
struct OpenedDirectory {
    file: Arc<File>,
    path_identity: PathIdentity,
}

impl Directory {
    /// The directory at `path`, which exists. If another directory takes that path, it is never written.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn at(path: &Path) -> io::Result<Directory> {
        let path_identity = PathIdentity::at(path)?;
        let file = Arc::new(File::open(path)?);
        // The kernel resolves this path to the open directory, whatever its own path is by now.
        let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Directory { path: own, opened: Some(OpenedDirectory { file, path_identity }) })
    }

    /// The directory at `path`, whose files are only read: the file system may be read-only.
    pub(crate) fn for_reading(path: &Path) -> Directory {
        Directory { path: path.to_owned(), opened: None }
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(self.opened.is_some()).mode(0o600).custom_flags(SAFE_OPEN_FLAGS);
        options
    }
}

impl Storage for Directory {
    type File = File;

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            // A reader may come before the first writer.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.opened.is_none() => {
                return Ok(Vec::new());
            }
            entries => entries?,
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string()));
        // A name that is not UTF-8 is not the ledger's.
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn create(&self, name: &str) -> io::Result<File> {
        self.options().create(true).truncate(true).open(self.path.join(name))
    }

    fn open(&self, name: &str) -> io::Result<File> {
        let no_file = || io::Error::other("it is not a file: remove it");
        match self.options().open(self.path.join(name)) {
            Ok(file) if file.metadata()?.is_file() => Ok(file),
            Ok(_) => Err(no_file()),
            Err(error) if error.raw_os_error() == Some(SYMLINK_ERRNO) => Err(no_file()),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => Err(no_file()),
            Err(error) => Err(error),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            // Another process has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn sync_names(&self) -> io::Result<()> {
        match &self.opened {
            Some(opened) => opened.file.sync_all(),
            None => File::open(&self.path)?.sync_all(),
        }
    }

    fn is_in_place(&self) -> bool {
        self.opened.as_ref().is_none_or(|opened| !opened.path_identity.is_detached())
    }
}

impl StorageFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        sys::mapping::allocate(self, bytes)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < bytes.len() {
            match FileExt::read_at(self, &mut bytes[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn is_linked(&self) -> io::Result<bool> {
        Ok(self.metadata()?.nlink() > 0)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
