//! Brings the databases into a usable state after an operator has accepted a loss.
//!
//! Guarantees: nothing readable is deleted. An unusable database is renamed, and the sums are rebuilt from
//! the months. From then on queries that need the lost details say so.
//! Not handled here: losses of the journal, which recovery skips (`recover`).

use std::fs;
use std::io;
use std::path::Path;

use sys::clock::WallNanos;

use crate::OpenError;
use crate::database::month::Month;
use crate::database::month_file::MonthFiles;
use crate::database::schema::{self, integer};
use crate::database::watermarks::drop_months;
use crate::directory;
use crate::inventory::Inventory;
use crate::journal::scan;
use crate::loss::Loss;
use crate::sink::{SinkError, SinkSettings};
use crate::sqlite_sink::SqliteSink;
use crate::sqlite_sink::rebuild::rebuild;
use crate::sqlite_usage::QueryError;
use crate::storage::file::Directory;

/// How far the files reach, besides the losses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The last entry of `ledger.db`.
    pub(crate) applied: u64,
    /// The last entry that any database has.
    pub(crate) reached: u64,
    /// The first entry of the journal; 0 if there is none.
    pub(crate) first: u64,
}

impl Extent {
    /// The entry up to which `ledger.db`, which ends with entry `applied`, is rebuilt from the months: up to
    /// all that they have, unless the journal has it.
    fn rebuilt_to(&self, applied: u64, is_in_journal: bool) -> Option<u64> {
        let before_journal = self.first.saturating_sub(1);
        let to = if is_in_journal { before_journal } else { before_journal.max(self.reached) };
        (to > applied).then_some(to)
    }
}

/// Makes the databases of `directory` usable without what `losses` name.
///
/// # Errors
/// A file cannot be renamed or written.
pub(crate) fn accept(
    directory: &Path,
    gateway: u32,
    extent: Extent,
    losses: &[Loss],
    now: WallNanos,
) -> Result<(), OpenError> {
    let mut missing_files = Vec::new();
    for loss in losses {
        match loss {
            Loss::Foreign { file, .. } | Loss::Damaged { file, .. } => {
                set_aside(&directory.join(file), now)
                    .map_err(|cause| OpenError::Directory { directory: directory.join(file), cause })?;
                missing_files.push(file.as_str());
            }
            Loss::Missing { file, .. } | Loss::Older { file, .. } => missing_files.push(file.as_str()),
            _ => {}
        }
    }
    let ledger = directory::database(directory);
    let is_ledger_gone = !ledger.exists();
    let applied = if is_ledger_gone { 0 } else { extent.applied };
    let is_in_journal = extent.reached <= applied || is_journaled(directory, extent, applied + 1);
    // Creates `ledger.db` if it is missing.
    let mut sink = SqliteSink::open(directory, gateway, SinkSettings::default())?;
    if let Some(to) = extent.rebuilt_to(applied, is_in_journal) {
        if is_ledger_gone && extent.reached > to {
            remove_resent(directory, gateway, to)?;
        }
        rebuild(sink.connection(), directory, gateway.into(), integer(to))?;
    }
    // Only the months have entries of other gateways: their journals are elsewhere.
    let mut others = Inventory::read(directory)?.months_reached(&[]);
    others.remove(&gateway);
    for (other, to) in others {
        rebuild(sink.connection(), directory, other.into(), integer(to))?;
    }
    let months: Vec<Month> = missing_files.into_iter().filter_map(Month::from_file_name).collect();
    drop_months(sink.connection(), &months).map_err(QueryError::from).map_err(SinkError::from)?;
    drop(sink);
    Ok(SqliteSink::end_others(directory, gateway, now)?)
}

/// Whether the journal has each entry that any database has, from `first_lsn` or its own first entry on.
/// Behind a damaged frame entries get new numbers, by which the months would store them again.
fn is_journaled(directory: &Path, extent: Extent, first_lsn: u64) -> bool {
    let journal = Directory::for_reading(&directory::journal(directory));
    let first_lsn = first_lsn.max(extent.first);
    extent.first > 0 && scan::each_frame(&journal, first_lsn, extent.reached, |_, _, _| ()).is_ok()
}

/// Deletes from the months the rows of `gateway`'s entries beyond `to`, which the journal sends again. A
/// month may lack some of them: it was lost once, which only the missing `ledger.db` recorded.
fn remove_resent(directory: &Path, gateway: u32, to: u64) -> Result<(), OpenError> {
    let mut files = MonthFiles::new(directory, u64::MAX);
    let months = Month::files(directory)
        .map_err(|cause| OpenError::Directory { directory: directory.to_owned(), cause })?;
    for month in months {
        files.remove_beyond(month, gateway.into(), integer(to))?;
    }
    Ok(files.close()?)
}

/// Renames a database and the files that SQLite keeps beside it.
fn set_aside(path: &Path, now: WallNanos) -> io::Result<()> {
    for suffix in [""].into_iter().chain(schema::BESIDE) {
        let aside = format!(".damaged-{}{suffix}", now.0);
        match fs::rename(schema::beside(path, suffix), schema::beside(path, &aside)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
