//! Whether the live table fits into the directory that a start would choose (`tollgate doctor`).
//!
//! Guarantees: changes nothing, and counts the space of tables that the next start removes as free.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::locations::TableLocations;
use super::{PAGE_WORDS, SLOT_BYTES};
use crate::{OpenSettings, directory};

/// The space for a live table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TableSpace {
    /// The directory that a start tries first.
    pub directory: PathBuf,
    /// Bytes of the table.
    pub needed: u64,
    /// Free bytes in it, including those of earlier runs' tables.
    pub free: u64,
    /// Bytes of the file system.
    pub size: u64,
}

impl TableSpace {
    /// The space for the live table of the ledger that `settings` describe.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn measure(settings: &OpenSettings) -> io::Result<TableSpace> {
        let gateway = directory::gateway(&settings.directory).map_err(io::Error::other)?;
        // A gateway without a number has no table either.
        let locations =
            TableLocations::for_ledger(gateway.unwrap_or(0), settings).map_err(io::Error::other)?;
        let directory = locations.first_directory();
        let sys::disk::DiskSpace { bytes: size, free_bytes } = sys::disk::space(&File::open(&directory)?)?;
        let tables = locations.candidates().into_iter().filter(|path| path.parent() == Some(&directory));
        let mut tables: Vec<PathBuf> = tables.collect();
        tables.sort_unstable();
        tables.dedup();
        let bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |found| found.len());
        let table_bytes: u64 = tables.iter().map(bytes).sum();
        let needed = settings.flow_writers as u64 * u64::from(settings.slots) * SLOT_BYTES + HEADER_BYTES;
        Ok(TableSpace { directory: directory.to_path_buf(), needed, free: free_bytes + table_bytes, size })
    }

    /// Bytes that the file system needs for the table and its present contents.
    pub fn size_needed(&self) -> u64 {
        self.size + self.needed.saturating_sub(self.free)
    }

    /// Whether the table fits.
    pub fn is_enough(&self) -> bool {
        self.free >= self.needed
    }
}

const HEADER_BYTES: u64 = (PAGE_WORDS * size_of::<u64>()) as u64;

impl TableLocations {
    /// The first directory that exists.
    fn first_directory(&self) -> PathBuf {
        let existing = self.directories().iter().find(|directory| directory.is_dir());
        existing
            .or_else(|| self.directories().first())
            .map_or_else(|| Path::new(".").to_owned(), PathBuf::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_small_directory_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let tables = directory.path().join("tables");
        fs::create_dir(&tables).unwrap();
        let settings = OpenSettings {
            live_table: Some(tables.clone()),
            ..OpenSettings::new(&directory.path().join("data"), 2, 16)
        };
        let space = TableSpace::measure(&settings).unwrap();
        assert_eq!((&space.directory, space.needed), (&tables, 4096 + 2 * 16 * 512));
        assert!(space.is_enough());
        let space = TableSpace { free: space.needed - 1, ..space };
        assert!(!space.is_enough());
    }
}
