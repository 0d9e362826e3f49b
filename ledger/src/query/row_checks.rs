//! The checksums of the rows that an answer is made of, held against the rows as SQLite reads them.
//!
//! Guarantees: a row that is not as it was written is in no answer, and an answer that lacks one is told.
//! Leaves out: which row, which `tollgate ledger verify` names.
//!
//! Such a row is no evidence: a flipped bit of its count bills terabytes, and a flow whose number is lost
//! can be in what the journal brings too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use crate::sink::checksum;

/// Whether a row was read that is not as it was written. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct RowChecks(Arc<AtomicBool>);

impl RowChecks {
    /// Has statements of `connection` know the function that [`RowChecks::condition`] calls.
    pub(super) fn install(&self, connection: &Connection) -> rusqlite::Result<()> {
        let broken = Arc::clone(&self.0);
        connection.create_scalar_function(ROW_IS_INTACT, -1, FunctionFlags::SQLITE_UTF8, move |row| {
            let values = (1..row.len()).map(|index| row.get_raw(index));
            let is_intact = row.get::<i64>(0).is_ok_and(|crc| crc == i64::from(checksum::compute(values)));
            if !is_intact {
                broken.store(true, Ordering::Relaxed);
            }
            Ok(is_intact)
        })
    }

    /// A condition that holds for each row of `table` that is as it was written.
    pub(super) fn condition(connection: &Connection, table: &str) -> rusqlite::Result<String> {
        let mut select = connection.prepare_cached("SELECT name FROM pragma_table_info(?1) ORDER BY cid")?;
        let names = select.query_map([table], |row| row.get(0))?;
        let names: Vec<String> = names.collect::<rusqlite::Result<_>>()?;
        let sealed: Vec<String> = names.into_iter().take_while(|name| name != "crc").collect();
        Ok(format!("{ROW_IS_INTACT}(crc, {})", sealed.join(", ")))
    }

    /// Whether a row that was checked elsewhere is for the answer.
    pub(super) fn admits(&self, is_intact: bool) -> bool {
        if !is_intact {
            self.0.store(true, Ordering::Relaxed);
        }
        is_intact
    }

    /// Whether any did not hold.
    pub(super) fn is_broken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

const ROW_IS_INTACT: &str = "row_is_intact";
