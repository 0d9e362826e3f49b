//! The checksums of the rows that an answer is made of, held against the rows as SQLite reads them.
//!
//! Guarantees: an answer from a row that is not as it was written is told as one. Leaves out: which row,
//! which `tollgate ledger verify` names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use crate::sink::checksum;

/// Whether a row was read that is not as it was written. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Sealed(Arc<AtomicBool>);

impl Sealed {
    /// Has statements of `connection` know the function that [`Sealed::condition`] calls.
    pub(super) fn watch(&self, connection: &Connection) -> rusqlite::Result<()> {
        let broken = Arc::clone(&self.0);
        connection.create_scalar_function(HOLDS, -1, FunctionFlags::SQLITE_UTF8, move |row| {
            let values = (1..row.len()).map(|index| row.get_raw(index));
            if row.get::<i64>(0)? != i64::from(checksum::of(values)) {
                broken.store(true, Ordering::Relaxed);
            }
            // The row counts: what it says is the best that there is.
            Ok(true)
        })
    }

    /// A condition that checks each row of `table` and holds for all.
    pub(super) fn condition(connection: &Connection, table: &str) -> rusqlite::Result<String> {
        let mut select = connection.prepare_cached("SELECT name FROM pragma_table_info(?1) ORDER BY cid")?;
        let names = select.query_map([table], |row| row.get(0))?;
        let names: Vec<String> = names.collect::<rusqlite::Result<_>>()?;
        let sealed: Vec<String> = names.into_iter().take_while(|name| name != "crc").collect();
        Ok(format!("{HOLDS}(crc, {})", sealed.join(", ")))
    }

    /// Notes a row that was checked elsewhere.
    pub(super) fn note(&self, holds: bool) {
        if !holds {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Whether any did not hold.
    pub(super) fn is_broken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

const HOLDS: &str = "row_holds";
