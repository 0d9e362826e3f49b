//! What becomes of a loss that an operator has accepted.
//!
//! Guarantees: nothing that can be read is thrown away: a database that cannot be used is renamed, and what
//! the months have is in the sums again; answers that need what is gone say so from then on. Leaves out:
//! the journal, whose losses recovery passes over (`recover`), and asking (`repair`).

use std::fs;
use std::io;
use std::path::Path;

use sys::clock::WallNanos;

use crate::OpenError;
use crate::directory;
use crate::inventory::Inventory;
use crate::journal::scan;
use crate::loss::Loss;
use crate::query::QueryError;
use crate::sink::month::Month;
use crate::sink::month_file::MonthFiles;
use crate::sink::rebuild::rebuild;
use crate::sink::schema::{self, integer};
use crate::sink::sqlite::{SqliteSink, drop_months};
use crate::sink::{SinkError, SinkSettings};
use crate::storage::file::Directory;

/// How far the files go, besides the losses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The last entry of `ledger.db`.
    pub(crate) applied: u64,
    /// The last entry that any database has.
    pub(crate) reached: u64,
    /// The first and the last entry of the journal; zeros if there is none.
    pub(crate) journal: (u64, u64),
}

impl Extent {
    /// The entry up to which `ledger.db` is to be made again from the months, if the journal cannot bring
    /// it there.
    fn rebuilt_to(&self, is_ledger_gone: bool) -> Option<u64> {
        let applied = if is_ledger_gone { 0 } else { self.applied };
        let (first, last) = self.journal;
        if first > applied + 1 {
            return Some(first - 1);
        }
        (self.reached > applied && last < self.reached).then_some(self.reached)
    }
}

/// Goes on without `losses` in the databases of `directory`.
///
/// # Errors
/// A file cannot be renamed or written.
pub(crate) fn settle(
    directory: &Path,
    gateway: u32,
    extent: Extent,
    losses: &[Loss],
    now: WallNanos,
) -> Result<(), OpenError> {
    let mut gone = Vec::new();
    for loss in losses {
        match loss {
            Loss::Foreign { file, .. } | Loss::Damaged { file, .. } => {
                set_aside(&directory.join(file), now)
                    .map_err(|cause| OpenError::Directory { directory: directory.join(file), cause })?;
                gone.push(file.as_str());
            }
            Loss::Missing { file, .. } | Loss::Older { file, .. } => gone.push(file.as_str()),
            _ => {}
        }
    }
    let ledger = directory::database(directory);
    let is_ledger_gone = !ledger.exists();
    // Makes `ledger.db` if it is gone.
    let mut sink = SqliteSink::open(directory, gateway, SinkSettings::default())?;
    if let Some(to) = extent.rebuilt_to(is_ledger_gone) {
        if is_ledger_gone && extent.reached > to {
            have_sent_again(directory, gateway, to, extent.reached)?;
        }
        rebuild(sink.connection(), directory, gateway.into(), integer(to))?;
    }
    // Those of other gateways are in the months alone: they have no journal here.
    let mut others = Inventory::take(directory)?.of_months(&[]);
    others.remove(&gateway);
    for (other, to) in others {
        rebuild(sink.connection(), directory, other.into(), integer(to))?;
    }
    let months: Vec<Month> = gone.into_iter().filter_map(Month::named).collect();
    drop_months(sink.connection(), &months).map_err(QueryError::from).map_err(SinkError::from)?;
    drop(sink);
    Ok(SqliteSink::end_others(directory, gateway, now)?)
}

/// Takes out of the months what entries of `gateway` beyond `to` brought, if the journal has all of those up
/// to `reached`, and so brings them again. A month may lack some of them: it was lost once, which only the
/// `ledger.db` knew that is gone.
fn have_sent_again(directory: &Path, gateway: u32, to: u64, reached: u64) -> Result<(), OpenError> {
    let journal = Directory::for_reading(&directory::journal(directory));
    if scan::each_frame(&journal, reached, |_, _, _| ()).is_err() {
        return Ok(());
    }
    let mut files = MonthFiles::new(directory, u64::MAX);
    let months = Month::files(directory)
        .map_err(|cause| OpenError::Directory { directory: directory.to_owned(), cause })?;
    for month in months {
        files.cut_back(month, gateway.into(), integer(to))?;
    }
    Ok(files.close()?)
}

/// Renames a database and what SQLite keeps beside it.
fn set_aside(path: &Path, now: WallNanos) -> io::Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let aside = format!(".damaged-{}{suffix}", now.0);
        match fs::rename(schema::beside(path, suffix), schema::beside(path, &aside)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
