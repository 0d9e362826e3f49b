//! Accept strategies: how the connections of a listener reach the reactors.
//!
//! Guarantees: each connection has one owner at a time and reaches exactly one thread. An accept loop never
//! spins, not even on EMFILE: it backs off and tries again. A lagging thread accepts fewer connections at a
//! time. A retired listener is drained before it is closed.
//!
//! Not handled here: the number of connections allowed (`limits` of the gateway).
//!
//! | strategy     | sockets        | a connection wakes                 | the serving thread        | good at                        | weak at                                                      |
//! |--------------|----------------|------------------------------------|---------------------------|--------------------------------|--------------------------------------------------------------|
//! | `shared`     | one            | every sleeping thread              | the fastest               | nothing: a thundering herd     | useless wakes, more with each thread                         |
//! | `mutex`      | one            | the holder of the accept mutex     | the same                  | CPU time: few wakes, batches   | waits for a holder that gets stuck unexpectedly              |
//! | `exclusive`  | one            | the first registered that sleeps   | the same                  | never waits for one thread     | light load gathers on the first thread, for good if it stays |
//! | `reuse_port` | one per thread | the thread that the hash selects   | the same                  | no thread touches another's    | a busy thread's queue waits for it; balance is luck          |
//! | `handoff`    | one            | the first registered that sleeps   | the least loaded of three | balance, also of long tunnels  | one more wake where the serving thread slept                 |
//!
//! Sources: the kernel adds an `EPOLLEXCLUSIVE` waiter at the tail of the socket's wait queue and walks it
//! from the head (fs/eventpoll.c). So the first registered thread wins, not the last one to sleep.
//! `SO_REUSEPORT` selects a socket by a hash of addresses and ports when the SYN arrives (sock_reuseport.c).
//!
//! The accept mutex is nginx's `accept_mutex`, with a retry, and with overloaded threads yielding. Handing
//! off to the least loaded of two samples and oneself is HAProxy's way (listener.c). `lab accept` measures
//! all five.

mod acceptor;
mod exclusive;
mod handoff;
mod mutex;
mod reuse_port;
mod shared;
mod worker_group;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};

use sys::clock::Nanos;
use sys::epoll::Trigger;
use sys::socket::{ListenOptions, Listener};

pub use acceptor::Acceptor;
pub use worker_group::{HandedOffConnection, WorkerHandle, worker_group};

use mutex::AcceptMutex;

/// A way to spread the connections of a listener over threads. An implementation decides how sockets are
/// created and watched, by which threads, how many connections a thread accepts at a time, and which thread
/// serves them. The rest is common to all, and so is the test suite.
///
/// Requirements: a thread can watch every listener of [`Strategy::listen`] on its own. A connection wakes at
/// least one thread that may accept it, at the latest after `mutex::ACCEPT_MUTEX_DELAY`.
pub trait Strategy: Send + Sync {
    /// The name that selects it in the configuration.
    fn name(&self) -> &'static str;

    /// Listens on `address` for `threads` threads: one listener for each, all on the same port. The strategy,
    /// not `options`, decides whether they share the port by `SO_REUSEPORT`. By default they are descriptors
    /// of one socket.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EACCES`, `EADDRNOTAVAIL`, `EMFILE`.
    fn listen(
        &self,
        address: SocketAddr,
        options: ListenOptions,
        threads: usize,
    ) -> io::Result<Vec<Listener>> {
        let first = Listener::bind(address, options)?;
        let mut listeners = (1..threads).map(|_| first.try_clone()).collect::<io::Result<Vec<_>>>()?;
        listeners.push(first);
        Ok(listeners)
    }

    /// How a thread watches its listener.
    fn trigger(&self) -> Trigger;

    /// The most connections that a thread accepts before it does its other work.
    fn accepts_per_wake_max(&self) -> u32;

    /// Whether only the holder of the accept mutex watches the listener.
    fn uses_accept_mutex(&self) -> bool {
        false
    }

    /// The number of the thread that is to serve a connection which `worker`'s thread accepts now.
    fn serving_thread(&self, worker: &WorkerHandle, _now: Nanos) -> usize {
        worker.number()
    }
}

/// The strategy with this name.
pub fn strategy(name: &str) -> Option<&'static dyn Strategy> {
    STRATEGIES.iter().copied().find(|strategy| strategy.name() == name)
}

/// All strategies.
pub const STRATEGIES: &[&dyn Strategy] =
    &[&shared::Shared, &mutex::Mutex, &exclusive::Exclusive, &reuse_port::ReusePort, &handoff::Handoff];

/// Listens on `address` by `strategy`: one handle for each of `threads` threads. The threads identify the
/// listener by `listener_id` among themselves.
///
/// # Errors
/// As [`Strategy::listen`].
pub fn listen(
    strategy: &'static dyn Strategy,
    address: SocketAddr,
    options: ListenOptions,
    threads: usize,
    listener_id: u32,
) -> io::Result<Vec<ListenerHandle>> {
    let shared = Arc::new(SharedListener {
        strategy,
        listener_id,
        accept_mutex: AcceptMutex::default(),
        accept_pending: AtomicBool::new(false),
    });
    let listeners = strategy.listen(address, options, threads)?;
    assert_eq!(listeners.len(), threads, "a listener for each thread");
    let to_handle = |listener| ListenerHandle { listener, shared: Arc::clone(&shared) };
    Ok(listeners.into_iter().map(to_handle).collect())
}

/// The part of a listener that its handles share.
struct SharedListener {
    strategy: &'static dyn Strategy,
    listener_id: u32,
    /// Used by strategies with [`Strategy::uses_accept_mutex`].
    accept_mutex: AcceptMutex,
    /// Set when the kernel woke one thread alone, and that thread has no capacity: another thread has to
    /// accept.
    accept_pending: AtomicBool,
}

/// One thread's handle of a listener, on its way to that thread.
pub struct ListenerHandle {
    listener: Listener,
    shared: Arc<SharedListener>,
}

impl ListenerHandle {
    /// The listening address, with the port that the kernel chose if port 0 was requested.
    ///
    /// # Errors
    /// `ENOBUFS`.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.listener.local()
    }

    /// The id that was given to [`listen`].
    pub fn listener_id(&self) -> u32 {
        self.shared.listener_id
    }

    /// Observes all handles of the listener without keeping them open.
    pub fn liveness(&self) -> ListenerLiveness {
        ListenerLiveness(Arc::downgrade(&self.shared))
    }
}

/// Reports whether any thread still accepts at a listener.
#[derive(Debug)]
pub struct ListenerLiveness(Weak<SharedListener>);

impl ListenerLiveness {
    /// Whether every thread has closed its handle. Then no thread can hand off a connection of the listener
    /// any more (see [`WorkerHandle::take`]), though earlier hand-offs may still be queued. The last drop
    /// wakes all threads; a thread that waits for it has to check once more before it sleeps.
    pub fn all_closed(&self) -> bool {
        let are_closed = self.0.strong_count() == 0;
        // The count is read without ordering. A hand-off that precedes the last drop must be visible to a
        // later check: the drops release, this fence acquires.
        fence(Ordering::Acquire);
        are_closed
    }
}

impl std::fmt::Debug for SharedListener {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SharedListener").field("strategy", &self.strategy.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
