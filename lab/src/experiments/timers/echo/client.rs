//! The echo's clients: one reactor thread with all connections, each with its calls in flight.
//!
//! Guarantees: a call has its deadline from when it is sent until its answer arrives, and then the next call
//! is sent; an answer without a waiting call is an error.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use engine::inbox::Notifier;
use engine::reactor::{RawToken, Reactor, ReactorEvent};
use engine::slab::{Key, Slab};
use engine::stats::ReactorStats;
use sys::clock::Nanos;
use sys::epoll::Readiness;
use sys::socket::{Socket, SpeaksFirst};

use super::CALLS_PER_CONNECTION;
use super::deadlines::{Deadline, DeadlineMode, DeadlineTracker};
use super::frame::{self, Frame};
use super::framed_stream::{FramedStream, Stream};

pub(super) struct Client {
    reactor: Rc<Reactor>,
    /// By their tokens.
    connections: Vec<Connection>,
    deadlines: DeadlineMode,
    in_flight: usize,
    progress: Progress,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) answered: u64,
    pub(super) fired: u64,
}

struct Connection {
    stream: FramedStream,
    calls: Calls,
}

/// The calls of a connection that are in flight. An id on the wire is the key of a call: no later call in its
/// slot has the same.
struct Calls {
    table: Slab<Call>,
    tracker: DeadlineTracker,
}

struct Call {
    payload: &'static [u8],
    deadline: Deadline,
}

/// Of the calls of all connections.
struct Progress {
    /// Calls to be made in all.
    wanted: u64,
    begun: u64,
    answered: u64,
}

impl Client {
    /// Opens as many connections as `in_flight` calls need.
    ///
    /// # Errors
    /// No connection can be made.
    pub(super) fn connect(address: SocketAddr, in_flight: usize, deadlines: DeadlineMode) -> Result<Self> {
        let reactor = Reactor::new(Arc::new(Notifier::new()?), Arc::new(ReactorStats::default()))?;
        let connect = |index| {
            let tag = RawToken(index as u32);
            // The first write waits until the connection is established.
            let socket = Socket::connect(address, SpeaksFirst::Us)?;
            socket.set_nodelay()?;
            let calls = Calls { table: Slab::new(), tracker: DeadlineTracker::new(deadlines, tag) };
            Ok(Connection { stream: FramedStream::new(&reactor, socket, tag)?, calls })
        };
        let connections = in_flight.div_ceil(CALLS_PER_CONNECTION);
        let connections = (0..connections).map(connect).collect::<Result<Vec<_>>>()?;
        let progress = Progress { wanted: 0, begun: 0, answered: 0 };
        Ok(Self { reactor, connections, deadlines, in_flight, progress })
    }

    /// Makes `wanted` calls, or fewer if a deadline fires.
    ///
    /// # Errors
    /// A connection failed, or an answer was not that of a call.
    pub(super) fn run(&mut self, wanted: u64) -> Result<Done> {
        self.progress.wanted = wanted;
        self.begin()?;
        let mut fired = 0;
        let mut wakes = Vec::new();
        while self.progress.answered < wanted && fired == 0 {
            self.reactor.poll(&mut wakes, || true)?;
            for wake in wakes.drain(..) {
                match wake {
                    ReactorEvent::Ready(tag, readiness) => self.ready(tag, readiness)?,
                    ReactorEvent::TimerDue(tag) => fired += self.due(tag),
                }
            }
        }
        let (_, armed) = self.reactor.load();
        let is_tidy = armed <= self.deadlines.idle_timers_max(self.connections.len());
        ensure!(fired > 0 || is_tidy, "{armed} timers are armed without a call");
        Ok(Done { answered: self.progress.answered, fired })
    }

    /// Sends the first calls of all connections.
    fn begin(&mut self) -> Result<()> {
        let due = self.deadlines.due(self.reactor.now());
        let mut left = self.in_flight;
        for Connection { stream, calls } in &mut self.connections {
            for _ in 0..left.min(CALLS_PER_CONNECTION) {
                calls.begin(&self.reactor, due, &mut self.progress, stream.output());
            }
            left = left.saturating_sub(CALLS_PER_CONNECTION);
            stream.flush(&self.reactor)?;
        }
        Ok(())
    }

    fn ready(&mut self, tag: RawToken, readiness: Readiness) -> Result<()> {
        let (reactor, progress) = (&self.reactor, &mut self.progress);
        let Connection { stream, calls } = &mut self.connections[tag.0 as usize];
        let due = self.deadlines.due(reactor.now());
        let state = stream.receive(readiness, |answer, output| {
            calls.end(reactor, answer)?;
            progress.answered += 1;
            calls.begin(reactor, due, progress, output);
            Ok(())
        })?;
        ensure!(state == Stream::Open, "the server ended a connection");
        stream.flush(reactor)?;
        Ok(())
    }

    /// Fails the calls of a connection whose deadlines have passed; returns how many.
    fn due(&mut self, tag: RawToken) -> u64 {
        let Calls { table, tracker } = &mut self.connections[tag.0 as usize].calls;
        tracker.fired(&*self.reactor, |scan| {
            let keys: Vec<Key> = table.keys().collect();
            for key in keys {
                if table.get(key).is_some_and(|call| scan.has_failed(call.deadline)) {
                    table.remove(key);
                }
            }
        })
    }
}

impl Calls {
    /// Writes the next call, if there is one to be made.
    fn begin(&mut self, reactor: &Reactor, due: Nanos, progress: &mut Progress, output: &mut Vec<u8>) {
        if progress.begun == progress.wanted {
            return;
        }
        let payload = frame::payload(progress.begun);
        progress.begun += 1;
        let deadline = self.tracker.begin(reactor, due);
        let key = self.table.insert(Call { payload, deadline });
        Frame { id: key.to_bits(), payload }.write(output);
    }

    /// Accepts an answer, and cancels its call's deadline.
    fn end(&mut self, reactor: &Reactor, answer: Frame<'_>) -> Result<()> {
        let Some(call) = self.table.remove(Key::from_bits(answer.id)) else {
            bail!("an answer has no waiting call");
        };
        ensure!(call.payload == answer.payload, "an answer differs from its request");
        DeadlineTracker::end(reactor, call.deadline);
        Ok(())
    }
}
