//! The databases of a ledger: `ledger.db` with its totals, and a file of details for each month.
//!
//! Guarantees: each row has a checksum, and each file the numbers of the entries that it has.
//! Not handled here: which entries become which rows (`sqlite_sink`), and questions (`sqlite_usage`).
//!
//! ```text
//!   schema.rs      migrations of a file; version_1.rs, version_4.rs  the steps that SQL alone cannot do
//!   pairing.rs     a file and its write-ahead log belong together
//!   month.rs       a month and its file's name         month_file.rs  the open files of months
//!   watermarks.rs  how far each file is                run.rs         the runs of a gateway
//!   hourly.rs      and an earlier version was
//!   live.rs        open flows                          sums.rs        tables of sums; rollups.rs
//!   columns.rs     a flow as columns                   details.rs     the tables of a month's file
//!   registry.rs    the numbers in rows: accounts.rs, named_sets.rs, policies.rs; teams.rs
//!   quotas.rs      grants and notices
//!   checksum.rs    the last column of each row
//!   row_ranges.rs  where the rows of a quarter-hour lie  host_sums.rs  sums by host
//!   derived.rs     sums that are made of sums          packed.rs      many sums in one value
//!   packed_hosts.rs  sums by host as such values       number_hasher.rs  of tables by numbers
//! ```

mod accounts;
pub(crate) mod checksum;
pub(crate) mod columns;
pub(crate) mod derived;
pub(crate) mod details;
pub(crate) mod host_sums;
pub(crate) mod hourly;
pub(crate) mod live;
pub(crate) mod month;
pub(crate) mod month_file;
pub(crate) mod named_sets;
pub(crate) mod number_hasher;
pub(crate) mod packed;
pub(crate) mod packed_hosts;
pub(crate) mod pairing;
mod policies;
pub(crate) mod quotas;
pub(crate) mod registry;
pub(crate) mod rollups;
pub(crate) mod row_ranges;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod sums;
pub(crate) mod teams;
mod version_1;
pub(crate) mod version_4;
pub(crate) mod watermarks;

use rusqlite::{ErrorCode, ffi};

use crate::sink::SinkError;
use schema::SchemaError;

/// What can be made again, with a full disk as no error: no entry waits for it.
pub(crate) fn unless_full<T>(made: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match made {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => Ok(None),
        made => made.map(Some),
    }
}

impl From<rusqlite::Error> for SinkError {
    fn from(error: rusqlite::Error) -> Self {
        let text = format!("SQLite: {error}");
        // An error without a code of SQLite is the ledger's own: a column of another type, a missing row.
        let Some(cause) = error.sqlite_error() else { return Self::Fatal(text) };
        let damaged = matches!(cause.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase);
        // Linux marks pages clean whose write failed: another sync would succeed and prove nothing.
        let unsynced = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC].contains(&cause.extended_code);
        if damaged || unsynced { Self::Fatal(text) } else { Self::Retryable(text) }
    }
}

impl From<SchemaError> for SinkError {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::Sqlite { cause, .. } => cause.into(),
            error => Self::Fatal(error.to_string()),
        }
    }
}
