//! One mutex around the last page: how a table with a sequential key grows. Who waits for long sleeps, and a
//! writer that loses its CPU inside takes everybody along for as long as it is away.

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
