//! A server on the engine whose threads share an address as the gateway's do, and answer one request on each
//! connection; each event may keep one of them busy. It exists because the gateway cannot be made slow.
//!
//! Guarantees: the loop calls an acceptor as the gateway's does (`gateway/src/worker.rs`). The busy thread is
//! the first that watches the address, which is the one that the kernel wakes first.
//!
//! ```text
//!   lab:    start ........  "" ...............  end of input
//!   child:         address      counts by thread              exit
//! ```

use std::ffi::OsString;
use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use engine::accept::{self, Acceptor, ListenerHandle, WorkerHandle, worker_group};
use engine::inbox::{Inbox, Notifier, Sender};
use engine::reactor::{Interest, RawToken, Reactor, ReactorEvent, Registration, WakeTarget};
use engine::slab::Slab;
use engine::stats::ReactorStats;
use sys::socket::{ListenOptions, Socket};

use super::counts::Counts;
use super::strategy::Strategy;
use crate::kit::burn::Burn;
use crate::kit::load::{REPLY_BYTES, REQUEST_BYTES};
use crate::kit::worker_process::print_line;

/// The gateway's own.
const BACKLOG: u32 = 4_096;

/// The listener's token; connections have the numbers of their slots.
const LISTENER: RawToken = RawToken(u32::MAX);

/// The arguments of `lab accept-server`.
#[derive(clap::Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceptServer {
    /// How connections reach the threads
    #[arg(long)]
    pub(super) strategy: Strategy,
    /// Threads
    #[arg(long)]
    pub(super) workers: usize,
    /// How long the first thread is busy with each event, in microseconds
    #[arg(long)]
    pub(super) busy_us: u64,
}

impl AcceptServer {
    /// The arguments as the command line has them.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let (workers, busy_us) = (self.workers.to_string(), self.busy_us.to_string());
        let strategy = self.strategy.name();
        let words = ["accept-server", "--strategy", strategy, "--workers", &workers, "--busy-us", &busy_us];
        words.map(Into::into).into()
    }
}

/// The child's side: serves until its input ends, and writes the counts for each line of input.
///
/// # Errors
/// No address, descriptor or thread was available, or the lab has ended.
pub(crate) fn serve_requests(settings: &AcceptServer) -> Result<()> {
    let strategy = accept::strategy(settings.strategy.name()).context("the engine lacks the strategy")?;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners = accept::listen(strategy, any_port, ListenOptions::plain(BACKLOG), settings.workers, 0)?;
    let address = listeners.first().context("a server has at least one thread")?.local()?;
    let part = || Ok((Arc::new(Notifier::new()?), Arc::<ReactorStats>::default()));
    let parts: Vec<_> = (0..settings.workers).map(|_| part()).collect::<Result<_>>()?;
    let handles = worker_group(parts.iter().cloned());
    let busy = Burn::of(Duration::from_micros(settings.busy_us));
    thread::scope(|scope| {
        let (mut threads, mut stops) = (Vec::new(), Vec::new());
        for (number, ((handle, listener), (notifier, stats))) in
            handles.into_iter().zip(listeners).zip(&parts).enumerate()
        {
            let (opened, is_open) = sync_channel(1);
            let inbox = Inbox::new(Arc::clone(notifier));
            stops.push(StopOnDrop(inbox.sender()));
            let parts = ThreadParts {
                handle,
                listener,
                notifier: Arc::clone(notifier),
                stats: Arc::clone(stats),
                inbox,
            };
            let busy = (number == 0 && settings.busy_us > 0).then_some(busy);
            let name = thread::Builder::new().name(format!("reactor-{number}"));
            threads.push(name.spawn_scoped(scope, move || ServerThread::new(parts, busy)?.run(&opened))?);
            // One after the other: the kernel wakes threads in the order in which they began to watch.
            is_open.recv().context("a thread could not begin")?;
        }
        print_line(&address.to_string())?;
        for line in std::io::stdin().lock().lines() {
            line?;
            print_line(&counts(&parts))?;
        }
        drop(stops);
        let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        };
        threads.into_iter().try_for_each(join)
    })
}

fn counts(parts: &[(Arc<Notifier>, Arc<ReactorStats>)]) -> String {
    let column = |number: fn(&ReactorStats) -> u64| parts.iter().map(|part| number(&part.1)).collect();
    let columns = [
        column(|it| it.accepts.value()),
        column(|it| it.accept_wakes.value()),
        column(|it| it.accepts_empty.value()),
        column(|it| it.handed_off.value()),
        column(|it| it.connections.value()),
    ];
    Counts::to_json(columns).to_string()
}

/// The message by which the lab's end of input ends the threads.
struct Stop;

struct StopOnDrop(Sender<Stop>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.send(Stop);
    }
}

/// The parts of a thread before it runs.
struct ThreadParts {
    handle: WorkerHandle,
    listener: ListenerHandle,
    notifier: Arc<Notifier>,
    stats: Arc<ReactorStats>,
    inbox: Inbox<Stop>,
}

/// One thread of the server.
struct ServerThread {
    reactor: Rc<Reactor>,
    inbox: Inbox<Stop>,
    handle: Rc<WorkerHandle>,
    acceptor: Acceptor,
    connections: Slab<Connection>,
    /// The work of each event, on the busy thread.
    busy: Option<Burn>,
}

struct Connection {
    socket: Socket,
    registration: Registration,
    received_bytes: usize,
}

impl ServerThread {
    fn new(parts: ThreadParts, busy: Option<Burn>) -> Result<Self> {
        let ThreadParts { handle, listener, notifier, stats, inbox } = parts;
        let handle = Rc::new(handle);
        let reactor = Reactor::new(notifier, stats)?;
        let acceptor = Acceptor::new(&reactor, &handle, listener, LISTENER)?;
        Ok(Self { reactor, inbox, handle, acceptor, connections: Slab::new(), busy })
    }

    fn run(mut self, opened: &SyncSender<()>) -> Result<()> {
        opened.send(()).context("the starting thread has ended")?;
        let (mut wakes, mut ready) = (Vec::new(), Vec::new());
        while self.inbox.is_empty() {
            self.acceptor.try_lock_accept_mutex();
            let is_idle = || self.inbox.is_empty() && self.handle.is_empty() && !self.acceptor.has_pending();
            self.reactor.poll(&mut wakes, is_idle)?;
            for wake in wakes.drain(..) {
                match wake {
                    ReactorEvent::Ready(LISTENER, _) | ReactorEvent::TimerDue(LISTENER) => self.accept()?,
                    ReactorEvent::Ready(RawToken(index), _) => ready.push(index),
                    ReactorEvent::TimerDue(_) => unreachable!("connections have no timers"),
                }
            }
            // As in the gateway, whose threads only note ready listeners until all threads have started.
            self.acceptor.unlock_accept_mutex();
            ready.drain(..).for_each(|index| self.serve(index));
            while let Some(handoff) = self.handle.take() {
                open(&self.reactor, &mut self.connections, handoff.socket)
                    .context("adopting a connection from another thread")?;
            }
            self.reactor.stats().connections.set(self.connections.len() as u64);
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        self.burn();
        let mut opened = Ok(());
        let (reactor, connections) = (&self.reactor, &mut self.connections);
        self.acceptor.accept(|socket, _| {
            opened = open(reactor, connections, socket);
            opened.is_ok()
        })?;
        opened.context("accepting")
    }

    fn serve(&mut self, index: u32) {
        self.burn();
        let Some((key, connection)) = self.connections.at(index) else { return };
        if connection.is_over()
            && let Some(Connection { registration, .. }) = self.connections.remove(key)
        {
            self.reactor.forget(registration.key());
        }
    }

    fn burn(&self) {
        if let Some(busy) = self.busy {
            busy.run();
        }
    }
}

fn open(reactor: &Reactor, connections: &mut Slab<Connection>, socket: Socket) -> io::Result<()> {
    let tag = RawToken(connections.next_index());
    let registration = Registration::new(reactor, &socket, Interest::Read, WakeTarget::Token(tag))?;
    connections.insert(Connection { socket, registration, received_bytes: 0 });
    Ok(())
}

impl Connection {
    /// Reads as far as the socket allows, answers a complete request, and returns whether the connection is
    /// done.
    fn is_over(&mut self) -> bool {
        let mut buffer = [0; 4_096];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(0) => return true,
                Ok(received) => self.received_bytes += received,
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
            if self.received_bytes >= REQUEST_BYTES {
                // A fresh connection's send buffer accepts the whole reply; if not, the client counts a short
                // one.
                let _ = self.socket.send(&[b'r'; REPLY_BYTES]);
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        accept_server: AcceptServer,
    }

    #[test]
    fn accept_server_arguments_survive_the_command_line() {
        for strategy in Strategy::ALL {
            let accept_server = AcceptServer { strategy, workers: 8, busy_us: 500 };
            let line =
                Line::try_parse_from(accept_server.arguments()).expect("the child parses its own arguments");
            assert_eq!(line.accept_server, accept_server);
        }
    }
}
