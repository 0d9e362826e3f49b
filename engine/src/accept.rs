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

use sys::epoll::Trigger;
use sys::socket::{AcceptError, Listener, Socket};

use crate::reactor::{Reactor, Tag, Waiter};
use crate::slab::Key;
use crate::timer::wheel::TimerId;

/// How long an acceptor rests when descriptors or memory are used up. Long enough that the loop costs
/// nothing, short enough that a freed descriptor is found before a client gives up.
const REST: Duration = Duration::from_millis(20);

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
        Ok(Acceptor { reactor: Rc::clone(reactor), listener, strategy, tag, state: State::Watching(key) })
    }

    /// Takes connections that wait, as many as the strategy lets a thread take at a time, while `accepted`
    /// answers that there is place for another. To be called when a wake with this acceptor's tag comes.
    ///
    /// # Errors
    /// As [`Reactor::watch`], when the watch has to be renewed.
    pub fn accept(&mut self, mut accepted: impl FnMut(Socket, SocketAddr) -> bool) -> io::Result<()> {
        self.watch()?;
        for _ in 0..self.strategy.accepts_per_wake_max() {
            match self.listener.accept() {
                Ok((socket, peer)) => {
                    self.reactor.stats().accepts.add(1);
                    if !accepted(socket, peer) {
                        return self.stop_watching(State::Held);
                    }
                }
                Err(AcceptError::Empty) => {
                    self.reactor.stats().accepts_empty.add(1);
                    return Ok(());
                }
                Err(AcceptError::ThisConnection(_)) => {}
                Err(AcceptError::Exhausted(_)) => return self.rest(),
            }
        }
        // More may wait. The watch is level triggered, so it reports that at the next turn.
        Ok(())
    }

    /// Takes nothing until [`Acceptor::resume`]: the owner has no place for a connection.
    ///
    /// # Errors
    /// None on a listener that is watched.
    pub fn hold(&mut self) -> io::Result<()> {
        match self.state {
            State::Watching(_) => self.stop_watching(State::Held),
            State::Resting(timer) => {
                self.reactor.cancel(timer);
                self.state = State::Held;
                Ok(())
            }
            State::Held => Ok(()),
        }
    }

    /// Goes on after [`Acceptor::hold`], or after `accepted` had no place for another connection.
    ///
    /// # Errors
    /// As [`Reactor::watch`].
    pub fn resume(&mut self) -> io::Result<()> {
        if matches!(self.state, State::Held) { self.watch() } else { Ok(()) }
    }

    /// Retires the listener: lets nobody queue up any more, hands those who wait to `accepted`, and closes.
    /// Where several threads share the socket, each of them takes part and the last one closes it.
    pub fn retire(self, mut accepted: impl FnMut(Socket, SocketAddr)) {
        // Both can fail only for a socket that does not listen, which then has nobody waiting either.
        let _ = self.listener.stop_queueing();
        while let Ok((socket, peer)) = self.listener.accept() {
            self.reactor.stats().accepts.add(1);
            accepted(socket, peer);
        }
        match self.state {
            State::Watching(key) => drop(self.reactor.unwatch(&self.listener, key)),
            State::Resting(timer) => self.reactor.cancel(timer),
            State::Held => {}
        }
    }

    fn watch(&mut self) -> io::Result<()> {
        if let State::Watching(_) = self.state {
            return Ok(());
        }
        if let State::Resting(timer) = self.state {
            self.reactor.cancel(timer);
        }
        // Held first: should the watch fail, the owner's next resume tries again.
        self.state = State::Held;
        let key = self.reactor.watch(&self.listener, self.strategy.trigger(), Waiter::Tag(self.tag))?;
        self.state = State::Watching(key);
        Ok(())
    }

    fn rest(&mut self) -> io::Result<()> {
        self.reactor.stats().accepts_exhausted.add(1);
        // The connection stays queued and a level-triggered watch would report it for ever, so the
        // watch ends until the timer.
        let timer = self.reactor.arm(self.reactor.now() + REST, Waiter::Tag(self.tag));
        self.stop_watching(State::Resting(timer))
    }

    fn stop_watching(&mut self, state: State) -> io::Result<()> {
        match std::mem::replace(&mut self.state, state) {
            State::Watching(key) => self.reactor.unwatch(&self.listener, key),
            State::Resting(_) | State::Held => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
