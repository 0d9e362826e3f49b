//! Opening a ledger: lock it, recover, then start the threads.
//!
//! Guarantees: two processes never have the same ledger or live table. A flow writer exists only once
//! everything that earlier runs left is durable in the journal.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use sys::clock;
use sys::crash::point;
use thiserror::Error;

use crate::apply::Applier;
use crate::commit::Committer;
use crate::consent::{Consent, Pending};
use crate::database::schema::SchemaError;
use crate::directory::{self, Lock, PathIdentity};
use crate::findings::{Findings, OldTables, images};
use crate::flow_writer::{self, FlowDrain};
use crate::flush::Flusher;
use crate::inventory::Inventory;
use crate::journal::segment::BLOCK_BYTES;
use crate::journal::{Settings, TableReference, Writer};
use crate::limits::COMMITTER_NICENESS;
use crate::live_table::locations::{self, FoundTables, Medium, NewTable, OldTable};
use crate::live_table::{LiveTable, TableHeader};
use crate::loss::Losses;
use crate::readers::{ReaderNameError, ReaderSettings, Readers};
use crate::recover::{RecoverError, Recovered, Recovery, Start};
use crate::sink::{Sink, SinkError, SinkSettings};
use crate::sqlite_sink::SqliteSink;
use crate::status::{LedgerState, Stage, StartFindings};
use crate::storage::file::Directory;
use crate::{Durability, FlowWriter, Ledger, PanicAlarm, Threads};

/// How to open a ledger.
#[derive(Clone, Debug)]
pub struct OpenSettings {
    /// The directory of the ledger; created if it is missing.
    pub directory: PathBuf,
    /// Flow writers: one for each relaying thread.
    pub flow_writers: usize,
    /// Slots of the live table for each flow writer: for open flows, and for closed ones that are not
    /// journaled yet.
    pub slots: u32,
    /// When an ended flow survives a power failure.
    pub durability: Durability,
    /// The directory for the live table; without it the first of some defaults that has space.
    pub live_table: Option<PathBuf>,
    /// The directory that systemd created for this run.
    pub runtime_directory: Option<PathBuf>,
    /// Bytes of a journal segment.
    pub segment_bytes: u64,
    /// Bytes of all segments together.
    pub journal_bytes_max: u64,
    /// Months of which each flow is kept.
    pub detail_months: u32,
    /// The author of a consent to continue without what is lost. Without an author such a start is refused.
    pub accept_loss: Option<String>,
    /// The readers of the journal besides the database. One that is not named here holds nothing.
    pub readers: Vec<ReaderSettings>,
}

impl OpenSettings {
    /// The defaults, for a ledger in `directory`.
    pub fn new(directory: &Path, flow_writers: usize, slots: u32) -> OpenSettings {
        OpenSettings {
            directory: directory.to_owned(),
            flow_writers,
            slots,
            durability: Durability::Delayed,
            live_table: None,
            runtime_directory: None,
            segment_bytes: 64 << 20,
            journal_bytes_max: 4 << 30,
            detail_months: 13,
            accept_loss: None,
            readers: Vec::new(),
        }
    }
}

/// What failures this ledger survives on this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Guarantees {
    /// The path of the live table.
    pub table: PathBuf,
    /// The medium that holds it.
    pub medium: Medium,
    /// When an ended flow survives a power failure.
    pub durability: Durability,
}

/// Why a ledger could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process, or this one, has the ledger open.
    #[error("the ledger in {} is in use by {holder}", directory.display())]
    Locked {
        /// The ledger's directory.
        directory: PathBuf,
        /// The process that has it, as far as it is known.
        holder: String,
    },
    /// The files of the ledger belong to another account.
    #[error(
        "{} belongs to user {owner}, and this process runs as user {user}: start it as that user, or give \
         this user the whole directory and its live table (`chown -R`)",
        path.display()
    )]
    Owner {
        /// A file of the ledger.
        path: PathBuf,
        /// The account that owns it.
        owner: u32,
        /// The account of this process.
        user: u32,
    },
    /// The directory or a file in it cannot be created or opened.
    #[error("{}: {cause}. Check its permissions: the gateway's account writes there", directory.display())]
    Directory {
        /// The ledger's directory.
        directory: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The journal cannot be copied before its repair.
    #[error(
        "the copy of the journal {}: {cause}. Nothing was changed: free space on its disk; copies that \
         earlier repairs made, `journal-damaged-*`, can be moved away",
        path.display()
    )]
    Copy {
        /// The path of the copy.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The live table cannot be created, read or removed.
    #[error("the live table {}: {cause}. `tollgate doctor` says what space it needs", path.display())]
    Table {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The live table belongs to a running gateway.
    #[error(
        "the live table {} is in use: a gateway runs on a copy of this ledger. Remove `identity` and \
         `journal` from the copy for a ledger of its own; unless `tollgate ledger backup` made the copy, it \
         then starts after `tollgate ledger repair --yes`",
        path.display()
    )]
    TableInUse {
        /// Its path.
        path: PathBuf,
    },
    /// Some of what the ledger had is missing.
    #[error("{0}")]
    Incomplete(Losses),
    /// The database cannot be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The database cannot be read.
    #[error(
        "the ledger's database (ledger.db, usage-*.db): {0}. Check that this account may write its files, or \
         restore a backup"
    )]
    Sink(String),
    /// What an earlier run left cannot be written to the journal.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The further readers of the journal cannot be told apart.
    #[error(transparent)]
    Readers(#[from] ReaderNameError),
    /// A thread cannot be started.
    #[error("a thread of the ledger: {0}")]
    Thread(io::Error),
    /// The kernel does not return the id of this boot.
    #[error("/proc/sys/kernel/random/boot_id: {0}")]
    Boot(io::Error),
}

impl From<SinkError> for OpenError {
    fn from(error: SinkError) -> OpenError {
        OpenError::Sink(error.to_string())
    }
}

impl Ledger {
    /// Opens the ledger: recovers what earlier runs left, and starts the threads.
    ///
    /// # Errors
    /// See [`OpenError`]. No thread is left running, and nothing that earlier runs left is lost.
    pub fn open(settings: &OpenSettings) -> Result<(Ledger, Vec<FlowWriter>), OpenError> {
        let lock = Lock::acquire(&settings.directory)?;
        let (mut found, old) = Findings::collect(settings)?;
        let directory = &settings.directory;
        let failed = |cause| OpenError::Directory { directory: directory.join(directory::CONSENTS), cause };
        let earlier = Pending::read(directory).map_err(failed)?;
        let mut consents = earlier.clone();
        let mut notes: Vec<String> = found.note.take().into_iter().collect();
        notes.extend(found.resend_months(settings, &old)?);
        let losses = found.losses(settings, &old);
        if !losses.0.is_empty() {
            let Some(author) = &settings.accept_loss else { return Err(OpenError::Incomplete(losses)) };
            consents.extend(found.consents(author, &losses));
            notes.extend(losses.0.iter().map(|loss| format!("accepted by {author}: {loss}")));
            Pending::write(directory, &consents).map_err(failed)?;
            if let Err(error) = found.accept_losses(settings, &losses) {
                let _ = Pending::write(directory, &earlier);
                return Err(error);
            }
            found = found.refreshed(settings, &old)?;
        }
        consents.extend(found.restored());
        consents.extend(found.without_table(&old));
        let prepared = recover(settings, found, old, &consents, notes)?;
        Pending::clear(directory).map_err(failed)?;
        start(settings, prepared, lock)
    }
}

/// The result of recovery: all that the threads need.
struct Prepared {
    journal: Writer<Directory>,
    report: Recovery,
    table: NewTable,
    sink: SqliteSink,
    applied: u64,
    /// Losses that were accepted, now and before.
    accepted: u64,
}

/// Writes what earlier runs left to the journal, and creates this run's live table.
fn recover(
    settings: &OpenSettings,
    found: Findings,
    old: OldTables,
    consents: &[Consent],
    mut notes: Vec<String>,
) -> Result<Prepared, OpenError> {
    point("recover.begin");
    let Findings { gateway, inventory, scan, boot, .. } = found;
    let (directory, readers) = (&settings.directory, Arc::new(Readers::new(&settings.readers)?));
    let mut sink = open_database(settings, gateway, &inventory)?;
    sink.remove_resent((scan.extent().0, scan.whole_to()))?;
    let journal = directory::make_journal(directory)?;
    let storage = Directory::at(&journal)
        .map_err(|cause| OpenError::Directory { directory: journal.clone(), cause })?;
    let OldTables { locations, found: FoundTables { tables: old, damaged, .. } } = old;
    notes.extend(damaged.iter().filter_map(|path| locations::set_aside(path)));
    let images = images(&old);
    let stale: Vec<PathBuf> = old
        .iter()
        .zip(&images)
        .filter(|(_, image)| scan.is_stale(image))
        .map(|(old, _)| old.path.clone())
        .collect();
    let epoch = scan.epoch(&images);
    let run = draw_run()?;
    sink.begin_run(epoch, run, clock::wall())?;
    let header = table_header(settings, gateway, (epoch, run), boot);
    // Where the old table occupies the space of the new one, the new one is created after the old one's
    // removal.
    let table = locations.make(header, &old)?;
    let reference = |table: &NewTable| TableReference { path: table.path.display().to_string(), boot };
    let consents: Vec<Consent> = consents.iter().map(|consent| consent.for_run(epoch)).collect();
    let start = Start {
        settings: journal_settings(settings, gateway, (epoch, run)),
        table: table.as_ref().map(reference).unwrap_or_default(),
        boot,
        tables: &images,
        consents: &consents,
        readers,
    };
    let Recovered { mut journal, mut report, accounts } = scan.recover(storage, start)?;
    sink.expect_accounts(accounts);
    drop(images);
    report.notes.extend(notes);
    report.damaged_tables = (damaged.len() + stale.len()) as u64;
    report.notes.extend(stale.iter().filter_map(|path| locations::set_aside(path)));
    let remaining = old.into_iter().filter(|old| !stale.contains(&old.path));
    report.notes.extend(remaining.filter_map(OldTable::remove));
    point("recover.table-cleared");
    let table = match table {
        Some(table) => table,
        None => {
            let table = locations
                .make(header, &[])?
                .expect("without old tables a new one is made or an error returned");
            journal.set_table(reference(&table)).map_err(RecoverError::from)?;
            table
        }
    };
    let applied = sink.applied_lsn()?.unwrap_or(0);
    let accepted = inventory.accepted() + consents.len() as u64;
    Ok(Prepared { journal, report, table, sink, applied, accepted })
}

/// Opens the database, and stores the gateway's number in it and in the directory before its journal begins.
fn open_database(
    settings: &OpenSettings,
    gateway: u32,
    inventory: &Inventory,
) -> Result<SqliteSink, OpenError> {
    let directory = &settings.directory;
    if !inventory.knows(gateway) {
        SqliteSink::end_others(directory, gateway, clock::wall())?;
    }
    let sink_settings = SinkSettings { detail_months: settings.detail_months, ..SinkSettings::default() };
    let mut sink = SqliteSink::open(directory, gateway, sink_settings)?;
    if !inventory.knows(gateway) || inventory.backup_made().is_some() {
        sink.register_gateway()?;
    }
    if directory::gateway(directory)?.is_none() {
        directory::set_gateway(directory, gateway)?;
    }
    Ok(sink)
}

/// Draws the number by which this run is told from any other, also from one of a copied ledger.
fn draw_run() -> Result<u128, OpenError> {
    let mut run = [0; 16];
    getrandom::fill(&mut run).map_err(|error| OpenError::Thread(io::Error::other(error)))?;
    Ok(u128::from_le_bytes(run).max(1))
}

fn table_header(settings: &OpenSettings, gateway: u32, (epoch, run): (u32, u128), boot: u128) -> TableHeader {
    TableHeader {
        gateway,
        epoch,
        boot,
        process: std::process::id(),
        regions: u32::try_from(settings.flow_writers).expect("there are fewer than 2^32 flow writers"),
        slots: settings.slots,
        run,
    }
}

fn journal_settings(settings: &OpenSettings, gateway: u32, (epoch, run): (u32, u128)) -> Settings {
    Settings {
        gateway,
        epoch,
        run,
        segment_bytes: settings.segment_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
        bytes_max: settings.journal_bytes_max,
    }
}

/// Starts the threads.
fn start(
    settings: &OpenSettings,
    prepared: Prepared,
    lock: Lock,
) -> Result<(Ledger, Vec<FlowWriter>), OpenError> {
    let Prepared { journal, report, table, sink, applied, accepted } = prepared;
    let path = table.path.clone();
    let guarantees =
        Guarantees { table: path.clone(), medium: table.medium, durability: settings.durability };
    let (table, locked) = table.keep();
    table.note_appended(journal.shared().appended());
    let shared = Arc::new(LedgerState::new(applied));
    let path_identity =
        PathIdentity::at(&path).map_err(|cause| OpenError::Table { path: path.clone(), cause })?;
    shared.note_found(StartFindings {
        accepted,
        table_was_missing: report.table_missing,
        table: path_identity,
        readers: Arc::clone(journal.shared().readers()),
    });
    let (drains, writers): (Vec<FlowDrain>, Vec<FlowWriter>) =
        table.regions().map(|region| flow_writer::pair(&region, &shared)).unzip();
    let journaled = Arc::clone(journal.shared());
    let applier = Applier::new(sink, Arc::clone(&journaled), applied, Arc::clone(&shared));
    let flusher = Flusher {
        journal: Arc::clone(&journaled),
        durability: settings.durability,
        shared: Arc::clone(&shared),
    };
    let committer = Committer::new(journal, table, drains, settings.durability, Arc::clone(&shared));
    let abort = |error| {
        shared.enter(Stage::Aborting);
        error
    };
    let applier = spawn("ledger-apply", &shared, move || applier.run())?;
    let flusher = spawn("ledger-flush", &shared, move || flusher.run()).map_err(abort)?;
    let committer = spawn("ledger-commit", &shared, move || {
        // Most accounts may not do this; then the thread has the usual priority.
        let _ = sys::limits::set_thread_niceness(COMMITTER_NICENESS);
        committer.run()
    })
    .map_err(abort)?;
    let locks = OpenLocks { table: path, _locked: locked, _lock: lock };
    let threads = Some(Threads { committer, flusher, applier, locks });
    Ok((Ledger { shared, journal: journaled, guarantees, recovery: report, threads }, writers))
}

fn spawn<R: Send + 'static>(
    name: &str,
    shared: &Arc<LedgerState>,
    body: impl FnOnce() -> R + Send + 'static,
) -> Result<thread::JoinHandle<R>, OpenError> {
    let alarm = PanicAlarm(Arc::clone(shared));
    let body = move || {
        let _alarm = alarm;
        body()
    };
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(OpenError::Thread)
}

/// The locks of an open ledger: of its directory and of its live table.
pub(crate) struct OpenLocks {
    table: PathBuf,
    _locked: File,
    _lock: Lock,
}

impl OpenLocks {
    /// The path of the live table.
    pub(crate) fn table(&self) -> &Path {
        &self.table
    }

    /// Removes the live table if it is empty.
    pub(crate) fn release(self, table: &LiveTable) {
        if table.is_empty() {
            // If the removal fails, the next start reads the table and finds nothing in it.
            let _ = fs::remove_file(&self.table);
        }
    }
}
