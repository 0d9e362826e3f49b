//! What is in the journal, told without changing anything; and going on without what is lost, with consent.
//!
//! Promises: [`inspect`] writes nothing; [`repair`] first copies the journal as it was found, and gives up no
//! entry but those that it names. Leaves to others: asking for consent (`tollgate ledger repair`).

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sys::clock::WallNanos;

use crate::directory::{self, Lock};
use crate::journal::reader::ReadError;
use crate::journal::scan::{self, Scan};
use crate::query::{QueryError, Usage};
use crate::recover::{Damage, RecoverError};
use crate::storage::file::Directory;
use crate::{Ledger, OpenError, OpenSettings, Recovery};

/// What [`inspect`] found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Inspection {
    /// Entries of the journal that can be read.
    pub entries: u64,
    /// Places at which a segment does not continue the one before it.
    pub breaks: u64,
    /// What was durable and is lost, as far as the database has not got it.
    pub damage: Option<Damage>,
    /// A tail that was torn before it was durable.
    pub torn: Option<String>,
}

/// Looks at the journal of the ledger in `directory`, beyond what its database has. A gateway may write it
/// meanwhile.
///
/// # Errors
/// It cannot be read.
pub fn inspect(directory: &Path) -> Result<Inspection, OpenError> {
    let Some(gateway) = directory::gateway(directory)? else { return Ok(Inspection::default()) };
    Ok(inspect_beyond(directory, applied_by_database(directory, gateway)?)?)
}

/// How far the database has come, read without changing it; 0 if there is none.
fn applied_by_database(directory: &Path, gateway: u32) -> Result<u64, OpenError> {
    match Usage::open(directory) {
        Ok(usage) => Ok(usage.applied_lsn(gateway)),
        Err(QueryError::Absent { .. }) => Ok(0),
        Err(error) => Err(OpenError::Sink(error.to_string())),
    }
}

fn inspect_beyond(directory: &Path, applied: u64) -> Result<Inspection, RecoverError> {
    let storage = Directory::at(&directory::journal(directory));
    // A journal that is written meanwhile changes under the reader: a second look tells.
    for _ in 1..LOOKS_MAX {
        match scan::scan(&storage, applied, |_| {}) {
            Ok(found) if found.trouble.is_none() && found.breaks == 0 => return Ok(told(&found)),
            // A segment that was listed may have got another name.
            Ok(_) | Err(ReadError::Io(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(told(&scan::scan(&storage, applied, |_| {})?))
}

/// Looks at a journal before what is found in it is believed to be trouble.
const LOOKS_MAX: usize = 3;

fn told(scan: &Scan) -> Inspection {
    let damage = scan.trouble.as_ref().and_then(Damage::of);
    let torn = scan.trouble.as_ref().filter(|_| damage.is_none()).map(|trouble| trouble.to_string());
    Inspection { entries: scan.entries, breaks: scan.breaks, damage, torn }
}

/// As [`inspect`], while nobody may write it.
///
/// # Errors
/// A gateway has the ledger open, or something cannot be read.
pub fn examine(settings: &OpenSettings) -> Result<Inspection, OpenError> {
    let _lock = Lock::acquire(&settings.directory)?;
    inspect(&settings.directory)
}

/// Copies the journal to `journal-damaged-MOMENT`, and brings the ledger to where it can be opened: without
/// the entries that are lost, and with everything else. Returns the copy's directory and what recovery did.
///
/// # Errors
/// A gateway has the ledger open, or something cannot be read or written; then it is as it was.
pub fn repair(settings: &OpenSettings, now: WallNanos) -> Result<(PathBuf, Recovery), OpenError> {
    let copy = {
        let _lock = Lock::acquire(&settings.directory)?;
        let copy = settings.directory.join(format!("journal-damaged-{}", now.0));
        copy_files(&directory::journal(&settings.directory), &copy)
            .map_err(|cause| OpenError::Directory { directory: copy.clone(), cause })?;
        copy
    };
    let (ledger, _inlets) = Ledger::open(&OpenSettings { accept_loss: true, ..settings.clone() })?;
    let recovery = ledger.recovery().clone();
    ledger.close().map_err(|error| OpenError::Sink(error.to_string()))?;
    Ok((copy, recovery))
}

/// Copies the files of a directory to a new one, readable by this user alone, and to stable storage.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy)?;
        File::open(&copy)?.sync_all()?;
    }
    File::open(to)?.sync_all()?;
    to.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
