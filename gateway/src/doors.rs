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

use engine::accept::{Acceptor, Ends, Entrance, Handed, Seat};
use engine::reactor::Reactor;
use sys::socket::{FirstAck, Shortage, Socket};

use crate::client::Arrival;
use crate::config::{Config, Ingress};
use crate::snapshot::Current;
use crate::wake::Subject;

/// A listening address of this thread.
struct Door {
    /// The number by which all threads know it.
    number: u32,
    /// The address as configured: port 0 stays 0. It is the listener's name.
    configured: SocketAddr,
    /// What an arrival needs to know of it.
    facts: Facts,
    /// Gone once it is closed.
    acceptor: Option<Acceptor>,
    /// The other threads' ends of it.
    ends: Ends,
    /// What those who still wait are served by, once it is retired.
    retired: Option<Rc<Current>>,
}

impl Door {
    /// Whether nothing can come of it any more, but for what waits already. Whoever makes it so wakes this
    /// thread.
    fn is_over(&self) -> bool {
        self.acceptor.is_none() && self.ends.are_closed()
    }
}

#[derive(Clone, Copy)]
struct Facts {
    /// The address with the port that the kernel chose.
    bound: SocketAddr,
    /// The listener's position in the configuration.
    position: usize,
}

impl Facts {
    fn arrival(self, socket: Socket, peer: SocketAddr, snapshot: &Rc<Current>) -> Arrival {
        let (listener, address) = (self.position, self.bound);
        Arrival { socket, peer: canonical(peer), snapshot: Rc::clone(snapshot), listener, address }
    }
}

/// See the file's header.
pub(crate) struct Doors {
    reactor: Rc<Reactor>,
    seat: Rc<Seat>,
    doors: Vec<Door>,
    /// Connections that were accepted while no place was free: those of retired listeners, and one of others.
    arrivals: VecDeque<Arrival>,
    /// Connections handed over from doors of which this thread has not been told yet: as many as arrive
    /// between another thread's order to open a door and this one's, which were given together.
    early: Vec<Handed>,
}

impl Doors {
    /// No door, for the thread of `reactor` with that seat.
    pub(crate) fn new(reactor: &Rc<Reactor>, seat: Seat) -> Doors {
        let (reactor, seat) = (Rc::clone(reactor), Rc::new(seat));
        Doors { reactor, seat, doors: Vec::new(), arrivals: VecDeque::new(), early: Vec::new() }
    }

    /// Opens a door; `snapshot` has its listener.
    pub(crate) fn open(&mut self, configured: SocketAddr, entrance: Entrance, snapshot: &Rc<Current>) {
        let (number, ends) = (entrance.door(), entrance.ends());
        let bound = entrance.local().unwrap_or(configured);
        let tag = Subject::Listener(number).tag();
        // Failing means that the kernel has no memory for one more watch; other threads may still serve it,
        // and hand connections over.
        let acceptor = Acceptor::new(&self.reactor, &self.seat, entrance, tag).ok();
        let facts = Facts { bound, position: position(&snapshot.config, configured) };
        self.doors.push(Door { number, configured, facts, acceptor, ends, retired: None });
        for handed in std::mem::take(&mut self.early) {
            self.receive(handed, snapshot);
        }
    }

    /// The doors that are not retired lead to `snapshot` from now on.
    pub(crate) fn adopt(&mut self, snapshot: &Current) {
        for door in self.doors.iter_mut().filter(|door| door.retired.is_none()) {
            door.facts.position = position(&snapshot.config, door.configured);
            if let Some(acceptor) = &door.acceptor {
                acceptor.set_first_ack(first_ack(&snapshot.config.listeners[door.facts.position].ingress));
            }
        }
    }

    /// Takes connections at door `number` for `accepted`, which answers whether there is place for another.
    /// Without a place for the first one it takes nothing until [`Doors::resume`]. A retired door needs no
    /// place: whoever waits there is taken in, and waits here.
    ///
    /// # Errors
    /// What there was too little of; it tries again after a while.
    pub(crate) fn accept(
        &mut self,
        number: u32,
        has_place: bool,
        snapshot: &Rc<Current>,
        mut accepted: impl FnMut(Arrival) -> bool,
    ) -> Result<(), Shortage> {
        let Some(index) = self.doors.iter().position(|door| door.number == number) else { return Ok(()) };
        let door = &mut self.doors[index];
        if door.retired.is_some() {
            self.drain(index);
            return Ok(());
        }
        let (Some(acceptor), facts) = (&mut door.acceptor, door.facts) else { return Ok(()) };
        if !has_place {
            acceptor.hold();
            return Ok(());
        }
        acceptor.accept(|socket, peer| accepted(facts.arrival(socket, peer, snapshot)))
    }

    /// Goes on where no place was before.
    pub(crate) fn resume(&mut self) {
        self.acceptors_mut().for_each(Acceptor::resume);
    }

    /// Where threads take turns at the doors, tries to get this one's. To be called before each sleep.
    pub(crate) fn take_turns(&mut self) {
        self.acceptors_mut().for_each(Acceptor::take_turn);
    }

    /// Gives the turns up that it has. To be called when what a sleep has brought is accepted.
    pub(crate) fn give_turns_up(&mut self) {
        self.acceptors_mut().for_each(Acceptor::give_turn_up);
    }

    /// The next connection that waits for a place here.
    pub(crate) fn next_arrival(&mut self, snapshot: &Rc<Current>) -> Option<Arrival> {
        while self.arrivals.is_empty() {
            let handed = self.seat.take()?;
            self.receive(handed, snapshot);
        }
        self.arrivals.pop_front()
    }

    /// Has a connection that was accepted wait for a place here.
    pub(crate) fn await_place(&mut self, arrival: Arrival) {
        self.arrivals.push_back(arrival);
    }

    /// How many connections wait for a place here, without those of which this thread was not told yet.
    pub(crate) fn arrivals(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether no connection waits for a place here, no turn to be taken, and no door to be forgotten.
    pub(crate) fn is_quiet(&self) -> bool {
        let has_work =
            |door: &Door| door.is_over() || door.acceptor.as_ref().is_some_and(Acceptor::is_called);
        self.arrivals.is_empty() && self.seat.is_empty() && !self.doors.iter().any(has_work)
    }

    /// Whether nobody can arrive any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.doors.is_empty() && self.arrivals.is_empty()
    }

    /// Retires the doors that `goes` says: nobody new is let in, and those who wait are served by `snapshot`.
    pub(crate) fn retire(&mut self, snapshot: &Rc<Current>, goes: impl Fn(SocketAddr) -> bool) {
        for index in 0..self.doors.len() {
            let door = &mut self.doors[index];
            if door.retired.is_none() && goes(door.configured) {
                door.retired = Some(Rc::clone(snapshot));
                self.drain(index);
            }
        }
    }

    /// Forgets closed doors of which nothing can come any more.
    pub(crate) fn sweep(&mut self, snapshot: &Rc<Current>) {
        let over: Vec<u32> =
            self.doors.iter().filter(|door| door.is_over()).map(|door| door.number).collect();
        if over.is_empty() {
            return;
        }
        // Nobody adds to these; what waits of them is taken while they are known.
        while let Some(handed) = self.seat.take() {
            self.receive(handed, snapshot);
        }
        self.doors.retain(|door| !over.contains(&door.number));
    }

    /// Closes all doors, and drops whoever waits.
    pub(crate) fn clear(&mut self) {
        self.doors.clear();
        self.arrivals.clear();
        self.early.clear();
    }

    /// Takes in those who wait at a retired door, and closes it when that was all.
    fn drain(&mut self, index: usize) {
        let Door { facts, acceptor, retired, .. } = &mut self.doors[index];
        let (Some(open), Some(snapshot)) = (acceptor.as_mut(), retired) else { return };
        let arrivals = &mut self.arrivals;
        if open.retire(|socket, peer| arrivals.push_back(facts.arrival(socket, peer, snapshot))) {
            *acceptor = None;
        }
    }

    fn receive(&mut self, handed: Handed, snapshot: &Rc<Current>) {
        match self.doors.iter().find(|door| door.number == handed.door) {
            Some(door) => {
                let snapshot = door.retired.as_ref().unwrap_or(snapshot);
                self.arrivals.push_back(door.facts.arrival(handed.socket, handed.peer, snapshot));
            }
            None => self.early.push(handed),
        }
    }

    fn acceptors_mut(&mut self) -> impl Iterator<Item = &mut Acceptor> {
        self.doors.iter_mut().filter_map(|door| door.acceptor.as_mut())
    }
}

/// When the first bytes of a listener's clients are acknowledged: with our answer, where it is ours. How soon
/// a destination answers nobody knows.
pub(crate) fn first_ack(ingress: &Ingress) -> FirstAck {
    match ingress {
        Ingress::Forward { .. } => FirstAck::AtOnce,
        Ingress::Mixed | Ingress::Http | Ingress::Socks5 => FirstAck::WithAnswer,
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
