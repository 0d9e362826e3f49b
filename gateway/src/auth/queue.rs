//! The checks that wait for their turn: for whom there is room, and who is next.
//!
//! Promises: what asks for a check never waits, not for a lock and not for another that asks; clients that
//! were never seen leave room for those that were, however many there are; none of the three ranks starves.
//! Leaves to others: how many checks one source may have here (`throttle.rs`), and to take one after another.
//!
//! | rank | part of the room | turns |
//! |---|---|---|
//! | credentials that were right in the last day | all | three of four |
//! | a source in good standing | 7/8 | those three, if none of the first rank waits |
//! | a stranger | 3/4 | those three, if none of the others waits |
//!
//! The fourth turn is that of the check that has waited longest. The bounds are those by which telephone
//! exchanges reserve lines ("trunk reservation"): one count, and for each rank another value at which it is
//! too high. So the rest of the room is nobody's while it is not needed, and a queue of one reserves nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use sys::stack::Stack;

/// Every so many turns it is that of the oldest.
const OLDEST_EVERY: u64 = 4;

/// What is known of a client whose credentials are to be checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Rank {
    /// The credentials were right in the last day.
    Proven,
    /// Others from its source were.
    Standing,
    /// Nothing.
    Stranger,
}

/// See the file's header.
pub(super) struct Queue<T> {
    /// Where what has come waits to be sorted.
    arrivals: Stack<(Rank, T)>,
    /// How many wait, sorted or not.
    length: AtomicUsize,
    length_max: usize,
    /// Locked by the pool's threads alone, which take one check at a time.
    sorted: Mutex<Sorted<T>>,
}

impl<T> Queue<T> {
    /// An empty queue.
    pub(super) fn new(length_max: usize) -> Queue<T> {
        Queue {
            arrivals: Stack::new(),
            length: AtomicUsize::new(0),
            length_max,
            sorted: Mutex::new(Sorted::new()),
        }
    }

    /// Has `check` wait; false, and it is dropped, if there is no room for its rank.
    pub(super) fn put(&self, rank: Rank, check: T) -> bool {
        let room = self.room(rank);
        let longer = |length: usize| (length < room).then_some(length + 1);
        // Counted before it is there, so that the bound holds however many threads put at once. Relaxed: the
        // count guards nothing but itself.
        let has_room = self.length.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer).is_ok();
        if has_room {
            self.arrivals.push((rank, check));
        }
        has_room
    }

    /// Takes the check whose turn it is.
    pub(super) fn take(&self) -> Option<T> {
        // A panic under the lock is impossible but for memory that is used up, which ends the process.
        let mut sorted = self.sorted.lock().unwrap_or_else(PoisonError::into_inner);
        self.arrivals.take().for_each(|(rank, check)| sorted.put(rank, check));
        let check = sorted.take()?;
        self.length.fetch_sub(1, Ordering::Relaxed);
        Some(check)
    }

    /// How many may wait before one of this rank is refused; at least one.
    fn room(&self, rank: Rank) -> usize {
        match rank {
            Rank::Proven => self.length_max,
            Rank::Standing => (self.length_max * 7).div_ceil(8),
            Rank::Stranger => (self.length_max * 3).div_ceil(4),
        }
    }
}

/// Checks by rank, each with its number in the order of arrival.
struct Sorted<T> {
    ranks: [VecDeque<(u64, T)>; 3],
    arrived: u64,
    turns: u64,
}

impl<T> Sorted<T> {
    fn new() -> Sorted<T> {
        Sorted { ranks: [const { VecDeque::new() }; 3], arrived: 0, turns: 0 }
    }

    fn put(&mut self, rank: Rank, check: T) {
        self.ranks[rank as usize].push_back((self.arrived, check));
        self.arrived += 1;
    }

    fn take(&mut self) -> Option<T> {
        let waiting = self.ranks.iter_mut().filter(|rank| !rank.is_empty());
        self.turns += 1;
        let next = match self.turns.is_multiple_of(OLDEST_EVERY) {
            true => waiting.min_by_key(|rank| rank.front().map(|(arrived, _)| *arrived)),
            false => { waiting }.next(),
        };
        next?.pop_front().map(|(_, check)| check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Rank::{Proven, Standing, Stranger};

    #[test]
    fn room_is_kept_for_who_is_known() {
        let queue = Queue::new(64);
        let fill = |rank| std::iter::from_fn(|| queue.put(rank, ()).then_some(())).count();
        assert_eq!([Stranger, Standing, Proven, Proven].map(fill), [48, 8, 8, 0]);
        assert!(!queue.put(Stranger, ()));
        (0..17).for_each(|_| assert!(queue.take().is_some()));
        assert_eq!(fill(Stranger), 1, "what was refused takes no room");
    }

    #[test]
    fn room_that_nobody_else_needs_is_for_everybody() {
        let queue = Queue::new(64);
        let all = std::iter::from_fn(|| queue.put(Proven, ()).then_some(())).count();
        assert_eq!(all, 64);
        for length_max in 1..8 {
            let queue = Queue::new(length_max);
            assert!([Stranger, Standing, Proven].map(|rank| queue.put(rank, ()))[0], "{length_max}");
        }
    }

    #[test]
    fn three_turns_are_the_best_ranks_and_the_fourth_is_the_oldests() {
        let queue = Queue::new(64);
        for n in 0..3 {
            for (rank, name) in [(Stranger, 's'), (Standing, 'n'), (Proven, 'p')] {
                assert!(queue.put(rank, (name, n)));
            }
        }
        let turns: String =
            std::iter::from_fn(|| queue.take()).map(|(name, n)| format!("{name}{n} ")).collect();
        assert_eq!(turns, "p0 p1 p2 s0 n0 n1 n2 s1 s2 ");
        assert!(queue.take().is_none());
    }

    #[test]
    fn strangers_have_their_turns_whatever_comes() {
        let queue = Queue::new(64);
        queue.put(Stranger, "stranger");
        let mut turns = 0;
        loop {
            (0..2).for_each(|_| _ = queue.put(Proven, "proven"));
            turns += 1;
            if queue.take() == Some("stranger") {
                break;
            }
        }
        assert_eq!(turns, OLDEST_EVERY);
    }

    #[test]
    fn threads_lose_nothing() {
        let queue = Queue::new(1000);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let queue = &queue;
                scope.spawn(move || (0..100).for_each(|m| assert!(queue.put(Stranger, n * 100 + m))));
            }
            let mut taken = Vec::new();
            while taken.len() < 400 {
                taken.extend(queue.take());
            }
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..400));
        });
    }
}
