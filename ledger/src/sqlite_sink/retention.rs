//! Which months' details are kept: a fixed number of files, the newest.
//!
//! Guarantees: the clock alone removes nothing. A month is removed only when another one was created, so that
//! a clock that jumps costs at most one month of details for each month that never was. A month is marked
//! before its removal, so that results without it are reported as incomplete. Rollups are kept forever.

use std::path::Path;

use rusqlite::Connection;

use crate::database::month::Month;
use crate::database::month_file::MonthFiles;
use crate::database::watermarks::drop_months;
use crate::sink::SinkError;

/// Removes the oldest files in `directory` until `months_max` are left. The entries of `gateway` up to
/// `applied_lsn` are on stable storage in `ledger.db`; a file that is ahead of it is kept.
pub(crate) fn remove_oldest(
    connection: &mut Connection,
    months: &mut MonthFiles,
    directory: &Path,
    months_max: u32,
    (gateway, applied_lsn): (i64, i64),
) -> Result<(), SinkError> {
    let files = Month::files(directory)
        .map_err(|cause| SinkError::Retryable(format!("{}: {cause}", directory.display())))?;
    let excess = files.len().saturating_sub(usize::try_from(months_max).unwrap_or(usize::MAX));
    let mut oldest = Vec::new();
    for month in files.into_iter().take(excess) {
        if months.applied(month, gateway)? <= applied_lsn {
            oldest.push(month);
        }
    }
    if oldest.is_empty() {
        return Ok(());
    }
    drop_months(connection, &oldest)?;
    oldest.into_iter().try_for_each(|month| months.remove(month))
}
