//! The stores by name. Each opens fresh and empty, with one writer for each thread.
//!
//! | store | an insert is | survives |
//! |---|---|---|
//! | `latch`, `ticket`, `turnstile` | a row on the last page in memory | nothing |
//! | `sqlite-normal`, `postgres-async` | a transaction of one row | the process |
//! | `sqlite-full`, `postgres-sync` | the same, synced before the answer | a power failure |
//! | `postgres-copy` | a row of a batch of 10,000 | the process |
//! | `ours` | open and close of a flow, everything on | the process; a power failure after a moment |
//! | `ours-sync` | the same, in flight until it is durable | a power failure |

use std::path::Path;

use anyhow::Result;

use super::latch::Latch;
use super::postgres::{self, Commit};
use super::sqlite::Sqlite;
use super::store::{OpenStore, StoreSettings};
use super::ticket::Ticket;
use super::turnstile::Turnstile;
use super::{ledger_store, ledger_store::Durability};

/// A store by name.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
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

impl Target {
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
        Self::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Opens the store, empty.
    ///
    /// # Errors
    /// The store is not installed, or did not start: the experiment goes on without it.
    pub(super) fn open(self, settings: &StoreSettings) -> Result<OpenStore> {
        let (directory, writers): (&Path, usize) = (&settings.directory, settings.writers);
        match self {
            Self::Ours => ledger_store::open(directory, writers, Durability::Delayed),
            Self::OursSync => ledger_store::open(directory, writers, Durability::Sync),
            Self::Latch => Ok(OpenStore::shared(Latch::new(), writers)),
            Self::Ticket => Ok(OpenStore::shared(Ticket::new(), writers)),
            Self::Turnstile => Ok(OpenStore::shared(Turnstile::new(), writers)),
            Self::SqliteNormal => Ok(OpenStore::shared(Sqlite::open(directory, "NORMAL")?, writers)),
            Self::SqliteFull => Ok(OpenStore::shared(Sqlite::open(directory, "FULL")?, writers)),
            Self::PostgresAsync => postgres::open(settings, Commit::Async),
            Self::PostgresSync => postgres::open(settings, Commit::Sync),
            Self::PostgresCopy => postgres::open(settings, Commit::Copy),
        }
    }

    /// Whether an insert costs so much that each one is timed. Where it costs about as much as reading the
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
            Self::Ours | Self::OursSync => ledger_store::COMPUTING_THREADS,
            // A server's process runs while its writer waits for it: together they want one CPU.
            _ => 0,
        }
    }
}
