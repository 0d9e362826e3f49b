//! Opening a ledger: one owner, recovery first, then the threads.
//!
//! Promises: two processes never have one ledger or one live table; nobody gets an inlet before everything
//! that an earlier run left is durable in the journal; what is promised from then on is said. Leaves to
//! others: the parts.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use sys::crash::point;
use thiserror::Error;

use crate::apply::Applier;
use crate::commit::Committer;
use crate::directory::{self, Lock};
use crate::flush::Flusher;
use crate::inlet::{self, Outlet};
use crate::journal::segment::BLOCK_BYTES;
use crate::journal::{Settings, Writer, scan};
use crate::limits::COMMITTER_NICENESS;
use crate::live_table::place::{Medium, NewTable, OldTable, Places};
use crate::live_table::{LiveTable, TableHeader};
use crate::recover::{Applied, RecoverError, Recovered, Recovery, TableImage, survey};
use crate::sink::schema::SchemaError;
use crate::sink::sqlite::SqliteSink;
use crate::sink::{Sink, SinkError, SinkSettings};
use crate::status::{Shared, Stage};
use crate::storage::file::Directory;
use crate::{Durability, Inlet, Ledger, PanicAlarm, Threads};

/// How a ledger is opened.
#[derive(Clone, Debug)]
pub struct OpenSettings {
    /// Where it lies; made if it is missing.
    pub directory: PathBuf,
    /// Inlets: one for each thread that relays.
    pub inlets: usize,
    /// Slots of the live table for each of them: open flows, and closed ones that are not journaled yet.
    pub slots: u32,
    /// When an ended flow is safe.
    pub durability: Durability,
    /// The directory for the live table; without it a place is looked for.
    pub live_table: Option<PathBuf>,
    /// The directory that systemd made for this run.
    pub runtime_directory: Option<PathBuf>,
    /// Bytes of a segment of the journal.
    pub segment_bytes: u64,
    /// Bytes of all segments.
    pub journal_bytes_max: u64,
    /// Months of which each flow is kept.
    pub detail_months: u32,
    /// Go on without entries that had been durable and are lost.
    pub accept_loss: bool,
}

impl OpenSettings {
    /// The defaults, for a ledger in `directory`.
    pub fn new(directory: &Path, inlets: usize, slots: u32) -> OpenSettings {
        OpenSettings {
            directory: directory.to_owned(),
            inlets,
            slots,
            durability: Durability::Delayed,
            live_table: None,
            runtime_directory: None,
            segment_bytes: 64 << 20,
            journal_bytes_max: 4 << 30,
            detail_months: 13,
            accept_loss: false,
        }
    }
}

/// What holds on this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Promise {
    /// Where the live table lies.
    pub table: PathBuf,
    /// On what.
    pub medium: Medium,
    /// When an ended flow is safe.
    pub durability: Durability,
}

/// Why a ledger could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process, or this one, has it open.
    #[error("the ledger in {} is in use by {holder}", directory.display())]
    Locked {
        /// The ledger's directory.
        directory: PathBuf,
        /// Who has it, as far as that is known.
        holder: String,
    },
    /// The directory or a file in it cannot be made or opened.
    #[error("the ledger's directory {}: {cause}", directory.display())]
    Directory {
        /// The ledger's directory.
        directory: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The live table cannot be made, read or removed.
    #[error("the live table {}: {cause}", path.display())]
    Table {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The live table belongs to a gateway that runs.
    #[error(
        "the live table {} is in use: a gateway runs on a copy of this ledger. Remove `identity` and \
         `journal` from the copy, and it becomes a ledger of its own, with what its database has",
        path.display()
    )]
    TableInUse {
        /// Its path.
        path: PathBuf,
    },
    /// The database cannot be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The database cannot be read.
    #[error("the ledger's database: {0}")]
    Sink(String),
    /// What an earlier run left cannot be brought into the journal.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// A thread cannot be started.
    #[error("a thread of the ledger: {0}")]
    Thread(io::Error),
    /// The kernel does not say which boot this is.
    #[error("/proc/sys/kernel/random/boot_id: {0}")]
    Boot(io::Error),
}

impl From<SinkError> for OpenError {
    fn from(error: SinkError) -> OpenError {
        OpenError::Sink(error.to_string())
    }
}

impl Ledger {
    /// Opens the ledger: recovers what an earlier run left, and starts the threads.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is left running, and nothing that an earlier run left is lost.
    pub fn open(settings: &OpenSettings) -> Result<(Ledger, Vec<Inlet>), OpenError> {
        let lock = Lock::acquire(&settings.directory)?;
        let gateway = identity(&settings.directory)?;
        let (sink, applied) = open_sink(settings, gateway)?;
        let started = recover(settings, gateway, applied, sink.open_flows())?;
        let (ledger, inlets) = start(settings, started, sink, applied.lsn, lock)?;
        Ok((ledger, inlets))
    }
}

fn open_sink(settings: &OpenSettings, gateway: u32) -> Result<(SqliteSink, Applied), OpenError> {
    let sink_settings = SinkSettings { detail_months: settings.detail_months, ..SinkSettings::default() };
    let mut sink = SqliteSink::open(&settings.directory, gateway, sink_settings)?;
    let lsn = sink.applied_lsn()?.unwrap_or(0);
    let epoch = sink.epoch()?;
    Ok((sink, Applied { epoch, lsn }))
}

/// What recovery leaves to start with.
struct Started {
    journal: Writer<Directory>,
    report: Recovery,
    table: NewTable,
}

/// The gateway's number; a new one if this is its first start.
fn identity(directory: &Path) -> Result<u32, OpenError> {
    if let Some(gateway) = directory::gateway(directory)? {
        return Ok(gateway);
    }
    // One that was lost is in the journal, too.
    let journal = Directory::at(&directory::journal(directory));
    if let Some(gateway) = scan::gateway(&journal).map_err(RecoverError::from)? {
        directory::set_gateway(directory, gateway)?;
        return Ok(gateway);
    }
    let gateway = getrandom::u32().map_err(|error| OpenError::Thread(io::Error::other(error)))?;
    // Zero is the gateway of ledgers that were made before gateways had numbers.
    let gateway = gateway.max(1);
    directory::set_gateway(directory, gateway)?;
    Ok(gateway)
}

/// Brings into the journal what an earlier run left, and makes this run's live table.
fn recover(
    settings: &OpenSettings,
    gateway: u32,
    applied: Applied,
    open: HashSet<u128>,
) -> Result<Started, OpenError> {
    point("recover.begin");
    let storage = Directory::at(&directory::make_journal(&settings.directory)?);
    let boot = sys::limits::boot_id().map_err(OpenError::Boot)?;
    let places = Places::of(gateway, settings).map_err(RecoverError::from)?;
    let (old, damaged_tables) = places.find()?;
    let images: Vec<TableImage<'_>> = old.iter().map(image).collect();
    let survey = survey(&storage, gateway, applied, open, &images)?;
    if let Some(damage) = survey.damage().filter(|_| !settings.accept_loss) {
        return Err(RecoverError::Damaged(Box::new(damage)).into());
    }
    let epoch = survey.epoch(applied, &images);
    let table = places.make(TableHeader {
        gateway,
        epoch,
        boot,
        process: std::process::id(),
        regions: u32::try_from(settings.inlets).expect("threads are few"),
        slots: settings.slots,
    })?;
    let journal_settings = Settings {
        gateway,
        epoch,
        segment_bytes: settings.segment_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
        bytes_max: settings.journal_bytes_max,
        table: table.path.display().to_string(),
    };
    let Recovered { journal, mut report } =
        survey.recover(storage, journal_settings, applied, boot, &images)?;
    report.damaged_tables = damaged_tables;
    drop(images);
    old.into_iter().try_for_each(OldTable::remove)?;
    point("recover.table-cleared");
    Ok(Started { journal, report, table })
}

fn image(old: &OldTable) -> TableImage<'_> {
    TableImage { header: old.header, word: Box::new(|index| old.view.word(index)) }
}

/// Starts the threads.
fn start(
    settings: &OpenSettings,
    started: Started,
    sink: impl Sink + 'static,
    applied: u64,
    lock: Lock,
) -> Result<(Ledger, Vec<Inlet>), OpenError> {
    let Started { journal, report, table } = started;
    let path = table.path.clone();
    let promise = Promise { table: path.clone(), medium: table.medium, durability: settings.durability };
    let (table, locked) = table.keep();
    let shared = Arc::new(Shared::new(applied));
    let (outlets, inlets): (Vec<Outlet>, Vec<Inlet>) =
        table.regions().map(|region| inlet::pair(&region, &shared)).unzip();
    let journaled = Arc::clone(journal.shared());
    let applier = Applier::new(sink, Arc::clone(&journaled), applied, Arc::clone(&shared));
    let flusher =
        Flusher { journal: journaled, durability: settings.durability, shared: Arc::clone(&shared) };
    let committer = Committer::new(journal, table, outlets, settings.durability, Arc::clone(&shared));
    let leave = |error| {
        shared.enter(Stage::Leaving);
        error
    };
    let applier = spawn("ledger-apply", &shared, move || applier.run())?;
    let flusher = spawn("ledger-flush", &shared, move || flusher.run()).map_err(leave)?;
    let committer = spawn("ledger-commit", &shared, move || {
        // Refused to most; then it competes as others do.
        let _ = sys::limits::set_thread_niceness(COMMITTER_NICENESS);
        committer.run()
    })
    .map_err(leave)?;
    let held = Held { table: path, _locked: locked, _lock: lock };
    let threads = Some(Threads { committer, flusher, applier, held });
    Ok((Ledger { shared, promise, recovery: report, threads }, inlets))
}

fn spawn<R: Send + 'static>(
    name: &str,
    shared: &Arc<Shared>,
    body: impl FnOnce() -> R + Send + 'static,
) -> Result<thread::JoinHandle<R>, OpenError> {
    let alarm = PanicAlarm(Arc::clone(shared));
    let body = move || {
        let _alarm = alarm;
        body()
    };
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(OpenError::Thread)
}

/// What an open ledger holds besides its threads: the locks of its directory and its live table.
pub(crate) struct Held {
    table: PathBuf,
    _locked: File,
    _lock: Lock,
}

impl Held {
    /// Removes the live table if it has nothing left to say.
    pub(crate) fn let_go(self, table: &LiveTable) {
        if table.is_empty() {
            // What stays is read by the next start, which finds nothing in it.
            let _ = fs::remove_file(&self.table);
        }
    }
}
