//! Accept strategies: how a listening address's connections reach the reactors.
//!
//! Promises: each connection has one owner at a time, and reaches exactly one thread; an accept loop never
//! spins, not on EMFILE and its kin either: it rests and tries again; a thread that lags takes fewer at a
//! time; a listener that is retired is drained before it is closed. Leaves to others: how many connections
//! there may be (`limits` of the gateway), and what they are for.
//!
//! | strategy     | sockets        | who is woken by a connection       | who serves it             | good at                        | weak at                                                      |
//! |--------------|----------------|------------------------------------|---------------------------|--------------------------------|--------------------------------------------------------------|
//! | `shared`     | one            | every thread that sleeps           | the fastest               | nothing: it is the herd        | wakes for nothing, more with each thread                     |
//! | `mutex`      | one            | whoever has the turn               | the same                  | CPU time: few wakes, batches   | waits for a turn's holder who gets stuck unforeseen          |
//! | `exclusive`  | one            | the first registered that sleeps   | the same                  | never waits for one thread     | light load gathers on the first thread, for good if it stays |
//! | `reuse_port` | one per thread | the thread that the hash picks     | the same                  | no thread touches another's    | a busy thread's queue waits for it; balance is luck          |
//! | `handoff`    | one            | the first registered that sleeps   | the least loaded of three | balance, also of long tunnels  | a wake more where the thread that serves slept               |
//!
//! Where the facts come from: the kernel adds an `EPOLLEXCLUSIVE` watch at the tail of the socket's wait
//! queue and walks it from the head (fs/eventpoll.c), so the first registered wins, not the last one to
//! sleep; `SO_REUSEPORT` picks a socket by a hash of addresses and ports when the SYN arrives
//! (sock_reuseport.c). The turn is nginx's `accept_mutex`, with a retry and a standing back of who has many
//! already; handing over to the less loaded of two samples and oneself is HAProxy's (listener.c). Each of
//! them is what `lab accept` measures.

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

/// A way to spread an address's connections over threads. An implementation decides how sockets are made and
/// watched, by whom, how many connections a thread takes at a time, and who serves them; the rest is the same
/// for all, and so is the suite of tests.
///
/// What it must keep: every listener of [`Strategy::listen`] can be watched on a thread of its own, and a
/// connection that arrives at the address wakes at least one thread that may accept it, at the latest after
/// [`mutex::ACCEPT_MUTEX_DELAY`].
pub trait Strategy: Send + Sync {
    /// The name under which the configuration selects it.
    fn name(&self) -> &'static str;

    /// Listens on `address` for `threads` threads: one listener for each, all on the same port. Whether they
    /// are to share it is the strategy's to say, and not of `options`. Unless it says otherwise, they are
    /// descriptors of one socket.
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

    /// The most connections that a thread takes before it looks at its other work.
    fn accepts_per_wake_max(&self) -> u32;

    /// Whether only the thread whose turn it is watches the address.
    fn uses_accept_mutex(&self) -> bool {
        false
    }

    /// The number of the thread that is to serve a connection which `seat`'s thread accepts now.
    fn serving_thread(&self, worker: &WorkerHandle, _now: Nanos) -> usize {
        worker.number()
    }
}

/// The strategy of that name.
pub fn strategy(name: &str) -> Option<&'static dyn Strategy> {
    STRATEGIES.iter().copied().find(|strategy| strategy.name() == name)
}

/// All strategies.
pub const STRATEGIES: &[&dyn Strategy] =
    &[&shared::Shared, &mutex::Mutex, &exclusive::Exclusive, &reuse_port::ReusePort, &handoff::Handoff];

/// Listens on `address` by `strategy`: an entrance for each of `threads` threads. `door` is the number by
/// which the threads know the address among themselves.
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

/// A listening address as its entrances share it.
struct SharedListener {
    strategy: &'static dyn Strategy,
    listener_id: u32,
    /// Whose turn it is to accept, where threads take turns.
    accept_mutex: AcceptMutex,
    /// Whether a thread without place was told of who waits, while the kernel tells one thread only: another
    /// one has to look.
    accept_pending: AtomicBool,
}

/// One thread's part of a listening address, on its way to that thread.
pub struct ListenerHandle {
    listener: Listener,
    shared: Arc<SharedListener>,
}

impl ListenerHandle {
    /// The address listened on, with the port that the kernel chose if port 0 was asked for.
    ///
    /// # Errors
    /// `ENOBUFS`.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.listener.local()
    }

    /// The number that was given to [`listen`].
    pub fn door(&self) -> u32 {
        self.shared.listener_id
    }

    /// A look at all entrances of the address that does not keep them open.
    pub fn liveness(&self) -> ListenerLiveness {
        ListenerLiveness(Arc::downgrade(&self.shared))
    }
}

/// Tells whether any thread still accepts at an address.
#[derive(Debug)]
pub struct ListenerLiveness(Weak<SharedListener>);

impl ListenerLiveness {
    /// Whether every thread's end of the address is closed: nobody can hand over a connection of it any more
    /// (see [`WorkerHandle::take`]), though some may wait that were handed over before. The last one that
    /// closes his wakes all threads; one that waits for it has to look once more on its way to sleep.
    pub fn are_closed(&self) -> bool {
        let are_closed = self.0.strong_count() == 0;
        // The count is read without any order. What was handed over before the last end was closed has to be
        // seen by who looks for it next: the drops release, this acquires.
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
