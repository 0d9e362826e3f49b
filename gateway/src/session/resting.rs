//! Client connections between two requests, each with the connection to its last destination.
//!
//! Promises: a resting connection costs no task and no buffer; a rest ends with the next request, with either
//! peer's end or with its deadline; under pressure those of the user who has the most make room, the longest
//! rest first. Leaves to others: what the request is (`session`).

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use engine::net::{Parts, TcpStream};
use engine::reactor::{Interest, Reactor, Registration, Waiter};
use engine::slab::{Key, Slab};
use engine::timer::wheel::TimerId;
use sys::epoll::Readiness;
use sys::socket::Socket;

use super::upstream::{Purpose, Upstream};
use crate::budget::SessionPlace;
use crate::client::{Client, Facts};
use crate::limits::SHED_LOOKS_MAX;
use crate::snapshot::Current;
use crate::wake::{Side, Subject};

/// See the file's header.
pub(crate) struct Resting {
    reactor: Rc<Reactor>,
    slab: Slab<Rest>,
    /// In the order of their coming; those who left are skipped.
    by_age: VecDeque<Key>,
    /// Those whose client has something to say. They stay in their slots until they are taken, so that what
    /// the same turn tells of their other side still finds them.
    woken: VecDeque<Key>,
}

struct Rest {
    client: (Socket, Registration),
    facts: Facts,
    upstream: Option<((Socket, Registration), Purpose)>,
    place: SessionPlace,
    timer: TimerId,
    /// For what the client is ready, once it is.
    told: Option<Readiness>,
}

/// A connection whose rest is over.
type Woken = (TcpStream, Facts, Option<Upstream>, SessionPlace);

impl Resting {
    /// Nobody rests yet on the thread of `reactor`.
    pub(crate) fn new(reactor: &Rc<Reactor>) -> Resting {
        Resting {
            reactor: Rc::clone(reactor),
            slab: Slab::new(),
            by_age: VecDeque::new(),
            woken: VecDeque::new(),
        }
    }

    /// How many rest.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Lets a connection rest, of which nothing is to be read now. One that cannot be watched ends.
    pub(super) fn add(&mut self, client: Client, upstream: Option<Upstream>, place: SessionPlace) {
        let deadline = self.reactor.now() + client.snapshot().config.timeouts.keep_alive;
        let index = self.slab.next_index();
        let (stream, facts) = client.into_rest();
        let Ok(client) = self.watch(stream, Subject::Rest(index, Side::Client)) else { return };
        let upstream = upstream.and_then(|upstream| {
            let Upstream { stream, purpose } = upstream;
            let connection = self.watch(stream.into_parts(), Subject::Rest(index, Side::Upstream)).ok()?;
            Some((connection, purpose))
        });
        let timer = self.reactor.arm(deadline, Waiter::Tag(Subject::RestTimer(index).tag()));
        let key = self.slab.insert(Rest { client, facts, upstream, place, timer, told: None });
        assert_eq!(key.index(), index, "the slab gives the slot that it announced");
        self.remember(key);
    }

    fn watch(&self, (socket, registration): Parts, subject: Subject) -> io::Result<(Socket, Registration)> {
        let waiter = Waiter::Tag(subject.tag());
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

    /// Whether somebody has something to say.
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Notes that the client of the connection in slot `index` is ready as `told`: its rest is over.
    pub(crate) fn wake(&mut self, index: u32, told: Readiness) {
        let Some((key, rest)) = self.slab.at(index) else { return };
        if rest.told.is_none() {
            self.woken.push_back(key);
        }
        rest.told.get_or_insert_default().add(told);
    }

    /// Takes out the next one whose rest is over.
    pub(super) fn take_woken(&mut self) -> Option<Woken> {
        let rest = self.slab.remove(self.woken.pop_front()?)?;
        let told = rest.told.unwrap_or_default();
        self.reactor.cancel(rest.timer);
        let stream = |parts, told| TcpStream::from_parts(&self.reactor, parts, told);
        let upstream = rest.upstream.map(|(connection, purpose)| Upstream {
            stream: stream(connection, Readiness::default()),
            purpose,
        });
        Some((stream(rest.client, told), rest.facts, upstream, rest.place))
    }

    /// Drops the destination's side of the connection in slot `index`: it ended, or said what nobody asked
    /// for.
    pub(crate) fn drop_upstream(&mut self, index: u32) {
        let Some((_, rest)) = self.slab.at(index) else { return };
        if let Some(upstream) = rest.upstream.take() {
            self.reactor.forget(upstream.0.1.key());
        }
    }

    /// Ends the connection in slot `index`, whose time is over.
    pub(crate) fn due(&mut self, index: u32) {
        match self.slab.at(index) {
            Some((key, rest)) if rest.told.is_none() => self.end(key),
            _ => {}
        }
    }

    /// Ends a connection that has rested long, of the user who has the most; false if none rests.
    pub(crate) fn shed(&mut self) -> bool {
        self.end_one(|_| true)
    }

    /// The same, of a user who has no fewer connections than users have on average; false if none of these
    /// rests on this thread.
    pub(crate) fn end_heavy(&mut self) -> bool {
        self.end_one(SessionPlace::is_heavy)
    }

    /// Of those that have rested longest, ends one for which `may_end` holds: that of the user who has the
    /// most connections, and of several the one that has rested longest.
    fn end_one(&mut self, may_end: impl Fn(&SessionPlace) -> bool) -> bool {
        let Resting { by_age, slab, .. } = self;
        let rests = |key: Key| slab.get(key).filter(|rest| rest.told.is_none());
        while by_age.front().is_some_and(|key| rests(*key).is_none()) {
            by_age.pop_front();
        }
        let rested = by_age.iter().enumerate().filter_map(|(at, key)| Some((at, *key, &rests(*key)?.place)));
        let candidates = rested.take(SHED_LOOKS_MAX).filter(|(_, _, place)| may_end(place));
        let Some((at, key, _)) = candidates.min_by_key(|(_, _, place)| Reverse(place.weight())) else {
            return false;
        };
        by_age.remove(at);
        self.end(key);
        true
    }

    /// Ends all who have nothing to say.
    pub(crate) fn shed_all(&mut self) {
        while self.shed() {}
    }

    /// Ends all of them.
    pub(crate) fn clear(&mut self) {
        let keys: Vec<Key> = self.slab.keys().collect();
        keys.into_iter().for_each(|key| self.end(key));
        self.woken.clear();
    }

    /// From now on they run by another snapshot. What was connected for a user who is gone is dropped.
    pub(crate) fn adopt(&mut self, snapshot: &Rc<Current>) {
        let keys: Vec<Key> = self.slab.keys().collect();
        for key in keys {
            let Some(rest) = self.slab.get_mut(key) else { continue };
            rest.facts.snapshot = Rc::clone(snapshot);
            if rest.upstream.as_ref().is_some_and(|(_, purpose)| purpose.is_revoked()) {
                self.drop_upstream(key.index());
            }
        }
    }

    fn end(&mut self, key: Key) {
        let Some(rest) = self.slab.remove(key) else { return };
        self.reactor.cancel(rest.timer);
        self.reactor.forget(rest.client.1.key());
        if let Some(upstream) = rest.upstream {
            self.reactor.forget(upstream.0.1.key());
        }
    }
}
