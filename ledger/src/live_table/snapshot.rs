//! Reads the live table of a gateway from another process.
//!
//! Guarantees: reads only, and never disturbs the writer. A flow is shown as of one moment, or left out if
//! its slot changed meanwhile.

use std::fs::{File, TryLockError};
use std::io;
use std::path::PathBuf;

use sys::clock::WallNanos;
use sys::mapping::SharedView;
use thiserror::Error;

use super::locations::{TableLocations, read_header};
use super::slot::{STATE, SlotContents, SlotLayout};
use super::{ALIVE_AT, alive_at};
use crate::OpenSettings;
use crate::directory;
use crate::record::Record;

/// The open flows of a gateway at one moment.
#[derive(Clone, Debug)]
pub struct TableSnapshot {
    /// The gateway's process.
    pub process: u32,
    /// Whether the process runs. If not, the next start will bill these flows.
    pub is_running: bool,
    /// When the process was last known to be alive; 0 if that cannot be read.
    pub alive_at: WallNanos,
    /// Open flows, in no order. Their close reason is meaningless.
    pub flows: Vec<Record>,
    /// Ended flows that are not journaled yet.
    pub closing: u64,
    /// Damaged slots.
    pub damaged: u64,
}

/// Why no snapshot could be taken.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// No gateway runs there.
    #[error("no gateway runs on the ledger in {}: it has no live table", directory.display())]
    Absent {
        /// The ledger's directory.
        directory: PathBuf,
    },
    /// The table cannot be read.
    #[error("the live table {}: {cause}", path.display())]
    Table {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The ledger's directory cannot be read.
    #[error("{0}")]
    Directory(String),
}

/// Reads the open flows of the gateway whose ledger `settings` describe.
///
/// # Errors
/// See [`SnapshotError`].
pub fn snapshot(settings: &OpenSettings) -> Result<TableSnapshot, SnapshotError> {
    let directory = &settings.directory;
    let absent = || SnapshotError::Absent { directory: directory.to_owned() };
    let unreadable = |text: String| SnapshotError::Directory(text);
    let gateway = directory::gateway(directory).map_err(|error| unreadable(error.to_string()))?;
    let locations = TableLocations::for_ledger(gateway.ok_or_else(absent)?, settings);
    let locations = locations.map_err(|error| unreadable(error.to_string()))?;
    for path in locations.candidates() {
        let failed = |cause| SnapshotError::Table { path: path.clone(), cause };
        if let Some((file, _)) = locations.open(&path).map_err(failed)? {
            return snapshot_of(&file).map_err(failed);
        }
    }
    Err(absent())
}

fn snapshot_of(file: &File) -> io::Result<TableSnapshot> {
    let (header, layout, view) = read_header(file)?;
    // A running gateway holds the lock. Shared, so that two readers do not take each other for a gateway, and
    // released at once: a start may want it.
    let is_running = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    file.unlock()?;
    let mut snapshot = TableSnapshot {
        process: header.process,
        is_running,
        alive_at: alive_at(view.word(ALIVE_AT)).unwrap_or(WallNanos(0)),
        flows: Vec::new(),
        closing: 0,
        damaged: 0,
    };
    for region in 0..header.regions {
        for slot in 0..header.slots {
            snapshot.add(&view, layout, header.slot_at(region, slot));
        }
    }
    Ok(snapshot)
}

impl TableSnapshot {
    fn add(&mut self, view: &SharedView, layout: SlotLayout, start: usize) {
        let state = view.word(start + STATE);
        let found = SlotContents::from_words(layout, |index| view.word(start + index));
        // The state word changes with every flow: the slot was reused while it was read.
        if view.word(start + STATE) != state {
            return;
        }
        match found {
            SlotContents::Nothing => {}
            SlotContents::Live(record) => self.flows.push(record),
            SlotContents::Closing(_) => self.closing += 1,
            SlotContents::Damaged { .. } => self.damaged += 1,
        }
    }
}
