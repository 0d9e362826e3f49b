//! The configured load: what it needs of each limit, once and for each connection.
//!
//! Guarantees: counts everything that `serve` opens, starts and maps, with the reason for each number.

use gateway::config::Config;
use gateway::dns::{NAMES_IN_FLIGHT_MAX, SOCKETS_PER_NAME_MAX};
use gateway::limits::{
    EXTRA_ATTEMPTS_PER_THREAD_MAX, LINGERING_PER_THREAD_MAX, PENDING_BYTES_MAX, PIPE_BYTES,
    PIPES_PER_THREAD_MAX, READ_BYTES_UNDER_PRESSURE,
};
use gateway::server::ledger_settings;
use ledger::live_table::SLOT_BYTES;
use sys::limits::{self, Footprint, Limit, THREAD_MEMORY_BYTES};

/// Client side and upstream side of a tunnel. Further attempts of a dial are counted for each thread.
const SOCKETS_PER_CONNECTION: u64 = 2;

/// The two ends of a pipe.
const DESCRIPTORS_PER_PIPE: u64 = 2;

/// Epoll, eventfd and the like of one reactor thread.
const DESCRIPTORS_PER_REACTOR: u64 = 8;

/// Ledger, log, admin connections, and inherited descriptors.
const DESCRIPTORS_SPARE: u64 = 512;

/// Threads besides the reactors and the pool's: main, signals, control, console, the pool's monitor, names,
/// log, the ledger's three, admin, pressure; and three to spare.
const THREADS_SPARE: u64 = 15;

/// Mappings of a process without threads: executable, libraries, heap, SQLite, the live table.
const MAPPINGS_SPARE: u64 = 256;

/// Executable, rings, caches and buffers of a process without connections, and the memory of one password
/// hash.
const PROCESS_BYTES: u64 = 96 * 1024 * 1024;

/// The main thread reads the configuration and does little else.
const FIRST_STACK_BYTES: u64 = 1024 * 1024;

/// Tollgate's own memory for an idle tunnel: 826 bytes were measured.
const CONNECTION_BYTES: u64 = 1024;

/// The kernel's memory for the two sockets of an idle tunnel: 9.5 KB were measured.
const CONNECTION_KERNEL_BYTES: u64 = 10 * 1024;

/// TCP buffers of a tunnel with bytes in flight: a page for each of its sockets. An idle tunnel has none.
const CONNECTION_BUFFER_BYTES: u64 = 2 * 4096;

/// Bytes that a tunnel with stalled receivers may keep in both directions once its thread's pending buffers
/// are used up.
const CONNECTION_PENDING_BYTES: u64 = 2 * READ_BYTES_UNDER_PRESSURE as u64;

/// What the configuration needs of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: u64,
    pub(super) handshakes: u64,
    pub(super) reactors: u64,
    pub(super) pool_threads: u64,
    pub(super) listeners: u64,
    pub(super) backlog: u64,
    pub(super) table_bytes: u64,
}

/// What the load needs of one limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Requirement {
    /// Independent of the number of connections.
    pub(super) once: u64,
    /// For each connection.
    pub(super) each: u64,
}

impl Requirement {
    const fn once(once: u64) -> Requirement {
        Requirement { once, each: 0 }
    }

    /// The total for this number of connections.
    pub(super) fn total_for(self, connections: u64) -> u64 {
        self.once.saturating_add(self.each.saturating_mul(connections))
    }
}

impl Load {
    pub(super) fn from_config(config: &Config) -> Load {
        let reactors = match config.threads.reactors {
            0 => limits::cpus(),
            count => count as usize,
        };
        let ledger = ledger_settings(config, reactors);
        Load {
            connections: u64::from(config.limits.connections),
            handshakes: u64::from(config.limits.handshakes),
            reactors: reactors as u64,
            pool_threads: gateway::jobs::THREADS_MAX as u64,
            listeners: config.listeners.len() as u64,
            backlog: u64::from(config.accept.backlog),
            table_bytes: ledger.flow_writers as u64 * u64::from(ledger.slots) * SLOT_BYTES,
        }
    }

    pub(super) fn threads(&self) -> u64 {
        self.reactors + self.pool_threads + THREADS_SPARE
    }

    fn pipes(&self) -> u64 {
        self.reactors * PIPES_PER_THREAD_MAX as u64
    }

    /// Tollgate's own memory for connections: once for bytes that slow receivers have not taken, and for
    /// each.
    fn connection_memory(&self) -> Requirement {
        let once = self.reactors * PENDING_BYTES_MAX;
        Requirement { once, each: CONNECTION_BYTES + CONNECTION_PENDING_BYTES }
    }

    /// Descriptors that the reactors watch, besides the sockets of connections.
    fn watched_once(&self) -> u64 {
        let for_short = (EXTRA_ATTEMPTS_PER_THREAD_MAX + LINGERING_PER_THREAD_MAX) as u64;
        self.reactors * (DESCRIPTORS_PER_REACTOR + self.listeners + for_short) + self.handshakes
    }

    fn descriptors_once(&self) -> u64 {
        // Each name in flight belongs to a connection that is being opened.
        let for_names = self.connections.min(NAMES_IN_FLIGHT_MAX as u64) * SOCKETS_PER_NAME_MAX as u64;
        self.pipes() * DESCRIPTORS_PER_PIPE + self.watched_once() + for_names + DESCRIPTORS_SPARE
    }

    /// What the load needs of `limit`, in the limit's unit, where a thread takes `footprint`.
    pub(super) fn need(&self, limit: Limit, footprint: Footprint) -> Requirement {
        let threads = self.threads();
        let stacks_bytes = threads * footprint.address_bytes;
        let connections = self.connection_memory();
        match limit {
            Limit::Descriptors | Limit::OpenFiles => {
                Requirement { once: self.descriptors_once(), each: SOCKETS_PER_CONNECTION }
            }
            Limit::Threads | Limit::ThreadIds | Limit::UserThreads | Limit::GroupThreads => {
                Requirement::once(threads)
            }
            Limit::Mappings => {
                Requirement::once((threads as f64 * footprint.maps).ceil() as u64 + MAPPINGS_SPARE)
            }
            Limit::AddressSpace => Requirement {
                once: connections.once + stacks_bytes + PROCESS_BYTES + self.table_bytes,
                ..connections
            },
            Limit::Data | Limit::Commit => {
                Requirement { once: connections.once + stacks_bytes + PROCESS_BYTES, ..connections }
            }
            Limit::Stack => Requirement::once(FIRST_STACK_BYTES),
            Limit::Memory | Limit::GroupMemory => {
                let process = threads * THREAD_MEMORY_BYTES + PROCESS_BYTES + self.table_bytes;
                Requirement {
                    once: connections.once + process,
                    each: connections.each + CONNECTION_KERNEL_BYTES,
                }
            }
            Limit::LockedMemory => Requirement::once(self.table_bytes),
            Limit::ListenQueue | Limit::SynQueue => Requirement::once(self.backlog),
            // A connection ends as at most one of these; and a tunnel has a local port on one side only.
            Limit::LocalPorts | Limit::Orphans | Limit::TimeWait => Requirement { once: 0, each: 1 },
            Limit::Conntrack => Requirement { once: 0, each: SOCKETS_PER_CONNECTION },
            Limit::TcpMemory => Requirement { once: 0, each: CONNECTION_BUFFER_BYTES },
            Limit::PipePages => {
                Requirement::once(self.pipes() * u64::from(PIPE_BYTES) / limits::page_bytes())
            }
            Limit::EpollWatches => Requirement { once: self.watched_once(), each: SOCKETS_PER_CONNECTION },
        }
    }
}
