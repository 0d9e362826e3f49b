//! The gateway in a simulation: one worker, its ledger, its log, and its control side.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use engine::accept::{self, worker_group};
use engine::inbox::{Inbox, Notifier, Sender};
use ledger::simulation::{BilledFlow, MemoryLedger, TableView};
use sys::clock;

use crate::budget::Budget;
use crate::config::settings::Auth;
use crate::config::{Config, LoadOptions};
use crate::context::WorkerContext;
use crate::dns::{DnsThread, ResolveSettings, Resolver};
use crate::identity::AuthShared;
use crate::jobs;
use crate::observe::log::{LoggedFlow, MemoryLog};
use crate::observe::stats::{Stats, WorkerStats};
use crate::server::{self, BoundListener, ThreadParts};
use crate::snapshot::Snapshot;
use crate::worker::command::Command;

/// Slots of the live table: more than the simulations open flows between two passes of the ledger.
const SLOTS: u32 = 64;

/// A running gateway. Its thread is the calling one, in a simulated kernel.
pub(super) struct Process {
    context: Rc<WorkerContext>,
    pass: Box<dyn FnMut() -> io::Result<bool>>,
    commands: Sender<Command>,
    snapshot: Arc<Snapshot>,
    listening: BTreeSet<SocketAddr>,
    next_listener_id: u32,
    ledger: MemoryLedger,
    log: MemoryLog,
}

/// What a process leaves.
pub(super) struct Remains {
    /// What each flow is billed.
    pub(super) bill: Vec<BilledFlow>,
    /// Connections and sessions that the users still have.
    pub(super) permits: u32,
}

/// Services on real threads, which no simulated flow uses. They are the same for all simulations.
struct Services {
    pool: engine::pool::Pool,
    auth: Arc<AuthShared>,
    resolver: Resolver,
    _dns: DnsThread,
}

impl Process {
    /// Starts the gateway by `config`.
    pub(super) fn start(config: Config) -> Process {
        let services = services();
        let stats = Stats::new("simulated", clock::wall(), 1, services.pool.clone());
        let (ledger, flow_writer) = MemoryLedger::new(SLOTS).expect("a start on an empty disk succeeds");
        let (log, log_sender) = MemoryLog::new(&stats.workers[0]);
        let notifier = Arc::new(Notifier::new().expect("a descriptor is free"));
        let inbox = Inbox::new(Arc::clone(&notifier));
        let commands = inbox.sender();
        let threads = [(Arc::clone(&notifier), Arc::clone(&stats.workers[0].reactor))];
        let handle = worker_group(threads).pop().expect("a group of one thread has one handle");
        let handshakes_max = config.limits.handshakes as usize;
        let snapshot = Arc::new(Snapshot::first(config, Budget::new(vec![Arc::clone(&notifier)])));
        server::quotas::settle_unused(&snapshot);
        let (context, mut worker) = server::build(ThreadParts {
            number: 0,
            notifier,
            inbox,
            snapshot: Arc::clone(&snapshot),
            stats,
            flow_writer,
            log: log_sender,
            auth: Arc::clone(&services.auth),
            resolver: services.resolver.clone(),
            handle,
            process: 7,
            handshakes_max,
        })
        .expect("no descriptor is lacking before the first fault");
        let mut events = Vec::new();
        let mut process = Process {
            context,
            pass: Box::new(move || worker.pass(&mut events)),
            commands,
            snapshot,
            listening: BTreeSet::new(),
            next_listener_id: 0,
            ledger,
            log,
        };
        process.reconfigure();
        process
    }

    /// Runs one pass; returns false once the worker has ended.
    ///
    /// # Errors
    /// The process was killed.
    pub(super) fn pass(&mut self) -> io::Result<bool> {
        (self.pass)()
    }

    /// Runs one pass of the ledger's threads.
    ///
    /// # Errors
    /// The ledger's.
    pub(super) fn run_ledger(&mut self) -> Result<(), String> {
        self.ledger.step(Duration::from_millis(100))
    }

    /// Replaces the configuration, as a reload does.
    pub(super) fn reload(&mut self, config: Config) {
        self.snapshot = Arc::new(self.snapshot.next(config));
        server::quotas::settle_unused(&self.snapshot);
        self.reconfigure();
    }

    /// Ends once the open connections have ended.
    pub(super) fn drain(&self) {
        self.commands.send(Command::Drain);
    }

    /// Cuts all connections, and ends.
    pub(super) fn stop(&self) {
        self.commands.send(Command::Stop);
    }

    /// A view of the live table, for a kill.
    pub(super) fn table(&self) -> TableView {
        self.ledger.table()
    }

    /// The flows whose end was logged since the last call.
    pub(super) fn logged(&mut self) -> Vec<LoggedFlow> {
        self.log.take_closed()
    }

    /// The counters of the thread.
    pub(super) fn stats(&self) -> &WorkerStats {
        &self.context.stats
    }

    /// Registered sources of the reactor.
    pub(super) fn sources(&self) -> usize {
        self.context.reactor.load().0
    }

    /// Ends the process, in order or, with the words of its live table at that moment, by a kill.
    ///
    /// # Errors
    /// The ledger's.
    pub(super) fn end(self, killed_with: Option<Vec<u64>>) -> Result<Remains, String> {
        let Process { context, pass, snapshot, ledger, .. } = self;
        drop((pass, context));
        let bill = match killed_with {
            Some(words) => ledger.recover(words)?,
            None => ledger.finish()?,
        };
        let accounts = snapshot.config.users.iter().map(|user| snapshot.account(user.index));
        let permits = accounts.map(|account| account.connections() + account.sessions()).sum();
        Ok(Remains { bill, permits })
    }

    fn reconfigure(&mut self) {
        let config = &self.snapshot.config;
        let strategy = accept::strategy(config.accept.strategy.name()).expect("the setting names one");
        let configured: BTreeSet<SocketAddr> = config.listeners.iter().map(|it| it.address).collect();
        let removed: Vec<SocketAddr> = self.listening.difference(&configured).copied().collect();
        let mut added = Vec::new();
        for listener in config.listeners.iter().filter(|it| !self.listening.contains(&it.address)) {
            // The address of a listener that was removed a moment ago may be in use: the next reload adds it.
            if let Ok(bound) = server::listen(config, listener, strategy, 1, self.next_listener_id) {
                self.next_listener_id += 1;
                let BoundListener { configured, mut handles, .. } = bound;
                added.push((configured, handles.pop().expect("one thread has one handle")));
            }
        }
        self.listening.retain(|address| !removed.contains(address));
        self.listening.extend(added.iter().map(|(address, _)| *address));
        let snapshot = Arc::clone(&self.snapshot);
        let (adopted, _) = mpsc::sync_channel(0);
        self.commands.send(Command::Reconfigure { snapshot, added, removed, adopted });
    }
}

/// Loads a configuration.
pub(super) fn load(text: &str) -> Config {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("tollgate-simulation-{}-{number}.toml", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    std::fs::write(&path, text).expect("the temporary directory can be written");
    let config = Config::load(&LoadOptions { path: Some(path.clone()), ..LoadOptions::default() });
    let _ = std::fs::remove_file(&path);
    config.unwrap_or_else(|errors| panic!("{errors}"))
}

fn services() -> &'static Services {
    static SERVICES: OnceLock<Services> = OnceLock::new();
    SERVICES.get_or_init(|| {
        // On a thread that is in no simulation.
        let start = || {
            let pool = jobs::start(1).expect("a thread can be started");
            let auth = AuthShared::new(pool.clone(), &Auth::default()).expect("there are random bytes");
            let (resolver, dns) =
                Resolver::start(ResolveSettings::default(), &pool).expect("a thread can be started");
            Services { pool, auth: Arc::new(auth), resolver, _dns: dns }
        };
        std::thread::spawn(start).join().expect("the services start")
    })
}
