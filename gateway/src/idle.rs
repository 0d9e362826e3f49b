//! Client connections between two requests, each with the connection to its last destination.
//!
//! Guarantees: a connection that rests costs no task, and no buffer before the next head begins; a rest ends
//! when that head is complete, with either peer's end or with a deadline; under pressure those of the user
//! who has the most make room, the longest rest first, whether a head has begun or not. Leaves out: what the
//! request is (`session`).

mod partial_head;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use engine::net::{Parts, TcpStream};
use engine::reactor::{Interest, Reactor, Registration, WakeTarget};
use engine::slab::{Key, Slab};
use engine::timer::wheel::TimerId;
use sys::epoll::Readiness;
use sys::socket::Socket;

pub(crate) use self::partial_head::PartialHead;

use crate::budget::SessionPermit;
use crate::client::{Client, ConnectionInfo};
use crate::context::WorkerContext;
use crate::flow::closing::{ClosingConnections, HeldPermits};
use crate::http::upstream::{Upstream, UpstreamKey};
use crate::limits::SHED_LOOKS_MAX;
use crate::snapshot::SnapshotHandle;
use crate::token::{Side, Token};

/// See the file's header.
pub(crate) struct IdleConnections {
    reactor: Rc<Reactor>,
    closing: Rc<ClosingConnections>,
    slab: Slab<IdleConnection>,
    /// In the order of their coming; those who left are skipped. One whose next head drips in keeps its rank.
    by_age: VecDeque<Key>,
    /// Those whose client has something to say, or whose head is late. They stay in their slots until they
    /// are taken, so that what the same turn tells of their other side still finds them.
    ready: VecDeque<Key>,
}

struct IdleConnection {
    client: (Socket, Registration),
    info: ConnectionInfo,
    upstream: Option<((Socket, Registration), UpstreamKey)>,
    place: SessionPermit,
    timer: TimerId,
    /// What has arrived of the next request's head, if anything has.
    partial_head: Option<PartialHead>,
    /// For what the client is ready.
    readiness: Readiness,
    is_ready: bool,
}

/// What becomes of bytes that a client has not taken when its connection ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Untaken {
    /// They keep a place until they are taken.
    Keeps,
    /// They go: the place is needed.
    Drops,
}

impl IdleConnection {
    /// Reads what has arrived. Answers whether a task has to see to the connection.
    fn read_on(&mut self, context: &WorkerContext) -> bool {
        let now = context.reactor.now();
        let asked_by = now + self.info.snapshot.config.timeouts.greeting;
        let begun =
            self.partial_head.get_or_insert_with(|| PartialHead::new(context.read_buffers.take(), asked_by));
        let needs_task = begun.asked_by() <= now || begun.read_on(&self.client.0, &mut self.readiness);
        if let Some(unused) = self.partial_head.take_if(|begun| !needs_task && begun.is_empty()) {
            context.read_buffers.put(unused.into_bytes());
        }
        needs_task
    }
}

impl IdleConnections {
    /// Nobody rests yet on the thread of `reactor`.
    pub(crate) fn new(reactor: &Rc<Reactor>, closing: &Rc<ClosingConnections>) -> IdleConnections {
        IdleConnections {
            reactor: Rc::clone(reactor),
            closing: Rc::clone(closing),
            slab: Slab::new(),
            by_age: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// How many rest.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Lets a connection rest, of which nothing is to be read now. One that cannot be watched ends.
    pub(crate) fn add(&mut self, client: Client, upstream: Option<Upstream>, place: SessionPermit) {
        let deadline = self.reactor.now() + client.snapshot().config.timeouts.keep_alive;
        let index = self.slab.next_index();
        let (stream, facts, begun) = client.into_idle();
        let deadline = begun.as_ref().map_or(deadline, PartialHead::asked_by);
        let Ok(client) = self.watch(stream, Token::Idle(index, Side::Client)) else { return };
        let upstream = upstream.and_then(|upstream| {
            let Upstream { stream, key: purpose } = upstream;
            let connection = self.watch(stream.into_parts(), Token::Idle(index, Side::Upstream)).ok()?;
            Some((connection, purpose))
        });
        let timer = self.reactor.arm(deadline, WakeTarget::Tag(Token::IdleTimer(index).to_raw()));
        let (told, is_woken) = (Readiness::default(), false);
        let key = self.slab.insert(IdleConnection {
            client,
            info: facts,
            upstream,
            place,
            timer,
            partial_head: begun,
            readiness: told,
            is_ready: is_woken,
        });
        assert_eq!(key.index(), index, "the slab gives the slot that it announced");
        self.remember(key);
    }

    fn watch(&self, (socket, registration): Parts, subject: Token) -> io::Result<(Socket, Registration)> {
        let waiter = WakeTarget::Tag(subject.to_raw());
        let registration = match registration {
            Some(registration) => {
                self.reactor.hand_over(registration.key(), waiter);
                registration
            }
            None => Registration::new(&self.reactor, &socket, Interest::Read, waiter)?,
        };
        Ok((socket, registration))
    }

    fn remember(&mut self, key: Key) {
        // Most have left before they are old: their keys are swept out now and then.
        if self.by_age.len() > 2 * self.slab.len() + 64 {
            let slab = &self.slab;
            self.by_age.retain(|key| slab.get(*key).is_some());
        }
        self.by_age.push_back(key);
    }

    /// Whether none rests.
    pub(crate) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// Whether somebody has something to say.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Notes that the client of the connection in slot `index` is ready as `told`: its rest is over.
    pub(crate) fn wake(&mut self, index: u32, told: Readiness) {
        let Some((key, rest)) = self.slab.at(index) else { return };
        rest.readiness.add(told);
        if !std::mem::replace(&mut rest.is_ready, true) {
            self.ready.push_back(key);
        }
    }

    /// Takes out the next one whose rest is over. One whose head is still incomplete rests on.
    pub(crate) fn take_ready(
        &mut self,
        context: &Rc<WorkerContext>,
    ) -> Option<(Client, Option<Upstream>, SessionPermit)> {
        let key = loop {
            let key = self.ready.pop_front()?;
            let Some(rest) = self.slab.get_mut(key) else { continue };
            let had_begun = rest.partial_head.is_some();
            if rest.read_on(context) {
                break key;
            }
            rest.is_ready = false;
            if !had_begun {
                self.await_head(key);
            }
        };
        let rest = self.slab.remove(key)?;
        self.reactor.cancel(rest.timer);
        let stream = |parts, told| TcpStream::from_parts(&self.reactor, parts, told);
        let upstream = rest.upstream.map(|(connection, purpose)| Upstream {
            stream: stream(connection, Readiness::default()),
            key: purpose,
        });
        let client =
            Client::resumed(context, stream(rest.client, rest.readiness), rest.info, rest.partial_head?);
        Some((client, upstream, rest.place))
    }

    /// From now on the deadline of the connection is that of the head which has begun.
    fn await_head(&mut self, key: Key) {
        let Some(rest) = self.slab.get_mut(key) else { return };
        let Some(begun) = &rest.partial_head else { return };
        let timer = WakeTarget::Tag(Token::IdleTimer(key.index()).to_raw());
        let timer = self.reactor.arm(begun.asked_by(), timer);
        self.reactor.cancel(std::mem::replace(&mut rest.timer, timer));
    }

    /// Drops the destination's side of the connection in slot `index`: it ended, or said what nobody asked
    /// for.
    pub(crate) fn drop_upstream(&mut self, index: u32) {
        let Some((_, rest)) = self.slab.at(index) else { return };
        if let Some(upstream) = rest.upstream.take() {
            self.reactor.forget(upstream.0.1.key());
        }
    }

    /// Ends the connection in slot `index`, whose time is over; with a task that says so, where a head has
    /// begun.
    pub(crate) fn due(&mut self, index: u32) {
        match self.slab.at(index) {
            Some((_, rest)) if rest.partial_head.is_some() => self.wake(index, Readiness::default()),
            Some((key, rest)) if !rest.is_ready => self.end(key, Untaken::Keeps),
            _ => {}
        }
    }

    /// Ends a connection that has rested long, of the user who has the most; false if none rests.
    pub(crate) fn evict_oldest(&mut self) -> bool {
        self.evict_one(|_| true)
    }

    /// The same, of a user who has no fewer connections than users have on average; false if none of these
    /// rests on this thread.
    pub(crate) fn evict_of_heavy_user(&mut self) -> bool {
        self.evict_one(SessionPermit::is_heavy)
    }

    /// Of those that have rested longest, ends one for which `may_end` holds: that of the user who has the
    /// most connections, and of several the one that has rested longest.
    fn evict_one(&mut self, may_end: impl Fn(&SessionPermit) -> bool) -> bool {
        let IdleConnections { by_age, slab, .. } = self;
        while by_age.pop_front_if(|key| slab.get(*key).is_none()).is_some() {}
        // Those that were woken in this turn keep their rank: they may rest on.
        let rests = |key: Key| slab.get(key).filter(|rest| !rest.is_ready);
        let rested = by_age.iter().enumerate().filter_map(|(at, key)| Some((at, *key, &rests(*key)?.place)));
        let candidates = rested.take(SHED_LOOKS_MAX).filter(|(_, _, place)| may_end(place));
        let Some((at, key, _)) = candidates.min_by_key(|(_, _, place)| Reverse(place.weight())) else {
            return false;
        };
        by_age.remove(at);
        self.end(key, Untaken::Drops);
        true
    }

    /// Ends all connections of whose next request nothing has arrived.
    pub(crate) fn close_silent(&mut self) {
        let keys: Vec<Key> = self.slab.keys().collect();
        for key in keys {
            if self.slab.get(key).is_some_and(|rest| !rest.is_ready && rest.partial_head.is_none()) {
                self.end(key, Untaken::Keeps);
            }
        }
    }

    /// Ends all of them.
    pub(crate) fn clear(&mut self) {
        let keys: Vec<Key> = self.slab.keys().collect();
        keys.into_iter().for_each(|key| self.end(key, Untaken::Keeps));
        self.ready.clear();
    }

    /// From now on they run by another snapshot. Connections of users who are gone end; and so do, of a
    /// connection that changed its user, those that were made for a user who is gone.
    pub(crate) fn adopt(&mut self, snapshot: &Rc<SnapshotHandle>) {
        let keys: Vec<Key> = self.slab.keys().collect();
        for key in keys {
            let Some(rest) = self.slab.get_mut(key) else { continue };
            if rest.place.is_revoked() {
                self.end(key, Untaken::Keeps);
                continue;
            }
            rest.info.snapshot = Rc::clone(snapshot);
            if rest.upstream.as_ref().is_some_and(|(_, purpose)| purpose.is_revoked()) {
                self.drop_upstream(key.index());
            }
        }
    }

    fn end(&mut self, key: Key, untaken: Untaken) {
        let Some(mut rest) = self.slab.remove(key) else { return };
        self.reactor.cancel(rest.timer);
        if let Some(upstream) = rest.upstream {
            self.reactor.forget(upstream.0.1.key());
        }
        let (socket, registration) = rest.client;
        if !rest.info.sent.is_queued(&socket) {
            return self.reactor.forget(registration.key());
        }
        match (untaken == Untaken::Keeps).then(|| HeldPermits::of_session(rest.place)).flatten() {
            Some(hold) => self.closing.add((socket, Some(registration)), &Rc::new(hold)),
            None => {
                self.reactor.forget(registration.key());
                socket.reset();
            }
        }
    }
}
