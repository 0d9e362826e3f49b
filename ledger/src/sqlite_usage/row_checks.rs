//! Compares the checksum of each row that a query reads.
//!
//! Guarantees: a damaged row is in no result, and a result that lacks one says so. `tollgate ledger verify`
//! names the row.
//!
//! A damaged row must not count: a flipped bit of a count bills terabytes, and a flow with a damaged number
//! may come from the journal too.

use std::cell::Cell;

/// Whether a damaged row was read.
#[derive(Debug, Default)]
pub(super) struct RowChecks(Cell<bool>);

impl RowChecks {
    /// Returns `is_intact`, the result of a check, and notes a damaged row.
    pub(super) fn admits(&self, is_intact: bool) -> bool {
        if !is_intact {
            self.0.set(true);
        }
        is_intact
    }

    /// Whether any row was damaged.
    pub(super) fn is_broken(&self) -> bool {
        self.0.get()
    }
}
