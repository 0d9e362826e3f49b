//! The interface between stores and writers.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;

use super::row::Row;

/// What stores need to open.
#[derive(Clone, Debug)]
pub(super) struct StoreSettings {
    /// Empty, and on the disk that is measured.
    pub(super) directory: PathBuf,
    /// The file with PostgreSQL's address.
    pub(super) services: Option<PathBuf>,
    pub(super) writers: usize,
}

/// The result of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertResult {
    /// Rows that were accepted: this one, and those whose batch it completes.
    Accepted(u64),
    /// The row is in a batch that is not accepted yet.
    Gathered,
    /// The store is full; the caller still has the row.
    Refused,
}

/// How many rows have reached each stage since the store was opened; `None` where the store cannot report it,
/// or where an accepted row has reached the stage by definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watermarks {
    /// In the journal.
    pub(super) appended: Option<u64>,
    /// In the journal, and on the disk.
    pub(super) durable: Option<u64>,
    /// Rows that a query finds.
    pub(super) visible: Option<u64>,
}

/// The part of a store that all writers share.
pub(super) trait Store: Sync {
    /// The rows that have reached each stage. Never waits.
    fn watermarks(&self) -> Watermarks {
        Watermarks::default()
    }

    /// The processes that do its work outside the lab; they and their descendants belong to the experiment.
    fn processes(&self) -> Vec<i32> {
        Vec::new()
    }
}

/// The part of a store that each writer has.
pub(super) trait Writer: Send {
    /// Inserts one row.
    ///
    /// # Errors
    /// The store has failed, which ends the run.
    fn insert(&mut self, row: &Row) -> Result<InsertResult>;

    /// Completes a batch that was begun; returns how many rows that accepts.
    ///
    /// # Errors
    /// As `insert`.
    fn finish(&mut self) -> Result<u64> {
        Ok(0)
    }
}

/// A store that all writers use through one shared value.
pub(super) trait SharedStore: Send + Sync {
    /// As [`Writer::insert`].
    fn insert(&self, row: &Row) -> Result<InsertResult>;
}

impl<S: SharedStore> Writer for Arc<S> {
    fn insert(&mut self, row: &Row) -> Result<InsertResult> {
        S::insert(self, row)
    }
}

/// An open store. The writers are dropped before the store.
pub(super) struct OpenStore {
    pub(super) writers: Vec<Box<dyn Writer>>,
    pub(super) store: Box<dyn Store>,
}

/// A store without stages.
struct NoStages;

impl Store for NoStages {}

impl OpenStore {
    pub(super) fn shared(store: impl SharedStore + 'static, writers: usize) -> Self {
        let store = Arc::new(store);
        let writer = |_| -> Box<dyn Writer> { Box::new(Arc::clone(&store)) };
        Self { writers: (0..writers).map(writer).collect(), store: Box::new(NoStages) }
    }
}
