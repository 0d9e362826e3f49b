//! An acceptor: one thread's end of a listening address.
//!
//! Promises: it is watched, or it knows when it will be: after a rest, when its turn comes, or when its owner
//! has place again; what it takes goes to its owner or to another thread, by its strategy. Leaves to others:
//! the strategies themselves, and telling it of wakes and turns of the loop.
//!
//! ```text
//!                turn taken                resource used up
//!   AwaitsTurn -------------> Watching ---------------------> Resting
//!              <-------------          <---------------------
//!               given up                       timer
//! ```
//!
//! Without a place for a connection each of them becomes `Held`, and `Watching` again with one. Where threads
//! take turns, what would watch awaits its turn first.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use sys::clock::Nanos;
use sys::epoll::Trigger;
use sys::socket::{AcceptError, AckMode, Listener, ResourceExhausted, Socket};

use super::mutex::{self, ACCEPT_MUTEX_DELAY, LockAttempt};
use super::worker_group::PROMPT_PASS_MAX;
use super::{HandedOffConnection, ListenerHandle, SharedListener, WorkerHandle};
use crate::reactor::{RawToken, Reactor, WakeTarget};
use crate::slab::Key;
use crate::timer::wheel::TimerId;

/// How long an acceptor rests when descriptors of the process are used up. Long enough that the loop costs
/// nothing, short enough that a freed descriptor is found before a client gives up.
const BACKOFF: Duration = Duration::from_millis(20);

/// How long when the machine's descriptors or memory are: what others use up comes back more slowly, and each
/// attempt asks for more of it.
const LONG_BACKOFF: Duration = Duration::from_millis(100);

/// While turns of the loop take longer than [`PROMPT_TURN_MAX`], fewer connections are taken at a time, for
/// those that are there wait for the end of the turn; but not less than this part of what the strategy takes:
/// who waits in the kernel's queue is served too.
const SHARE_MIN: u32 = 8;

/// Turns in a row that brought no connection, after which whoever has the turn at an address keeps it for as
/// long as it is quick: with many quiet addresses each thread would pass all of them on before each sleep, by
/// two calls for each.
const QUIET_PASSES: u32 = 64;

/// Connections that a retired listener hands over at a time.
const RETIRE_ACCEPTS_MAX: u32 = 4_096;

/// How long a retired listener stays for the last packet of handshakes that have begun: longer than most
/// round trips.
const LAST_ACK_GRACE: Duration = Duration::from_millis(200);

/// See the file's header.
pub struct Acceptor {
    reactor: Rc<Reactor>,
    worker: Rc<WorkerHandle>,
    listener: Listener,
    /// What it shares with the other threads' ends; gone when it is dropped.
    shared: Option<Arc<SharedListener>>,
    token: RawToken,
    state: State,
    /// Whether it has the turn, where threads take turns.
    holds_mutex: bool,
    /// Whether it left the turn to others when it last tried for it.
    yielded: bool,
    /// Whether it took as many connections as it may at a time, when it last accepted: more may wait.
    may_have_more: bool,
    /// Turns in a row that brought no connection.
    quiet_passes: u32,
    /// When it may be closed, once it is retired.
    closes_at: Option<Nanos>,
}

/// When the acceptor looks for connections again.
enum State {
    /// At the next event of the listener.
    Watching(Key),
    /// When it gets the turn, for which it tries before each sleep; and when the timer is due, whoever has
    /// the turn.
    AwaitsMutex(Option<TimerId>),
    /// When the timer is due: a resource was used up.
    Backoff(TimerId),
    /// When the owner says so: it has no place for a connection.
    Paused,
}

impl Acceptor {
    /// Accepts at `entrance`; its events and timers come as wakes with `tag`.
    ///
    /// # Errors
    /// As [`Reactor::watch`].
    pub fn new(
        reactor: &Rc<Reactor>,
        worker: &Rc<WorkerHandle>,
        handle: ListenerHandle,
        token: RawToken,
    ) -> std::io::Result<Acceptor> {
        let ListenerHandle { listener, shared } = handle;
        let uses_mutex = shared.strategy.uses_accept_mutex();
        let mut acceptor = Acceptor {
            reactor: Rc::clone(reactor),
            worker: Rc::clone(worker),
            listener,
            shared: Some(shared),
            token,
            state: if uses_mutex { State::AwaitsMutex(None) } else { State::Paused },
            holds_mutex: false,
            yielded: false,
            may_have_more: false,
            quiet_passes: 0,
            closes_at: None,
        };
        if !uses_mutex {
            acceptor.try_watch()?;
        }
        Ok(acceptor)
    }

    /// Takes connections that wait, as many as the strategy lets a thread take at a time, while `accepted`
    /// answers that there is place for another; some go to other threads instead. To be called when a wake
    /// with this acceptor's tag comes.
    ///
    /// # Errors
    /// What there was too little of: then it rests, and the owner may make room meanwhile.
    pub fn accept(
        &mut self,
        mut on_accepted: impl FnMut(Socket, SocketAddr) -> bool,
    ) -> Result<(), ResourceExhausted> {
        // The retry of a thread that sleeps without the turn: it looks for who waits, since whoever has the
        // turn may be stuck.
        let is_retry = matches!(self.state, State::AwaitsMutex(_));
        if !self.watch() && !is_retry {
            return Ok(());
        }
        // A retry is no wake for the listener: the thread wakes for it whether somebody waits or not.
        self.reactor.stats().accept_wakes.add(u64::from(!is_retry));
        self.quiet_passes = 0;
        // More may wait than it takes. The watch is level triggered, so it reports that at the next turn.
        self.may_have_more = true;
        let (mut has_handed_off, mut all_aborted) = (false, true);
        for _ in 0..self.accepts_max() {
            match self.accept_one() {
                AcceptOutcome::Connection(socket, peer) => {
                    all_aborted = false;
                    let Some((socket, peer)) = self.hand_off(socket, peer) else {
                        has_handed_off = true;
                        continue;
                    };
                    if !on_accepted(socket, peer) {
                        self.hold();
                        return Ok(());
                    }
                }
                AcceptOutcome::Empty => {
                    self.reactor.stats().accepts_empty.add(u64::from(!is_retry));
                    (self.may_have_more, all_aborted) = (false, false);
                    break;
                }
                AcceptOutcome::Aborted => {}
                AcceptOutcome::Exhausted(resource) => {
                    self.back_off(backoff_for(resource));
                    return Err(resource);
                }
            }
        }
        if all_aborted {
            // What fails each time, for a policy of the kernel's forbids it say, would be reported for ever.
            self.back_off(BACKOFF);
        } else if has_handed_off {
            // The kernel wakes whoever watches first: who has more to do than others watches anew, behind
            // them (see `handoff`).
            self.rewatch();
        }
        Ok(())
    }

    /// Says when the first bytes of those who connect from now on are acknowledged.
    pub fn set_first_ack(&self, first_ack: AckMode) {
        self.listener.set_ack_mode(first_ack);
    }

    /// Takes nothing until [`Acceptor::resume`]: the owner has no place for a connection.
    pub fn hold(&mut self) {
        // Before the turn is free: nobody is to stand back for this thread.
        self.reactor.stats().is_full.set(1);
        if matches!(self.state, State::Paused) {
            return;
        }
        self.set(State::Paused);
        let shared = self.shared();
        let leaves_pending = if shared.strategy.uses_accept_mutex() {
            // Pairs with the fence of `WorkerHandle::wake_another`: who stood back for this thread when it
            // still had place has seen the turn free, and so does this look.
            fence(Ordering::SeqCst);
            shared.accept_mutex.is_free()
        } else if shared.strategy.trigger() == Trigger::LevelReadExclusive {
            // The kernel may have told this thread alone of who waits, and will not tell another.
            shared.accept_pending.store(true, Ordering::Relaxed);
            true
        } else {
            false
        };
        // Also who is on its way to sleep, and has looked for the last time: this thread does not come back.
        if leaves_pending {
            self.worker.wake_others_with_capacity();
        }
    }

    /// Goes on after [`Acceptor::hold`], or after `accepted` had no place for another connection.
    pub fn resume(&mut self) {
        self.reactor.stats().is_full.set(0);
        if matches!(self.state, State::Paused) && self.closes_at.is_none() {
            self.watch();
        }
    }

    /// Where threads take turns, tries to get this one's, or does without the socket until it comes; else
    /// looks after who was left to others by a thread without place. To be called before each sleep.
    pub fn take_turn(&mut self) {
        if self.can_accept_pending() && self.shared().accept_pending.swap(false, Ordering::Relaxed) {
            // A new watch reports who waits already.
            self.rewatch();
        }
        if self.holds_mutex || !self.competes_for_mutex() {
            return;
        }
        let attempt = self.shared().accept_mutex.try_lock(&self.worker, self.reactor.now());
        self.yielded = attempt == LockAttempt::Yielded;
        if attempt == LockAttempt::Acquired {
            self.holds_mutex = true;
            self.watch();
        } else if !matches!(self.state, State::AwaitsMutex(Some(_))) {
            // Behind a retry that brought as many as it may take more wait, whoever has the turn.
            let after = if self.may_have_more { Duration::ZERO } else { ACCEPT_MUTEX_DELAY };
            let retry = self.reactor.arm(self.reactor.now() + after, WakeTarget::Tag(self.token));
            self.set(State::AwaitsMutex(Some(retry)));
        }
    }

    /// Whether others have left the address to this thread since [`Acceptor::take_turn`], so that it has to
    /// be called again; to be asked at the last look before a sleep. Whoever it stood back for may have
    /// something else to do by now, or sleep too.
    pub fn is_called(&self) -> bool {
        let is_free = !self.holds_mutex && self.competes_for_mutex() && self.shared().accept_mutex.is_free();
        let has_to_take = is_free && !(self.yielded && mutex::wake_less_loaded(&self.worker));
        has_to_take || self.can_accept_pending()
    }

    /// Gives the turn up, if this thread has it; to be called when what a sleep has brought is accepted, and
    /// before that is served. If connections wait, or would have to wait for long until this thread comes
    /// round, another is woken to take it, unless one comes round by itself.
    pub fn give_turn_up(&mut self) {
        let is_slow = self.reactor.stats().turn_length() > PROMPT_PASS_MAX;
        if !self.holds_mutex || self.quiet_passes >= QUIET_PASSES && !is_slow {
            return;
        }
        self.quiet_passes = self.quiet_passes.saturating_add(1);
        let may_have_more = self.may_have_more;
        self.release_mutex();
        if may_have_more || is_slow {
            self.worker.wake_another(u64::MAX, self.reactor.now());
        }
    }

    /// Retires the listener: nobody can begin a connection any more, and those who wait are handed to
    /// `accepted`. Answers whether that was all, so that the acceptor may be dropped. If it was not, it is to
    /// be called again at the next wake with this acceptor's tag: handshakes that are under way have
    /// [`LAST_ACKS`] to complete, and descriptors may be used up.
    ///
    /// Where several threads share the socket, each of them takes part and the last one closes it.
    pub fn retire(&mut self, mut on_accepted: impl FnMut(Socket, SocketAddr)) -> bool {
        let closes_at = *self.closes_at.get_or_insert_with(|| {
            // Without memory for it who comes at the last moment is reset by the close.
            let _ = self.listener.stop_queueing();
            self.reactor.now() + LAST_ACK_GRACE
        });
        for count in 1..=RETIRE_ACCEPTS_MAX {
            match self.accept_one() {
                AcceptOutcome::Connection(socket, peer) => on_accepted(socket, peer),
                // What fails each time would keep the listener for ever.
                AcceptOutcome::Aborted if count < RETIRE_ACCEPTS_MAX => {}
                AcceptOutcome::Aborted | AcceptOutcome::Empty if self.reactor.now() < closes_at => {
                    self.back_off(closes_at.since(self.reactor.now()));
                    return false;
                }
                AcceptOutcome::Aborted | AcceptOutcome::Empty => {
                    self.set(State::Paused);
                    return true;
                }
                AcceptOutcome::Exhausted(_) => break,
            }
        }
        self.back_off(BACKOFF);
        false
    }

    fn shared(&self) -> &SharedListener {
        self.shared.as_ref().expect("only the drop takes it")
    }

    /// As many connections as one wake may take: fewer where turns are long already.
    fn accepts_max(&self) -> u32 {
        let most = self.shared().strategy.accepts_per_wake_max();
        let pass = self.reactor.stats().turn_length().max(PROMPT_PASS_MAX);
        let fewer = u64::from(most) * PROMPT_PASS_MAX.as_nanos() as u64 / pass.as_nanos() as u64;
        u32::try_from(fewer).unwrap_or(most).max(most / SHARE_MIN).max(1)
    }

    fn accept_one(&self) -> AcceptOutcome {
        match self.listener.accept() {
            Ok((socket, peer)) => {
                self.reactor.stats().accepts.add(1);
                AcceptOutcome::Connection(socket, peer)
            }
            Err(AcceptError::Empty) => AcceptOutcome::Empty,
            Err(AcceptError::ThisConnection(_)) => AcceptOutcome::Aborted,
            Err(AcceptError::Exhausted(resource)) => {
                self.reactor.stats().shortages[resource as usize].add(1);
                self.reactor.stats().note_shortage(resource, self.reactor.now());
                AcceptOutcome::Exhausted(resource)
            }
        }
    }

    /// Hands the connection to the thread that the strategy names, unless that is this one, or is full.
    fn hand_off(&self, socket: Socket, peer: SocketAddr) -> Option<(Socket, SocketAddr)> {
        let shared = self.shared();
        let stats = self.reactor.stats();
        let to = shared.strategy.serving_thread(&self.worker, self.reactor.now());
        let mut connection = HandedOffConnection { socket, peer, door: shared.listener_id };
        if to != self.worker.number() {
            match self.worker.hand_off(to, connection) {
                Ok(()) => {
                    stats.handed_over.add(1);
                    return None;
                }
                Err(back) => connection = back,
            }
        }
        // The owner tells how many there are at the end of the turn; until then this counts.
        stats.connections.add(1);
        Some((connection.socket, connection.peer))
    }

    /// Watches the listener, unless that has to wait; answers whether it is watched.
    fn watch(&mut self) -> bool {
        if self.shared().strategy.uses_accept_mutex() && !self.holds_mutex {
            self.set(State::AwaitsMutex(None));
            return false;
        }
        if let State::Watching(_) = self.state {
            return true;
        }
        if self.try_watch().is_err() {
            // The kernel has no memory for it.
            self.back_off(LONG_BACKOFF);
        }
        matches!(self.state, State::Watching(_))
    }

    fn try_watch(&mut self) -> std::io::Result<()> {
        let trigger = self.shared().strategy.trigger();
        let key = self.reactor.watch(&self.listener, trigger, WakeTarget::Tag(self.token))?;
        self.set(State::Watching(key));
        Ok(())
    }

    /// Watches the listener as if it had not before: behind all others, and told of who waits already.
    fn rewatch(&mut self) {
        self.set(State::Paused);
        self.watch();
    }

    /// Ends the watch for a while: a connection that cannot be taken stays queued, and a level-triggered
    /// watch would report it for ever.
    fn back_off(&mut self, length: Duration) {
        let timer = self.reactor.arm(self.reactor.now() + length, WakeTarget::Tag(self.token));
        self.set(State::Backoff(timer));
    }

    fn set(&mut self, state: State) {
        match std::mem::replace(&mut self.state, state) {
            // It fails only for a socket that is not watched.
            State::Watching(key) => drop(self.reactor.unwatch(&self.listener, key)),
            State::Backoff(timer) | State::AwaitsMutex(Some(timer)) => self.reactor.cancel(timer),
            State::AwaitsMutex(None) | State::Paused => {}
        }
        if !matches!(self.state, State::Watching(_)) {
            self.release_mutex();
        }
    }

    /// Whether it is this thread that has to look after who was left to others.
    fn can_accept_pending(&self) -> bool {
        matches!(self.state, State::Watching(_))
            && self.shared().accept_pending.load(Ordering::Relaxed)
            && self.closes_at.is_none()
            && self.reactor.stats().is_full.value() == 0
    }

    /// Whether it tries for turns: where threads take them, while it has place and is not retired.
    fn competes_for_mutex(&self) -> bool {
        self.shared().strategy.uses_accept_mutex()
            && self.closes_at.is_none()
            && matches!(self.state, State::Watching(_) | State::AwaitsMutex(_))
    }

    /// Leaves the turn to whoever tries for it next. Who took some without it remembers that more wait, also
    /// over a rest or a time without place.
    fn release_mutex(&mut self) {
        if std::mem::take(&mut self.holds_mutex) {
            self.may_have_more = false;
            self.shared().accept_mutex.unlock();
        }
    }
}

/// How long to leave a listener alone that met `shortage`.
fn backoff_for(resource: ResourceExhausted) -> Duration {
    match resource {
        ResourceExhausted::Descriptors => BACKOFF,
        ResourceExhausted::SystemDescriptors | ResourceExhausted::Buffers | ResourceExhausted::Memory => {
            LONG_BACKOFF
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.set(State::Paused);
        self.shared = None;
        // Whoever has closed his end before may wait for this (`ListenerLiveness::are_closed`).
        self.worker.wake_all();
    }
}

/// What one accept gave.
enum AcceptOutcome {
    Connection(Socket, SocketAddr),
    /// No connection waits.
    Empty,
    /// The connection that was next is gone.
    Aborted,
    /// Nothing can be taken now, though somebody waits.
    Exhausted(ResourceExhausted),
}
