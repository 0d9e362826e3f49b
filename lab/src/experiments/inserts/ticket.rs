//! A ticket lock around the last page: strictly in order, and waiting writers spin. It is fair, and therefore
//! the worst of all where there are more threads than CPUs: the lock passes to a writer that is not running,
//! and all others burn their time until the scheduler runs it.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::append_table::AppendTable;
use super::row::Row;
use super::store::{InsertResult, SharedStore};

pub(super) struct Ticket {
    next: AtomicU64,
    served: AtomicU64,
    /// Never contended, since the ticket admits one writer at a time: it provides the mutable access.
    table: Mutex<AppendTable>,
}

impl Ticket {
    pub(super) fn new() -> Self {
        Self { next: AtomicU64::new(0), served: AtomicU64::new(0), table: Mutex::new(AppendTable::new()) }
    }
}

impl SharedStore for Ticket {
    fn insert(&self, row: &Row) -> Result<InsertResult> {
        // Relaxed: it orders nothing but the writers among themselves.
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        // Acquire pairs with the Release below: an admitted writer sees the page as the previous one left it.
        while self.served.load(Ordering::Acquire) != ticket {
            hint::spin_loop();
        }
        self.table.lock().unwrap_or_else(PoisonError::into_inner).append(row);
        self.served.store(ticket + 1, Ordering::Release);
        Ok(InsertResult::Accepted(1))
    }
}
