//! An acceptor: one thread's end of a listener.
//!
//! Guarantees: its listener is watched, or it knows what resumes the watch: a timer, the accept mutex, or its
//! owner. Each accepted connection goes to its owner or to another thread, as the strategy says.
//!
//! Not handled here: the strategies. The owner reports events and passes.
//!
//! ```text
//!                 mutex locked             resource exhausted
//!   AwaitsMutex -------------> Watching -------------------> Backoff
//!               <-------------          <-------------------
//!                  unlocked                    timer
//! ```
//!
//! Without capacity for a connection each state becomes `Paused`; `resume` leads back to `Watching`. With an
//! accept mutex, `Watching` needs the lock first.

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

/// Backoff when the process has no free descriptor. Long enough that the retries cost nothing, short enough
/// to find a freed descriptor before a client gives up.
const BACKOFF: Duration = Duration::from_millis(20);

/// Backoff when the machine has no free descriptors or memory: other processes free them more slowly, and
/// each attempt needs more of them.
const LONG_BACKOFF: Duration = Duration::from_millis(100);

/// While passes take longer than [`PROMPT_PASS_MAX`], fewer connections are accepted at a time, because those
/// already accepted wait for the end of the pass. At least one in `SHARE_MIN` of the strategy's number is
/// accepted, so that connections in the kernel's queue are served too.
const SHARE_MIN: u32 = 8;

/// After this many passes in a row without a connection, the holder keeps the accept mutex as long as its
/// passes are short. Else, with many quiet listeners, each thread would pass all mutexes on before each
/// sleep, by two `epoll_ctl` calls for each.
const QUIET_PASSES: u32 = 64;

/// Connections that one call of [`Acceptor::retire`] accepts.
const RETIRE_ACCEPTS_MAX: u32 = 4_096;

/// How long a retired listener waits for the last ACK of handshakes that have begun: longer than most round
/// trips.
const LAST_ACK_GRACE: Duration = Duration::from_millis(200);

/// One thread's end of a listener: accepts connections, keeps some and hands others off.
pub struct Acceptor {
    reactor: Rc<Reactor>,
    worker: Rc<WorkerHandle>,
    listener: Listener,
    /// Shared with the acceptors of the other threads; `None` during the drop.
    shared: Option<Arc<SharedListener>>,
    token: RawToken,
    state: State,
    /// Whether this thread holds the accept mutex.
    holds_mutex: bool,
    /// Whether it yielded the accept mutex at its last attempt.
    yielded: bool,
    /// Whether its last accept stopped at the bound, so that more connections may be queued.
    may_have_more: bool,
    /// Passes in a row that brought no connection.
    quiet_passes: u32,
    /// When it may be closed, once it is retired.
    closes_at: Option<Nanos>,
}

/// What makes the acceptor accept again.
enum State {
    /// The next event of the listener.
    Watching(Key),
    /// The accept mutex, which it tries to lock before each sleep; also the timer, even if another thread
    /// holds the mutex.
    AwaitsMutex(Option<TimerId>),
    /// The timer: a resource was exhausted.
    Backoff(TimerId),
    /// The owner: it has no capacity for a connection.
    Paused,
}

impl Acceptor {
    /// Accepts at the listener of `handle`; its events and timers arrive with `token`.
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

    /// Accepts queued connections, at most as many as the strategy allows at a time, while `on_accepted`
    /// returns true. False means that the owner has no capacity for another one. Some connections go to other
    /// threads instead. To be called at an event with this acceptor's token.
    ///
    /// # Errors
    /// The exhausted resource. The acceptor backs off; the owner may free resources meanwhile.
    pub fn accept(
        &mut self,
        mut on_accepted: impl FnMut(Socket, SocketAddr) -> bool,
    ) -> Result<(), ResourceExhausted> {
        // The retry of a thread without the accept mutex: it accepts anyway, since the holder may be stuck.
        let is_retry = matches!(self.state, State::AwaitsMutex(_));
        if !self.watch() && !is_retry {
            return Ok(());
        }
        // A retry is no event of the listener: its timer fires whether a connection is queued or not.
        self.reactor.stats().accept_wakes.add(u64::from(!is_retry));
        self.quiet_passes = 0;
        // More may be queued than are accepted. The watch is level triggered, so the next pass reports them.
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
                        self.pause();
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
            // A failure of every accept, such as a security policy that forbids it, would be reported for
            // ever.
            self.back_off(BACKOFF);
        } else if has_handed_off {
            // The kernel wakes the first in its wait queue. A thread with more load than others moves to the
            // tail (see `handoff`).
            self.rewatch();
        }
        Ok(())
    }

    /// Sets when the first bytes of future connections are acknowledged.
    pub fn set_ack_mode(&self, first_ack: AckMode) {
        self.listener.set_ack_mode(first_ack);
    }

    /// Accepts nothing until [`Acceptor::resume`]: the owner has no capacity for a connection.
    pub fn pause(&mut self) {
        // Before the mutex is released, so that no thread yields to this one.
        self.reactor.stats().is_full.set(1);
        if matches!(self.state, State::Paused) {
            return;
        }
        self.set(State::Paused);
        let shared = self.shared();
        let leaves_pending = if shared.strategy.uses_accept_mutex() {
            // Pairs with the fence of `WorkerHandle::wake_another`. A thread that yielded to this one, while
            // this one had capacity, has seen the mutex free; so this load sees it too.
            fence(Ordering::SeqCst);
            shared.accept_mutex.is_free()
        } else if shared.strategy.trigger() == Trigger::LevelReadExclusive {
            // The kernel may have woken this thread alone for a connection, and will not wake another.
            shared.accept_pending.store(true, Ordering::Relaxed);
            true
        } else {
            false
        };
        // Also wakes threads that have made their last check before a sleep: this thread will not accept.
        if leaves_pending {
            self.worker.wake_others_with_capacity();
        }
    }

    /// Continues after [`Acceptor::pause`], or after `on_accepted` returned false.
    pub fn resume(&mut self) {
        self.reactor.stats().is_full.set(0);
        if matches!(self.state, State::Paused) && self.closes_at.is_none() {
            self.watch();
        }
    }

    /// Tries to lock the accept mutex, if the strategy has one, and stops watching the listener until it
    /// succeeds. With an exclusive watch, accepts connections that a thread without capacity could not
    /// accept. To be called before each sleep.
    pub fn try_lock_accept_mutex(&mut self) {
        if self.can_accept_pending() && self.shared().accept_pending.swap(false, Ordering::Relaxed) {
            // A new registration reports queued connections.
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
            // A retry that stopped at its bound left connections queued, whichever thread holds the mutex.
            let after = if self.may_have_more { Duration::ZERO } else { ACCEPT_MUTEX_DELAY };
            let retry = self.reactor.arm(self.reactor.now() + after, WakeTarget::Token(self.token));
            self.set(State::AwaitsMutex(Some(retry)));
        }
    }

    /// Whether connections or the mutex have become available to this thread since
    /// [`Acceptor::try_lock_accept_mutex`], which then has to be called again. To be called at the last check
    /// before a sleep: the thread to which this one yielded may be busy or asleep by now.
    pub fn has_pending(&self) -> bool {
        let is_free = !self.holds_mutex && self.competes_for_mutex() && self.shared().accept_mutex.is_free();
        let has_to_take = is_free && !(self.yielded && mutex::wake_less_loaded(&self.worker));
        has_to_take || self.can_accept_pending()
    }

    /// Unlocks the accept mutex, if this thread holds it. To be called after the connections of a pass are
    /// accepted and before they are served. If connections are queued, or would wait long for this thread's
    /// next pass, another thread is woken to lock it, unless one is awake already.
    pub fn unlock_accept_mutex(&mut self) {
        let is_slow = self.reactor.stats().pass_length() > PROMPT_PASS_MAX;
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

    /// Retires the listener: no client can begin a connection any more, and `on_accepted` gets those that are
    /// queued. Returns true when none is left, so that the acceptor may be dropped. On false it has to be
    /// called again at the next event with this acceptor's token: pending handshakes have `LAST_ACK_GRACE`
    /// to complete, and descriptors may be exhausted.
    ///
    /// Where several threads share the socket, each has to retire its acceptor; the last one closes the
    /// socket.
    pub fn retire(&mut self, mut on_accepted: impl FnMut(Socket, SocketAddr)) -> bool {
        let closes_at = *self.closes_at.get_or_insert_with(|| {
            // On ENOMEM, late handshakes are reset by the close.
            let _ = self.listener.stop_queueing();
            self.reactor.now() + LAST_ACK_GRACE
        });
        for count in 1..=RETIRE_ACCEPTS_MAX {
            match self.accept_one() {
                AcceptOutcome::Connection(socket, peer) => on_accepted(socket, peer),
                // An endless series of aborted connections would keep the listener open.
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
        self.shared.as_ref().expect("`shared` is taken only by the drop")
    }

    /// How many connections one event may bring: fewer while passes are long.
    fn accepts_max(&self) -> u32 {
        let max = self.shared().strategy.accepts_per_wake_max();
        let pass = self.reactor.stats().pass_length().max(PROMPT_PASS_MAX);
        let count = u64::from(max) * PROMPT_PASS_MAX.as_nanos() as u64 / pass.as_nanos() as u64;
        u32::try_from(count).unwrap_or(max).max(max / SHARE_MIN).max(1)
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
                self.reactor.stats().exhausted[resource as usize].add(1);
                self.reactor.stats().record_exhausted(resource, self.reactor.now());
                AcceptOutcome::Exhausted(resource)
            }
        }
    }

    /// Hands the connection to the thread that the strategy names. Returns it if that is this thread, or if
    /// the other's queue is full.
    fn hand_off(&self, socket: Socket, peer: SocketAddr) -> Option<(Socket, SocketAddr)> {
        let shared = self.shared();
        let stats = self.reactor.stats();
        let to = shared.strategy.serving_thread(&self.worker, self.reactor.now());
        let mut connection = HandedOffConnection { socket, peer, listener_id: shared.listener_id };
        if to != self.worker.number() {
            match self.worker.hand_off(to, connection) {
                Ok(()) => {
                    stats.handed_off.add(1);
                    return None;
                }
                Err(rejected) => connection = rejected,
            }
        }
        // The owner sets the number at the end of the pass; until then this counts.
        stats.connections.add(1);
        Some((connection.socket, connection.peer))
    }

    /// Watches the listener, if its state allows that. Returns whether it is watched.
    fn watch(&mut self) -> bool {
        if self.shared().strategy.uses_accept_mutex() && !self.holds_mutex {
            self.set(State::AwaitsMutex(None));
            return false;
        }
        if let State::Watching(_) = self.state {
            return true;
        }
        if self.try_watch().is_err() {
            // ENOMEM or ENOSPC.
            self.back_off(LONG_BACKOFF);
        }
        matches!(self.state, State::Watching(_))
    }

    fn try_watch(&mut self) -> std::io::Result<()> {
        let trigger = self.shared().strategy.trigger();
        let key = self.reactor.watch(&self.listener, trigger, WakeTarget::Token(self.token))?;
        self.set(State::Watching(key));
        Ok(())
    }

    /// Registers the listener again: at the tail of the wait queue, and with a report of queued connections.
    fn rewatch(&mut self) {
        self.set(State::Paused);
        self.watch();
    }

    /// Stops watching for a while. A connection that cannot be accepted stays queued, and a level-triggered
    /// watch would report it for ever.
    fn back_off(&mut self, length: Duration) {
        let timer = self.reactor.arm(self.reactor.now() + length, WakeTarget::Token(self.token));
        self.set(State::Backoff(timer));
    }

    fn set(&mut self, state: State) {
        match std::mem::replace(&mut self.state, state) {
            // Fails only for a socket that is not registered.
            State::Watching(key) => drop(self.reactor.unwatch(&self.listener, key)),
            State::Backoff(timer) | State::AwaitsMutex(Some(timer)) => self.reactor.cancel(timer),
            State::AwaitsMutex(None) | State::Paused => {}
        }
        if !matches!(self.state, State::Watching(_)) {
            self.release_mutex();
        }
    }

    /// Whether this thread should accept connections that a thread without capacity left behind.
    fn can_accept_pending(&self) -> bool {
        matches!(self.state, State::Watching(_))
            && self.shared().accept_pending.load(Ordering::Relaxed)
            && self.closes_at.is_none()
            && self.reactor.stats().is_full.value() == 0
    }

    /// Whether it tries to lock the accept mutex: it has capacity and is not retired.
    fn competes_for_mutex(&self) -> bool {
        self.shared().strategy.uses_accept_mutex()
            && self.closes_at.is_none()
            && matches!(self.state, State::Watching(_) | State::AwaitsMutex(_))
    }

    /// Unlocks the mutex for any thread. An acceptor that accepted without the mutex keeps `may_have_more`,
    /// also over a backoff or a pause.
    fn release_mutex(&mut self) {
        if std::mem::take(&mut self.holds_mutex) {
            self.may_have_more = false;
            self.shared().accept_mutex.unlock();
        }
    }
}

/// The backoff after `resource` was exhausted.
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
        // Threads that have dropped their acceptors may wait for this (`ListenerLiveness`).
        self.worker.wake_all();
    }
}

/// The result of one accept(2).
enum AcceptOutcome {
    Connection(Socket, SocketAddr),
    /// No connection is queued.
    Empty,
    /// The next connection was aborted.
    Aborted,
    /// A connection is queued, but cannot be accepted now.
    Exhausted(ResourceExhausted),
}
