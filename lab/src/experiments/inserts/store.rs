//! The stores, and the contract between them and the work. Promises: each kind opens fresh and empty, with
//! one writer for each thread. Leaves to others: what the rows are (`row.rs`), who inserts them and how fast
//! (`work.rs`).
//!
//! | store | an insert is | survives |
//! |---|---|---|
//! | `latch`, `ticket`, `turnstile` | a row on the last page in memory | nothing |
//! | `sqlite-normal`, `postgres-async` | a transaction of one row | the process |
//! | `sqlite-full`, `postgres-sync` | the same, synced before the answer | a power failure |
//! | `postgres-copy` | a row of a batch of 10,000 | the process |
//! | `ours` | open and close of a flow, everything on | the process; a power failure after a moment |
//! | `ours-sync` | the same, in flight until it is durable | a power failure |

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;

use super::latch::Latch;
use super::postgres::{self, Commit};
use super::row::Row;
use super::sqlite::Sqlite;
use super::ticket::Ticket;
use super::turnstile::Turnstile;
use super::{ours, ours::Durability};

/// A store by name.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ours,
    OursSync,
    Latch,
    Ticket,
    Turnstile,
    SqliteNormal,
    SqliteFull,
    PostgresAsync,
    PostgresSync,
    PostgresCopy,
}

/// What stores need to open.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// Empty, and on the disk that is measured.
    pub(super) directory: PathBuf,
    /// The file that tells where PostgreSQL is.
    pub(super) services: Option<PathBuf>,
    pub(super) writers: usize,
}

/// What became of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// So many rows were accepted: this one, and those that it completes a batch of.
    Accepted(u64),
    /// The row is in a batch that is not accepted yet.
    Gathered,
    /// The store is full; the row is the caller's as before.
    Refused,
}

/// How many rows a store has brought how far since it was opened; `None` where it cannot tell, or where an
/// accepted row has come that far by definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// In the journal.
    pub(super) appended: Option<u64>,
    /// In the journal, and on the disk.
    pub(super) durable: Option<u64>,
    /// Rows that a query finds.
    pub(super) visible: Option<u64>,
}

/// The part of a store that is there once.
pub(super) trait Store: Sync {
    /// How far it is. Never waits.
    fn marks(&self) -> Marks {
        Marks::default()
    }

    /// The processes that do its work outside the lab; their families belong to the experiment.
    fn processes(&self) -> Vec<i32> {
        Vec::new()
    }
}

/// The part of a store that each writer has.
pub(super) trait Writer: Send {
    /// Inserts one row.
    ///
    /// # Errors
    /// The store has failed, which ends the run.
    fn insert(&mut self, row: &Row) -> Result<Answer>;

    /// Completes a batch that was begun; returns how many rows that accepts.
    ///
    /// # Errors
    /// As `insert`.
    fn finish(&mut self) -> Result<u64> {
        Ok(0)
    }
}

/// A store that is used through one place by all writers.
pub(super) trait Shared: Send + Sync {
    /// As [`Writer::insert`].
    fn insert(&self, row: &Row) -> Result<Answer>;
}

impl<S: Shared> Writer for Arc<S> {
    fn insert(&mut self, row: &Row) -> Result<Answer> {
        S::insert(self, row)
    }
}

/// An open store. The writers go first, then the store.
pub(super) struct Opened {
    pub(super) writers: Vec<Box<dyn Writer>>,
    pub(super) store: Box<dyn Store>,
}

/// A store that has nothing to tell.
struct Silent;

impl Store for Silent {}

impl Opened {
    fn shared(store: impl Shared + 'static, writers: usize) -> Self {
        let store = Arc::new(store);
        let writer = |_| -> Box<dyn Writer> { Box::new(Arc::clone(&store)) };
        Self { writers: (0..writers).map(writer).collect(), store: Box::new(Silent) }
    }
}

impl Kind {
    pub(super) const ALL: [Self; 10] = [
        Self::Ours,
        Self::OursSync,
        Self::Latch,
        Self::Ticket,
        Self::Turnstile,
        Self::SqliteNormal,
        Self::SqliteFull,
        Self::PostgresAsync,
        Self::PostgresSync,
        Self::PostgresCopy,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursSync => "ours-sync",
            Self::Latch => "latch",
            Self::Ticket => "ticket",
            Self::Turnstile => "turnstile",
            Self::SqliteNormal => "sqlite-normal",
            Self::SqliteFull => "sqlite-full",
            Self::PostgresAsync => "postgres-async",
            Self::PostgresSync => "postgres-sync",
            Self::PostgresCopy => "postgres-copy",
        }
    }

    /// The store of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Opens it, empty.
    ///
    /// # Errors
    /// It is not installed, or did not start: the experiment goes on without it.
    pub(super) fn open(self, setting: &Setting) -> Result<Opened> {
        let (directory, writers): (&Path, usize) = (&setting.directory, setting.writers);
        match self {
            Self::Ours => ours::open(directory, writers, Durability::Delayed),
            Self::OursSync => ours::open(directory, writers, Durability::Sync),
            Self::Latch => Ok(Opened::shared(Latch::new(), writers)),
            Self::Ticket => Ok(Opened::shared(Ticket::new(), writers)),
            Self::Turnstile => Ok(Opened::shared(Turnstile::new(), writers)),
            Self::SqliteNormal => Ok(Opened::shared(Sqlite::open(directory, "NORMAL")?, writers)),
            Self::SqliteFull => Ok(Opened::shared(Sqlite::open(directory, "FULL")?, writers)),
            Self::PostgresAsync => postgres::open(setting, Commit::Async),
            Self::PostgresSync => postgres::open(setting, Commit::Sync),
            Self::PostgresCopy => postgres::open(setting, Commit::Copy),
        }
    }

    /// Whether an insert costs so much that each one is timed. Where it costs about as much as a look at the
    /// clock, one in many is.
    pub(super) fn is_timed_throughout(self) -> bool {
        match self {
            Self::Ours | Self::OursSync | Self::Latch | Self::Ticket | Self::Turnstile => false,
            Self::SqliteNormal
            | Self::SqliteFull
            | Self::PostgresAsync
            | Self::PostgresSync
            | Self::PostgresCopy => true,
        }
    }

    /// Threads of the store that want a CPU while the writers insert, besides the writers.
    pub(super) fn own_threads(self) -> usize {
        match self {
            Self::Ours | Self::OursSync => ours::COMPUTING_THREADS,
            // A server's process runs while its writer waits for it: together they want one CPU.
            _ => 0,
        }
    }
}
