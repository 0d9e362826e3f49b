//! What the journal asks of a disk, and three that give it: files, memory, and one that fails on command.
//!
//! Promises: every byte that the journal reads or writes passes here, so that a simulation may lose, tear,
//! reorder or refuse any of it. Leaves to others: what the bytes mean (`journal`).
//!
//! The contract, which is that of a POSIX file system and no more:
//!
//! 1. What was written is read back by this process; after a power failure it is there only if a `sync` of
//!    the file that began after the write has succeeded, and else each of its sectors is there or not.
//! 2. A name that was made, renamed or removed is so after a power failure only once `sync_names` succeeded.
//! 3. After a failed `sync` nobody knows what of the file is on the disk, and a second one tells nothing:
//!    Linux marks the pages clean that it could not write (Rebello et al., USENIX ATC 2020).

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

    /// Makes an empty file, in place of any other of that name.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file another name, in place of any other of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Brings all names to stable storage.
    fn sync_names(&self) -> io::Result<()>;

    /// Whether the next start finds it: not where another directory has taken its path.
    fn is_in_place(&self) -> bool {
        true
    }
}

/// A file that several threads may use.
pub(crate) trait StorageFile: Send + Sync + 'static {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Grows to a length of `bytes` and takes the room for it where the file system can, or fails at once
    /// if there is none. What was not written reads as zeros.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Reads until `bytes` is full or the file ends; returns how many bytes were read.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes all of `bytes`. After an error any part of them may have been written.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Whether it has a name: one that was removed, or that another file replaced, goes with the process.
    fn is_linked(&self) -> io::Result<bool>;

    /// Brings what was written to stable storage, and the length with it.
    fn sync(&self) -> io::Result<()>;
}
