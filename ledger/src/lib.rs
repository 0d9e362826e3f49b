//! Durable usage: what flows through is recorded here, once, and here one asks for it.
//!
//! Promises: handing a record over never blocks and never loses it: either it was taken, or the caller
//! still has it; every record taken is one row, also across failures of the database; after a successful
//! [`Ledger::close`] all of them are on the disk. Leaves to others: what is counted, and keeping a record
//! until it was taken.
//!
//! ```text
//!   reactor threads                    the ledger thread               any process
//!   Inlet --ring--.
//!   Inlet --ring--+--> Outlets -> Applier -> Sink (SQLite) -> ledger.db -> query::Usage
//!   Inlet --ring--'                  |
//!                                    '-> Watch::status
//! ```
//!
//! `record.rs` is what travels, `inlet.rs` how, `apply.rs` the thread, `sink.rs` the seam at which stores
//! attach, `query.rs` the questions.

#![forbid(unsafe_code)]

mod apply;
mod directory;
mod inlet;
pub mod limits;
pub mod query;
pub mod record;
mod sink;
mod status;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use thiserror::Error;

use crate::apply::Applier;
use crate::directory::Lock;
pub use crate::inlet::Inlet;
use crate::limits::RING_RECORDS;
use crate::sink::Sink;
pub use crate::sink::schema::SchemaError;
use crate::sink::sqlite::SqliteSink;
use crate::status::Shared;
pub use crate::status::{Status, Watch};
pub use sys::ring::Full;

/// An open ledger: the owner of its directory and of the ledger thread.
///
/// Dropping it closes it, and loses the result; see [`Ledger::close`].
pub struct Ledger {
    shared: Arc<Shared>,
    /// `None` once it was asked to end.
    thread: Option<JoinHandle<Result<Summary, LedgerError>>>,
}

impl Ledger {
    /// Opens the ledger in `directory`, which is made if it is missing, and starts the ledger thread.
    ///
    /// Returns as many inlets as asked for: one for each thread that closes flows.
    pub fn open(directory: &Path, inlets: usize) -> Result<(Self, Vec<Inlet>), OpenError> {
        let lock = Lock::acquire(directory)?;
        let path = directory::make_database(directory)?;
        let sink = SqliteSink::open(&path)?;
        Self::start(sink, lock, inlets, RING_RECORDS)
    }

    /// The running ledger over `sink`. `guard` is dropped after the sink, and before `close` returns.
    fn start<S: Sink + 'static>(
        sink: S,
        guard: impl Send + 'static,
        inlets: usize,
        ring_records: usize,
    ) -> Result<(Self, Vec<Inlet>), OpenError> {
        let shared = Arc::new(Shared::new());
        let (outlets, unbound): (Vec<_>, Vec<_>) = (0..inlets).map(|_| inlet::pair(ring_records)).unzip();
        let applier = Applier::new(sink, outlets, Arc::clone(&shared));
        let thread = thread::Builder::new()
            .name("ledger".to_owned())
            .spawn({
                let alarm = PanicAlarm(Arc::clone(&shared));
                move || {
                    let _alarm = alarm;
                    let result = applier.run();
                    drop(guard);
                    result
                }
            })
            .map_err(OpenError::Thread)?;
        let inlets = unbound.into_iter().map(|inlet| inlet.bind(&shared, thread.thread())).collect();
        Ok((Self { shared, thread: Some(thread) }, inlets))
    }

    /// How the ledger is doing.
    pub fn status(&self) -> Status {
        self.watch().status()
    }

    /// A view of the status for other threads.
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.shared))
    }

    /// Refuses further records, writes every one that was taken, brings all to the disk and ends the
    /// ledger thread. If the database fails all the while, gives up after some seconds and tells how many
    /// records were not written.
    pub fn close(mut self) -> Result<Summary, LedgerError> {
        self.stop().expect("only `close` and `drop` stop the thread, and both consume the ledger")
    }

    fn stop(&mut self) -> Option<Result<Summary, LedgerError>> {
        let thread = self.thread.take()?;
        self.shared.close();
        thread.thread().unpark();
        Some(thread.join().unwrap_or(Err(LedgerError::Panicked)))
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Tells those who watch that the thread which holds it panicked, and that nobody writes any more.
struct PanicAlarm(Arc<Shared>);

impl Drop for PanicAlarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0
                .failed("the ledger thread panicked; nothing more is written until a restart".to_owned(), 0);
        }
    }
}

/// What a ledger did between opening and closing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Summary {
    /// Records written.
    pub records: u64,
    /// Transactions that wrote them.
    pub batches: u64,
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
    /// The database cannot be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The ledger thread cannot be started.
    #[error("the ledger thread: {0}")]
    Thread(io::Error),
}

/// Why a ledger was not closed in order.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub enum LedgerError {
    /// The database failed to the end. What was written before is safe.
    #[error("{records} records could not be written or brought to the disk: {cause}")]
    Unwritten {
        /// Records taken and not written. With 0, all were written, and the last sync failed.
        records: u64,
        /// What the database said last.
        cause: String,
    },
    /// The ledger thread ended by a fault of its own.
    #[error("the ledger thread panicked")]
    Panicked,
}
