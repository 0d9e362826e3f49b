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
use super::worker_group::PROMPT_TURN_MAX;
use super::{HandedOffConnection, ListenerHandle, SharedListener, WorkerHandle};
use crate::reactor::{RawToken, Reactor, WakeTarget};
use crate::slab::Key;
use crate::timer::wheel::TimerId;

/// How long an acceptor rests when descriptors of the process are used up. Long enough that the loop costs
/// nothing, short enough that a freed descriptor is found before a client gives up.
const REST: Duration = Duration::from_millis(20);

/// How long when the machine's descriptors or memory are: what others use up comes back more slowly, and each
/// attempt asks for more of it.
const LONG_REST: Duration = Duration::from_millis(100);

/// While turns of the loop take longer than [`PROMPT_TURN_MAX`], fewer connections are taken at a time, for
/// those that are there wait for the end of the turn; but not less than this part of what the strategy takes:
/// who waits in the kernel's queue is served too.
const SHARE_MIN: u32 = 8;

/// Turns in a row that brought no connection, after which whoever has the turn at an address keeps it for as
/// long as it is quick: with many quiet addresses each thread would pass all of them on before each sleep, by
/// two calls for each.
const QUIET_TURNS: u32 = 64;

/// Connections that a retired listener hands over at a time.
const RETIRE_ACCEPTS_MAX: u32 = 4_096;

/// How long a retired listener stays for the last packet of handshakes that have begun: longer than most
/// round trips.
const LAST_ACKS: Duration = Duration::from_millis(200);

/// See the file's header.
pub struct Acceptor {
    reactor: Rc<Reactor>,
    seat: Rc<WorkerHandle>,
    listener: Listener,
    /// What it shares with the other threads' ends; gone when it is dropped.
    front: Option<Arc<SharedListener>>,
    tag: RawToken,
    state: State,
    /// Whether it has the turn, where threads take turns.
    has_turn: bool,
    /// Whether it left the turn to others when it last tried for it.
    stood_back: bool,
    /// Whether it took as many connections as it may at a time, when it last accepted: more may wait.
    left_some: bool,
    /// Turns in a row that brought no connection.
    quiet_turns: u32,
    /// When it may be closed, once it is retired.
    closes_at: Option<Nanos>,
}

/// When the acceptor looks for connections again.
enum State {
    /// At the next event of the listener.
    Watching(Key),
    /// When it gets the turn, for which it tries before each sleep; and when the timer is due, whoever has
    /// the turn.
    AwaitsTurn(Option<TimerId>),
    /// When the timer is due: a resource was used up.
    Resting(TimerId),
    /// When the owner says so: it has no place for a connection.
    Held,
}

impl Acceptor {
    /// Accepts at `entrance`; its events and timers come as wakes with `tag`.
    ///
    /// # Errors
    /// As [`Reactor::watch`].
    pub fn new(
        reactor: &Rc<Reactor>,
        seat: &Rc<WorkerHandle>,
        entrance: ListenerHandle,
        tag: RawToken,
    ) -> std::io::Result<Acceptor> {
        let ListenerHandle { listener, front } = entrance;
        let takes_turns = front.strategy.uses_accept_mutex();
        let mut acceptor = Acceptor {
            reactor: Rc::clone(reactor),
            seat: Rc::clone(seat),
            listener,
            front: Some(front),
            tag,
            state: if takes_turns { State::AwaitsTurn(None) } else { State::Held },
            has_turn: false,
            stood_back: false,
            left_some: false,
            quiet_turns: 0,
            closes_at: None,
        };
        if !takes_turns {
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
        mut accepted: impl FnMut(Socket, SocketAddr) -> bool,
    ) -> Result<(), ResourceExhausted> {
        // The retry of a thread that sleeps without the turn: it looks for who waits, since whoever has the
        // turn may be stuck.
        let is_retry = matches!(self.state, State::AwaitsTurn(_));
        if !self.watch() && !is_retry {
            return Ok(());
        }
        // A retry is no wake for the listener: the thread wakes for it whether somebody waits or not.
        self.reactor.stats().accept_wakes.add(u64::from(!is_retry));
        self.quiet_turns = 0;
        // More may wait than it takes. The watch is level triggered, so it reports that at the next turn.
        self.left_some = true;
        let (mut has_handed_over, mut are_all_gone) = (false, true);
        for _ in 0..self.accepts_max() {
            match self.next() {
                Next::Connection(socket, peer) => {
                    are_all_gone = false;
                    let Some((socket, peer)) = self.hand_over(socket, peer) else {
                        has_handed_over = true;
                        continue;
                    };
                    if !accepted(socket, peer) {
                        self.hold();
                        return Ok(());
                    }
                }
                Next::None => {
                    self.reactor.stats().accepts_empty.add(u64::from(!is_retry));
                    (self.left_some, are_all_gone) = (false, false);
                    break;
                }
                Next::Gone => {}
                Next::Later(shortage) => {
                    self.rest(rest_of(shortage));
                    return Err(shortage);
                }
            }
        }
        if are_all_gone {
            // What fails each time, for a policy of the kernel's forbids it say, would be reported for ever.
            self.rest(REST);
        } else if has_handed_over {
            // The kernel wakes whoever watches first: who has more to do than others watches anew, behind
            // them (see `handoff`).
            self.watch_anew();
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
        if matches!(self.state, State::Held) {
            return;
        }
        self.set(State::Held);
        let front = self.front();
        let leaves_some = if front.strategy.uses_accept_mutex() {
            // Pairs with the fence of `WorkerHandle::wake_another`: who stood back for this thread when it
            // still had place has seen the turn free, and so does this look.
            fence(Ordering::SeqCst);
            front.accept_mutex.is_free()
        } else if front.strategy.trigger() == Trigger::LevelReadExclusive {
            // The kernel may have told this thread alone of who waits, and will not tell another.
            front.accept_pending.store(true, Ordering::Relaxed);
            true
        } else {
            false
        };
        // Also who is on its way to sleep, and has looked for the last time: this thread does not come back.
        if leaves_some {
            self.seat.wake_others_with_capacity();
        }
    }

    /// Goes on after [`Acceptor::hold`], or after `accepted` had no place for another connection.
    pub fn resume(&mut self) {
        self.reactor.stats().is_full.set(0);
        if matches!(self.state, State::Held) && self.closes_at.is_none() {
            self.watch();
        }
    }

    /// Where threads take turns, tries to get this one's, or does without the socket until it comes; else
    /// looks after who was left to others by a thread without place. To be called before each sleep.
    pub fn take_turn(&mut self) {
        if self.may_heed() && self.front().accept_pending.swap(false, Ordering::Relaxed) {
            // A new watch reports who waits already.
            self.watch_anew();
        }
        if self.has_turn || !self.takes_part_in_turns() {
            return;
        }
        let attempt = self.front().accept_mutex.try_lock(&self.seat, self.reactor.now());
        self.stood_back = attempt == LockAttempt::Yielded;
        if attempt == LockAttempt::Acquired {
            self.has_turn = true;
            self.watch();
        } else if !matches!(self.state, State::AwaitsTurn(Some(_))) {
            // Behind a retry that brought as many as it may take more wait, whoever has the turn.
            let after = if self.left_some { Duration::ZERO } else { ACCEPT_MUTEX_DELAY };
            let retry = self.reactor.arm(self.reactor.now() + after, WakeTarget::Tag(self.tag));
            self.set(State::AwaitsTurn(Some(retry)));
        }
    }

    /// Whether others have left the address to this thread since [`Acceptor::take_turn`], so that it has to
    /// be called again; to be asked at the last look before a sleep. Whoever it stood back for may have
    /// something else to do by now, or sleep too.
    pub fn is_called(&self) -> bool {
        let is_free = !self.has_turn && self.takes_part_in_turns() && self.front().accept_mutex.is_free();
        let has_to_take = is_free && !(self.stood_back && mutex::wake_less_loaded(&self.seat));
        has_to_take || self.may_heed()
    }

    /// Gives the turn up, if this thread has it; to be called when what a sleep has brought is accepted, and
    /// before that is served. If connections wait, or would have to wait for long until this thread comes
    /// round, another is woken to take it, unless one comes round by itself.
    pub fn give_turn_up(&mut self) {
        let is_slow = self.reactor.stats().turn_length() > PROMPT_TURN_MAX;
        if !self.has_turn || self.quiet_turns >= QUIET_TURNS && !is_slow {
            return;
        }
        self.quiet_turns = self.quiet_turns.saturating_add(1);
        let left_some = self.left_some;
        self.drop_turn();
        if left_some || is_slow {
            self.seat.wake_another(u64::MAX, self.reactor.now());
        }
    }

    /// Retires the listener: nobody can begin a connection any more, and those who wait are handed to
    /// `accepted`. Answers whether that was all, so that the acceptor may be dropped. If it was not, it is to
    /// be called again at the next wake with this acceptor's tag: handshakes that are under way have
    /// [`LAST_ACKS`] to complete, and descriptors may be used up.
    ///
    /// Where several threads share the socket, each of them takes part and the last one closes it.
    pub fn retire(&mut self, mut accepted: impl FnMut(Socket, SocketAddr)) -> bool {
        let closes_at = *self.closes_at.get_or_insert_with(|| {
            // Without memory for it who comes at the last moment is reset by the close.
            let _ = self.listener.stop_queueing();
            self.reactor.now() + LAST_ACKS
        });
        for count in 1..=RETIRE_ACCEPTS_MAX {
            match self.next() {
                Next::Connection(socket, peer) => accepted(socket, peer),
                // What fails each time would keep the listener for ever.
                Next::Gone if count < RETIRE_ACCEPTS_MAX => {}
                Next::Gone | Next::None if self.reactor.now() < closes_at => {
                    self.rest(closes_at.since(self.reactor.now()));
                    return false;
                }
                Next::Gone | Next::None => {
                    self.set(State::Held);
                    return true;
                }
                Next::Later(_) => break,
            }
        }
        self.rest(REST);
        false
    }

    fn front(&self) -> &SharedListener {
        self.front.as_ref().expect("only the drop takes it")
    }

    /// As many connections as one wake may take: fewer where turns are long already.
    fn accepts_max(&self) -> u32 {
        let most = self.front().strategy.accepts_per_wake_max();
        let turn = self.reactor.stats().turn_length().max(PROMPT_TURN_MAX);
        let fewer = u64::from(most) * PROMPT_TURN_MAX.as_nanos() as u64 / turn.as_nanos() as u64;
        u32::try_from(fewer).unwrap_or(most).max(most / SHARE_MIN).max(1)
    }

    fn next(&self) -> Next {
        match self.listener.accept() {
            Ok((socket, peer)) => {
                self.reactor.stats().accepts.add(1);
                Next::Connection(socket, peer)
            }
            Err(AcceptError::Empty) => Next::None,
            Err(AcceptError::ThisConnection(_)) => Next::Gone,
            Err(AcceptError::Exhausted(shortage)) => {
                self.reactor.stats().shortages[shortage as usize].add(1);
                self.reactor.stats().note_shortage(shortage, self.reactor.now());
                Next::Later(shortage)
            }
        }
    }

    /// Hands the connection to the thread that the strategy names, unless that is this one, or is full.
    fn hand_over(&self, socket: Socket, peer: SocketAddr) -> Option<(Socket, SocketAddr)> {
        let front = self.front();
        let stats = self.reactor.stats();
        let to = front.strategy.server(&self.seat, self.reactor.now());
        let mut mine = HandedOffConnection { socket, peer, door: front.door };
        if to != self.seat.number() {
            match self.seat.hand_off(to, mine) {
                Ok(()) => {
                    stats.handed_over.add(1);
                    return None;
                }
                Err(back) => mine = back,
            }
        }
        // The owner tells how many there are at the end of the turn; until then this counts.
        stats.connections.add(1);
        Some((mine.socket, mine.peer))
    }

    /// Watches the listener, unless that has to wait; answers whether it is watched.
    fn watch(&mut self) -> bool {
        if self.front().strategy.uses_accept_mutex() && !self.has_turn {
            self.set(State::AwaitsTurn(None));
            return false;
        }
        if let State::Watching(_) = self.state {
            return true;
        }
        if self.try_watch().is_err() {
            // The kernel has no memory for it.
            self.rest(LONG_REST);
        }
        matches!(self.state, State::Watching(_))
    }

    fn try_watch(&mut self) -> std::io::Result<()> {
        let trigger = self.front().strategy.trigger();
        let key = self.reactor.watch(&self.listener, trigger, WakeTarget::Tag(self.tag))?;
        self.set(State::Watching(key));
        Ok(())
    }

    /// Watches the listener as if it had not before: behind all others, and told of who waits already.
    fn watch_anew(&mut self) {
        self.set(State::Held);
        self.watch();
    }

    /// Ends the watch for a while: a connection that cannot be taken stays queued, and a level-triggered
    /// watch would report it for ever.
    fn rest(&mut self, length: Duration) {
        let timer = self.reactor.arm(self.reactor.now() + length, WakeTarget::Tag(self.tag));
        self.set(State::Resting(timer));
    }

    fn set(&mut self, state: State) {
        match std::mem::replace(&mut self.state, state) {
            // It fails only for a socket that is not watched.
            State::Watching(key) => drop(self.reactor.unwatch(&self.listener, key)),
            State::Resting(timer) | State::AwaitsTurn(Some(timer)) => self.reactor.cancel(timer),
            State::AwaitsTurn(None) | State::Held => {}
        }
        if !matches!(self.state, State::Watching(_)) {
            self.drop_turn();
        }
    }

    /// Whether it is this thread that has to look after who was left to others.
    fn may_heed(&self) -> bool {
        matches!(self.state, State::Watching(_))
            && self.front().accept_pending.load(Ordering::Relaxed)
            && self.closes_at.is_none()
            && self.reactor.stats().is_full.value() == 0
    }

    /// Whether it tries for turns: where threads take them, while it has place and is not retired.
    fn takes_part_in_turns(&self) -> bool {
        self.front().strategy.uses_accept_mutex()
            && self.closes_at.is_none()
            && matches!(self.state, State::Watching(_) | State::AwaitsTurn(_))
    }

    /// Leaves the turn to whoever tries for it next. Who took some without it remembers that more wait, also
    /// over a rest or a time without place.
    fn drop_turn(&mut self) {
        if std::mem::take(&mut self.has_turn) {
            self.left_some = false;
            self.front().accept_mutex.unlock();
        }
    }
}

/// How long to leave a listener alone that met `shortage`.
fn rest_of(shortage: ResourceExhausted) -> Duration {
    match shortage {
        ResourceExhausted::Descriptors => REST,
        ResourceExhausted::SystemDescriptors | ResourceExhausted::Buffers | ResourceExhausted::Memory => {
            LONG_REST
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.set(State::Held);
        self.front = None;
        // Whoever has closed his end before may wait for this (`ListenerLiveness::are_closed`).
        self.seat.wake_all();
    }
}

/// What one accept gave.
enum Next {
    Connection(Socket, SocketAddr),
    /// No connection waits.
    None,
    /// The connection that was next is gone.
    Gone,
    /// Nothing can be taken now, though somebody waits.
    Later(ResourceExhausted),
}
