//! A reactor thread: its listeners, its handshakes, its requests, its relays, and the loop that turns them.
//!
//! Promises: one turn looks at everything that woke, in a fixed order, and sleeps only when nothing is left
//! to do; a new configuration takes effect between two turns. Leaves to others: what a connection does
//! (`connection`), and deciding what to order (`server`).
//!
//! ```text
//!   turn:  sleep -> wakes: listeners accept (what waits here already gets a place before what comes),
//!                          relays note readiness, timers
//!                -> orders of the control side
//!                -> handshakes, then exchanges that were woken
//!                -> relays that have bytes to move, each once
//! ```

pub(crate) mod listeners;

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::accept::{ListenerHandle, WorkerHandle};
use engine::executor::Executor;
use engine::inbox::Inbox;
use engine::reactor::{Reactor, Wake};
use ledger::record::CloseReason;

use crate::client::Client;
use crate::context::{Phase, WorkerContext};
use crate::flow::progress::Deadlines;
use crate::handshake::Identified;
use crate::http::Session;
use crate::limits::SHED_AT_SHORTAGE_MAX;
use crate::snapshot::{Snapshot, SnapshotHandle};
use crate::token::{Side, Token};
use crate::worker::listeners::Listeners;

/// What the control side may order.
pub(crate) enum Command {
    /// Run by this snapshot from now on, serve these listeners too, and retire those.
    Reconfigure {
        snapshot: Arc<Snapshot>,
        added: Vec<(SocketAddr, ListenerHandle)>,
        removed: Vec<SocketAddr>,
    },
    /// Take nothing new; end when what is open has ended.
    Drain,
    /// Cut everything off and end.
    Stop,
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
        assert!(spawned.is_ok(), "a place was looked for before the spawn");
    }

    /// Spawns what waits, as far as there is place.
    fn fill(&mut self, mut next: impl FnMut() -> Option<T>) {
        while !self.is_full() {
            let Some(of) = next() else { break };
            self.spawn(of);
        }
    }

    /// Runs what was woken; returns how many panicked.
    fn run(&mut self) -> u64 {
        self.executor.run(drop).panicked.into()
    }
}

/// See the file's header.
pub(crate) struct Worker<H, E> {
    reactor: Rc<Reactor>,
    context: Rc<WorkerContext>,
    inbox: Inbox<Command>,
    /// Connections until their client is known.
    handshakes: Tasks<Client, H>,
    /// Connections of known clients: tunnels until their relay begins, plain HTTP while there is a request.
    exchanges: Tasks<Identified, E>,
    listeners: Listeners,
    /// The number of the budget's last call that was answered.
    reclaim_seen: u32,
}

impl<H: Future<Output = ()>, E: Future<Output = ()>> Worker<H, E> {
    /// A worker without listeners.
    pub(crate) fn new(
        context: &Rc<WorkerContext>,
        inbox: Inbox<Command>,
        handshakes: Tasks<Client, H>,
        exchanges: Tasks<Identified, E>,
        seat: WorkerHandle,
    ) -> Worker<H, E> {
        Worker {
            reactor: Rc::clone(&context.reactor),
            context: Rc::clone(context),
            inbox,
            handshakes,
            exchanges,
            listeners: Listeners::new(&context.reactor, seat),
            reclaim_seen: 0,
        }
    }

    /// Runs until drained or stopped.
    ///
    /// # Errors
    /// The reactor's own: none that can be lived with.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut wakes = Vec::new();
        while !self.has_ended() {
            self.listeners.lock_accept_mutexes();
            self.reactor.turn(&mut wakes, || self.is_idle())?;
            for wake in wakes.drain(..) {
                self.handle(wake);
            }
            self.listeners.unlock_accept_mutexes();
            for order in self.inbox.take() {
                self.handle_command(order);
            }
            self.run_tasks();
            self.context.relays.borrow_mut().run(&mut self.context.meter.borrow_mut());
            self.publish();
        }
        self.context.meter.borrow_mut().log_suppressed_at_end();
        self.context.closing.clear();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.inbox.is_empty()
            && self.reclaim_seen == self.context.snapshot.borrow().budget.reclaim_requests()
            && !self.handshakes.executor.has_runnable()
            && !self.exchanges.executor.has_runnable()
            && !self.context.relays.borrow().has_queued()
            && (self.handshakes.is_full() || self.listeners.is_idle())
            && (self.exchanges.is_full()
                || self.context.identified.borrow().is_empty() && !self.context.idle.borrow().has_ready())
    }

    fn has_ended(&self) -> bool {
        if self.context.phase.get() == Phase::Serving {
            return false;
        }
        let context = &self.context;
        let nothing_waits = self.listeners.is_empty()
            && context.identified.borrow().is_empty()
            && context.idle.borrow().is_empty();
        let nothing_runs = self.handshakes.executor.is_empty() && self.exchanges.executor.is_empty();
        nothing_waits && nothing_runs && context.meter.borrow().is_settled()
    }

    fn handle(&mut self, wake: Wake) {
        let context = Rc::clone(&self.context);
        match wake {
            Wake::Ready(tag, readiness) => match Token::from_raw(tag) {
                Token::Relay(index, side) => context.relays.borrow_mut().ready(index, side, readiness),
                Token::Listener(number) => self.accept(number),
                Token::Closing(index) => context.closing.ready(index, readiness),
                // Room to write, which a full buffer leaves behind, is nothing that a rest waits for.
                Token::Idle(..) if !readiness.readable => {}
                Token::Idle(index, Side::Client) => context.idle.borrow_mut().wake(index, readiness),
                Token::Idle(index, Side::Upstream) => context.idle.borrow_mut().drop_upstream(index),
                Token::RelayTimer(_)
                | Token::IdleTimer(_)
                | Token::ClosingTimer(_)
                | Token::SuppressedTimer => unreachable!("timers are not sources"),
            },
            Wake::Due(tag) => match Token::from_raw(tag) {
                Token::RelayTimer(index) => {
                    context.relays.borrow_mut().due(index, &mut context.meter.borrow_mut());
                }
                Token::IdleTimer(index) => context.idle.borrow_mut().due(index),
                Token::ClosingTimer(index) => context.closing.due(index),
                Token::Listener(number) => self.accept(number),
                Token::SuppressedTimer => context.meter.borrow_mut().log_suppressed(),
                Token::Relay(..) | Token::Idle(..) | Token::Closing(_) => {
                    unreachable!("sockets are not timers")
                }
            },
        }
    }

    /// Gives places to those who wait for one.
    fn admit_pending(&mut self) {
        let (context, doors) = (&self.context, &mut self.listeners);
        let snapshot = context.snapshot();
        self.handshakes.fill(|| doors.next_pending(&snapshot).map(|arrival| Client::new(context, arrival)));
        if self.handshakes.is_full() && doors.pending_count() > 0 {
            context.handshakes.borrow_mut().evict();
        }
        if self.handshakes.is_full() {
            // Nobody is to hand over more to this thread, or to stand back for it.
            self.reactor.stats().is_full.set(1);
        }
    }

    fn accept(&mut self, number: u32) {
        // Else those who come would take each place before those who wait, as long as more come.
        self.admit_pending();
        let snapshot = self.context.snapshot();
        let (handshakes, context) = (&mut self.handshakes, &self.context);
        let may_take = !handshakes.is_full() || self.listeners.pending_count() == 0;
        let mut without_place = None;
        let accepted = self.listeners.accept(number, may_take, &snapshot, |arrival| {
            if handshakes.is_full() {
                without_place = Some(arrival);
                return false;
            }
            handshakes.spawn(Client::new(context, arrival));
            true
        });
        // Only a connection that waits here tells that one has to end for it.
        without_place.into_iter().for_each(|arrival| self.listeners.enqueue(arrival));
        if accepted.is_err() {
            // Connections without a flow make room for one that may have one, first those that are over.
            let WorkerContext { closing, idle: resting, .. } = &*self.context;
            let shed = || closing.evict_heaviest() || resting.borrow_mut().evict_oldest();
            (0..SHED_AT_SHORTAGE_MAX).take_while(|_| shed()).for_each(drop);
        }
    }

    fn run_tasks(&mut self) {
        self.reclaim_budget();
        self.listeners.remove_closed(&self.context.snapshot());
        self.admit_pending();
        self.context.handshakes.borrow_mut().shorten_deadlines(self.greeting(), self.reactor.now());
        let was_full = self.handshakes.is_full();
        let panicked = self.handshakes.run();
        self.exchanges.fill(|| next_identified(&self.context));
        let panicked = panicked + self.exchanges.run();
        self.reactor.stats().panics.add(panicked);
        if was_full {
            // What became free is theirs; other threads are not to send anybody for it.
            self.admit_pending();
        }
        // A full thread takes one more, for which a handshake has to end, unless one waits for that already.
        if !self.handshakes.is_full() || self.listeners.pending_count() == 0 {
            self.listeners.resume();
        }
    }

    /// Makes room where another thread has called for it and this one was not asked before.
    fn reclaim_budget(&mut self) {
        let snapshot = self.context.snapshot.borrow();
        let call = snapshot.budget.reclaim_requests();
        if std::mem::replace(&mut self.reclaim_seen, call) != call {
            snapshot.budget.reclaim(|| self.context.idle.borrow_mut().evict_of_heavy_user());
        }
    }

    /// The time that a handshake has where there are few.
    fn greeting(&self) -> Duration {
        self.context.snapshot.borrow().config.timeouts.greeting
    }

    /// Tells others how much this thread has to do.
    fn publish(&self) {
        let context = &self.context;
        let (handshakes, resting) = (self.handshakes.executor.len(), context.idle.borrow().len());
        let serving = self.exchanges.executor.len() + context.relays.borrow().len();
        let waiting = self.listeners.pending_count() + context.identified.borrow().len();
        context.stats.handshakes_active.set((handshakes + context.opening.len()) as u64);
        context.stats.sessions_resting.set(resting as u64);
        context.stats.dial_extras_active.set(context.extra_attempts.taken() as u64);
        context.stats.connections_closing.set(context.closing.len() as u64);
        self.reactor.stats().connections.set((handshakes + serving + resting + waiting) as u64);
        self.reactor.stats().is_full.set(self.handshakes.is_full().into());
    }

    fn handle_command(&mut self, order: Command) {
        match order {
            Command::Reconfigure { snapshot, added, removed } => self.reconfigure(snapshot, added, &removed),
            Command::Drain => {
                self.context.phase.set(Phase::Draining);
                self.listeners.retire(&self.context.snapshot(), |_| true);
                self.context.idle.borrow_mut().close_silent();
            }
            Command::Stop => {
                self.context.phase.set(Phase::Stopping);
                self.listeners.clear();
                self.handshakes.executor.clear();
                self.exchanges.executor.clear();
                self.context.identified.borrow_mut().clear();
                self.context.idle.borrow_mut().clear();
                let mut meter = self.context.meter.borrow_mut();
                self.context.relays.borrow_mut().close_where(&mut meter, |_, _| Some(CloseReason::Drained));
            }
        }
    }

    fn reconfigure(
        &mut self,
        snapshot: Arc<Snapshot>,
        added: Vec<(SocketAddr, ListenerHandle)>,
        removed: &[SocketAddr],
    ) {
        // Who waits at a listener that goes is still served, by the configuration that had it.
        self.listeners.retire(&self.context.snapshot(), |configured| removed.contains(&configured));
        let current = Rc::new(SnapshotHandle(Arc::clone(&snapshot)));
        self.context.idle.borrow_mut().adopt(&current);
        self.context.snapshot.replace(Rc::clone(&current));
        // Those whose user is gone find that out.
        self.exchanges.executor.wake_all();
        self.listeners.adopt(&current);
        for (configured, entrance) in added {
            self.listeners.open(configured, entrance, &current);
        }
        let (mut relays, mut meter) = (self.context.relays.borrow_mut(), self.context.meter.borrow_mut());
        relays.set_deadlines(Deadlines::from(&snapshot.config.timeouts), &meter);
        relays.close_where(&mut meter, |meter, flow| {
            let revoked = meter.account(flow).is_some_and(|account| account.is_revoked());
            revoked.then_some(CloseReason::PolicyChanged)
        });
    }
}

/// The next connection of a known client that has a request, whether it rested or has just become known.
fn next_identified(context: &Rc<WorkerContext>) -> Option<Identified> {
    let known = context.identified.borrow_mut().pop_front();
    known.or_else(|| Session::next_ready(context).map(|session| Identified::Requests(Box::new(session))))
}
