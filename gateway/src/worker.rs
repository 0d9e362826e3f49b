//! A reactor thread: its listeners, its handshakes, its requests, its relays, and the loop that turns them.
//!
//! Promises: one turn looks at everything that woke, in a fixed order, and sleeps only when nothing is left
//! to do; a new configuration takes effect between two turns. Leaves to others: what a connection does
//! (`connection`), and deciding what to order (`server`).
//!
//! ```text
//!   turn:  sleep -> wakes: listeners accept, relays note readiness, timers
//!                -> orders of the control side
//!                -> handshakes and exchanges that were woken
//!                -> relays that have bytes to move, each once
//! ```

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use engine::accept::{Acceptor, Strategy};
use engine::executor::Executor;
use engine::inbox::Inbox;
use engine::reactor::{Reactor, Wake};
use ledger::record::CloseReason;
use sys::socket::Listener;

use crate::client::{Arrival, Client};
use crate::local::{Local, Phase};
use crate::relay::RelayDeadlines;
use crate::session::Session;
use crate::settings::Timeouts;
use crate::snapshot::{Current, Snapshot};
use crate::wake::{Side, Subject};

/// What the control side may order.
pub(crate) enum Order {
    /// Run by this snapshot from now on, serve these listeners too, and retire those.
    Reconfigure { snapshot: Arc<Snapshot>, added: Vec<(SocketAddr, Listener)>, removed: Vec<SocketAddr> },
    /// Take nothing new; end when what is open has ended.
    Drain,
    /// Cut everything off and end.
    Stop,
}

/// A listening address of this thread.
struct Door {
    /// The address as configured: port 0 stays 0. It is the listener's name.
    configured: SocketAddr,
    /// The address with the port that the kernel chose.
    bound: SocketAddr,
    /// The listener's position in the snapshot's configuration.
    position: usize,
    acceptor: Acceptor,
    /// What those who still wait are served by, once the listener is retired.
    retired: Option<Rc<Current>>,
}

/// Tasks of one kind, and how one is made.
pub(crate) struct Tasks<T, F> {
    executor: Executor<F>,
    serve: fn(T) -> F,
}

impl<T, F: Future<Output = ()>> Tasks<T, F> {
    /// Tasks that `executor` runs.
    pub(crate) fn new(executor: Executor<F>, serve: fn(T) -> F) -> Tasks<T, F> {
        Tasks { executor, serve }
    }

    fn is_full(&self) -> bool {
        self.executor.is_full()
    }

    fn spawn(&mut self, of: T) {
        let spawned = self.executor.spawn((self.serve)(of));
        assert!(spawned.is_ok(), "whoever spawns has looked for a place");
    }

    /// Spawns those who wait, as far as there is place, and runs what was woken; returns how many panicked.
    fn run(&mut self, mut next: impl FnMut() -> Option<T>) -> u64 {
        while !self.is_full() {
            let Some(of) = next() else { break };
            self.spawn(of);
        }
        self.executor.run().panicked.into()
    }
}

/// See the file's header.
pub(crate) struct Worker<H, E> {
    reactor: Rc<Reactor>,
    local: Rc<Local>,
    inbox: Inbox<Order>,
    /// Connections until it is clear what they are.
    handshakes: Tasks<Client, H>,
    /// Connections of plain HTTP while they have a request.
    exchanges: Tasks<Session, E>,
    strategy: &'static dyn Strategy,
    /// A door's place is its number in wakes; the place of a retired one is used again.
    doors: Vec<Option<Door>>,
    /// Connections that were accepted while no task was free: those of retired listeners.
    arrivals: VecDeque<Arrival>,
}

impl<H: Future<Output = ()>, E: Future<Output = ()>> Worker<H, E> {
    /// A worker without listeners.
    pub(crate) fn new(
        local: &Rc<Local>,
        inbox: Inbox<Order>,
        handshakes: Tasks<Client, H>,
        exchanges: Tasks<Session, E>,
        strategy: &'static dyn Strategy,
    ) -> Worker<H, E> {
        Worker {
            reactor: Rc::clone(&local.reactor),
            local: Rc::clone(local),
            inbox,
            handshakes,
            exchanges,
            strategy,
            doors: Vec::new(),
            arrivals: VecDeque::new(),
        }
    }

    /// Runs until drained or stopped.
    ///
    /// # Errors
    /// The reactor's own: none that can be lived with.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut wakes = Vec::new();
        while !self.has_ended() {
            self.reactor.turn(&mut wakes, || self.is_idle())?;
            for wake in wakes.drain(..) {
                self.handle(wake);
            }
            for order in self.inbox.take() {
                self.obey(order);
            }
            self.run_tasks();
            self.local.relays.borrow_mut().run(&mut self.local.meter.borrow_mut());
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.inbox.is_empty()
            && !self.handshakes.executor.has_runnable()
            && !self.exchanges.executor.has_runnable()
            && !self.local.relays.borrow().has_queued()
            && (self.handshakes.is_full()
                || self.arrivals.is_empty() && self.local.tunnels.borrow().is_empty())
            && (self.exchanges.is_full()
                || self.local.sessions.borrow().is_empty() && !self.local.resting.borrow().has_woken())
    }

    fn has_ended(&self) -> bool {
        if self.local.phase.get() == Phase::Serving {
            return false;
        }
        let local = &self.local;
        let nothing_waits = self.arrivals.is_empty()
            && self.doors.iter().all(Option::is_none)
            && local.tunnels.borrow().is_empty()
            && local.sessions.borrow().is_empty()
            && !local.resting.borrow().has_woken();
        let nothing_runs = self.handshakes.executor.is_empty() && self.exchanges.executor.is_empty();
        nothing_waits && nothing_runs && local.meter.borrow().is_settled()
    }

    fn handle(&mut self, wake: Wake) {
        let local = Rc::clone(&self.local);
        match wake {
            Wake::Ready(tag, readiness) => match Subject::of(tag) {
                Subject::Relay(index, side) => local.relays.borrow_mut().ready(index, side, readiness),
                Subject::Listener(number) => self.accept(number),
                // Room to write, which a full buffer leaves behind, is nothing that a rest waits for.
                Subject::Rest(..) if !readiness.readable => {}
                Subject::Rest(index, Side::Client) => local.resting.borrow_mut().wake(index, readiness),
                Subject::Rest(index, Side::Upstream) => local.resting.borrow_mut().drop_upstream(index),
                Subject::RelayTimer(_) | Subject::RestTimer(_) => unreachable!("timers are not sources"),
            },
            Wake::Due(tag) => match Subject::of(tag) {
                Subject::RelayTimer(index) => {
                    local.relays.borrow_mut().due(index, &mut local.meter.borrow_mut());
                }
                Subject::RestTimer(index) => local.resting.borrow_mut().due(index),
                Subject::Listener(number) => self.accept(number),
                Subject::Relay(..) | Subject::Rest(..) => unreachable!("sockets are not timers"),
            },
        }
    }

    fn accept(&mut self, number: u32) {
        let snapshot = self.local.snapshot();
        let Some(Some(door)) = self.doors.get_mut(number as usize) else { return };
        if door.retired.is_some() {
            return self.empty(number as usize);
        }
        if self.handshakes.is_full() {
            // Another listener took the last task.
            door.acceptor.hold();
            return;
        }
        let (listener, address) = (door.position, door.bound);
        let (handshakes, local) = (&mut self.handshakes, &self.local);
        door.acceptor.accept(|socket, peer| {
            let snapshot = Rc::clone(&snapshot);
            let arrival = Arrival { socket, peer: canonical(peer), snapshot, listener, address };
            handshakes.spawn(Client::new(local, arrival));
            !handshakes.is_full()
        });
    }

    fn run_tasks(&mut self) {
        let (local, arrivals) = (&self.local, &mut self.arrivals);
        let mut panicked = self.handshakes.run(|| {
            let arrived = arrivals.pop_front().map(|arrival| Client::new(local, arrival));
            arrived.or_else(|| local.tunnels.borrow_mut().pop_front())
        });
        panicked += self.exchanges.run(|| Session::next(local));
        self.reactor.stats().panics.add(panicked);
        local.stats.handshakes_active.set(self.handshakes.executor.len() as u64);
        local.stats.sessions_resting.set(local.resting.borrow().len() as u64);
        if !self.handshakes.is_full() {
            self.doors.iter_mut().flatten().for_each(|door| door.acceptor.resume());
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Reconfigure { snapshot, added, removed } => self.reconfigure(snapshot, added, &removed),
            Order::Drain => {
                self.local.phase.set(Phase::Draining);
                self.retire(|_| true);
                self.local.resting.borrow_mut().shed_all();
            }
            Order::Stop => {
                self.local.phase.set(Phase::Stopping);
                self.doors.clear();
                self.arrivals.clear();
                self.handshakes.executor.clear();
                self.exchanges.executor.clear();
                self.local.sessions.borrow_mut().clear();
                self.local.tunnels.borrow_mut().clear();
                self.local.resting.borrow_mut().clear();
                let mut meter = self.local.meter.borrow_mut();
                self.local.relays.borrow_mut().close_where(&mut meter, |_, _| Some(CloseReason::Drained));
            }
        }
    }

    fn reconfigure(
        &mut self,
        snapshot: Arc<Snapshot>,
        added: Vec<(SocketAddr, Listener)>,
        removed: &[SocketAddr],
    ) {
        // Who waits at a listener that goes is still served, by the configuration that had it.
        self.retire(|door| removed.contains(&door.configured));
        let current = Rc::new(Current(Arc::clone(&snapshot)));
        self.local.resting.borrow_mut().adopt(&current);
        self.local.snapshot.replace(current);
        // Those whose user is gone find that out.
        self.exchanges.executor.wake_all();
        for (configured, listener) in added {
            self.open(configured, listener);
        }
        for door in self.doors.iter_mut().flatten().filter(|door| door.retired.is_none()) {
            let listeners = &snapshot.config.listeners;
            let position = listeners.iter().position(|listener| listener.address == door.configured);
            door.position = position.expect("a listener that is not removed is in the configuration");
        }
        self.local.authenticator.adopt(&snapshot);
        let (mut relays, mut meter) = (self.local.relays.borrow_mut(), self.local.meter.borrow_mut());
        relays.set_deadlines(RelayDeadlines::from(&snapshot.config.timeouts), &meter);
        relays.close_where(&mut meter, |meter, flow| {
            let revoked = meter.account(flow).is_some_and(|account| account.is_revoked());
            revoked.then_some(CloseReason::PolicyChanged)
        });
    }

    fn open(&mut self, configured: SocketAddr, listener: Listener) {
        let free = self.doors.iter().position(Option::is_none);
        let number = free.unwrap_or(self.doors.len());
        let tag = Subject::Listener(u32::try_from(number).expect("listeners are few")).tag();
        let bound = listener.local().unwrap_or(configured);
        // Failing means that the kernel has no memory for one more watch; other threads may still serve it.
        let Ok(acceptor) = Acceptor::new(&self.reactor, listener, self.strategy, tag) else { return };
        let door = Some(Door { configured, bound, position: 0, acceptor, retired: None });
        match free {
            Some(number) => self.doors[number] = door,
            None => self.doors.push(door),
        }
    }

    fn retire(&mut self, goes: impl Fn(&Door) -> bool) {
        for number in 0..self.doors.len() {
            let Some(door) = &mut self.doors[number] else { continue };
            if door.retired.is_none() && goes(door) {
                door.retired = Some(self.local.snapshot());
                self.empty(number);
            }
        }
    }

    /// Takes in those who wait at a retired door, and removes it when that was all.
    fn empty(&mut self, number: usize) {
        let Some(mut door) = self.doors[number].take() else { return };
        let Some(snapshot) = door.retired.clone() else { return };
        let (listener, address) = (door.position, door.bound);
        let arrivals = &mut self.arrivals;
        let is_empty = door.acceptor.retire(|socket, peer| {
            let snapshot = Rc::clone(&snapshot);
            arrivals.push_back(Arrival { socket, peer: canonical(peer), snapshot, listener, address });
        });
        if !is_empty {
            self.doors[number] = Some(door);
        }
    }
}

impl From<&Timeouts> for RelayDeadlines {
    fn from(timeouts: &Timeouts) -> RelayDeadlines {
        let Timeouts { idle, half_closed, lifetime, .. } = *timeouts;
        RelayDeadlines { idle, half_closed, lifetime }
    }
}

/// A peer's address without the IPv6 clothes that a dual-stack socket puts on an IPv4 one.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}
