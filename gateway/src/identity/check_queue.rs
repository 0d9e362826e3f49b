//! The queue of password checks: which checks are admitted, and which is next.
//!
//! Guarantees: To submit a check never waits, neither for a lock nor for another submitter. Unknown sources
//! leave capacity for known ones, and failing sources for the others, however many they are. Within a rank a
//! source waits behind at most one check of each other source. No rank starves. The number of checks is
//! bounded, ranked or not.
//!
//! | rank | part of the capacity | served by |
//! |---|---|---|
//! | credentials that were right in the last day | all | three of four takes |
//! | a trusted source | 7/8 | those three, if the first rank is empty |
//! | an unknown source | 3/4 | those three, if the first two ranks are empty |
//! | an unknown source that failed in the last hour | 3/4 | those three, if all others are empty |
//!
//! The fourth take serves the rank of the oldest check. The bounds are those by which telephone exchanges
//! reserve lines ("trunk reservation"): one count, and a lower limit for each worse rank. So the reserve is
//! free for all while it is not needed, and a queue of length one reserves nothing.
//!
//! **Sources.** Within a rank, sources are served round robin. A check gets the number of the round in which
//! it would be served if each source had one check in a round. This is start-time fair queueing with checks
//! of one size (P. Goyal et al., IEEE/ACM Transactions on Networking 5(5), 1997). Below the first rank, a
//! source may queue a check while it has fewer queued than there are free slots (`shares.rs` has the source
//! of that rule).
//!
//! **A full queue.** The new check evicts one of a worse rank. If there is none, it evicts one of its own
//! rank, but only from a source that has at least two more there. The victim is the newest check of the
//! source that has most. An evicted check is dropped.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use sys::stack::Stack;

/// Every so many takes, the oldest check is served.
const OLDEST_INTERVAL: u64 = 4;

/// What is known of the client whose credentials are to be checked; the best rank first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Rank {
    /// The credentials were right in the last day.
    KnownCredentials,
    /// Other credentials from its source were right in the last day.
    TrustedSource,
    /// Nothing is known of its source.
    UnknownSource,
    /// No credentials from its source were right, and some were wrong in the last hour.
    FailingSource,
}

impl Rank {
    const COUNT: usize = Rank::FailingSource as usize + 1;

    /// The number of queued checks, of `length_max`, at which one of this rank is rejected; at least one.
    fn capacity(self, length_max: usize) -> usize {
        match self {
            Rank::KnownCredentials => length_max,
            Rank::TrustedSource => (length_max * 7).div_ceil(8),
            Rank::UnknownSource | Rank::FailingSource => (length_max * 3).div_ceil(4),
        }
    }
}

/// A check to be queued.
pub(super) struct NewCheck<T> {
    pub(super) rank: Rank,
    /// The address or network that counts as one client.
    pub(super) source: IpAddr,
    pub(super) check: T,
}

/// The queue. Submitters push to a lock-free stack; the holder of the lock ranks what is on it.
pub(super) struct CheckQueue<T> {
    /// New checks that are not ranked yet, because another thread holds the lock.
    unsorted: Stack<NewCheck<T>>,
    /// The length of `unsorted`, with the checks that are about to be pushed.
    unsorted_count: AtomicUsize,
    length_max: usize,
    ranked: Mutex<RankedChecks<T>>,
}

impl<T> CheckQueue<T> {
    /// An empty queue of at most `length_max` ranked checks, and as many unranked ones.
    pub(super) fn new(length_max: usize) -> CheckQueue<T> {
        CheckQueue {
            unsorted: Stack::new(),
            unsorted_count: AtomicUsize::new(0),
            length_max,
            ranked: Mutex::new(RankedChecks::new(length_max)),
        }
    }

    /// Queues a check. Where the queue is full, this check or another is dropped.
    pub(super) fn put(&self, check: NewCheck<T>) {
        if self.reserve() || self.try_rank() && self.reserve() {
            self.unsorted.push(check);
            self.try_rank();
        }
    }

    /// Counts a check that is about to be pushed, if there is space for it.
    fn reserve(&self) -> bool {
        let longer = |count: usize| (count < self.length_max).then_some(count + 1);
        // Counted before the push, so that the bound holds however many threads push at once. Relaxed: the
        // count orders no other memory.
        self.unsorted_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer).is_ok()
    }

    /// Ranks the new checks, unless another thread holds the lock. Checks that the other thread misses are
    /// ranked by the next `put` or `take`.
    fn try_rank(&self) -> bool {
        let rejected = match self.ranked.try_lock() {
            Ok(mut ranked) => self.rank_unsorted(&mut ranked),
            // Under the lock only an allocation can panic, and that ends the process.
            Err(TryLockError::Poisoned(poisoned)) => self.rank_unsorted(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return false,
        };
        // Outside the lock, because dropping a check wakes the task that submitted it.
        drop(rejected);
        true
    }

    /// Takes the next check. Only for threads of the job pool: it waits for the lock.
    pub(super) fn take(&self) -> Option<T> {
        let mut ranked = self.ranked.lock().unwrap_or_else(PoisonError::into_inner);
        let rejected = self.rank_unsorted(&mut ranked);
        let check = ranked.take();
        drop(ranked);
        drop(rejected);
        check
    }

    /// Ranks the new checks; returns the rejected and evicted ones.
    fn rank_unsorted(&self, ranked: &mut RankedChecks<T>) -> Vec<T> {
        let unsorted = self.unsorted.take();
        let unsorted = unsorted.inspect(|_| _ = self.unsorted_count.fetch_sub(1, Ordering::Relaxed));
        unsorted.filter_map(|check| ranked.put(check)).collect()
    }
}

/// The ranked checks, oldest first. A linear search is cheap beside a password hash.
struct RankedChecks<T> {
    length_max: usize,
    checks: Vec<RankedCheck<T>>,
    /// The round being served, by rank.
    rounds: [u64; Rank::COUNT],
    takes: u64,
}

/// Where a new check is placed.
enum Placement {
    /// At the end.
    Append,
    /// In place of the check at this position.
    Replace(usize),
    /// Nowhere: the queue is full.
    Reject,
}

struct RankedCheck<T> {
    rank: Rank,
    source: IpAddr,
    round: u64,
    check: T,
}

impl<T> RankedChecks<T> {
    fn new(length_max: usize) -> RankedChecks<T> {
        RankedChecks { length_max, checks: Vec::new(), rounds: [0; Rank::COUNT], takes: 0 }
    }

    /// Queues a check; returns the one that is rejected or evicted for it, which may be the check itself.
    fn put(&mut self, NewCheck { rank, source, check }: NewCheck<T>) -> Option<T> {
        let evicted = match self.placement(rank, source) {
            Placement::Append => None,
            Placement::Replace(at) => Some(self.checks.remove(at).check),
            Placement::Reject => return Some(check),
        };
        let of_source = self.checks.iter().filter(|queued| (queued.rank, queued.source) == (rank, source));
        let next = of_source.map(|queued| queued.round + 1).max().unwrap_or(0);
        let round = next.max(self.rounds[rank as usize]);
        self.checks.push(RankedCheck { rank, source, round, check });
        evicted
    }

    /// The placement of a check of this rank and source.
    fn placement(&self, rank: Rank, source: IpAddr) -> Placement {
        let capacity = rank.capacity(self.length_max);
        let held = self.checks.iter().filter(|queued| queued.source == source).count();
        // Checks of a worse rank can be evicted, so they take no capacity.
        let taken = self.checks.iter().filter(|queued| queued.rank <= rank).count();
        let free = capacity.saturating_sub(taken);
        let has_share = held < free || rank == Rank::KnownCredentials && free > 0;
        let evicted = match (has_share, self.worst_rank()) {
            (true, _) if self.checks.len() < capacity => return Placement::Append,
            (true, Some(worst)) => self.newest_of_largest_source(worst, 1),
            (false, _) if free == 0 => self.newest_of_largest_source(rank, held + 2),
            _ => None,
        };
        evicted.map_or(Placement::Reject, Placement::Replace)
    }

    /// The worst rank in the queue.
    fn worst_rank(&self) -> Option<Rank> {
        self.checks.iter().map(|queued| queued.rank).max()
    }

    /// The position of the newest check of the source that has most checks of `rank`, if it has `held_min`.
    fn newest_of_largest_source(&self, rank: Rank, held_min: usize) -> Option<usize> {
        let mut sources: HashMap<IpAddr, (usize, usize)> = HashMap::new();
        for (at, queued) in self.checks.iter().enumerate().filter(|(_, queued)| queued.rank == rank) {
            let (held, newest) = sources.entry(queued.source).or_default();
            (*held, *newest) = (*held + 1, at);
        }
        let largest = sources.into_values().max();
        largest.filter(|(held, _)| *held >= held_min).map(|(_, newest)| newest)
    }

    fn take(&mut self) -> Option<T> {
        self.takes += 1;
        let rank = match self.takes.is_multiple_of(OLDEST_INTERVAL) {
            true => self.checks.first()?.rank,
            false => self.checks.iter().map(|queued| queued.rank).min()?,
        };
        let of_rank = self.checks.iter().enumerate().filter(|(_, queued)| queued.rank == rank);
        let (at, _) = of_rank.min_by_key(|(at, queued)| (queued.round, *at))?;
        let RankedCheck { round, check, .. } = self.checks.remove(at);
        self.rounds[rank as usize] = round;
        Some(check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Rank::{FailingSource, KnownCredentials, TrustedSource, UnknownSource};

    fn source(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    /// A queue of names, and the names that were rejected or evicted.
    struct NamedQueue {
        queue: CheckQueue<Name>,
        rejected: std::sync::mpsc::Receiver<String>,
        reject: std::sync::mpsc::Sender<String>,
    }

    /// Sends its name when it is dropped.
    struct Name(String, std::sync::mpsc::Sender<String>);

    impl Drop for Name {
        fn drop(&mut self) {
            let _ = self.1.send(std::mem::take(&mut self.0));
        }
    }

    impl NamedQueue {
        fn new(length_max: usize) -> NamedQueue {
            let (reject, rejected) = std::sync::mpsc::channel();
            NamedQueue { queue: CheckQueue::new(length_max), rejected, reject }
        }

        /// Queues a check of the source; returns the names that were dropped for it.
        fn put(&self, rank: Rank, from: u8, name: &str) -> Vec<String> {
            let check = Name(name.to_owned(), self.reject.clone());
            self.queue.put(NewCheck { rank, source: source(from), check });
            self.rejected.try_iter().collect()
        }

        /// How many checks of a source are accepted until one is dropped.
        fn fill(&self, rank: Rank, from: u8) -> usize {
            (0..).take_while(|_| self.put(rank, from, "") == [""; 0]).count()
        }

        fn take(&self) -> Option<String> {
            let taken = self.queue.take().map(|name| name.0.clone());
            let _ = self.rejected.try_iter().count();
            taken
        }

        fn take_all(&self) -> String {
            std::iter::from_fn(|| self.take()).map(|name| name + " ").collect()
        }
    }

    #[test]
    fn capacity_is_reserved_for_better_ranks() {
        let queue = NamedQueue::new(64);
        // One source each.
        let fill =
            |rank, first: u8| (first..).take_while(|from| queue.put(rank, *from, "") == [""; 0]).count();
        let ranks = [(FailingSource, 0), (TrustedSource, 64), (KnownCredentials, 128)];
        assert_eq!(ranks.map(|(rank, first)| fill(rank, first)), [48, 8, 8]);
    }

    #[test]
    fn unreserved_capacity_is_open_to_every_rank() {
        assert_eq!(NamedQueue::new(64).fill(KnownCredentials, 1), 64);
        for length_max in 1..8 {
            for rank in [FailingSource, UnknownSource, TrustedSource, KnownCredentials] {
                assert!(NamedQueue::new(length_max).fill(rank, 1) > 0, "{length_max} {rank:?}");
            }
        }
    }

    #[test]
    fn source_holds_at_most_the_free_count() {
        let queue = NamedQueue::new(16);
        assert_eq!([1, 2, 3, 4].map(|from| queue.fill(UnknownSource, from)), [6, 3, 2, 1]);
        assert_eq!(NamedQueue::new(16).fill(TrustedSource, 1), 7);
    }

    #[test]
    fn full_queue_evicts_newest_of_largest_source() {
        let queue = NamedQueue::new(4);
        for (from, name) in [(1, "a0"), (1, "a1"), (2, "b0")] {
            assert_eq!(queue.put(UnknownSource, from, name), [""; 0]);
        }
        assert_eq!(queue.put(UnknownSource, 2, "b1"), ["b1"], "the source would only replace its own");
        assert_eq!(queue.put(UnknownSource, 3, "c0"), ["a1"]);
        assert_eq!(queue.put(UnknownSource, 4, "d0"), ["d0"], "each source has one");
        assert_eq!(queue.put(FailingSource, 5, "e0"), ["e0"]);
        assert_eq!(queue.take_all(), "a0 b0 c0 ");
    }

    #[test]
    fn failing_sources_are_evicted_first() {
        let queue = NamedQueue::new(4);
        for (from, name) in [(1, "a0"), (1, "a1"), (2, "b0")] {
            assert_eq!(queue.put(FailingSource, from, name), [""; 0]);
        }
        assert_eq!(queue.put(UnknownSource, 3, "c0"), ["a1"]);
        assert_eq!(queue.put(UnknownSource, 4, "d0"), ["b0"]);
        assert_eq!(queue.put(TrustedSource, 5, "s0"), [""; 0]);
        assert_eq!(queue.put(TrustedSource, 6, "s1"), ["a0"]);
        assert_eq!(queue.put(TrustedSource, 6, "s2"), ["d0"]);
        assert_eq!(queue.put(TrustedSource, 6, "s3"), ["s3"], "the source has as many as are free");
        assert_eq!(queue.take_all(), "s0 s1 s2 c0 ");
    }

    #[test]
    fn sources_are_served_round_robin() {
        let queue = NamedQueue::new(64);
        for (from, name) in [(1, "a0"), (1, "a1"), (1, "a2"), (2, "b0"), (2, "b1")] {
            queue.put(FailingSource, from, name);
        }
        assert_eq!(queue.take().as_deref(), Some("a0"));
        queue.put(FailingSource, 3, "c0");
        assert_eq!(queue.take_all(), "b0 c0 a1 b1 a2 ");
    }

    #[test]
    fn every_fourth_take_serves_the_oldest_check() {
        let queue = NamedQueue::new(64);
        for n in 0..3 {
            for (rank, from, name) in
                [(UnknownSource, 1, 's'), (TrustedSource, 2, 'n'), (KnownCredentials, 3, 'p')]
            {
                queue.put(rank, from, &format!("{name}{n}"));
            }
        }
        assert_eq!(queue.take_all(), "p0 p1 p2 s0 n0 n1 n2 s1 s2 ");
    }

    #[test]
    fn last_rank_is_served_under_load() {
        let queue = NamedQueue::new(64);
        queue.put(FailingSource, 1, "failing");
        let mut takes = 0;
        loop {
            (0..2).for_each(|_| _ = queue.put(KnownCredentials, 2, "known"));
            takes += 1;
            if queue.take().as_deref() == Some("failing") {
                break;
            }
        }
        assert_eq!(takes, OLDEST_INTERVAL);
    }

    #[test]
    fn unsorted_checks_are_bounded() {
        let queue = NamedQueue::new(4);
        let sorting = queue.queue.ranked.lock().unwrap();
        assert_eq!(queue.fill(KnownCredentials, 1), 4);
        drop(sorting);
        assert_eq!(queue.put(KnownCredentials, 2, "last"), [""], "the newest of the four is evicted");
        assert_eq!(queue.take_all(), " last   ");
    }

    #[test]
    fn concurrent_puts_lose_no_check() {
        let queue = CheckQueue::new(1000);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let queue = &queue;
                let put =
                    move |m| queue.put(NewCheck { rank: KnownCredentials, source: source(n), check: (n, m) });
                scope.spawn(move || (0..100).for_each(put));
            }
            let mut taken = Vec::new();
            while taken.len() < 400 {
                taken.extend(queue.take());
            }
            taken.sort_unstable();
            assert!(taken.into_iter().eq((0..4).flat_map(|n| (0..100).map(move |m| (n, m)))));
        });
    }
}
