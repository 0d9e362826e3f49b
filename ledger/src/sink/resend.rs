//! A month that is behind `ledger.db`, made whole again from the journal.
//!
//! Guarantees: the month's file is replaced by one whose flows and parts come to the sums of `ledger.db`,
//! or stays as it is. Leaves out: telling that it is behind (`inventory`), and what the journal has
//! (`journal::scan`).
//!
//! ```text
//!   months up to entry F - 1 --rebuild--> totals in memory  <--apply-- entries F.. of the journal
//!                                              '--rows--> copy of the month --sums equal?--> the month
//! ```
//!
//! F is the first entry that the journal still has. What flows had come to before it is known as far as their
//! parts tell; where that is not enough, the sums differ and the copy is thrown away.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use super::SinkError;
use super::live::LiveFlows;
use super::month::Month;
use super::month_file::{self, MonthFiles, Stamp};
use super::rebuild::rebuild;
use super::schema::{self, LEDGER, integer};
use super::tally::Tally;
use crate::entry::Entry;
use crate::query::Usage;
use crate::verify;

/// Where copies are made.
const DIRECTORY: &str = "month-being-mended";

/// Entries that follow one another, of one run.
pub(crate) struct Batch {
    pub(crate) epoch: u32,
    pub(crate) first_lsn: u64,
    pub(crate) entries: Vec<Entry>,
}

/// Makes `month` in `directory` whole for `gateway`, with `batches` of entries up to the one that
/// `ledger.db` has come to.
///
/// # Errors
/// Why it cannot be; then nothing has changed.
pub(crate) fn resend(
    directory: &Path,
    gateway: u32,
    month: Month,
    batches: &[Batch],
) -> Result<(), SinkError> {
    let place = directory.join(DIRECTORY);
    let _ = fs::remove_dir_all(&place);
    DirBuilder::new().mode(0o700).create(&place).map_err(failed(&place))?;
    let outcome = resend_in(&place, directory, gateway, month, batches);
    let _ = fs::remove_dir_all(&place);
    outcome
}

fn resend_in(
    place: &Path,
    directory: &Path,
    gateway: u32,
    month: Month,
    batches: &[Batch],
) -> Result<(), SinkError> {
    let gateway = i64::from(gateway);
    copy(&month.path(directory), &month.path(place))?;
    let first_lsn = batches.first().map_or(1, |batch| batch.first_lsn);
    let mut totals = schema::new_in_memory(LEDGER)?;
    rebuild(&mut totals, directory, gateway, integer(first_lsn) - 1)?;
    let mut live = LiveFlows::read(&totals, gateway)?;
    let mut months = MonthFiles::new(place, u64::MAX);
    for batch in batches {
        let stamp = Stamp { gateway, epoch: batch.epoch.into() };
        let transaction = totals.transaction()?;
        let mut tally = Tally::new(&transaction, &mut live, &mut months, stamp);
        let first_lsn = integer(batch.first_lsn);
        for (entry, lsn) in batch.entries.iter().zip(first_lsn..) {
            tally.add(lsn, entry)?;
        }
        tally.finish(first_lsn + integer(batch.entries.len() as u64) - 1)?;
        transaction.commit()?;
        live.committed();
    }
    months.close()?;
    prove(place, directory, month)?;
    replace(&month.path(place), &month.path(directory)).map_err(failed(&month.path(directory)))
}

/// Whether the month in `place` goes with the `ledger.db` of `directory`.
fn prove(place: &Path, directory: &Path, month: Month) -> Result<(), SinkError> {
    let usage = Usage::open(directory)?;
    let file = crate::query::open_month(place, month)?
        .ok_or_else(|| SinkError::Final("the journal has nothing of it".to_owned()))?;
    match verify::month_problem(&usage, month, &file)? {
        None => Ok(()),
        Some(problem) => {
            Err(SinkError::Final(format!("with what the journal has its sums do not come out: {problem}")))
        }
    }
}

/// Copies a database as of one moment, its log included; none if it is missing.
pub(crate) fn copy(source: &Path, target: &Path) -> Result<(), SinkError> {
    if !source.is_file() {
        return Ok(());
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let from = Connection::open_with_flags(source, flags)?;
    month_file::make(target).map_err(failed(target))?;
    let mut to = Connection::open(target)?;
    Backup::new(&from, &mut to)?.run_to_completion(PAGES, std::time::Duration::ZERO, None)?;
    to.close().map_err(|(_, error)| SinkError::from(error))
}

/// Pages that are copied at a time.
const PAGES: i32 = 4096;

/// Puts a database that is closed in place of another, whose log goes first.
fn replace(new: &Path, old: &Path) -> io::Result<()> {
    File::open(new)?.sync_all()?;
    month_file::remove_logs(old)?;
    fs::rename(new, old)?;
    let directory: PathBuf = old.parent().map_or_else(|| ".".into(), Path::to_owned);
    File::open(directory)?.sync_all()
}

fn failed(path: &Path) -> impl Fn(io::Error) -> SinkError {
    let path = path.display().to_string();
    move |cause| SinkError::Passing(format!("{path}: {cause}"))
}
