//! The interface of the journal to a disk, with three implementations: files, memory, and one that fails on
//! command.
//!
//! Guarantees: every byte that the journal reads or writes passes here, so that a simulation can lose, tear,
//! reorder or refuse any of it.
//!
//! The contract is that of a POSIX file system and no more:
//!
//! 1. This process reads back what it wrote. After a power failure written bytes exist only if a `sync` of
//!    the file that began after the write has succeeded; otherwise each sector exists or not.
//! 2. After a power failure a file's creation, rename or removal has happened only if `sync_names` succeeded
//!    after it.
//! 3. After a failed `sync` the contents of the file on the disk are unknown, and another sync proves
//!    nothing: Linux marks the pages clean that it could not write (Rebello et al., USENIX ATC 2020).

use std::io;

#[cfg(any(test, feature = "simulation"))]
pub(crate) mod faulty;
pub(crate) mod file;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod memory;

/// A flat directory of files.
pub(crate) trait Storage: Send + Sync + 'static {
    /// An open file.
    type File: StorageFile;

    /// The names of all files, in any order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file, in place of any other of that name.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file another name, in place of any other of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all names durable.
    fn sync_names(&self) -> io::Result<()>;

    /// Whether the directory's path still leads to it, so that the next start finds it.
    fn is_in_place(&self) -> bool {
        true
    }
}

/// A file that several threads may use.
pub(crate) trait StorageFile: Send + Sync + 'static {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Grows the file to `bytes` and allocates the space where the file system can, or fails at once if there
    /// is none. Unwritten bytes read as zeros.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Reads until `bytes` is full or the file ends; returns how many bytes were read.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes`. After an error any part of them may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Whether the file has a name: one that was removed or replaced disappears with the process.
    fn is_linked(&self) -> io::Result<bool>;

    /// Makes written bytes and the length durable.
    fn sync(&self) -> io::Result<()>;
}
