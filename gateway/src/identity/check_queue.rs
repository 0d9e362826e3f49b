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
const OLDEST_EVERY: u64 = 4;

/// What is known of a client whose credentials are to be checked; the best first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Rank {
    /// The credentials were right in the last day.
    Proven,
    /// Others from its source were.
    Standing,
    /// Nothing.
    Stranger,
    /// No credentials from its source were right, and some were wrong.
    Failing,
}

impl Rank {
    const COUNT: usize = Rank::Failing as usize + 1;

    /// How many may wait of `length_max` before one of this rank is refused; at least one.
    fn room(self, length_max: usize) -> usize {
        match self {
            Rank::Proven => length_max,
            Rank::Standing => (length_max * 7).div_ceil(8),
            Rank::Stranger | Rank::Failing => (length_max * 3).div_ceil(4),
        }
    }
}

/// A check as it comes.
pub(super) struct Arrival<T> {
    pub(super) rank: Rank,
    /// What counts as one client.
    pub(super) source: IpAddr,
    pub(super) check: T,
}

/// See the file's header.
pub(super) struct Queue<T> {
    /// Where what has come waits to be sorted: for as long as a thread that sorts holds the lock.
    arrivals: Stack<Arrival<T>>,
    /// How many wait there, or are about to.
    unsorted: AtomicUsize,
    length_max: usize,
    sorted: Mutex<Sorted<T>>,
}

impl<T> Queue<T> {
    /// An empty queue of at most `length_max` checks, and as many that are not sorted yet.
    pub(super) fn new(length_max: usize) -> Queue<T> {
        Queue {
            arrivals: Stack::new(),
            unsorted: AtomicUsize::new(0),
            length_max,
            sorted: Mutex::new(Sorted::new(length_max)),
        }
    }

    /// Has a check wait; it, or another, is dropped where there is no room.
    pub(super) fn put(&self, arrival: Arrival<T>) {
        if self.claim() || self.sort_now() && self.claim() {
            self.arrivals.push(arrival);
            self.sort_now();
        }
    }

    /// Counts a check that is about to arrive, if there is room for it.
    fn claim(&self) -> bool {
        let longer = |unsorted: usize| (unsorted < self.length_max).then_some(unsorted + 1);
        // Counted before it is there, so that the bound holds however many threads put at once. Relaxed: the
        // count guards nothing but itself.
        self.unsorted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer).is_ok()
    }

    /// Sorts what has come, unless another thread holds the lock: what that one does not find any more is
    /// sorted by the next that puts or takes.
    fn sort_now(&self) -> bool {
        let refused = match self.sorted.try_lock() {
            Ok(mut sorted) => self.sort(&mut sorted),
            // A panic under the lock is impossible but for memory that is used up, which ends the process.
            Err(TryLockError::Poisoned(poisoned)) => self.sort(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return false,
        };
        // Without the lock, because it wakes the tasks that asked.
        drop(refused);
        true
    }

    /// Takes the check whose turn it is. For the pool's threads alone: it waits for the lock.
    pub(super) fn take(&self) -> Option<T> {
        let mut sorted = self.sorted.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = self.sort(&mut sorted);
        let check = sorted.take();
        drop(sorted);
        drop(refused);
        check
    }

    /// Sorts what has come; gives back what is refused.
    fn sort(&self, sorted: &mut Sorted<T>) -> Vec<T> {
        let arrivals = self.arrivals.take();
        let arrivals = arrivals.inspect(|_| _ = self.unsorted.fetch_sub(1, Ordering::Relaxed));
        arrivals.filter_map(|arrival| sorted.put(arrival)).collect()
    }
}

/// Checks in the order of their arrival. Looked through from end to end, since it is short beside a hash.
struct Sorted<T> {
    length_max: usize,
    waiting: Vec<Waiting<T>>,
    /// The round that is served, by rank.
    rounds: [u64; Rank::COUNT],
    turns: u64,
}

/// Where a check may wait.
enum Room {
    /// Behind those that wait.
    Free,
    /// In place of the one at this position.
    Of(usize),
    /// Nowhere.
    None,
}

struct Waiting<T> {
    rank: Rank,
    source: IpAddr,
    round: u64,
    check: T,
}

impl<T> Sorted<T> {
    fn new(length_max: usize) -> Sorted<T> {
        Sorted { length_max, waiting: Vec::new(), rounds: [0; Rank::COUNT], turns: 0 }
    }

    /// Puts a check in; gives back the one that is refused for it, which may be itself.
    fn put(&mut self, Arrival { rank, source, check }: Arrival<T>) -> Option<T> {
        let loser = match self.room(rank, source) {
            Room::Free => None,
            Room::Of(at) => Some(self.waiting.remove(at).check),
            Room::None => return Some(check),
        };
        let of_source =
            self.waiting.iter().filter(|waiting| (waiting.rank, waiting.source) == (rank, source));
        let next = of_source.map(|waiting| waiting.round + 1).max().unwrap_or(0);
        let round = next.max(self.rounds[rank as usize]);
        self.waiting.push(Waiting { rank, source, round, check });
        loser
    }

    /// The room for a check.
    fn room(&self, rank: Rank, source: IpAddr) -> Room {
        let room = rank.room(self.length_max);
        let held = self.waiting.iter().filter(|waiting| waiting.source == source).count();
        // What is of a worse rank gives way, so it takes no room.
        let taken = self.waiting.iter().filter(|waiting| waiting.rank <= rank).count();
        let free = room.saturating_sub(taken);
        let has_share = held < free || rank == Rank::Proven && free > 0;
        let loser = match (has_share, self.worst()) {
            (true, _) if self.waiting.len() < room => return Room::Free,
            (true, Some(worst)) => self.youngest_of_largest(worst, 1),
            (false, _) if free == 0 => self.youngest_of_largest(rank, held + 2),
            _ => None,
        };
        loser.map_or(Room::None, Room::Of)
    }

    /// The worst rank that waits.
    fn worst(&self) -> Option<Rank> {
        self.waiting.iter().map(|waiting| waiting.rank).max()
    }

    /// The position of the youngest check of the source that has most in `rank`, if that is `held_min`.
    fn youngest_of_largest(&self, rank: Rank, held_min: usize) -> Option<usize> {
        let mut sources: HashMap<IpAddr, (usize, usize)> = HashMap::new();
        for (at, waiting) in self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.rank == rank) {
            let (held, youngest) = sources.entry(waiting.source).or_default();
            (*held, *youngest) = (*held + 1, at);
        }
        let largest = sources.into_values().max();
        largest.filter(|(held, _)| *held >= held_min).map(|(_, youngest)| youngest)
    }

    fn take(&mut self) -> Option<T> {
        self.turns += 1;
        let rank = match self.turns.is_multiple_of(OLDEST_EVERY) {
            true => self.waiting.first()?.rank,
            false => self.waiting.iter().map(|waiting| waiting.rank).min()?,
        };
        let of_rank = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.rank == rank);
        let (at, _) = of_rank.min_by_key(|(at, waiting)| (waiting.round, *at))?;
        let Waiting { round, check, .. } = self.waiting.remove(at);
        self.rounds[rank as usize] = round;
        Some(check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Rank::{Failing, Proven, Standing, Stranger};

    fn source(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    /// A queue of names, with the names that were refused.
    struct Named {
        queue: Queue<Name>,
        refused: std::sync::mpsc::Receiver<String>,
        refuse: std::sync::mpsc::Sender<String>,
    }

    /// Tells when it is dropped.
    struct Name(String, std::sync::mpsc::Sender<String>);

    impl Drop for Name {
        fn drop(&mut self) {
            let _ = self.1.send(std::mem::take(&mut self.0));
        }
    }

    impl Named {
        fn new(length_max: usize) -> Named {
            let (refuse, refused) = std::sync::mpsc::channel();
            Named { queue: Queue::new(length_max), refused, refuse }
        }

        /// Puts a check of the source in; the names that are refused for it.
        fn put(&self, rank: Rank, from: u8, name: &str) -> Vec<String> {
            let check = Name(name.to_owned(), self.refuse.clone());
            self.queue.put(Arrival { rank, source: source(from), check });
            self.refused.try_iter().collect()
        }

        /// How many of a source fit in.
        fn fill(&self, rank: Rank, from: u8) -> usize {
            (0..).take_while(|_| self.put(rank, from, "") == [""; 0]).count()
        }

        fn take(&self) -> Option<String> {
            let taken = self.queue.take().map(|name| name.0.clone());
            let _ = self.refused.try_iter().count();
            taken
        }

        fn take_all(&self) -> String {
            std::iter::from_fn(|| self.take()).map(|name| name + " ").collect()
        }
    }

    #[test]
    fn room_is_kept_for_what_is_known() {
        let queue = Named::new(64);
        // A source each.
        let fill =
            |rank, first: u8| (first..).take_while(|from| queue.put(rank, *from, "") == [""; 0]).count();
        let ranks = [(Failing, 0), (Standing, 64), (Proven, 128)];
        assert_eq!(ranks.map(|(rank, first)| fill(rank, first)), [48, 8, 8]);
    }

    #[test]
    fn room_that_nothing_else_needs_is_for_all() {
        assert_eq!(Named::new(64).fill(Proven, 1), 64);
        for length_max in 1..8 {
            for rank in [Failing, Stranger, Standing, Proven] {
                assert!(Named::new(length_max).fill(rank, 1) > 0, "{length_max} {rank:?}");
            }
        }
    }

    #[test]
    fn a_source_has_no_more_than_are_free() {
        let queue = Named::new(16);
        assert_eq!([1, 2, 3, 4].map(|from| queue.fill(Stranger, from)), [6, 3, 2, 1]);
        assert_eq!(Named::new(16).fill(Standing, 1), 7);
    }

    #[test]
    fn at_a_full_room_the_youngest_of_the_largest_source_goes() {
        let queue = Named::new(4);
        for (from, name) in [(1, "a0"), (1, "a1"), (2, "b0")] {
            assert_eq!(queue.put(Stranger, from, name), [""; 0]);
        }
        assert_eq!(queue.put(Stranger, 2, "b1"), ["b1"], "it would only change places");
        assert_eq!(queue.put(Stranger, 3, "c0"), ["a1"]);
        assert_eq!(queue.put(Stranger, 4, "d0"), ["d0"], "all have one");
        assert_eq!(queue.put(Failing, 5, "e0"), ["e0"]);
        assert_eq!(queue.take_all(), "a0 b0 c0 ");
    }

    #[test]
    fn what_failed_gives_way_to_what_did_not() {
        let queue = Named::new(4);
        for (from, name) in [(1, "a0"), (1, "a1"), (2, "b0")] {
            assert_eq!(queue.put(Failing, from, name), [""; 0]);
        }
        assert_eq!(queue.put(Stranger, 3, "c0"), ["a1"]);
        assert_eq!(queue.put(Stranger, 4, "d0"), ["b0"]);
        assert_eq!(queue.put(Standing, 5, "s0"), [""; 0]);
        assert_eq!(queue.put(Standing, 6, "s1"), ["a0"]);
        assert_eq!(queue.put(Standing, 6, "s2"), ["d0"]);
        assert_eq!(queue.put(Standing, 6, "s3"), ["s3"], "it has as many as are free");
        assert_eq!(queue.take_all(), "s0 s1 s2 c0 ");
    }

    #[test]
    fn sources_take_turns() {
        let queue = Named::new(64);
        for (from, name) in [(1, "a0"), (1, "a1"), (1, "a2"), (2, "b0"), (2, "b1")] {
            queue.put(Failing, from, name);
        }
        assert_eq!(queue.take().as_deref(), Some("a0"));
        queue.put(Failing, 3, "c0");
        assert_eq!(queue.take_all(), "b0 c0 a1 b1 a2 ");
    }

    #[test]
    fn three_turns_are_the_best_ranks_and_the_fourth_is_the_oldests() {
        let queue = Named::new(64);
        for n in 0..3 {
            for (rank, from, name) in [(Stranger, 1, 's'), (Standing, 2, 'n'), (Proven, 3, 'p')] {
                queue.put(rank, from, &format!("{name}{n}"));
            }
        }
        assert_eq!(queue.take_all(), "p0 p1 p2 s0 n0 n1 n2 s1 s2 ");
    }

    #[test]
    fn the_last_rank_has_its_turns_whatever_comes() {
        let queue = Named::new(64);
        queue.put(Failing, 1, "failing");
        let mut turns = 0;
        loop {
            (0..2).for_each(|_| _ = queue.put(Proven, 2, "proven"));
            turns += 1;
            if queue.take().as_deref() == Some("failing") {
                break;
            }
        }
        assert_eq!(turns, OLDEST_EVERY);
    }

    #[test]
    fn what_cannot_be_sorted_yet_is_bounded() {
        let queue = Named::new(4);
        let sorting = queue.queue.sorted.lock().unwrap();
        assert_eq!(queue.fill(Proven, 1), 4);
        drop(sorting);
        assert_eq!(queue.put(Proven, 2, "last"), [""], "the youngest of the four goes");
        assert_eq!(queue.take_all(), " last   ");
    }

    #[test]
    fn threads_lose_nothing() {
        let queue = Queue::new(1000);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let queue = &queue;
                let put = move |m| queue.put(Arrival { rank: Proven, source: source(n), check: (n, m) });
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
