//! Whether the live table has room where it will lie, for a look ahead of the start (`tollgate doctor`).
//!
//! Guarantees: changes nothing; counts the room of tables that the next start removes. Leaves out: making
//! the table (`place`).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::locations::TableLocations;
use super::{PAGE_WORDS, SLOT_BYTES};
use crate::{OpenSettings, directory};

/// See the file's header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TableSpace {
    /// The directory in which a start makes the table first.
    pub directory: PathBuf,
    /// Bytes that the table takes.
    pub needed: u64,
    /// Bytes that are free there, those of earlier runs' tables included.
    pub free: u64,
    /// Bytes of the file system in all.
    pub size: u64,
}

impl TableSpace {
    /// The room for the live table of the ledger that `settings` describe.
    ///
    /// # Errors
    /// The directory cannot be looked at.
    pub fn of(settings: &OpenSettings) -> io::Result<TableSpace> {
        let gateway = directory::gateway(&settings.directory).map_err(io::Error::other)?;
        // A gateway that has no number yet has no table either.
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
        let needed = settings.inlets as u64 * u64::from(settings.slots) * SLOT_BYTES + HEADER_BYTES;
        Ok(TableSpace { directory: directory.to_path_buf(), needed, free: free_bytes + table_bytes, size })
    }

    /// Bytes that the file system has to have for the table, beside what else lies there.
    pub fn size_needed(&self) -> u64 {
        self.size + self.needed.saturating_sub(self.free)
    }

    /// Whether a start finds room there.
    pub fn is_enough(&self) -> bool {
        self.free >= self.needed
    }
}

const HEADER_BYTES: u64 = (PAGE_WORDS * size_of::<u64>()) as u64;

impl TableLocations {
    /// The directory in which a table is made first, of those that are there.
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
        let space = TableSpace::of(&settings).unwrap();
        assert_eq!((&space.directory, space.needed), (&tables, 4096 + 2 * 16 * 512));
        assert!(space.is_enough());
        let space = TableSpace { free: space.needed - 1, ..space };
        assert!(!space.is_enough());
    }
}
