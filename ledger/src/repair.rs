//! Inspects a ledger for losses without changing it, and repairs it with consent.
//!
//! Guarantees: [`inspect`] writes nothing. [`repair`] first copies the journal as it was found, gives up only
//! what it names, and records its author.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sys::clock::WallNanos;

use crate::directory::{self, Lock};
use crate::findings::Findings;
pub use crate::findings::Inspection;
use crate::{Ledger, OpenError, OpenSettings, Recovery};

/// Inspects the ledger that `settings` describe. A gateway may write it meanwhile.
///
/// # Errors
/// It cannot be read.
pub fn inspect(settings: &OpenSettings) -> Result<Inspection, OpenError> {
    let check = || Findings::collect_unlocked(settings).map(|(found, old)| found.inspection(settings, &old));
    let mut found = check();
    // A ledger that is written meanwhile changes under the reader: only a repeated finding is a loss.
    for _ in 1..CHECKS_MAX {
        if found.as_ref().is_ok_and(|found| found.losses.0.is_empty() && found.breaks == 0) {
            break;
        }
        found = check();
    }
    found
}

/// Inspections of a ledger before a loss is reported.
const CHECKS_MAX: usize = 3;

/// As [`inspect`], with the directory locked against writers.
///
/// # Errors
/// A gateway has the ledger open, or a file cannot be read.
pub fn examine(settings: &OpenSettings) -> Result<Inspection, OpenError> {
    let _lock = Lock::acquire(&settings.directory)?;
    inspect(settings)
}

/// Copies the journal to `journal-damaged-MOMENT`, and makes the ledger usable without what is lost, to which
/// `author` consents. Returns the copy's directory and the report of recovery.
///
/// # Errors
/// A gateway has the ledger open, or a file cannot be read or written; then the ledger is as it was.
pub fn repair(
    settings: &OpenSettings,
    author: &str,
    now: WallNanos,
) -> Result<(PathBuf, Recovery), OpenError> {
    let copy = {
        let _lock = Lock::acquire(&settings.directory)?;
        let copy = settings.directory.join(format!("journal-damaged-{}", now.0));
        let failed = |cause| OpenError::Copy { path: copy.clone(), cause };
        DirBuilder::new().mode(0o700).create(&copy).map_err(failed)?;
        if let Err(cause) = copy_files(&directory::journal(&settings.directory), &copy) {
            let _ = fs::remove_dir_all(&copy);
            return Err(failed(cause));
        }
        copy
    };
    let accepting = OpenSettings { accept_loss: Some(author.to_owned()), ..settings.clone() };
    let (ledger, _writers) = Ledger::open(&accepting)?;
    let recovery = ledger.recovery().clone();
    ledger.close().map_err(|error| OpenError::Sink(error.to_string()))?;
    Ok((copy, recovery))
}

/// Copies the files of a directory, if it exists, to another, and syncs them. Anything that is not a file is
/// not the ledger's.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        entries => Some(entries?),
    };
    for entry in entries.into_iter().flatten() {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy)?;
        File::open(&copy)?.sync_all()?;
    }
    File::open(to)?.sync_all()?;
    to.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
