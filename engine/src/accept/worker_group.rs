//! The crew: the threads that accept at the same addresses, as each of them sees the others.
//!
//! Promises: looking at another thread's load reads what it publishes anyway, and waits for nobody; a
//! connection that is handed over has one owner at every moment: the sender, the mailbox, the receiver; a
//! full mailbox hands it back. Leaves to others: whom to choose (`handoff`, `mutex`), and to serve what
//! arrives.

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

/// Connections that may wait for a thread at a time. HAProxy's accept ring has as many; fewer overflow in
/// bursts.
const HANDOFFS_QUEUED_MAX: usize = 256;

/// A connection that waits this long for its thread waits as if another connection were in front of it.
const LAG_PER_CONNECTION: Duration = Duration::from_micros(100);

/// So many connections are all that a thread's lag can count for: it comes and goes, and tunnels that are
/// dealt out by it stay.
pub(super) const LAG_CONNECTIONS_MAX: u64 = 8;

/// A turn of the loop that takes no longer than this keeps nobody waiting.
pub(super) const PROMPT_PASS_MAX: Duration = Duration::from_millis(1);

/// One that takes longer keeps those waiting whom others have handed over, and who cannot be taken back.
const STUCK_LAG_MIN: Duration = Duration::from_millis(10);

const _: () = assert!(STUCK_LAG_MIN.as_nanos() > PROMPT_PASS_MAX.as_nanos());

/// A connection on its way from the thread that accepted it to the one that serves it.
#[derive(Debug)]
pub struct HandedOffConnection {
    /// The accepted socket.
    pub socket: Socket,
    /// Who connected.
    pub peer: SocketAddr,
    /// The number of the listening address (see [`super::listen`]).
    pub door: u32,
}

const _: () = assert!(size_of::<HandedOffConnection>() <= 64, "a slot of the mailbox is a line of the cache");

/// A thread as the others see it.
struct Peer {
    notifier: Arc<Notifier>,
    stats: Arc<ReactorStats>,
    handoffs: Sender<HandedOffConnection>,
}

/// One thread's place in the crew; it belongs to that thread.
pub struct WorkerHandle {
    number: usize,
    peers: Arc<[Peer]>,
    handoffs: RefCell<Receiver<HandedOffConnection>>,
    /// Counts samples, so that each takes others.
    samples: Cell<usize>,
}

/// A crew of the threads that sleep by these parkings and count into these statistics: a seat for each.
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

    /// Takes a connection that another thread has handed over.
    pub fn take(&self) -> Option<HandedOffConnection> {
        let connection = self.handoffs.borrow_mut().pop()?;
        // It is the thread's to tell how many it has, at the end of the turn; until then this counts.
        self.peers[self.number].stats.connections.add(1);
        Some(connection)
    }

    /// Whether no connection waits that was handed over.
    pub fn is_empty(&self) -> bool {
        self.handoffs.borrow().is_empty()
    }

    /// What a thread has to do at `now`: connections, those handed over to it, and how far it lags behind, as
    /// nobody does who sleeps.
    pub(super) fn load(&self, number: usize, now: Nanos) -> u64 {
        self.load_behind(self.peers[number].stats.lag(now), number)
    }

    /// The same, once it is awake if it sleeps: its turns will take as long as they did.
    pub(super) fn load_awake(&self, number: usize, now: Nanos) -> u64 {
        let stats = &self.peers[number].stats;
        self.load_behind(stats.lag(now).max(stats.turn_length()), number)
    }

    fn load_behind(&self, lag: Duration, number: usize) -> u64 {
        let Peer { stats, handoffs, .. } = &self.peers[number];
        let lag = u64::try_from(lag.as_nanos() / LAG_PER_CONNECTION.as_nanos()).unwrap_or(u64::MAX);
        stats.connections.value() + handoffs.len() as u64 + lag.min(LAG_CONNECTIONS_MAX)
    }

    /// The mean load at `now` of this thread and those others that have place, all of them awake.
    pub(super) fn load_mean(&self, now: Nanos) -> u64 {
        let (count, sum) = self
            .others_with_capacity()
            .chain([self.number])
            .fold((0, 0), |(count, sum), number| (count + 1, sum + self.load_awake(number, now)));
        sum / count
    }

    /// Two other threads, different ones at each call until every pair has been; one or none where there are
    /// fewer.
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
    /// The connection itself, if too many wait for that thread.
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

    /// Whether thread number `number` has place for another connection, as it last told.
    pub(super) fn has_capacity(&self, number: usize) -> bool {
        self.peers[number].stats.is_full.value() == 0
    }

    /// Whether what is handed to thread number `number` at `now` waits longer there than it would here, and
    /// longer than anybody should wait.
    pub(super) fn is_stuck(&self, number: usize, now: Nanos) -> bool {
        let here = self.peers[self.number].stats.turn_length();
        self.peers[number].stats.lag(now) > here.max(STUCK_LAG_MIN)
    }

    /// Sees to it that another thread with place, and with no more to do at `now`, once it is awake, than
    /// `load_max`, looks at what the caller leaves to others: one that comes round soon by itself, else the
    /// one with the least load of those who sleep, which is woken. Answers whether there is one.
    pub(super) fn wake_another(&self, load_max: u64, now: Nanos) -> bool {
        // Pairs with the fence of `ParkFlag::announce`: who seems awake here looks once more before a sleep.
        fence(Ordering::SeqCst);
        let candidates = || {
            let loads = self.others_with_capacity().map(|number| (self.load_awake(number, now), number));
            loads.filter(|(load, _)| *load <= load_max)
        };
        let sleeps = |number: usize| self.peers[number].notifier.is_announced();
        let comes_soon =
            |number: usize| !sleeps(number) && self.peers[number].stats.lag(now) <= PROMPT_PASS_MAX;
        if candidates().any(|(_, number)| comes_soon(number)) {
            return true;
        }
        let least = candidates().filter(|(_, number)| sleeps(*number)).min();
        if let Some((_, number)) = least {
            self.peers[number].notifier.wake();
        }
        least.is_some()
    }

    /// Ends the sleep of every other thread that has place and sleeps, or has said that it will. Who gets
    /// place after this look sees what the caller did before the call, at the last look before his sleep.
    pub(super) fn wake_others_with_capacity(&self) {
        // Pairs with the fence of `ParkFlag::announce`, behind which that look is.
        fence(Ordering::SeqCst);
        self.others_with_capacity().for_each(|number| self.peers[number].notifier.wake());
    }

    /// Ends the sleep of every thread that sleeps.
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
        let (me, other) = (&workers[0], &workers[1].peers[1].stats);
        let load_at = |now| me.load(1, Nanos(now));
        assert_eq!(load_at(1_000_000), 0);
        other.connections.set(10);
        assert_eq!(load_at(1_000_000), 10);
        // Its turn has lasted for 300 us by now, as far as anybody knows.
        other.begin_pass(Nanos(1_000_000));
        assert_eq!(load_at(1_300_000), 13);
        assert_eq!(load_at(1_000_000_000), 18, "lag counts for so much and no more");
        other.end_pass(Nanos(1_300_000), true);
        assert_eq!(load_at(1_300_000), 10, "it sleeps, and takes what comes at once");
    }

    #[test]
    fn sleeper_is_woken_unless_a_peer_is_awake() {
        let now = Nanos(10_000_000);
        // Which of the sleepers are woken, and whether there is anybody at all.
        let woken = |load_max: u64, set_awake: &dyn Fn(&ReactorStats)| {
            let workers = group_of(4);
            let peers = &workers[0].peers;
            peers[1].stats.connections.set(100);
            set_awake(&peers[1].stats);
            peers[2].stats.connections.set(9);
            peers[3].stats.connections.set(5);
            peers[2..].iter().for_each(|peer| peer.notifier.announce());
            let any_looks = workers[0].wake_another(load_max, now);
            (any_looks, [2, 3].map(|number: usize| !peers[number].notifier.is_announced()))
        };
        let (none, less_loaded) = ([false, false], [false, true]);
        assert_eq!(woken(u64::MAX, &|_| {}), (true, none), "the awake one comes round");
        assert_eq!(woken(u64::MAX, &|stats| stats.begin_pass(Nanos(9_500_000))), (true, none));
        let in_9_ms = |stats: &ReactorStats| stats.begin_pass(Nanos(1_000_000));
        assert_eq!(woken(u64::MAX, &in_9_ms), (true, less_loaded));
        assert_eq!(woken(u64::MAX, &|stats| stats.is_full.set(1)), (true, less_loaded), "for nothing");
        assert_eq!(woken(50, &|_| {}), (true, less_loaded), "it would leave that to others too");
        assert_eq!(woken(4, &|_| {}), (false, none), "so would all of them");
    }

    #[test]
    fn taken_handoff_still_counts_as_load() {
        let workers = group_of(2);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let socket = Socket::connect(peer, SpeaksFirst::Unknown).unwrap();
        workers[0].hand_off(1, HandedOffConnection { socket, peer, door: 0 }).unwrap();
        let load = || workers[0].load(1, Nanos(0));
        assert_eq!(load(), 1);
        let _taken = workers[1].take().unwrap();
        assert_eq!(load(), 1);
    }
}
