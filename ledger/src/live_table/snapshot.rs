//! Looking at the live table of a gateway from another process.
//!
//! Promises: reads only, and never disturbs who writes; a flow is shown as it was at one moment, or not at
//! all if its slot changed hands meanwhile. Leaves to others: how often to look, and what to make of two
//! looks.

use std::fs::{File, TryLockError};
use std::io;
use std::path::PathBuf;

use sys::clock::WallNanos;
use sys::mapping::SharedView;
use thiserror::Error;

use super::locations::{TableLocations, read_header};
use super::slot::{STATE, SlotContents};
use super::{ALIVE_AT, alive_at};
use crate::OpenSettings;
use crate::directory;
use crate::record::Record;

/// A gateway's open flows, when they were looked at.
#[derive(Clone, Debug)]
pub struct TableSnapshot {
    /// The process.
    pub process: u32,
    /// Whether it lives. If not, this is what the next start will bill.
    pub is_running: bool,
    /// When it was last known to live; 0 if that cannot be told.
    pub alive_at: WallNanos,
    /// Open flows, in no order. Their close reason says nothing.
    pub flows: Vec<Record>,
    /// Flows that have ended and are not journaled yet.
    pub closing: u64,
    /// Slots that hold nothing that can be told.
    pub damaged: u64,
}

/// Why there is nothing to look at.
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
        /// What the system said.
        cause: io::Error,
    },
    /// The ledger's directory cannot be read.
    #[error("{0}")]
    Directory(String),
}

/// Looks at the flows of the gateway whose ledger `settings` describe.
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
    let (header, view) = read_header(file)?;
    // Who runs has it locked. Shared, so that two who look do not take each other for a gateway, and let go
    // at once: a start may want it.
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
            snapshot.add(&view, header.slot_at(region, slot));
        }
    }
    Ok(snapshot)
}

impl TableSnapshot {
    fn add(&mut self, view: &SharedView, start: usize) {
        let state = view.word(start + STATE);
        let found = SlotContents::from_words(|index| view.word(start + index));
        // The state's word changes with every flow.
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
