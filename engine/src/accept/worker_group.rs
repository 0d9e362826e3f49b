//! A worker group: the reactor threads that share listeners, as each of them sees the others.
//!
//! Guarantees: another thread's load is read from counters that it publishes anyway, without waiting. A
//! handed-off connection has one owner at every moment: the sender, the queue, or the receiver. A full queue
//! returns the connection to the sender.
//!
//! Not handled here: the choice of a thread (`handoff`, `mutex`).

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sys::clock::Nanos;
use sys::mailbox::{Receiver, Sender, mailbox};
use sys::socket::Socket;
use sys::sync::atomic::{Ordering, fence};

use crate::inbox::Notifier;
use crate::stats::ReactorStats;

/// Connections that may be queued for a thread. HAProxy's accept ring has the same size; smaller ones
/// overflow in bursts.
const HANDOFFS_QUEUED_MAX: usize = 256;

/// A lag of this length counts as one more connection.
const LAG_PER_CONNECTION: Duration = Duration::from_micros(100);

/// The most connections that a thread's lag can count for: lag comes and goes, but tunnels that were assigned
/// by it stay.
pub(super) const LAG_CONNECTIONS_MAX: u64 = 8;

/// A pass that is no longer than this delays no connection noticeably.
pub(super) const PROMPT_PASS_MAX: Duration = Duration::from_millis(1);

/// A thread whose pass takes longer counts as stuck: connections handed off to it wait, and cannot be taken
/// back.
const STUCK_LAG_MIN: Duration = Duration::from_millis(10);

const _: () = assert!(STUCK_LAG_MIN.as_nanos() > PROMPT_PASS_MAX.as_nanos());

/// A connection on its way from the thread that accepted it to the thread that serves it.
#[derive(Debug)]
pub struct HandedOffConnection {
    /// The accepted socket.
    pub socket: Socket,
    /// The client's address.
    pub peer: SocketAddr,
    /// The id of the listener (see [`super::listen`]).
    pub listener_id: u32,
}

const _: () = assert!(size_of::<HandedOffConnection>() <= 64, "a slot of the mailbox is a cache line");

/// A thread as the others see it.
struct Peer {
    notifier: Arc<Notifier>,
    stats: Arc<ReactorStats>,
    handoffs: Sender<HandedOffConnection>,
}

/// One thread's membership in its worker group; owned by that thread.
pub struct WorkerHandle {
    number: usize,
    peers: Arc<[Peer]>,
    handoffs: RefCell<Receiver<HandedOffConnection>>,
    /// Counts samples, so that successive samples differ.
    samples: Cell<usize>,
}

/// A worker group of threads, each with its notifier and its counters; returns one handle for each.
pub fn worker_group(
    threads: impl IntoIterator<Item = (Arc<Notifier>, Arc<ReactorStats>)>,
) -> Vec<WorkerHandle> {
    let (peers, receivers): (Vec<_>, Vec<_>) = threads
        .into_iter()
        .map(|(notifier, stats)| {
            let (sender, receiver) = mailbox(HANDOFFS_QUEUED_MAX);
            (Peer { notifier, stats, handoffs: sender }, receiver)
        })
        .unzip();
    let peers: Arc<[Peer]> = peers.into();
    let handle = |(number, receiver)| WorkerHandle {
        number,
        peers: Arc::clone(&peers),
        handoffs: RefCell::new(receiver),
        samples: Cell::new(0),
    };
    receivers.into_iter().enumerate().map(handle).collect()
}

impl WorkerHandle {
    /// The thread's number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Takes a connection that another thread has handed off.
    pub fn take(&self) -> Option<HandedOffConnection> {
        let connection = self.handoffs.borrow_mut().pop()?;
        // The thread sets the number itself at the end of the pass; until then this counts.
        self.peers[self.number].stats.connections.add(1);
        Some(connection)
    }

    /// Whether no handed-off connection is queued.
    pub fn is_empty(&self) -> bool {
        self.handoffs.borrow().is_empty()
    }

    /// A thread's load at `now`: its connections, its queued hand-offs, and its lag, which is zero while it
    /// sleeps.
    pub(super) fn load(&self, number: usize, now: Nanos) -> u64 {
        self.load_behind(self.peers[number].stats.lag(now), number)
    }

    /// As [`WorkerHandle::load`], but as if the thread were awake: its passes will take as long as before.
    pub(super) fn load_awake(&self, number: usize, now: Nanos) -> u64 {
        let stats = &self.peers[number].stats;
        self.load_behind(stats.lag(now).max(stats.pass_length()), number)
    }

    fn load_behind(&self, lag: Duration, number: usize) -> u64 {
        let Peer { stats, handoffs, .. } = &self.peers[number];
        let lag = u64::try_from(lag.as_nanos() / LAG_PER_CONNECTION.as_nanos()).unwrap_or(u64::MAX);
        stats.connections.value() + handoffs.len() as u64 + lag.min(LAG_CONNECTIONS_MAX)
    }

    /// The mean load at `now` of this thread and of the others with capacity, as if all were awake.
    pub(super) fn load_mean(&self, now: Nanos) -> u64 {
        let (count, sum) = self
            .others_with_capacity()
            .chain([self.number])
            .fold((0, 0), |(count, sum), number| (count + 1, sum + self.load_awake(number, now)));
        sum / count
    }

    /// Two other threads; successive calls go through every pair. One or none in smaller groups.
    pub(super) fn sample(&self) -> [Option<usize>; 2] {
        let others = self.peers.len() - 1;
        let count = self.samples.replace(self.samples.get().wrapping_add(1));
        let other = |offset: usize| Some((self.number + 1 + offset % others) % self.peers.len());
        match others {
            0 => [None, None],
            1 => [other(0), None],
            _ => {
                let first = count % others;
                [other(first), other(first + 1 + count / others % (others - 1))]
            }
        }
    }

    /// Hands a connection to thread number `to`.
    ///
    /// # Errors
    /// Returns the connection if that thread's queue is full.
    pub(super) fn hand_off(
        &self,
        to: usize,
        connection: HandedOffConnection,
    ) -> Result<(), HandedOffConnection> {
        let peer = &self.peers[to];
        peer.handoffs.send(connection)?;
        peer.notifier.wake();
        Ok(())
    }

    /// Whether thread `number` has capacity for another connection, as it last reported.
    pub(super) fn has_capacity(&self, number: usize) -> bool {
        self.peers[number].stats.is_full.value() == 0
    }

    /// Whether a connection handed to thread `number` at `now` would wait longer than here, and longer than
    /// [`STUCK_LAG_MIN`].
    pub(super) fn is_stuck(&self, number: usize, now: Nanos) -> bool {
        let own_pass_length = self.peers[self.number].stats.pass_length();
        self.peers[number].stats.lag(now) > own_pass_length.max(STUCK_LAG_MIN)
    }

    /// Ensures that another thread with capacity, and with a load at `now` of at most `load_max` once it is
    /// awake, takes what the caller leaves. That is a thread whose pass ends soon; else the least loaded of
    /// the sleeping threads, which is woken. Returns whether there is one.
    pub(super) fn wake_another(&self, load_max: u64, now: Nanos) -> bool {
        // Pairs with the fence of `ParkFlag::announce`: a thread that seems awake here checks once more
        // before a sleep.
        fence(Ordering::SeqCst);
        let candidates = || {
            let loads = self.others_with_capacity().map(|number| (self.load_awake(number, now), number));
            loads.filter(|(load, _)| *load <= load_max)
        };
        let sleeps = |number: usize| self.peers[number].notifier.is_announced();
        let is_almost_free =
            |number: usize| !sleeps(number) && self.peers[number].stats.lag(now) <= PROMPT_PASS_MAX;
        if candidates().any(|(_, number)| is_almost_free(number)) {
            return true;
        }
        let least = candidates().filter(|(_, number)| sleeps(*number)).min();
        if let Some((_, number)) = least {
            self.peers[number].notifier.wake();
        }
        least.is_some()
    }

    /// Wakes every other thread that has capacity and sleeps or has announced a sleep. A thread that gets
    /// capacity after this check sees what the caller did before the call, at its last check before a sleep.
    pub(super) fn wake_others_with_capacity(&self) {
        // Pairs with the fence of `ParkFlag::announce`; the last check follows that fence.
        fence(Ordering::SeqCst);
        self.others_with_capacity().for_each(|number| self.peers[number].notifier.wake());
    }

    /// Wakes every thread that sleeps.
    pub(super) fn wake_all(&self) {
        self.peers.iter().for_each(|peer| peer.notifier.wake());
    }

    fn others_with_capacity(&self) -> impl Iterator<Item = usize> {
        (0..self.peers.len()).filter(|number| *number != self.number && self.has_capacity(*number))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::TcpListener;

    use sys::socket::SpeaksFirst;

    use super::*;

    fn group_of(threads: usize) -> Vec<WorkerHandle> {
        worker_group((0..threads).map(|_| (Arc::new(Notifier::new().unwrap()), Arc::default())))
    }

    #[test]
    fn samples_cover_every_pair_of_other_threads() {
        for threads in 1..=9 {
            for worker in group_of(threads) {
                let others = threads - 1;
                let pairs: HashSet<Vec<usize>> = (0..(others * others).max(1))
                    .map(|_| worker.sample().into_iter().flatten().collect())
                    .collect();
                for pair in &pairs {
                    assert_eq!(pair.len(), others.min(2));
                    assert!(pair.iter().all(|it| *it != worker.number() && *it < threads));
                    assert_eq!(pair.iter().collect::<HashSet<_>>().len(), pair.len(), "{pair:?}");
                }
                let expected = if others < 2 { 1 } else { others * (others - 1) };
                assert_eq!(pairs.len(), expected, "of {threads} threads");
            }
        }
    }

    #[test]
    fn load_is_connections_handoffs_and_bounded_lag() {
        let workers = group_of(2);
        let (first, other_stats) = (&workers[0], &workers[1].peers[1].stats);
        let load_at = |now| first.load(1, Nanos(now));
        assert_eq!(load_at(1_000_000), 0);
        other_stats.connections.set(10);
        assert_eq!(load_at(1_000_000), 10);
        // Its pass has lasted for 300 us by then.
        other_stats.begin_pass(Nanos(1_000_000));
        assert_eq!(load_at(1_300_000), 13);
        assert_eq!(load_at(1_000_000_000), 18, "lag counts up to a bound");
        other_stats.end_pass(Nanos(1_300_000), true);
        assert_eq!(load_at(1_300_000), 10, "a sleeping thread has no lag");
    }

    #[test]
    fn sleeper_is_woken_unless_a_peer_is_awake() {
        let now = Nanos(10_000_000);
        // Returns whether any thread will take over, and which of the sleeping threads are woken.
        let woken = |load_max: u64, set_awake: &dyn Fn(&ReactorStats)| {
            let workers = group_of(4);
            let peers = &workers[0].peers;
            peers[1].stats.connections.set(100);
            set_awake(&peers[1].stats);
            peers[2].stats.connections.set(9);
            peers[3].stats.connections.set(5);
            peers[2..].iter().for_each(|peer| peer.notifier.announce());
            let has_taker = workers[0].wake_another(load_max, now);
            (has_taker, [2, 3].map(|number: usize| !peers[number].notifier.is_announced()))
        };
        let (none, less_loaded) = ([false, false], [false, true]);
        assert_eq!(woken(u64::MAX, &|_| {}), (true, none), "the awake thread takes over");
        assert_eq!(woken(u64::MAX, &|stats| stats.begin_pass(Nanos(9_500_000))), (true, none));
        let in_a_long_pass = |stats: &ReactorStats| stats.begin_pass(Nanos(1_000_000));
        assert_eq!(woken(u64::MAX, &in_a_long_pass), (true, less_loaded));
        assert_eq!(
            woken(u64::MAX, &|stats| stats.is_full.set(1)),
            (true, less_loaded),
            "the awake thread is full"
        );
        assert_eq!(
            woken(50, &|_| {}),
            (true, less_loaded),
            "the awake thread has more than the allowed load"
        );
        assert_eq!(woken(4, &|_| {}), (false, none), "all threads have more than the allowed load");
    }

    #[test]
    fn taken_handoff_still_counts_as_load() {
        let workers = group_of(2);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let socket = Socket::connect(peer, SpeaksFirst::Unknown).unwrap();
        workers[0].hand_off(1, HandedOffConnection { socket, peer, listener_id: 0 }).unwrap();
        let load = || workers[0].load(1, Nanos(0));
        assert_eq!(load(), 1);
        let _taken = workers[1].take().unwrap();
        assert_eq!(load(), 1);
    }
}
