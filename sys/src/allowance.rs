//! An allowance: bytes that many threads spend together, and never more than its limit.
//!
//! Guarantees: at any instant, spent and reserved bytes together are at most the limit, as long as no limit
//! is lowered and no spent byte is added. No call waits. Unless a reservation is open, an empty allowance is
//! spent: [`Reservation::Busy`] tells that other threads may still give bytes back.
//!
//! ```text
//!   reserve(n) --> granted m <= n --> m - k bytes are read --> settle(k): k bytes were not needed
//! ```
//!
//! Both parts are in one word, so that one load tells whether an allowance is spent: with two words, a thread
//! that reads one of them between two changes could end a flow although bytes come back.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Bits of the word that hold bytes; the others count open reservations.
const BYTES_BITS: u32 = 54;
const BYTES_MASK: u64 = BYTES_MAX;
const HOLDER: u64 = 1 << BYTES_BITS;
const HOLDERS_MAX: u64 = (1 << (u64::BITS - BYTES_BITS)) - 1;

/// The greatest limit, and the most bytes that an allowance counts: 18 PB.
pub const BYTES_MAX: u64 = (1 << BYTES_BITS) - 1;

/// Bytes that many threads spend together. Aligned so that two of them share no line, nor a pair of lines
/// that the processor fetches together.
#[derive(Debug)]
#[repr(align(128))]
pub struct Allowance {
    /// The bytes that are spent or reserved, and above them the number of open reservations.
    word: AtomicU64,
    limit: AtomicU64,
}

/// The result of [`Allowance::reserve`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reservation {
    /// So many bytes are reserved, one at least. [`Allowance::settle`] ends the reservation.
    Granted(u64),
    /// All bytes are spent or reserved, and reserved ones may come back.
    Busy,
    /// All bytes are spent.
    Spent,
}

// All accesses are Relaxed: the words guard no other memory, and every change of `word` is one atomic
// operation on it.
impl Allowance {
    /// An allowance of `limit` bytes, of which `spent` are spent; both count as [`BYTES_MAX`] at most.
    pub fn new(limit: u64, spent: u64) -> Allowance {
        Allowance { word: AtomicU64::new(spent.min(BYTES_MAX)), limit: AtomicU64::new(limit.min(BYTES_MAX)) }
    }

    /// Reserves up to `wanted` bytes, which must be one at least.
    pub fn reserve(&self, wanted: u64) -> Reservation {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (bytes, holders) = (word & BYTES_MASK, word >> BYTES_BITS);
            let granted = self.limit().saturating_sub(bytes).min(wanted);
            match (granted, holders) {
                (0, 0) => return Reservation::Spent,
                (0, _) | (_, HOLDERS_MAX) => return Reservation::Busy,
                _ => {}
            }
            let reserved = word + granted + HOLDER;
            match self.word.compare_exchange_weak(word, reserved, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Reservation::Granted(granted),
                Err(present) => word = present,
            }
        }
    }

    /// Reduces an open reservation by `bytes` of it.
    pub fn shrink(&self, bytes: u64) {
        self.word.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Ends a reservation, of which `unspent` bytes come back; the others are spent.
    pub fn settle(&self, unspent: u64) {
        self.word.fetch_sub(unspent + HOLDER, Ordering::Relaxed);
    }

    /// Returns spent bytes that were never sent.
    pub fn refund(&self, bytes: u64) {
        self.word.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` that were spent elsewhere, whatever is left.
    pub fn add_spent(&self, bytes: u64) {
        let add = |word: u64| {
            let bytes = bytes.min(BYTES_MAX - (word & BYTES_MASK));
            Some(word + bytes)
        };
        let _ = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes back up to `bytes` that were spent elsewhere, as far as bytes are spent.
    pub fn remove_spent(&self, bytes: u64) {
        let remove = |word: u64| Some(word - bytes.min(word & BYTES_MASK));
        let _ = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, remove);
    }

    /// Bytes that are spent or reserved.
    pub fn spent(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & BYTES_MASK
    }

    /// Whether nothing is left, and no reserved byte can come back.
    pub fn is_spent(&self) -> bool {
        self.word.load(Ordering::Relaxed) >> BYTES_BITS == 0 && self.spent() >= self.limit()
    }

    /// The limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Replaces the limit. What is spent beyond a lower one stays spent.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit.min(BYTES_MAX), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn reservations_end_at_the_limit() {
        let allowance = Allowance::new(100, 30);
        assert_eq!(allowance.reserve(50), Reservation::Granted(50));
        assert_eq!(allowance.reserve(50), Reservation::Granted(20));
        assert_eq!(allowance.reserve(1), Reservation::Busy);
        allowance.settle(0);
        assert_eq!(allowance.reserve(1), Reservation::Busy);
        allowance.settle(5);
        assert!(!allowance.is_spent());
        assert_eq!(allowance.reserve(9), Reservation::Granted(5));
        allowance.settle(0);
        assert_eq!((allowance.reserve(9), allowance.is_spent()), (Reservation::Spent, true));
        allowance.refund(7);
        assert_eq!((allowance.spent(), allowance.is_spent()), (93, false));
    }

    #[test]
    fn lower_limit_leaves_nothing_and_a_higher_one_some() {
        let allowance = Allowance::new(100, 0);
        assert_eq!(allowance.reserve(60), Reservation::Granted(60));
        allowance.set_limit(50);
        assert_eq!(allowance.reserve(1), Reservation::Busy);
        allowance.settle(0);
        assert_eq!(allowance.reserve(1), Reservation::Spent);
        allowance.set_limit(61);
        assert_eq!(allowance.reserve(9), Reservation::Granted(1));
    }

    #[test]
    fn bounds_saturate() {
        let allowance = Allowance::new(u64::MAX, u64::MAX);
        assert_eq!((allowance.limit(), allowance.spent()), (BYTES_MAX, BYTES_MAX));
        allowance.add_spent(u64::MAX);
        assert_eq!((allowance.spent(), allowance.reserve(1)), (BYTES_MAX, Reservation::Spent));
        allowance.remove_spent(5);
        assert_eq!(allowance.reserve(9), Reservation::Granted(5));
        allowance.remove_spent(u64::MAX);
        assert_eq!((allowance.spent(), allowance.is_spent()), (0, false));
        let allowance = Allowance::new(u64::MAX, 0);
        for _ in 0..HOLDERS_MAX {
            assert_eq!(allowance.reserve(1), Reservation::Granted(1));
        }
        assert_eq!(allowance.reserve(1), Reservation::Busy);
        (0..HOLDERS_MAX).for_each(|_| allowance.settle(1));
        assert_eq!(allowance.spent(), 0);
    }

    #[test]
    fn threads_together_spend_the_limit_and_no_byte_more() {
        const LIMIT: u64 = 1_000_003;
        let allowance = Allowance::new(LIMIT, 0);
        let spend = |seed: u64| {
            let (mut spent, mut wanted) = (0, seed);
            loop {
                wanted = wanted.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match allowance.reserve((wanted >> 54) + 1) {
                    Reservation::Granted(granted) => {
                        let unspent = (wanted >> 40) % (granted + 1);
                        allowance.settle(unspent);
                        spent += granted - unspent;
                    }
                    Reservation::Busy => std::thread::yield_now(),
                    Reservation::Spent => return spent,
                }
            }
        };
        let spend = &spend;
        let total: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=4).map(|seed| scope.spawn(move || spend(seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((total, allowance.spent()), (LIMIT, LIMIT));
    }
}
