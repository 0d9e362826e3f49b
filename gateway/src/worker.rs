//! A reactor thread: its listeners, tasks, idle connections and relays, and the loop that drives them.
//!
//! Tasks end with a next step, and the worker carries it out: it alone owns the queues and tables between
//! which a connection moves.
//!
//! ```text
//!   listeners --> handshakes --Identified--> pending --> exchanges --Relay--> relays --> closed
//!                     |                        ^             |
//!                   closed                     |             +--Tunnel--> pending, in front
//!                                              |             +--Park----> idle
//!                                              '--- ready ---------------'
//!
//!   a pass:  sleep -> events: listeners accept (pending connections first), relays note readiness, timers
//!                  -> commands of the control side
//!                  -> woken handshakes, then woken exchanges
//!                  -> relays with bytes to move, each once
//! ```
//!
//! Guarantees: a pass handles everything that was woken, in this order, and sleeps only without work; a new
//! configuration takes effect between two passes.

pub(crate) mod command;
pub(crate) mod listeners;
pub(crate) mod tasks;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::accept::{ListenerHandle, WorkerHandle};
use engine::inbox::Inbox;
use engine::reactor::{Reactor, ReactorEvent};
use ledger::record::CloseReason;

use self::command::Command;
use self::listeners::Listeners;
use self::tasks::{Exchange, Tasks};
use crate::client::Client;
use crate::connection::Accepted;
use crate::context::{Phase, WorkerContext};
use crate::denial::Denial;
use crate::flow::progress::Deadlines;
use crate::handshake::Identified;
use crate::handshake::slots::{HandshakeSlot, Handshakes};
use crate::http::{NextStep, Session};
use crate::idle::IdleConnections;
use crate::limits::{EVICTIONS_PER_ATTEMPT_MAX, PENDING_MAX};
use crate::relay::Relays;
use crate::snapshot::{Snapshot, SnapshotHandle};
use crate::token::{Side, Token};

/// The tables and executors of a worker.
pub(crate) struct WorkerParts<H, E> {
    pub(crate) inbox: Inbox<Command>,
    pub(crate) handle: WorkerHandle,
    pub(crate) slots: Handshakes,
    pub(crate) handshakes: Tasks<(Box<Client>, HandshakeSlot), H>,
    pub(crate) exchanges: Tasks<Exchange, E>,
    pub(crate) idle: Rc<RefCell<IdleConnections>>,
    pub(crate) relays: Relays,
}

/// A reactor thread's connections, wherever they are.
pub(crate) struct Worker<H, E> {
    reactor: Rc<Reactor>,
    context: Rc<WorkerContext>,
    inbox: Inbox<Command>,
    listeners: Listeners,
    /// The slots of `handshakes`.
    slots: Rc<RefCell<Handshakes>>,
    /// Connections whose client is not identified.
    handshakes: Tasks<(Box<Client>, HandshakeSlot), H>,
    /// Identified clients that wait for a task. At most [`PENDING_MAX`] from handshakes, and in front of
    /// these one tunnel for each session that has just ended its task.
    pending: VecDeque<Exchange>,
    /// Identified clients: tunnels until their relay starts, sessions while they have a request.
    exchanges: Tasks<Exchange, E>,
    idle: Rc<RefCell<IdleConnections>>,
    relays: Relays,
    /// The budget's count of reclaim requests when this thread last reclaimed.
    reclaims_seen: u32,
    /// Whether the last configuration limits no flow.
    credit_is_empty: bool,
}

impl<H, E> Worker<H, E>
where
    H: Future<Output = Option<Identified>>,
    E: Future<Output = NextStep>,
{
    /// A worker without listeners.
    pub(crate) fn new(context: &Rc<WorkerContext>, parts: WorkerParts<H, E>) -> Worker<H, E> {
        let WorkerParts { inbox, handle, slots, handshakes, exchanges, idle, relays } = parts;
        Worker {
            reactor: Rc::clone(&context.reactor),
            context: Rc::clone(context),
            inbox,
            listeners: Listeners::new(&context.reactor, handle),
            slots: Rc::new(RefCell::new(slots)),
            handshakes,
            pending: VecDeque::new(),
            exchanges,
            idle,
            relays,
            reclaims_seen: 0,
            credit_is_empty: context.snapshot.borrow().credit.is_empty(),
        }
    }

    /// Runs until drained or stopped.
    ///
    /// # Errors
    /// Those of the reactor's own descriptors, which are fatal.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut events = Vec::new();
        while self.pass(&mut events)? {}
        Ok(())
    }

    /// Runs one pass, with `events` as an empty buffer. Returns false, without a pass, once the thread was
    /// drained or stopped.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub(crate) fn pass(&mut self, events: &mut Vec<ReactorEvent>) -> std::io::Result<bool> {
        if self.has_ended() {
            self.context.meter.borrow_mut().log_suppressed_at_end();
            self.context.closing.clear();
            return Ok(false);
        }
        self.listeners.lock_accept_mutexes();
        self.reactor.poll(events, || self.is_idle())?;
        for event in events.drain(..) {
            self.handle_event(event);
        }
        self.listeners.unlock_accept_mutexes();
        for command in self.inbox.take() {
            self.handle_command(command);
        }
        self.run_tasks();
        self.relays.run(&mut self.context.meter.borrow_mut());
        self.publish_load();
        Ok(true)
    }

    /// Whether the thread may sleep.
    fn is_idle(&self) -> bool {
        self.inbox.is_empty()
            && self.reclaims_seen == self.context.snapshot.borrow().budget.reclaim_requests()
            && !self.handshakes.has_runnable()
            && !self.exchanges.has_runnable()
            && !self.relays.has_queued()
            && (self.handshakes.is_full() || self.listeners.is_idle())
            && (self.exchanges.is_full() || self.pending.is_empty() && !self.idle.borrow().has_ready())
    }

    fn has_ended(&self) -> bool {
        if self.context.phase.get() == Phase::Serving {
            return false;
        }
        let none_waits =
            self.listeners.is_empty() && self.pending.is_empty() && self.idle.borrow().is_empty();
        let none_runs = self.handshakes.is_empty() && self.exchanges.is_empty();
        none_waits && none_runs && self.context.meter.borrow().is_settled()
    }

    fn handle_event(&mut self, event: ReactorEvent) {
        let context = Rc::clone(&self.context);
        match event {
            ReactorEvent::Ready(token, readiness) => match Token::from_raw(token) {
                Token::Relay(index, side) => self.relays.ready(index, side, readiness),
                Token::Listener(number) => self.accept(number),
                Token::Closing(index) => context.closing.ready(index, readiness),
                // Writable alone: a send buffer has drained, for which no idle connection waits.
                Token::Idle(..) if !readiness.readable => {}
                Token::Idle(index, Side::Client) => self.idle.borrow_mut().client_ready(index, readiness),
                Token::Idle(index, Side::Upstream) => self.idle.borrow_mut().close_upstream(index),
                Token::RelayTimer(_)
                | Token::IdleTimer(_)
                | Token::ClosingTimer(_)
                | Token::LongFlowTimer(_)
                | Token::SuppressedTimer
                | Token::CreditTimer => unreachable!("timers are not sources"),
            },
            ReactorEvent::TimerDue(token) => match Token::from_raw(token) {
                Token::RelayTimer(index) => self.relays.due(index, &mut context.meter.borrow_mut()),
                Token::IdleTimer(index) => self.idle.borrow_mut().due(index),
                Token::ClosingTimer(index) => context.closing.due(index),
                Token::Listener(number) => self.accept(number),
                Token::LongFlowTimer(index) => context.meter.borrow_mut().log_late_decision(index),
                Token::SuppressedTimer => context.meter.borrow_mut().log_suppressed(),
                Token::CreditTimer => self.relays.resume_waiting(),
                Token::Relay(..) | Token::Idle(..) | Token::Closing(_) => {
                    unreachable!("sockets are not timers")
                }
            },
        }
    }

    /// Spawns handshakes for pending connections.
    fn admit_pending(&mut self) {
        let (context, slots, listeners) = (&self.context, &self.slots, &mut self.listeners);
        let snapshot = context.snapshot();
        self.handshakes.fill(|| {
            let accepted = listeners.next_pending(&snapshot)?;
            Some(handshake(context, slots, accepted))
        });
        if self.handshakes.is_full() && self.listeners.pending_count() > 0 {
            self.slots.borrow_mut().evict();
        }
        if self.handshakes.is_full() {
            // Published at once: other threads hand off no more connections, and do not yield to this one.
            self.reactor.stats().is_full.set(1);
        }
    }

    fn accept(&mut self, number: u32) {
        // Admit pending connections first, or new ones starve them.
        self.admit_pending();
        let snapshot = self.context.snapshot();
        let has_capacity = !self.handshakes.is_full() || self.listeners.pending_count() == 0;
        let mut surplus = None;
        let (context, slots, handshakes) = (&self.context, &self.slots, &mut self.handshakes);
        let accepted = self.listeners.accept(number, has_capacity, &snapshot, |accepted| {
            if handshakes.is_full() {
                surplus = Some(accepted);
                return false;
            }
            handshakes.spawn(handshake(context, slots, accepted));
            true
        });
        // One pending connection is accepted beyond capacity: it has a handshake evicted.
        surplus.into_iter().for_each(|accepted| self.listeners.enqueue(accepted));
        if accepted.is_err() {
            // Descriptors or memory are exhausted: evict connections without a flow.
            let evictor = &self.context.evictor;
            (0..EVICTIONS_PER_ATTEMPT_MAX).take_while(|_| evictor.free_descriptor()).for_each(drop);
        }
    }

    fn run_tasks(&mut self) {
        self.reclaim_permits();
        self.listeners.remove_closed(&self.context.snapshot());
        self.admit_pending();
        self.slots.borrow_mut().shorten_deadlines(self.handshake_timeout(), self.reactor.now());
        let was_full = self.handshakes.is_full();
        let panicked = self.run_handshakes() + self.run_exchanges();
        self.reactor.stats().panics.add(panicked);
        if was_full {
            // The freed slots go to pending connections before other threads hand off more.
            self.admit_pending();
        }
        // A full thread accepts one more, which has a handshake evicted, unless one is pending already.
        if !self.handshakes.is_full() || self.listeners.pending_count() == 0 {
            self.listeners.resume();
        }
    }

    fn run_handshakes(&mut self) -> u64 {
        let Worker { handshakes, pending, relays, .. } = self;
        if handshakes.has_runnable() {
            relays.note_connections();
        }
        handshakes.run(|identified| {
            if let Some(identified) = identified {
                push_pending(pending, identified);
            }
        })
    }

    fn run_exchanges(&mut self) -> u64 {
        let Worker { context, pending, exchanges, idle, relays, .. } = self;
        exchanges.fill(|| {
            pending.pop_front().or_else(|| {
                let resumed = idle.borrow_mut().take_ready(&context.read_buffers)?;
                Some(Exchange::Session(Box::new(Session::resume(context, resumed))))
            })
        });
        // Before they run: a relay that one of them starts takes the work for its own.
        if exchanges.has_runnable() {
            relays.note_connections();
        }
        exchanges.run(|next_step| match next_step {
            NextStep::Closed => {}
            // Tunnel upgrades precede new connections.
            NextStep::Tunnel(client) => pending.push_front(Exchange::Tunnel(client)),
            NextStep::Relay(start) => {
                relays.start(*start, &mut context.meter.borrow_mut(), &context.read_buffers);
            }
            NextStep::Park(parked) => {
                let mut idle = idle.borrow_mut();
                idle.park(*parked);
                // Another thread may have requested a reclaim while this connection had a flow.
                context.snapshot.borrow().budget.reclaim(|| idle.evict_of_heavy_user());
            }
        })
    }

    /// Evicts idle connections if a thread has requested that since this one last did.
    fn reclaim_permits(&mut self) {
        let snapshot = self.context.snapshot.borrow();
        let requests = snapshot.budget.reclaim_requests();
        if std::mem::replace(&mut self.reclaims_seen, requests) != requests {
            snapshot.budget.reclaim(|| self.idle.borrow_mut().evict_of_heavy_user());
        }
    }

    /// How long a handshake may take while slots are free.
    fn handshake_timeout(&self) -> Duration {
        self.context.snapshot.borrow().config.timeouts.greeting
    }

    /// Publishes the thread's load, for the other threads and the metrics.
    fn publish_load(&self) {
        let context = &self.context;
        let (handshakes, idle) = (self.handshakes.len(), self.idle.borrow().len());
        let serving = self.exchanges.len() + self.relays.len();
        let waiting = self.listeners.pending_count() + self.pending.len();
        context.stats.handshakes_active.set((handshakes + context.opening.len()) as u64);
        context.stats.sessions_idle.set(idle as u64);
        context.stats.dial_extras_active.set(context.extra_attempts.taken() as u64);
        context.stats.connections_closing.set(context.closing.len() as u64);
        self.reactor.stats().connections.set((handshakes + serving + idle + waiting) as u64);
        self.reactor.stats().is_full.set(self.handshakes.is_full().into());
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Reconfigure { snapshot, added, removed, adopted } => {
                self.reconfigure(snapshot, added, &removed);
                drop(adopted);
            }
            Command::Drain => {
                self.context.phase.set(Phase::Draining);
                self.listeners.retire(&self.context.snapshot(), |_| true);
                self.idle.borrow_mut().close_silent();
            }
            Command::Stop => self.stop(),
        }
    }

    fn stop(&mut self) {
        self.context.phase.set(Phase::Stopping);
        self.context.meter.borrow_mut().stop();
        self.listeners.clear();
        self.handshakes.clear();
        self.exchanges.clear();
        self.pending.clear();
        self.idle.borrow_mut().close_all();
        let mut meter = self.context.meter.borrow_mut();
        self.relays.close_where(&mut meter, |_, _| Some(CloseReason::Drained));
    }

    fn reconfigure(
        &mut self,
        snapshot: Arc<Snapshot>,
        added: Vec<(SocketAddr, ListenerHandle)>,
        removed: &[SocketAddr],
    ) {
        // Connections in the queue of a retired listener are served by the configuration that had it.
        self.listeners.retire(&self.context.snapshot(), |configured| removed.contains(&configured));
        let handle = Rc::new(SnapshotHandle(Arc::clone(&snapshot)));
        self.idle.borrow_mut().adopt(&handle);
        self.context.snapshot.replace(Rc::clone(&handle));
        // Each exchange checks whether its user was revoked.
        self.exchanges.wake_all();
        self.listeners.adopt(&handle);
        for (configured, listener) in added {
            self.listeners.open(configured, listener, &handle);
        }
        let mut meter = self.context.meter.borrow_mut();
        meter.configure_log(&snapshot.config.log);
        if !snapshot.credit.is_empty() || !self.credit_is_empty {
            meter.adopt_limits(|account| snapshot.limits(snapshot.config.policy.user(account.name())?));
            self.credit_is_empty = snapshot.credit.is_empty();
        }
        self.relays.set_deadlines(Deadlines::from(&snapshot.config.timeouts), &meter);
        self.relays.close_where(&mut meter, |meter, flow| {
            let is_revoked = meter.account(flow).is_some_and(|account| account.is_revoked());
            is_revoked.then_some(CloseReason::PolicyChanged)
        });
    }
}

/// The task argument of an accepted connection.
fn handshake(
    context: &Rc<WorkerContext>,
    slots: &Rc<RefCell<Handshakes>>,
    accepted: Accepted,
) -> (Box<Client>, HandshakeSlot) {
    let slot = HandshakeSlot::take(slots, accepted.peer.ip(), context.reactor.now());
    (Box::new(Client::new(context, accepted)), slot)
}

/// Queues an identified client for a task; denies it if the queue is full.
fn push_pending(pending: &mut VecDeque<Exchange>, identified: Identified) {
    let is_full = pending.len() >= PENDING_MAX;
    pending.push_back(match identified {
        Identified::Tunnel(client) | Identified::Request(client, _) if is_full => {
            return deny_overload(client);
        }
        Identified::Tunnel(client) => Exchange::Tunnel(client),
        Identified::Request(client, request) => Exchange::Session(Box::new(Session::new(*client, request))),
    });
}

fn deny_overload(mut client: Box<Client>) {
    client.log_denial(&Denial::overload("overload_requests", "Too many requests wait."));
    client.close();
}

#[cfg(test)]
mod tests;
