//! Compares the checksum of each row that a query reads.
//!
//! Guarantees: a damaged row is in no result, and a result that lacks one says so. `tollgate ledger verify`
//! names the row.
//!
//! A damaged row must not count: a flipped bit of a count bills terabytes, and a flow with a damaged number
//! may come from the journal too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use crate::database::checksum;

/// Whether a damaged row was read. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(super) struct RowChecks(Arc<AtomicBool>);

impl RowChecks {
    /// Registers the SQL function that [`RowChecks::condition`] calls.
    pub(super) fn install(&self, connection: &Connection) -> rusqlite::Result<()> {
        let has_damage = Arc::clone(&self.0);
        connection.create_scalar_function(ROW_IS_INTACT, -1, FunctionFlags::SQLITE_UTF8, move |row| {
            let values = (1..row.len()).map(|index| row.get_raw(index));
            let is_intact = row.get::<i64>(0).is_ok_and(|crc| crc == i64::from(checksum::compute(values)));
            if !is_intact {
                has_damage.store(true, Ordering::Relaxed);
            }
            Ok(is_intact)
        })
    }

    /// The SQL condition that a row of `table` is intact.
    pub(super) fn condition(connection: &Connection, table: &str) -> rusqlite::Result<String> {
        let mut select = connection.prepare_cached("SELECT name FROM pragma_table_info(?1) ORDER BY cid")?;
        let names = select.query_map([table], |row| row.get(0))?;
        let names: Vec<String> = names.collect::<rusqlite::Result<_>>()?;
        let sealed: Vec<String> = names.into_iter().take_while(|name| name != "crc").collect();
        Ok(format!("{ROW_IS_INTACT}(crc, {})", sealed.join(", ")))
    }

    /// Returns `is_intact`, the result of a check elsewhere, and notes a damaged row.
    pub(super) fn admits(&self, is_intact: bool) -> bool {
        if !is_intact {
            self.0.store(true, Ordering::Relaxed);
        }
        is_intact
    }

    /// Whether any row was damaged.
    pub(super) fn is_broken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

const ROW_IS_INTACT: &str = "row_is_intact";
