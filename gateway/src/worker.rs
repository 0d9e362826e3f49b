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

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::accept::{Entrance, Seat};
use engine::executor::Executor;
use engine::inbox::Inbox;
use engine::reactor::{Reactor, Wake};
use ledger::record::CloseReason;

use crate::client::Client;
use crate::connection::Known;
use crate::doors::Doors;
use crate::limits::SHED_AT_SHORTAGE_MAX;
use crate::local::{Local, Phase};
use crate::progress::Deadlines;
use crate::session::Session;
use crate::snapshot::{Current, Snapshot};
use crate::wake::{Side, Subject};

/// What the control side may order.
pub(crate) enum Order {
    /// Run by this snapshot from now on, serve these listeners too, and retire those.
    Reconfigure { snapshot: Arc<Snapshot>, added: Vec<(SocketAddr, Entrance)>, removed: Vec<SocketAddr> },
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
        self.executor.run().panicked.into()
    }
}

/// See the file's header.
pub(crate) struct Worker<H, E> {
    reactor: Rc<Reactor>,
    local: Rc<Local>,
    inbox: Inbox<Order>,
    /// Connections until their client is known.
    handshakes: Tasks<Client, H>,
    /// Connections of known clients: tunnels until their relay begins, plain HTTP while there is a request.
    exchanges: Tasks<Known, E>,
    doors: Doors,
    /// The number of the budget's last call that was answered.
    call_answered: u32,
}

impl<H: Future<Output = ()>, E: Future<Output = ()>> Worker<H, E> {
    /// A worker without listeners.
    pub(crate) fn new(
        local: &Rc<Local>,
        inbox: Inbox<Order>,
        handshakes: Tasks<Client, H>,
        exchanges: Tasks<Known, E>,
        seat: Seat,
    ) -> Worker<H, E> {
        Worker {
            reactor: Rc::clone(&local.reactor),
            local: Rc::clone(local),
            inbox,
            handshakes,
            exchanges,
            doors: Doors::new(&local.reactor, seat),
            call_answered: 0,
        }
    }

    /// Runs until drained or stopped.
    ///
    /// # Errors
    /// The reactor's own: none that can be lived with.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut wakes = Vec::new();
        while !self.has_ended() {
            self.doors.take_turns();
            self.reactor.turn(&mut wakes, || self.is_idle())?;
            for wake in wakes.drain(..) {
                self.handle(wake);
            }
            self.doors.give_turns_up();
            for order in self.inbox.take() {
                self.obey(order);
            }
            self.run_tasks();
            self.local.relays.borrow_mut().run(&mut self.local.meter.borrow_mut());
            self.publish();
        }
        self.local.meter.borrow_mut().tell_left_out_at_last();
        self.local.closing.clear();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.inbox.is_empty()
            && self.call_answered == self.local.snapshot.borrow().budget.calls()
            && !self.handshakes.executor.has_runnable()
            && !self.exchanges.executor.has_runnable()
            && !self.local.relays.borrow().has_queued()
            && (self.handshakes.is_full() || self.doors.is_quiet())
            && (self.exchanges.is_full()
                || self.local.known.borrow().is_empty() && !self.local.resting.borrow().has_woken())
    }

    fn has_ended(&self) -> bool {
        if self.local.phase.get() == Phase::Serving {
            return false;
        }
        let local = &self.local;
        let nothing_waits =
            self.doors.is_empty() && local.known.borrow().is_empty() && local.resting.borrow().is_empty();
        let nothing_runs = self.handshakes.executor.is_empty() && self.exchanges.executor.is_empty();
        nothing_waits && nothing_runs && local.meter.borrow().is_settled()
    }

    fn handle(&mut self, wake: Wake) {
        let local = Rc::clone(&self.local);
        match wake {
            Wake::Ready(tag, readiness) => match Subject::of(tag) {
                Subject::Relay(index, side) => local.relays.borrow_mut().ready(index, side, readiness),
                Subject::Listener(number) => self.accept(number),
                Subject::Closing(index) => local.closing.ready(index, readiness),
                // Room to write, which a full buffer leaves behind, is nothing that a rest waits for.
                Subject::Rest(..) if !readiness.readable => {}
                Subject::Rest(index, Side::Client) => local.resting.borrow_mut().wake(index, readiness),
                Subject::Rest(index, Side::Upstream) => local.resting.borrow_mut().drop_upstream(index),
                Subject::RelayTimer(_)
                | Subject::RestTimer(_)
                | Subject::ClosingTimer(_)
                | Subject::LeftOutTimer => unreachable!("timers are not sources"),
            },
            Wake::Due(tag) => match Subject::of(tag) {
                Subject::RelayTimer(index) => {
                    local.relays.borrow_mut().due(index, &mut local.meter.borrow_mut());
                }
                Subject::RestTimer(index) => local.resting.borrow_mut().due(index),
                Subject::ClosingTimer(index) => local.closing.due(index),
                Subject::Listener(number) => self.accept(number),
                Subject::LeftOutTimer => local.meter.borrow_mut().tell_left_out(),
                Subject::Relay(..) | Subject::Rest(..) | Subject::Closing(_) => {
                    unreachable!("sockets are not timers")
                }
            },
        }
    }

    /// Gives places to those who wait for one.
    fn seat_who_wait(&mut self) {
        let (local, doors) = (&self.local, &mut self.doors);
        let snapshot = local.snapshot();
        self.handshakes.fill(|| doors.next_arrival(&snapshot).map(|arrival| Client::new(local, arrival)));
        if self.handshakes.is_full() && doors.arrivals() > 0 {
            local.handshakes.borrow_mut().displace();
        }
        if self.handshakes.is_full() {
            // Nobody is to hand over more to this thread, or to stand back for it.
            self.reactor.stats().is_full.set(1);
        }
    }

    fn accept(&mut self, number: u32) {
        // Else those who come would take each place before those who wait, as long as more come.
        self.seat_who_wait();
        let snapshot = self.local.snapshot();
        let (handshakes, local) = (&mut self.handshakes, &self.local);
        let may_take = !handshakes.is_full() || self.doors.arrivals() == 0;
        let mut without_place = None;
        let accepted = self.doors.accept(number, may_take, &snapshot, |arrival| {
            if handshakes.is_full() {
                without_place = Some(arrival);
                return false;
            }
            handshakes.spawn(Client::new(local, arrival));
            true
        });
        // Only a connection that waits here tells that one has to end for it.
        without_place.into_iter().for_each(|arrival| self.doors.await_place(arrival));
        if accepted.is_err() {
            // Connections without a flow make room for one that may have one, first those that are over.
            let Local { closing, resting, .. } = &*self.local;
            let shed = || closing.shed() || resting.borrow_mut().shed();
            (0..SHED_AT_SHORTAGE_MAX).take_while(|_| shed()).for_each(drop);
        }
    }

    fn run_tasks(&mut self) {
        self.answer_call();
        self.doors.sweep(&self.local.snapshot());
        self.seat_who_wait();
        self.local.handshakes.borrow_mut().hurry(self.greeting(), self.reactor.now());
        let was_full = self.handshakes.is_full();
        let panicked = self.handshakes.run();
        self.exchanges.fill(|| next_known(&self.local));
        let panicked = panicked + self.exchanges.run();
        self.reactor.stats().panics.add(panicked);
        if was_full {
            // What became free is theirs; other threads are not to send anybody for it.
            self.seat_who_wait();
        }
        // A full thread takes one more, for which a handshake has to end, unless one waits for that already.
        if !self.handshakes.is_full() || self.doors.arrivals() == 0 {
            self.doors.resume();
        }
    }

    /// Makes room where another thread has called for it and this one was not asked before.
    fn answer_call(&mut self) {
        let snapshot = self.local.snapshot.borrow();
        let call = snapshot.budget.calls();
        if std::mem::replace(&mut self.call_answered, call) != call {
            snapshot.budget.relieve(|| self.local.resting.borrow_mut().end_heavy());
        }
    }

    /// The time that a handshake has where there are few.
    fn greeting(&self) -> Duration {
        self.local.snapshot.borrow().config.timeouts.greeting
    }

    /// Tells others how much this thread has to do.
    fn publish(&self) {
        let local = &self.local;
        let (handshakes, resting) = (self.handshakes.executor.len(), local.resting.borrow().len());
        let serving = self.exchanges.executor.len() + local.relays.borrow().len();
        let waiting = self.doors.arrivals() + local.known.borrow().len();
        local.stats.handshakes_active.set((handshakes + local.opening.len()) as u64);
        local.stats.sessions_resting.set(resting as u64);
        local.stats.dial_extras_active.set(local.extra_attempts.taken() as u64);
        local.stats.connections_closing.set(local.closing.len() as u64);
        self.reactor.stats().connections.set((handshakes + serving + resting + waiting) as u64);
        self.reactor.stats().is_full.set(self.handshakes.is_full().into());
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Reconfigure { snapshot, added, removed } => self.reconfigure(snapshot, added, &removed),
            Order::Drain => {
                self.local.phase.set(Phase::Draining);
                self.doors.retire(&self.local.snapshot(), |_| true);
                self.local.resting.borrow_mut().shed_silent();
            }
            Order::Stop => {
                self.local.phase.set(Phase::Stopping);
                self.doors.clear();
                self.handshakes.executor.clear();
                self.exchanges.executor.clear();
                self.local.known.borrow_mut().clear();
                self.local.resting.borrow_mut().clear();
                let mut meter = self.local.meter.borrow_mut();
                self.local.relays.borrow_mut().close_where(&mut meter, |_, _| Some(CloseReason::Drained));
            }
        }
    }

    fn reconfigure(
        &mut self,
        snapshot: Arc<Snapshot>,
        added: Vec<(SocketAddr, Entrance)>,
        removed: &[SocketAddr],
    ) {
        // Who waits at a listener that goes is still served, by the configuration that had it.
        self.doors.retire(&self.local.snapshot(), |configured| removed.contains(&configured));
        let current = Rc::new(Current(Arc::clone(&snapshot)));
        self.local.resting.borrow_mut().adopt(&current);
        self.local.snapshot.replace(Rc::clone(&current));
        // Those whose user is gone find that out.
        self.exchanges.executor.wake_all();
        self.doors.adopt(&current);
        for (configured, entrance) in added {
            self.doors.open(configured, entrance, &current);
        }
        let (mut relays, mut meter) = (self.local.relays.borrow_mut(), self.local.meter.borrow_mut());
        relays.set_deadlines(Deadlines::from(&snapshot.config.timeouts), &meter);
        relays.close_where(&mut meter, |meter, flow| {
            let revoked = meter.account(flow).is_some_and(|account| account.is_revoked());
            revoked.then_some(CloseReason::PolicyChanged)
        });
    }
}

/// The next connection of a known client that has a request, whether it rested or has just become known.
fn next_known(local: &Rc<Local>) -> Option<Known> {
    let known = local.known.borrow_mut().pop_front();
    known.or_else(|| Session::woken(local).map(|session| Known::Requests(Box::new(session))))
}
