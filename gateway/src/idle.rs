//! Idle connections: client connections between two requests, each with the connection to its last
//! destination.
//!
//! Guarantees: an idle connection has no task, and no buffer before its next head begins; it leaves the table
//! when that head is complete, when either peer closes, or at a deadline. Its run ends earlier, and then it
//! has no slot of the ledger. Under pressure the connections of the user with the most of them are evicted,
//! the longest idle first, whether a head has begun or not.

mod evictor;
mod partial_head;
mod run;
mod upstream_key;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use engine::net::{Parts, TcpStream};
use engine::reactor::{Interest, Reactor, Registration, WakeTarget};
use engine::slab::{Key, Slab};
use engine::timer::wheel::TimerId;
use sys::clock::Nanos;
use sys::epoll::Readiness;
use sys::socket::Socket;

pub(crate) use self::evictor::Evictor;
pub(crate) use self::partial_head::PartialHead;
pub(crate) use self::run::{Run, RunKey};
pub(crate) use self::upstream_key::UpstreamKey;

use crate::budget::SessionPermit;
use crate::buffers::ReadBufferPool;
use crate::connection::ConnectionInfo;
use crate::flow::closing::{ClosingConnections, HeldPermits};
use crate::limits::EVICTION_CANDIDATES_MAX;
use crate::snapshot::SnapshotHandle;
use crate::token::{Side, Token};

/// The idle connections of one thread.
pub(crate) struct IdleConnections {
    reactor: Rc<Reactor>,
    closing: Rc<ClosingConnections>,
    slab: Slab<IdleConnection>,
    /// In the order of parking; keys of connections that left are skipped. A connection whose next head
    /// trickles in keeps its rank.
    by_age: VecDeque<Key>,
    /// Connections with input, or with a late head. They stay in their slots until they are taken, so that an
    /// event of the other side in the same pass finds them.
    ready: VecDeque<Key>,
}

/// A connection on its way into the table.
pub(crate) struct Parked {
    pub(crate) client: Parts,
    pub(crate) info: ConnectionInfo,
    /// The received part of the next head, if any.
    pub(crate) partial_head: Option<PartialHead>,
    pub(crate) upstream: Option<(Parts, UpstreamKey)>,
    pub(crate) run: Option<Box<Run>>,
    pub(crate) permit: SessionPermit,
}

/// A connection on its way out of the table: a task has to serve its request.
pub(crate) struct Resumed {
    pub(crate) client: TcpStream,
    pub(crate) info: ConnectionInfo,
    pub(crate) partial_head: PartialHead,
    pub(crate) upstream: Option<(TcpStream, UpstreamKey)>,
    pub(crate) run: Option<Box<Run>>,
    pub(crate) permit: SessionPermit,
}

struct IdleConnection {
    client: (Socket, Registration),
    info: ConnectionInfo,
    upstream: Option<((Socket, Registration), UpstreamKey)>,
    run: Option<Box<Run>>,
    permit: SessionPermit,
    timer: TimerId,
    /// When it closes, unless a next head begins.
    keep_alive_until: Nanos,
    partial_head: Option<PartialHead>,
    /// What the client's socket is ready for.
    readiness: Readiness,
    is_ready: bool,
}

/// What happens to bytes that the client has not acknowledged when its connection ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unacknowledged {
    /// The connection closes in order, and holds a permit until they are acknowledged.
    Keep,
    /// The connection is reset: its permit is needed.
    Drop,
}

impl IdleConnection {
    /// Reads the next head. Returns whether a task has to serve the connection at `now`.
    fn read_head(&mut self, now: Nanos, buffers: &ReadBufferPool) -> bool {
        let deadline = now + self.info.snapshot.config.timeouts.greeting;
        let head = self.partial_head.get_or_insert_with(|| PartialHead::new(buffers.take(), deadline));
        let needs_task = head.deadline() <= now || head.read_from(&self.client.0, &mut self.readiness);
        if let Some(unused) = self.partial_head.take_if(|head| !needs_task && head.is_empty()) {
            buffers.put(unused.into_bytes());
        }
        needs_task
    }

    /// When it closes, or its late head is denied.
    fn deadline(&self) -> Nanos {
        self.partial_head.as_ref().map_or(self.keep_alive_until, PartialHead::deadline)
    }
}

impl IdleConnections {
    /// An empty table on the thread of `reactor`.
    pub(crate) fn new(reactor: &Rc<Reactor>, closing: &Rc<ClosingConnections>) -> IdleConnections {
        IdleConnections {
            reactor: Rc::clone(reactor),
            closing: Rc::clone(closing),
            slab: Slab::new(),
            by_age: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// The number of idle connections.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// Whether a connection is ready for a task.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Parks a connection that has no bytes to be read now. A connection that cannot be registered closes.
    pub(crate) fn park(&mut self, parked: Parked) {
        let Parked { client, info, partial_head, upstream, run, permit } = parked;
        let keep_alive_until = self.reactor.now() + info.snapshot.config.timeouts.keep_alive;
        let index = self.slab.next_index();
        let Ok(client) = self.watch(client, Token::Idle(index, Side::Client)) else { return };
        let upstream = upstream.and_then(|(parts, key)| {
            let connection = self.watch(parts, Token::Idle(index, Side::Upstream)).ok()?;
            Some((connection, key))
        });
        let deadline = partial_head.as_ref().map_or(keep_alive_until, PartialHead::deadline);
        let timer = self.arm(index, deadline, run.as_deref());
        let (readiness, is_ready) = (Readiness::default(), false);
        let key = self.slab.insert(IdleConnection {
            client,
            info,
            upstream,
            run,
            permit,
            timer,
            keep_alive_until,
            partial_head,
            readiness,
            is_ready,
        });
        assert_eq!(key.index(), index, "the slab inserts at its next index");
        self.push_youngest(key);
    }

    /// Arms the timer of a connection that ends at `deadline`, and its run earlier.
    fn arm(&self, index: u32, deadline: Nanos, run: Option<&Run>) -> TimerId {
        let check_at = run.map_or(deadline, |run| run.idle_until().min(deadline));
        self.reactor.arm(check_at, WakeTarget::Token(Token::IdleTimer(index).to_raw()))
    }

    fn watch(&self, (socket, registration): Parts, token: Token) -> io::Result<(Socket, Registration)> {
        let target = WakeTarget::Token(token.to_raw());
        let registration = match registration {
            Some(registration) => {
                self.reactor.set_wake_target(registration.key(), target);
                registration
            }
            None => Registration::new(&self.reactor, &socket, Interest::Read, target)?,
        };
        Ok((socket, registration))
    }

    fn push_youngest(&mut self, key: Key) {
        // Most connections leave before they are old: their keys are swept out now and then.
        if self.by_age.len() > 2 * self.slab.len() + 64 {
            let slab = &self.slab;
            self.by_age.retain(|key| slab.get(*key).is_some());
        }
        self.by_age.push_back(key);
    }

    /// Notes the `readiness` of the client of the connection in slot `index`.
    pub(crate) fn client_ready(&mut self, index: u32, readiness: Readiness) {
        let Some((key, connection)) = self.slab.at(index) else { return };
        connection.readiness.add(readiness);
        if !std::mem::replace(&mut connection.is_ready, true) {
            self.ready.push_back(key);
        }
    }

    /// Takes out the next connection that a task has to serve. A connection whose head is still incomplete
    /// stays.
    pub(crate) fn take_ready(&mut self, buffers: &ReadBufferPool) -> Option<Resumed> {
        let key = loop {
            let key = self.ready.pop_front()?;
            let Some(connection) = self.slab.get_mut(key) else { continue };
            let had_begun = connection.partial_head.is_some();
            if connection.read_head(self.reactor.now(), buffers) {
                break key;
            }
            connection.is_ready = false;
            if !had_begun && connection.partial_head.is_some() {
                self.rearm(key);
            }
        };
        let connection = self.slab.remove(key)?;
        self.reactor.cancel(connection.timer);
        let stream = |parts, readiness| TcpStream::from_parts(&self.reactor, parts, readiness);
        let upstream = connection.upstream.map(|(parts, key)| (stream(parts, Readiness::default()), key));
        let partial_head = connection.partial_head.expect("`read_head` made it");
        let client = stream(connection.client, connection.readiness);
        let IdleConnection { info, run, permit, .. } = connection;
        Some(Resumed { client, info, partial_head, upstream, run, permit })
    }

    /// Replaces the timer, whose deadline has changed.
    fn rearm(&mut self, key: Key) {
        let Some(connection) = self.slab.get(key) else { return };
        let timer = self.arm(key.index(), connection.deadline(), connection.run.as_deref());
        if let Some(connection) = self.slab.get_mut(key) {
            self.reactor.cancel(std::mem::replace(&mut connection.timer, timer));
        }
    }

    /// The upstream of the connection in slot `index` closed, or sent unsolicited bytes: closes it.
    pub(crate) fn close_upstream(&mut self, index: u32) {
        let Some((_, connection)) = self.slab.at(index) else { return };
        if let Some(((_, registration), _)) = connection.upstream.take() {
            self.reactor.forget(registration.key());
        }
    }

    /// The timer of the connection in slot `index` has fired: ends its run, closes the connection, or has a
    /// task deny its late head.
    pub(crate) fn due(&mut self, index: u32) {
        let now = self.reactor.now();
        if let Some((key, connection)) = self.slab.at(index) {
            connection.run.take_if(|run| run.idle_until() <= now);
            if connection.deadline() > now {
                return self.rearm(key);
            }
        }
        match self.slab.at(index) {
            Some((_, connection)) if connection.partial_head.is_some() => {
                self.client_ready(index, Readiness::default());
            }
            Some((key, connection)) if !connection.is_ready => self.close(key, Unacknowledged::Keep),
            _ => {}
        }
    }

    /// Evicts a long idle connection, of the user with the most; false if there is none.
    pub(crate) fn evict_oldest(&mut self) -> bool {
        self.evict_one(|_| true)
    }

    /// The same, of a user with no fewer connections than users have on average; false if this thread has
    /// none of such a user.
    pub(crate) fn evict_of_heavy_user(&mut self) -> bool {
        self.evict_one(SessionPermit::is_heavy)
    }

    /// Of the longest idle connections for which `may_evict` holds, evicts that of the user with the most
    /// connections, and of several the longest idle.
    fn evict_one(&mut self, may_evict: impl Fn(&SessionPermit) -> bool) -> bool {
        let IdleConnections { by_age, slab, .. } = self;
        while by_age.pop_front_if(|key| slab.get(*key).is_none()).is_some() {}
        // Connections that became ready in this pass keep their rank: their head may stay incomplete.
        let idle = |key: Key| slab.get(key).filter(|connection| !connection.is_ready);
        let oldest = by_age.iter().enumerate().filter_map(|(at, key)| Some((at, *key, &idle(*key)?.permit)));
        let candidates = oldest.take(EVICTION_CANDIDATES_MAX).filter(|(_, _, permit)| may_evict(permit));
        let Some((at, key, _)) = candidates.min_by_key(|(_, _, permit)| Reverse(permit.session_count()))
        else {
            return false;
        };
        by_age.remove(at);
        self.close(key, Unacknowledged::Drop);
        true
    }

    /// Closes all connections without a byte of a next request.
    pub(crate) fn close_silent(&mut self) {
        let keys: Vec<Key> = self.slab.keys().collect();
        for key in keys {
            if self.slab.get(key).is_some_and(|idle| !idle.is_ready && idle.partial_head.is_none()) {
                self.close(key, Unacknowledged::Keep);
            }
        }
    }

    /// Closes all connections.
    pub(crate) fn close_all(&mut self) {
        let keys: Vec<Key> = self.slab.keys().collect();
        keys.into_iter().for_each(|key| self.close(key, Unacknowledged::Keep));
        self.ready.clear();
    }

    /// Moves all connections to another snapshot. Ends all runs. Closes the connections of revoked users, and
    /// upstreams that were opened for one.
    pub(crate) fn adopt(&mut self, snapshot: &Rc<SnapshotHandle>) {
        let keys: Vec<Key> = self.slab.keys().collect();
        for key in keys {
            let Some(connection) = self.slab.get_mut(key) else { continue };
            if connection.permit.is_revoked() {
                self.close(key, Unacknowledged::Keep);
                continue;
            }
            connection.info.snapshot = Rc::clone(snapshot);
            connection.run = None;
            if connection.upstream.as_ref().is_some_and(|(_, key)| key.is_revoked()) {
                self.close_upstream(key.index());
            }
        }
    }

    fn close(&mut self, key: Key, unacknowledged: Unacknowledged) {
        let Some(mut connection) = self.slab.remove(key) else { return };
        self.reactor.cancel(connection.timer);
        connection.run = None;
        if let Some(((_, registration), _)) = connection.upstream {
            self.reactor.forget(registration.key());
        }
        let (socket, registration) = connection.client;
        if !connection.info.sent.is_queued(&socket) {
            return self.reactor.forget(registration.key());
        }
        let keeps = unacknowledged == Unacknowledged::Keep;
        match keeps.then(|| HeldPermits::of_session(connection.permit)).flatten() {
            Some(permits) => self.closing.add((socket, Some(registration)), &Rc::new(permits)),
            None => {
                self.reactor.forget(registration.key());
                socket.reset();
            }
        }
    }
}
