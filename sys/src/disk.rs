//! Space on the file system of a file.

use std::fs::File;
use std::io;

use rustix::fs::{StatVfsMountFlags, fstatvfs};

/// The size of a file system, and its free space.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DiskSpace {
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes that this process may still write.
    pub free_bytes: u64,
}

/// The space on the file system of `file`.
///
/// # Errors
/// Those of fstatvfs(3).
pub fn space(file: &File) -> io::Result<DiskSpace> {
    let stat = fstatvfs(file)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(DiskSpace { bytes: bytes(stat.f_blocks), free_bytes: bytes(stat.f_bavail) })
}

/// Whether the file system of `file` is mounted read-only.
///
/// # Errors
/// Those of fstatvfs(3).
pub fn is_read_only(file: &File) -> io::Result<bool> {
    Ok(fstatvfs(file)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}
