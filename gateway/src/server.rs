//! The gateway for the control side: started, reloaded, drained.
//!
//! Guarantees: it starts whole or not at all, with an error that names what failed; old configurations are
//! freed here, and not on a reactor thread.

mod drain;
mod numbering;
pub mod quotas;
pub mod reload;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use engine::accept::{self, ListenerHandle, Strategy, WorkerHandle, worker_group};
use engine::executor::Executor;
use engine::inbox::{Inbox, Notifier, Sender};
use engine::reactor::Reactor;
use ledger::{Durability, FlowWriter, Ledger, OpenError, OpenSettings};
use sys::clock;
use sys::socket::ListenOptions;

use self::reload::RestartOnly;
use crate::authenticator::Authenticator;
use crate::budget::Budget;
use crate::config::settings;
use crate::config::{Config, Listener};
use crate::context::{FlowIds, Phase, WorkerContext};
use crate::dns::{DnsThread, ResolveCache, ResolveSettings, Resolver};
use crate::flow::closing::ClosingConnections;
use crate::flow::meter::Meter;
use crate::flow::progress::Deadlines;
use crate::handshake::slots::{Handshakes, bounded_by_descriptors, slots_per_thread};
use crate::handshake::{self, Identified};
use crate::http::NextStep;
use crate::identity::AuthShared;
use crate::idle::{Evictor, IdleConnections};
use crate::jobs;
use crate::limits::{
    CLOSES_PER_SECOND_MAX, EXCHANGES_PER_THREAD_MAX, EXTRA_ATTEMPTS_PER_THREAD_MAX, FLOWS_PER_THREAD_MAX,
    IDLE_RUNS_PER_THREAD_MAX, LINGERING_PER_THREAD_MAX, QUEUE_STALL_MAX, SCRATCH_BYTES, STALL_SECONDS_MAX,
};
use crate::observe::log::{Level, Log, LogSender, Value};
use crate::observe::pressure::PressureThread;
use crate::observe::stats::Stats;
use crate::relay::Relays;
use crate::shares::SharePool;
use crate::snapshot::{Snapshot, SnapshotHandle};
use crate::worker::command::Command;
use crate::worker::listeners;
use crate::worker::tasks::{self, Tasks};
use crate::worker::{Worker, WorkerParts};

/// Why a gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener's address cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        error: io::Error,
    },
    /// The log's destination cannot be opened.
    #[error("cannot open the log: {0}")]
    Log(io::Error),
    /// The ledger cannot be opened.
    #[error("cannot open the ledger: {0}")]
    Ledger(OpenError),
    /// A thread or one of its descriptors cannot be created.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl StartError {
    /// With the program that uses the port, as far as the machine tells.
    pub(crate) fn explained(self) -> StartError {
        match self {
            StartError::Listen { address, error } => {
                StartError::Listen { address, error: sys::limits::explain_bind_error(address, error) }
            }
            other => other,
        }
    }
}

/// A running gateway.
pub struct Gateway {
    pub(crate) snapshot: Arc<Snapshot>,
    /// Snapshots that threads may still hold; each is freed here after its last thread has dropped it.
    pub(crate) retired: Vec<Arc<Snapshot>>,
    pub(crate) strategy: &'static dyn Strategy,
    /// The id of the next listener.
    pub(crate) next_listener_id: u32,
    pub(crate) workers: Vec<WorkerThread>,
    /// Configured to bound address of every live listener.
    pub(crate) listening: BTreeMap<SocketAddr, SocketAddr>,
    /// The address of the admin side.
    pub(crate) admin: SocketAddr,
    /// The settings that only a start changes.
    pub(crate) restart_only: RestartOnly,
    pub(crate) ledger: Ledger,
    pub(crate) log: Arc<Log>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) dns: DnsThread,
    pub(crate) pressure: PressureThread,
}

/// A reactor thread, and its inbox.
pub(crate) struct WorkerThread {
    pub(crate) commands: Sender<Command>,
    pub(crate) thread: JoinHandle<()>,
    /// The kernel's id of the thread.
    id: i32,
}

/// What a reactor thread starts with.
pub(crate) struct ThreadParts {
    pub(crate) number: u16,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) inbox: Inbox<Command>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) flow_writer: FlowWriter,
    pub(crate) log: LogSender,
    pub(crate) auth: Arc<AuthShared>,
    pub(crate) resolver: Resolver,
    pub(crate) handle: WorkerHandle,
    /// A random number, by which the flow ids of this process differ from those of others.
    pub(crate) process: u32,
    pub(crate) handshakes_max: usize,
}

impl Gateway {
    /// Starts every thread and binds every address. `admin` is the admin side's address, to which no user may
    /// connect through the gateway either.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub fn start(
        mut config: Config,
        admin: SocketAddr,
        version: &'static str,
    ) -> Result<Gateway, StartError> {
        let strategy = accept::strategy(config.accept.strategy.name())
            .expect("the settings offer the strategies that there are");
        let threads = reactors(&config);
        // First what other programs may hold: an address or a ledger in use is reported before anything
        // starts.
        let listeners = listen_on_all(&config, strategy, threads)?;
        let next_listener_id = u32::try_from(listeners.len()).expect("listeners are few");
        config.add_own_addresses(listeners.iter().map(|listener| listener.bound).chain([admin]));
        let (ledger, flow_writers) =
            Ledger::open(&ledger_settings(&config, threads)).map_err(StartError::Ledger)?;
        let pool = jobs::start(config.auth.hash_queue as usize).map_err(StartError::Thread)?;
        let stats = Stats::new(version, clock::wall(), threads, pool.clone());
        let (log, log_senders) = Log::start(&config.log, &stats).map_err(StartError::Log)?;
        let (resolver, dns) =
            Resolver::start(ResolveSettings::from(&config.dns), &pool).map_err(StartError::Thread)?;
        let auth = Arc::new(AuthShared::new(pool, &config.auth).map_err(StartError::Thread)?);
        let process = random_u32().map_err(StartError::Thread)?;
        let handshakes_max = slots_per_thread(handshakes_affordable(&config, &log), threads);
        let restart_only = RestartOnly::of(&config);
        let notifiers = notifiers(threads).map_err(StartError::Thread)?;
        let snapshot = first_snapshot(config, &notifiers, &ledger, &log);
        let reactor_stats = stats.workers.iter().map(|worker| Arc::clone(&worker.reactor));
        let handles = worker_group(notifiers.iter().cloned().zip(reactor_stats));
        let mut workers = Vec::new();
        let parts = handles.into_iter().zip(notifiers).zip(flow_writers.into_iter().zip(log_senders));
        for (number, ((handle, notifier), (flow_writer, log))) in (0..).zip(parts) {
            let inbox = Inbox::new(Arc::clone(&notifier));
            workers.push(spawn(ThreadParts {
                number,
                notifier,
                inbox,
                snapshot: Arc::clone(&snapshot),
                stats: Arc::clone(&stats),
                flow_writer,
                log,
                auth: Arc::clone(&auth),
                resolver: resolver.clone(),
                handle,
                process,
                handshakes_max,
            })?);
        }
        let ids: Vec<i32> = workers.iter().map(|worker| worker.id).collect();
        let pressure = PressureThread::start(Arc::clone(&stats), &ids).map_err(StartError::Thread)?;
        stats.reloads.succeeded(clock::wall());
        let mut gateway = Gateway {
            snapshot,
            retired: Vec::new(),
            strategy,
            next_listener_id,
            workers,
            listening: BTreeMap::new(),
            admin,
            restart_only,
            ledger,
            log: Arc::new(log),
            stats,
            dns,
            pressure,
        };
        let _adopted = gateway.reconfigure(listeners, &[]);
        gateway.stats.mark_ready();
        Ok(gateway)
    }

    /// The listeners' addresses: as configured, and as bound.
    pub fn listening(&self) -> &BTreeMap<SocketAddr, SocketAddr> {
        &self.listening
    }

    /// The current configuration.
    pub fn config(&self) -> &Config {
        &self.snapshot.config
    }

    /// The statistics.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// The log.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

/// The first snapshot, with what the ledger knows of its users and quotas.
fn first_snapshot(config: Config, notifiers: &[Arc<Notifier>], ledger: &Ledger, log: &Log) -> Arc<Snapshot> {
    let snapshot = Arc::new(Snapshot::first(config, Budget::new(notifiers.to_vec())));
    numbering::request(ledger, &snapshot, log);
    quotas::settle(&snapshot.config.ledger.directory, &snapshot, log);
    snapshot
}

/// The handshakes of all threads. If the process has too few descriptors for the configured number, they are
/// fewer, and the log says so.
fn handshakes_affordable(config: &Config, log: &Log) -> u32 {
    let (configured, (descriptors, _)) = (config.limits.handshakes, sys::limits::descriptor_limits());
    let handshakes = bounded_by_descriptors(configured, descriptors);
    if handshakes < configured {
        let text = format!(
            "{handshakes} handshakes at a time, of {configured} configured: unknown clients hold a quarter \
             of the process's descriptors at most"
        );
        let remedy = "raise LimitNOFILE of the service (ulimit -n), or lower `handshakes` of `[limits]`";
        log.write_message(
            Level::Warning,
            &text,
            &[("limit", descriptors.into()), ("remedy", Value::Text(remedy))],
        );
    }
    handshakes
}

fn notifiers(threads: usize) -> io::Result<Vec<Arc<Notifier>>> {
    (0..threads).map(|_| Notifier::new().map(Arc::new)).collect()
}

/// A bound address, with a handle for each thread.
pub(crate) struct BoundListener {
    pub(crate) configured: SocketAddr,
    pub(crate) bound: SocketAddr,
    pub(crate) handles: Vec<ListenerHandle>,
}

/// Binds one address for all threads.
pub(crate) fn listen(
    config: &Config,
    listener: &Listener,
    strategy: &'static dyn Strategy,
    threads: usize,
    listener_id: u32,
) -> Result<BoundListener, StartError> {
    let address = listener.address;
    let failed = |error| StartError::Listen { address, error };
    let first_ack = listeners::ack_mode(&listener.ingress);
    let options = ListenOptions { first_ack, ..ListenOptions::plain(config.accept.backlog) };
    let handles = accept::listen(strategy, address, options, threads, listener_id).map_err(failed)?;
    let bound = handles[0].local().map_err(failed)?;
    Ok(BoundListener { configured: address, bound, handles })
}

fn listen_on_all(
    config: &Config,
    strategy: &'static dyn Strategy,
    threads: usize,
) -> Result<Vec<BoundListener>, StartError> {
    let listeners = (0..).zip(&config.listeners);
    let opened =
        listeners.map(|(listener_id, listener)| listen(config, listener, strategy, threads, listener_id));
    opened.collect::<Result<_, _>>().map_err(StartError::explained)
}

fn spawn(parts: ThreadParts) -> Result<WorkerThread, StartError> {
    let commands = parts.inbox.sender();
    let (report, started) = mpsc::sync_channel(1);
    let name = format!("reactor-{}", parts.number);
    let body = move || {
        // A panic here is a failed assertion about the gateway's own state: tasks contain theirs. The process
        // ends, and what the ledger has is billed.
        let _guard = AbortOnPanic;
        match build(parts) {
            Ok((_, worker)) => {
                let _ = report.send(Ok(sys::thread::thread_id()));
                worker.run().expect("a reactor's own descriptors do not fail");
            }
            Err(error) => drop(report.send(Err(error))),
        }
    };
    let thread = thread::Builder::new().name(name).spawn(body).map_err(StartError::Thread)?;
    let outcome = started.recv().expect("the thread reports before it does anything else");
    let id = outcome.map_err(StartError::Thread)?;
    Ok(WorkerThread { commands, thread, id })
}

/// Builds a worker on its own thread.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM` for the reactor's descriptors.
#[expect(clippy::type_complexity, reason = "the types of the tasks have no name")]
pub(crate) fn build(
    parts: ThreadParts,
) -> io::Result<(
    Rc<WorkerContext>,
    Worker<impl Future<Output = Option<Identified>>, impl Future<Output = NextStep>>,
)> {
    let ThreadParts { number, notifier, inbox, snapshot, stats, flow_writer, log, auth, resolver, .. } =
        parts;
    let threads = stats.workers.len();
    let stats = &stats.workers[usize::from(number)];
    let reactor = Reactor::new(Arc::clone(&notifier), Arc::clone(&stats.reactor))?;
    let deadlines = Deadlines::from(&snapshot.config.timeouts);
    let closing = Rc::new(ClosingConnections::new(&reactor, QUEUE_STALL_MAX));
    let idle = Rc::new(IdleConnections::new(&reactor, &closing).into());
    let relays = Relays::new(&reactor, deadlines, stats, &closing);
    let meter = Meter::new(&reactor, flow_writer, (log, &snapshot.config.log), stats, threads);
    let context = Rc::new(WorkerContext {
        meter: Rc::new(meter.into()),
        authenticator: Authenticator::new(auth),
        names: ResolveCache::new(resolver),
        extra_attempts: SharePool::new(EXTRA_ATTEMPTS_PER_THREAD_MAX),
        stats: Arc::clone(stats),
        flow_ids: FlowIds::new(parts.process, number),
        read_buffers: Default::default(),
        write_buffers: Default::default(),
        scratch: vec![0; SCRATCH_BYTES].into_boxed_slice().into(),
        snapshot: Rc::new(SnapshotHandle(snapshot)).into(),
        phase: Phase::Serving.into(),
        date: Default::default(),
        via: format!("tollgate-{:08x}", parts.process),
        opening: Default::default(),
        lingering: SharePool::new(LINGERING_PER_THREAD_MAX),
        evictor: Evictor::new(&closing, &idle),
        closing,
        reactor,
    });
    let handshakes = Executor::new(parts.handshakes_max, Arc::clone(&notifier));
    let exchanges = Executor::new(EXCHANGES_PER_THREAD_MAX, notifier);
    let worker = Worker::new(
        &context,
        WorkerParts {
            inbox,
            handle: parts.handle,
            slots: Handshakes::new(parts.handshakes_max),
            handshakes: Tasks::new(handshakes, handshake::identify),
            exchanges: Tasks::new(exchanges, tasks::serve),
            idle,
            relays,
        },
    );
    Ok((context, worker))
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

fn reactors(config: &Config) -> usize {
    match config.threads.reactors {
        0 => sys::limits::cpus(),
        count => count as usize,
    }
}

/// Segments for which a journal needs space: the written one, a spare, and some that wait for the database.
const SEGMENTS_MIN: u64 = 4;

/// The ledger's settings of a configuration, for `threads` reactor threads.
pub fn ledger_settings(config: &Config, threads: usize) -> OpenSettings {
    let settings::Ledger { directory, durability, live_table, segment, journal_max, detail_months, .. } =
        &config.ledger;
    let segment_bytes = segment.0;
    OpenSettings {
        durability: match durability {
            settings::Durability::Delayed => Durability::Delayed,
            settings::Durability::Sync => Durability::Sync,
        },
        live_table: live_table.clone(),
        runtime_directory: config.runtime_directory.clone(),
        segment_bytes,
        journal_bytes_max: journal_max.0.max(SEGMENTS_MIN * segment_bytes),
        detail_months: *detail_months,
        ..OpenSettings::new(directory, threads, slots(config.limits.connections as usize, threads))
    }
}

/// Slots of the live table for each of `threads`: for open flows, of which a thread may have twice its share
/// and a thousand more, for those between two requests, and for closed ones while the journal stalls.
fn slots(connections: usize, threads: usize) -> u32 {
    let open = connections.min(2 * connections / threads + 1024);
    let closed = CLOSES_PER_SECOND_MAX * STALL_SECONDS_MAX;
    let slots = (open + IDLE_RUNS_PER_THREAD_MAX + closed).min(FLOWS_PER_THREAD_MAX);
    u32::try_from(slots).expect("the bound fits")
}

fn random_u32() -> io::Result<u32> {
    getrandom::u32().map_err(io::Error::other)
}
