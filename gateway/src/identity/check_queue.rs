//! The checks that wait for their turn: for which there is room, and which is next.
//!
//! Guarantees: what asks for a check never waits, not for a lock and not for another that asks; clients that
//! were never seen leave room for those that were, and among them a source that has failed for one that has
//! not, however many there are; inside a rank no source waits behind more than one check of each other
//! source; none of the ranks starves; what waits is bounded, sorted or not. Leaves out: what a check is, and
//! the number of jobs that come to take one (`auth/shared.rs`).
//!
//! | rank | part of the room | turns |
//! |---|---|---|
//! | credentials that were right in the last day | all | three of four |
//! | a source in good standing | 7/8 | those three, if none of the first rank waits |
//! | a stranger | 3/4 | those three, if none of the first two waits |
//! | a stranger that has failed in the last hour | 3/4 | those three, if none of the others waits |
//!
//! The fourth turn is that of the rank whose check has waited longest. The bounds are those by which
//! telephone exchanges reserve lines ("trunk reservation"): one count, and for each rank another value at
//! which it is too high. So the rest of the room is free for all while it is not needed, and a queue of one
//! reserves nothing.
//!
//! **Sources.** Inside a rank they take turns: a check has the number of the round in which it would be
//! served if each source had one check in a round (start-time fair queueing with checks of one size; P. Goyal
//! et al., IEEE/ACM Transactions on Networking 5(5), 1997). Below the first rank a source may have a check
//! wait while fewer of its own wait than have room (`shares.rs` has the source of that rule).
//!
//! **A full room.** A check then takes the place of one of a worse rank, else of its own rank if a source has
//! at least two more there: the youngest of the source that has most. What loses its place is refused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use sys::stack::Stack;

/// Every so many turns it is that of the oldest.
const OLDEST_INTERVAL: u64 = 4;

/// What is known of a client whose credentials are to be checked; the best first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Rank {
    /// The credentials were right in the last day.
    KnownCredentials,
    /// Others from its source were.
    TrustedSource,
    /// Nothing.
    UnknownSource,
    /// No credentials from its source were right, and some were wrong.
    FailingSource,
}

impl Rank {
    const COUNT: usize = Rank::FailingSource as usize + 1;

    /// How many may wait of `length_max` before one of this rank is refused; at least one.
    fn capacity(self, length_max: usize) -> usize {
        match self {
            Rank::KnownCredentials => length_max,
            Rank::TrustedSource => (length_max * 7).div_ceil(8),
            Rank::UnknownSource | Rank::FailingSource => (length_max * 3).div_ceil(4),
        }
    }
}

/// A check as it comes.
pub(super) struct NewCheck<T> {
    pub(super) rank: Rank,
    /// What counts as one client.
    pub(super) source: IpAddr,
    pub(super) check: T,
}

/// See the file's header.
pub(super) struct CheckQueue<T> {
    /// Where what has come waits to be sorted: for as long as a thread that sorts holds the lock.
    unsorted: Stack<NewCheck<T>>,
    /// How many wait there, or are about to.
    unsorted_count: AtomicUsize,
    length_max: usize,
    ranked: Mutex<RankedChecks<T>>,
}

impl<T> CheckQueue<T> {
    /// An empty queue of at most `length_max` checks, and as many that are not sorted yet.
    pub(super) fn new(length_max: usize) -> CheckQueue<T> {
        CheckQueue {
            unsorted: Stack::new(),
            unsorted_count: AtomicUsize::new(0),
            length_max,
            ranked: Mutex::new(RankedChecks::new(length_max)),
        }
    }

    /// Has a check wait; it, or another, is dropped where there is no room.
    pub(super) fn put(&self, check: NewCheck<T>) {
        if self.reserve() || self.try_rank() && self.reserve() {
            self.unsorted.push(check);
            self.try_rank();
        }
    }

    /// Counts a check that is about to arrive, if there is room for it.
    fn reserve(&self) -> bool {
        let longer = |count: usize| (count < self.length_max).then_some(count + 1);
        // Counted before it is there, so that the bound holds however many threads put at once. Relaxed: the
        // count guards nothing but itself.
        self.unsorted_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer).is_ok()
    }

    /// Sorts what has come, unless another thread holds the lock: what that one does not find any more is
    /// sorted by the next that puts or takes.
    fn try_rank(&self) -> bool {
        let rejected = match self.ranked.try_lock() {
            Ok(mut ranked) => self.rank_unsorted(&mut ranked),
            // A panic under the lock is impossible but for memory that is used up, which ends the process.
            Err(TryLockError::Poisoned(poisoned)) => self.rank_unsorted(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return false,
        };
        // Without the lock, because it wakes the tasks that asked.
        drop(rejected);
        true
    }

    /// Takes the check whose turn it is. For the pool's threads alone: it waits for the lock.
    pub(super) fn take(&self) -> Option<T> {
        let mut ranked = self.ranked.lock().unwrap_or_else(PoisonError::into_inner);
        let rejected = self.rank_unsorted(&mut ranked);
        let check = ranked.take();
        drop(ranked);
        drop(rejected);
        check
    }

    /// Sorts what has come; gives back what is refused.
    fn rank_unsorted(&self, ranked: &mut RankedChecks<T>) -> Vec<T> {
        let unsorted = self.unsorted.take();
        let unsorted = unsorted.inspect(|_| _ = self.unsorted_count.fetch_sub(1, Ordering::Relaxed));
        unsorted.filter_map(|check| ranked.put(check)).collect()
    }
}

/// Checks in the order of their arrival. Looked through from end to end, since it is short beside a hash.
struct RankedChecks<T> {
    length_max: usize,
    checks: Vec<RankedCheck<T>>,
    /// The round that is served, by rank.
    rounds: [u64; Rank::COUNT],
    takes: u64,
}

/// Where a check may wait.
enum Placement {
    /// Behind those that wait.
    Append,
    /// In place of the one at this position.
    Replace(usize),
    /// Nowhere.
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

    /// Puts a check in; gives back the one that is refused for it, which may be itself.
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

    /// The room for a check.
    fn placement(&self, rank: Rank, source: IpAddr) -> Placement {
        let capacity = rank.capacity(self.length_max);
        let held = self.checks.iter().filter(|queued| queued.source == source).count();
        // What is of a worse rank gives way, so it takes no room.
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

    /// The worst rank that waits.
    fn worst_rank(&self) -> Option<Rank> {
        self.checks.iter().map(|queued| queued.rank).max()
    }

    /// The position of the youngest check of the source that has most in `rank`, if that is `held_min`.
    fn newest_of_largest_source(&self, rank: Rank, held_min: usize) -> Option<usize> {
        let mut sources: HashMap<IpAddr, (usize, usize)> = HashMap::new();
        for (at, queued) in self.checks.iter().enumerate().filter(|(_, queued)| queued.rank == rank) {
            let (held, youngest) = sources.entry(queued.source).or_default();
            (*held, *youngest) = (*held + 1, at);
        }
        let largest = sources.into_values().max();
        largest.filter(|(held, _)| *held >= held_min).map(|(_, youngest)| youngest)
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

    /// A queue of names, with the names that were refused.
    struct NamedQueue {
        queue: CheckQueue<Name>,
        rejected: std::sync::mpsc::Receiver<String>,
        reject: std::sync::mpsc::Sender<String>,
    }

    /// Tells when it is dropped.
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

        /// Puts a check of the source in; the names that are refused for it.
        fn put(&self, rank: Rank, from: u8, name: &str) -> Vec<String> {
            let check = Name(name.to_owned(), self.reject.clone());
            self.queue.put(NewCheck { rank, source: source(from), check });
            self.rejected.try_iter().collect()
        }

        /// How many of a source fit in.
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
        // A source each.
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
        assert_eq!(queue.put(UnknownSource, 2, "b1"), ["b1"], "it would only change places");
        assert_eq!(queue.put(UnknownSource, 3, "c0"), ["a1"]);
        assert_eq!(queue.put(UnknownSource, 4, "d0"), ["d0"], "all have one");
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
        assert_eq!(queue.put(TrustedSource, 6, "s3"), ["s3"], "it has as many as are free");
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
        let mut turns = 0;
        loop {
            (0..2).for_each(|_| _ = queue.put(KnownCredentials, 2, "proven"));
            turns += 1;
            if queue.take().as_deref() == Some("failing") {
                break;
            }
        }
        assert_eq!(turns, OLDEST_INTERVAL);
    }

    #[test]
    fn unsorted_checks_are_bounded() {
        let queue = NamedQueue::new(4);
        let sorting = queue.queue.ranked.lock().unwrap();
        assert_eq!(queue.fill(KnownCredentials, 1), 4);
        drop(sorting);
        assert_eq!(queue.put(KnownCredentials, 2, "last"), [""], "the youngest of the four goes");
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
