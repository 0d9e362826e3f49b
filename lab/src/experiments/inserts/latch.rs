//! One mutex around the last page: how a table with a sequential key grows. A writer that waits for long
//! sleeps, and one that loses its CPU while it holds the mutex stops all others for as long.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::append_table::AppendTable;
use super::row::Row;
use super::store::{InsertResult, SharedStore};

pub(super) struct Latch {
    table: Mutex<AppendTable>,
}

impl Latch {
    pub(super) fn new() -> Self {
        Self { table: Mutex::new(AppendTable::new()) }
    }
}

impl SharedStore for Latch {
    fn insert(&self, row: &Row) -> Result<InsertResult> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).append(row);
        Ok(InsertResult::Accepted(1))
    }
}
