//! The doors of a reactor thread: the addresses at which its connections arrive.
//!
//! Promises: whoever arrives is served by the configuration of the door that let him in, also where another
//! thread accepted him, and also when the door has gone meanwhile; nobody who was let in is lost to a reload.
//! Leaves to others: how threads share an address (`engine::accept`), and place for what arrives (`worker`).
//!
//! ```text
//!   open ----> serving ----> retired ----> closed ----> forgotten
//!                            drains the    hands out    when no other thread can
//!                            queue         what comes   hand over a connection of it
//!                                          by hand-over
//! ```

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use engine::accept::{Acceptor, HandedOffConnection, ListenerHandle, ListenerLiveness, WorkerHandle};
use engine::reactor::Reactor;
use sys::socket::{AckMode, ResourceExhausted, Socket};

use crate::config::{Config, Ingress};
use crate::connection::Accepted;
use crate::snapshot::SnapshotHandle;
use crate::token::Token;

/// A listening address of this thread.
struct Listener {
    /// The number by which all threads know it.
    number: u32,
    /// The address as configured: port 0 stays 0. It is the listener's name.
    configured: SocketAddr,
    /// What an arrival needs to know of it.
    info: ListenerInfo,
    /// Gone once it is closed.
    acceptor: Option<Acceptor>,
    /// The other threads' ends of it.
    liveness: ListenerLiveness,
    /// What those who still wait are served by, once it is retired.
    retired: Option<Rc<SnapshotHandle>>,
}

impl Listener {
    /// Whether nothing can come of it any more, but for what waits already. Whoever makes it so wakes this
    /// thread.
    fn is_forgotten(&self) -> bool {
        self.acceptor.is_none() && self.liveness.are_closed()
    }
}

#[derive(Clone, Copy)]
struct ListenerInfo {
    /// The address with the port that the kernel chose.
    bound: SocketAddr,
    /// The listener's position in the configuration.
    position: usize,
}

impl ListenerInfo {
    fn accepted(self, socket: Socket, peer: SocketAddr, snapshot: &Rc<SnapshotHandle>) -> Accepted {
        let (listener, address) = (self.position, self.bound);
        Accepted { socket, peer: canonical(peer), snapshot: Rc::clone(snapshot), listener, address }
    }
}

/// See the file's header.
pub(crate) struct Listeners {
    reactor: Rc<Reactor>,
    worker: Rc<WorkerHandle>,
    listeners: Vec<Listener>,
    /// Connections that were accepted while no place was free: those of retired listeners, and one of others.
    pending: VecDeque<Accepted>,
    /// Connections handed over from doors of which this thread has not been told yet: as many as arrive
    /// between another thread's order to open a door and this one's, which were given together.
    early: Vec<HandedOffConnection>,
}

impl Listeners {
    /// No door, for the thread of `reactor` with that seat.
    pub(crate) fn new(reactor: &Rc<Reactor>, seat: WorkerHandle) -> Listeners {
        let (reactor, seat) = (Rc::clone(reactor), Rc::new(seat));
        Listeners {
            reactor,
            worker: seat,
            listeners: Vec::new(),
            pending: VecDeque::new(),
            early: Vec::new(),
        }
    }

    /// Opens a door; `snapshot` has its listener.
    pub(crate) fn open(
        &mut self,
        configured: SocketAddr,
        entrance: ListenerHandle,
        snapshot: &Rc<SnapshotHandle>,
    ) {
        let (number, ends) = (entrance.door(), entrance.liveness());
        let bound = entrance.local().unwrap_or(configured);
        let tag = Token::Listener(number).to_raw();
        // Failing means that the kernel has no memory for one more watch; other threads may still serve it,
        // and hand connections over.
        let acceptor = Acceptor::new(&self.reactor, &self.worker, entrance, tag).ok();
        let facts = ListenerInfo { bound, position: position(&snapshot.config, configured) };
        self.listeners.push(Listener {
            number,
            configured,
            info: facts,
            acceptor,
            liveness: ends,
            retired: None,
        });
        for handed in std::mem::take(&mut self.early) {
            self.take_handed_off(handed, snapshot);
        }
    }

    /// The doors that are not retired lead to `snapshot` from now on.
    pub(crate) fn adopt(&mut self, snapshot: &SnapshotHandle) {
        for door in self.listeners.iter_mut().filter(|door| door.retired.is_none()) {
            door.info.position = position(&snapshot.config, door.configured);
            if let Some(acceptor) = &door.acceptor {
                acceptor.set_first_ack(ack_mode(&snapshot.config.listeners[door.info.position].ingress));
            }
        }
    }

    /// Takes connections at door `number` for `accepted`, which answers whether there is place for another.
    /// Without a place for the first one it takes nothing until [`Listeners::resume`]. A retired door needs
    /// no place: whoever waits there is taken in, and waits here.
    ///
    /// # Errors
    /// What there was too little of; it tries again after a while.
    pub(crate) fn accept(
        &mut self,
        number: u32,
        has_place: bool,
        snapshot: &Rc<SnapshotHandle>,
        mut accepted: impl FnMut(Accepted) -> bool,
    ) -> Result<(), ResourceExhausted> {
        let Some(index) = self.listeners.iter().position(|door| door.number == number) else { return Ok(()) };
        let door = &mut self.listeners[index];
        if door.retired.is_some() {
            self.drain(index);
            return Ok(());
        }
        let (Some(acceptor), facts) = (&mut door.acceptor, door.info) else { return Ok(()) };
        if !has_place {
            acceptor.hold();
            return Ok(());
        }
        acceptor.accept(|socket, peer| accepted(facts.accepted(socket, peer, snapshot)))
    }

    /// Goes on where no place was before.
    pub(crate) fn resume(&mut self) {
        self.acceptors_mut().for_each(Acceptor::resume);
    }

    /// Where threads take turns at the doors, tries to get this one's. To be called before each sleep.
    pub(crate) fn lock_accept_mutexes(&mut self) {
        self.acceptors_mut().for_each(Acceptor::take_turn);
    }

    /// Gives the turns up that it has. To be called when what a sleep has brought is accepted.
    pub(crate) fn unlock_accept_mutexes(&mut self) {
        self.acceptors_mut().for_each(Acceptor::give_turn_up);
    }

    /// The next connection that waits for a place here.
    pub(crate) fn next_pending(&mut self, snapshot: &Rc<SnapshotHandle>) -> Option<Accepted> {
        while self.pending.is_empty() {
            let handed = self.worker.take()?;
            self.take_handed_off(handed, snapshot);
        }
        self.pending.pop_front()
    }

    /// Has a connection that was accepted wait for a place here.
    pub(crate) fn enqueue(&mut self, arrival: Accepted) {
        self.pending.push_back(arrival);
    }

    /// How many connections wait for a place here, without those of which this thread was not told yet.
    pub(crate) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Whether no connection waits for a place here, no turn to be taken, and no door to be forgotten.
    pub(crate) fn is_idle(&self) -> bool {
        let has_work =
            |door: &Listener| door.is_forgotten() || door.acceptor.as_ref().is_some_and(Acceptor::is_called);
        self.pending.is_empty() && self.worker.is_empty() && !self.listeners.iter().any(has_work)
    }

    /// Whether nobody can arrive any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.pending.is_empty()
    }

    /// Retires the doors that `goes` says: nobody new is let in, and those who wait are served by `snapshot`.
    pub(crate) fn retire(&mut self, snapshot: &Rc<SnapshotHandle>, goes: impl Fn(SocketAddr) -> bool) {
        for index in 0..self.listeners.len() {
            let door = &mut self.listeners[index];
            if door.retired.is_none() && goes(door.configured) {
                door.retired = Some(Rc::clone(snapshot));
                self.drain(index);
            }
        }
    }

    /// Forgets closed doors of which nothing can come any more.
    pub(crate) fn remove_closed(&mut self, snapshot: &Rc<SnapshotHandle>) {
        let over: Vec<u32> =
            self.listeners.iter().filter(|door| door.is_forgotten()).map(|door| door.number).collect();
        if over.is_empty() {
            return;
        }
        // Nobody adds to these; what waits of them is taken while they are known.
        while let Some(handed) = self.worker.take() {
            self.take_handed_off(handed, snapshot);
        }
        self.listeners.retain(|door| !over.contains(&door.number));
    }

    /// Closes all doors, and drops whoever waits.
    pub(crate) fn clear(&mut self) {
        self.listeners.clear();
        self.pending.clear();
        self.early.clear();
    }

    /// Takes in those who wait at a retired door, and closes it when that was all.
    fn drain(&mut self, index: usize) {
        let Listener { info: facts, acceptor, retired, .. } = &mut self.listeners[index];
        let (Some(open), Some(snapshot)) = (acceptor.as_mut(), retired) else { return };
        let arrivals = &mut self.pending;
        if open.retire(|socket, peer| arrivals.push_back(facts.accepted(socket, peer, snapshot))) {
            *acceptor = None;
        }
    }

    fn take_handed_off(&mut self, handed: HandedOffConnection, snapshot: &Rc<SnapshotHandle>) {
        match self.listeners.iter().find(|door| door.number == handed.door) {
            Some(door) => {
                let snapshot = door.retired.as_ref().unwrap_or(snapshot);
                self.pending.push_back(door.info.accepted(handed.socket, handed.peer, snapshot));
            }
            None => self.early.push(handed),
        }
    }

    fn acceptors_mut(&mut self) -> impl Iterator<Item = &mut Acceptor> {
        self.listeners.iter_mut().filter_map(|door| door.acceptor.as_mut())
    }
}

/// When the first bytes of a listener's clients are acknowledged: with our answer, where it is ours. How soon
/// a destination answers nobody knows.
pub(crate) fn ack_mode(ingress: &Ingress) -> AckMode {
    match ingress {
        Ingress::Forward { .. } => AckMode::Immediate,
        Ingress::Mixed | Ingress::Http | Ingress::Socks5 => AckMode::Delayed,
    }
}

/// Where the listener that is configured so stands in `config`.
fn position(config: &Config, configured: SocketAddr) -> usize {
    let position = config.listeners.iter().position(|listener| listener.address == configured);
    position.expect("a listener that is not removed is in the configuration")
}

/// A peer's address without the IPv6 clothes that a dual-stack socket puts on an IPv4 one.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}
