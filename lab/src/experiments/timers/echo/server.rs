//! The echo's server: one reactor thread, which answers each request with its own bytes.
//!
//! Guarantees: a request has its deadline from when it was read until its answer was written.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use engine::accept::{Acceptor, ListenerHandle, worker_group};
use engine::inbox::{Inbox, Notifier};
use engine::reactor::{RawToken, Reactor, ReactorEvent};
use engine::slab::Slab;
use engine::stats::ReactorStats;
use sys::epoll::Readiness;
use sys::socket::Socket;

use super::deadlines::{DeadlineMode, DeadlineTracker, Group};
use super::framed_stream::{FramedStream, Stream};

/// The listener's token; connections have the numbers of their slots.
const LISTENER: RawToken = RawToken(u32::MAX);

/// The message that stops the server.
pub(super) struct Stop;

pub(super) struct Server {
    reactor: Rc<Reactor>,
    inbox: Inbox<Stop>,
    acceptor: Acceptor,
    connections: Slab<Connection>,
    deadlines: DeadlineMode,
    fired: u64,
}

struct Connection {
    stream: FramedStream,
    /// Requests whose answers are not written; those of one wake are a batch.
    requests: Group,
    tracker: DeadlineTracker,
}

impl Server {
    /// A server of the calling thread, which owns `notifier`.
    ///
    /// # Errors
    /// No descriptor for the reactor.
    pub(super) fn new(
        notifier: Arc<Notifier>,
        inbox: Inbox<Stop>,
        listener: ListenerHandle,
        deadlines: DeadlineMode,
    ) -> Result<Self> {
        let stats = Arc::new(ReactorStats::default());
        let handle = Rc::new(worker_group([(Arc::clone(&notifier), Arc::clone(&stats))]).remove(0));
        let reactor = Reactor::new(notifier, stats)?;
        let acceptor = Acceptor::new(&reactor, &handle, listener, LISTENER)?;
        Ok(Self { reactor, inbox, acceptor, connections: Slab::new(), deadlines, fired: 0 })
    }

    /// Serves until it is stopped; returns how many deadlines have fired.
    ///
    /// # Errors
    /// A connection failed.
    pub(super) fn run(mut self) -> Result<u64> {
        let mut wakes = Vec::new();
        while self.inbox.is_empty() {
            self.reactor.poll(&mut wakes, || self.inbox.is_empty())?;
            for wake in wakes.drain(..) {
                match wake {
                    ReactorEvent::Ready(LISTENER, _) | ReactorEvent::TimerDue(LISTENER) => self.accept()?,
                    ReactorEvent::Ready(RawToken(index), readiness) => self.ready(index, readiness)?,
                    ReactorEvent::TimerDue(RawToken(index)) => self.due(index),
                }
            }
        }
        let (_, armed) = self.reactor.load();
        let is_tidy = armed <= self.deadlines.idle_timers_max(self.connections.len());
        ensure!(self.fired > 0 || is_tidy, "{armed} timers are armed without a request");
        Ok(self.fired)
    }

    fn accept(&mut self) -> Result<()> {
        let mut accepted = Ok(());
        let (reactor, connections, deadlines) = (&self.reactor, &mut self.connections, self.deadlines);
        self.acceptor.accept(|socket, _| {
            accepted = open(reactor, connections, deadlines, socket);
            accepted.is_ok()
        })?;
        accepted.context("accepting")
    }

    fn ready(&mut self, index: u32, readiness: Readiness) -> Result<()> {
        let (key, connection) = self.connections.at(index).context("an event of a closed connection")?;
        let Connection { stream, requests, tracker } = connection;
        let reactor = &*self.reactor;
        let due = self.deadlines.due(reactor.now());
        let mut count = 0;
        let state = stream.receive(readiness, |request, output| {
            count += 1;
            request.write(output);
            Ok(())
        })?;
        tracker.begin_group(reactor, due, count, requests);
        if state == Stream::Open && !stream.flush(reactor)? {
            return Ok(());
        }
        tracker.end_group(reactor, requests);
        if state == Stream::Ended
            && let Some(connection) = self.connections.remove(key)
        {
            connection.tracker.close(reactor);
            connection.stream.close(&self.reactor);
        }
        Ok(())
    }

    /// Fails the requests of a connection whose deadlines have passed.
    fn due(&mut self, index: u32) {
        let Some((_, Connection { requests, tracker, .. })) = self.connections.at(index) else { return };
        self.fired += tracker.fired(&*self.reactor, |scan| requests.take_failed(scan));
    }
}

fn open(
    reactor: &Reactor,
    connections: &mut Slab<Connection>,
    deadlines: DeadlineMode,
    socket: Socket,
) -> Result<()> {
    let tag = RawToken(connections.next_index());
    let stream = FramedStream::new(reactor, socket, tag)?;
    connections.insert(Connection {
        stream,
        requests: Group::default(),
        tracker: DeadlineTracker::new(deadlines, tag),
    });
    Ok(())
}
