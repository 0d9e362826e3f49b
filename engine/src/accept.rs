//! Accept strategies: how a listening address's connections reach the reactors.
//!
//! Promises: each connection has one owner, the thread that accepted it; an accept loop never spins, not
//! on EMFILE and its kin either: it rests and tries again; a listener that is retired is drained before it
//! is closed. Leaves to others: how many connections there may be (`limits` of the gateway).
//!
//! | strategy     | sockets        | who is woken                   | good at                 | weak at                                         |
//! |--------------|----------------|--------------------------------|-------------------------|-------------------------------------------------|
//! | `reuse_port` | one per thread | the thread that the hash picks | many short connections  | a busy thread's queue waits for it              |
//! | `exclusive`  | one for all    | the first thread that is idle  | never waits for one thread | light load gathers on the thread registered first |

mod exclusive;
mod reuse_port;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use sys::clock::Nanos;
use sys::epoll::Trigger;
use sys::socket::{AcceptError, Listener, Socket};

use crate::reactor::{Reactor, Tag, Waiter};
use crate::slab::Key;
use crate::timer::wheel::TimerId;

/// How long an acceptor rests when descriptors or memory are used up. Long enough that the loop costs
/// nothing, short enough that a freed descriptor is found before a client gives up.
const REST: Duration = Duration::from_millis(20);

/// Connections that a retired listener hands over at a time.
const RETIRE_ACCEPTS_MAX: u32 = 4_096;

/// How long a retired listener stays for the last packet of handshakes that have begun: longer than most
/// round trips.
const LAST_ACKS: Duration = Duration::from_millis(200);

/// A way to spread an address's connections over threads. An implementation decides how sockets are made
/// and watched, and how many connections a thread takes per wake; the rest is the same for all.
pub trait Strategy: Send + Sync {
    /// The name under which the configuration selects it.
    fn name(&self) -> &'static str;

    /// Listens on `address` for `threads` threads: one listener for each, all on the same port.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EACCES`, `EADDRNOTAVAIL`, `EMFILE`.
    fn listen(&self, address: SocketAddr, backlog: u32, threads: usize) -> io::Result<Vec<Listener>>;

    /// How a thread watches its listener.
    fn trigger(&self) -> Trigger;

    /// The most connections that a thread takes before it looks at its other work.
    fn accepts_per_wake_max(&self) -> u32;
}

/// The strategy of that name.
pub fn strategy(name: &str) -> Option<&'static dyn Strategy> {
    STRATEGIES.iter().copied().find(|strategy| strategy.name() == name)
}

/// All strategies; the first is the default.
pub const STRATEGIES: &[&dyn Strategy] = &[&reuse_port::ReusePort, &exclusive::Exclusive];

/// One thread's end of a listening address.
pub struct Acceptor {
    reactor: Rc<Reactor>,
    listener: Listener,
    strategy: &'static dyn Strategy,
    tag: Tag,
    state: State,
    /// When it may be closed, once it is retired.
    closes_at: Option<Nanos>,
}

/// When the acceptor looks for connections again.
enum State {
    /// At the next event of the listener.
    Watching(Key),
    /// When the timer is due: a resource was used up.
    Resting(TimerId),
    /// When the owner says so: it has no place for a connection.
    Held,
}

impl Acceptor {
    /// Watches `listener`; its events and timers come as wakes with `tag`.
    ///
    /// # Errors
    /// As [`Reactor::watch`].
    pub fn new(
        reactor: &Rc<Reactor>,
        listener: Listener,
        strategy: &'static dyn Strategy,
        tag: Tag,
    ) -> io::Result<Acceptor> {
        let key = reactor.watch(&listener, strategy.trigger(), Waiter::Tag(tag))?;
        let (reactor, state) = (Rc::clone(reactor), State::Watching(key));
        Ok(Acceptor { reactor, listener, strategy, tag, state, closes_at: None })
    }

    /// Takes connections that wait, as many as the strategy lets a thread take at a time, while `accepted`
    /// answers that there is place for another. To be called when a wake with this acceptor's tag comes.
    pub fn accept(&mut self, mut accepted: impl FnMut(Socket, SocketAddr) -> bool) {
        self.watch();
        for _ in 0..self.strategy.accepts_per_wake_max() {
            match self.next() {
                Next::Connection(socket, peer) => {
                    if !accepted(socket, peer) {
                        return self.set(State::Held);
                    }
                }
                Next::None => {
                    self.reactor.stats().accepts_empty.add(1);
                    return;
                }
                Next::Gone => {}
                Next::Later => return self.rest(),
            }
        }
        // More may wait. The watch is level triggered, so it reports that at the next turn.
    }

    /// Takes nothing until [`Acceptor::resume`]: the owner has no place for a connection.
    pub fn hold(&mut self) {
        self.set(State::Held);
    }

    /// Goes on after [`Acceptor::hold`], or after `accepted` had no place for another connection.
    pub fn resume(&mut self) {
        if matches!(self.state, State::Held) {
            self.watch();
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
        for _ in 0..RETIRE_ACCEPTS_MAX {
            match self.next() {
                Next::Connection(socket, peer) => accepted(socket, peer),
                Next::Gone => {}
                Next::None if self.reactor.now() < closes_at => {
                    self.rest_until(closes_at);
                    return false;
                }
                Next::None => {
                    self.set(State::Held);
                    return true;
                }
                Next::Later => break,
            }
        }
        self.rest();
        false
    }

    fn next(&self) -> Next {
        match self.listener.accept() {
            Ok((socket, peer)) => {
                self.reactor.stats().accepts.add(1);
                Next::Connection(socket, peer)
            }
            Err(AcceptError::Empty) => Next::None,
            Err(AcceptError::ThisConnection(_)) => Next::Gone,
            Err(AcceptError::Exhausted(_)) => {
                self.reactor.stats().accepts_exhausted.add(1);
                Next::Later
            }
        }
    }

    fn watch(&mut self) {
        if let State::Watching(_) = self.state {
            return;
        }
        match self.reactor.watch(&self.listener, self.strategy.trigger(), Waiter::Tag(self.tag)) {
            Ok(key) => self.set(State::Watching(key)),
            // The kernel has no memory for it.
            Err(_) => self.rest(),
        }
    }

    /// Ends the watch for a while: a connection that cannot be taken stays queued, and a level-triggered
    /// watch would report it for ever.
    fn rest(&mut self) {
        self.rest_until(self.reactor.now() + REST);
    }

    fn rest_until(&mut self, end: Nanos) {
        let timer = self.reactor.arm(end, Waiter::Tag(self.tag));
        self.set(State::Resting(timer));
    }

    fn set(&mut self, state: State) {
        match std::mem::replace(&mut self.state, state) {
            // It fails only for a socket that is not watched.
            State::Watching(key) => drop(self.reactor.unwatch(&self.listener, key)),
            State::Resting(timer) => self.reactor.cancel(timer),
            State::Held => {}
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.set(State::Held);
    }
}

/// What one accept gave.
enum Next {
    Connection(Socket, SocketAddr),
    /// Nobody waits.
    None,
    /// The connection that was next is gone.
    Gone,
    /// Nothing can be taken now, though somebody waits.
    Later,
}

#[cfg(test)]
mod tests;
