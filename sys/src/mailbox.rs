//! A mailbox: a bounded set of slots that many threads put values into and one takes them out of.
//!
//! Promises: a sender that is descheduled anywhere holds up nobody and nothing but its own slot (in a bounded
//! queue it would hold up the receiver, who cannot pass the place that the sender has claimed); a full
//! mailbox says so at once and gives the value back; what waits is taken before what comes later; values that
//! are never taken are dropped with the mailbox. Leaves to others: order among what waits together, and
//! waking a receiver that sleeps (see `parking.rs`).
//!
//! Shared state, and its rules (the code cites them):
//!
//! ```text
//!   free     [1 1 . . 1 ...]   bit n: slot n is nobody's
//!   filled   [. . . 1 . ...]   bit n: slot n holds a value that the receiver has not seen
//!   slots     0 1 2 3 4
//! ```
//!
//! 1. Who takes a bit out of `free` has the slot for itself, until it puts the bit into `filled`.
//! 2. The receiver alone takes bits out of `filled`; their slots are its own until it puts the bits back into
//!    `free`. So no slot is in both sets, and what is in neither is a sender's or the receiver's.

use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Words of each set: as many as a sender should have to look at.
const WORDS: usize = 4;

/// The most values that one mailbox can hold: a bit each.
pub const CAPACITY_MAX: usize = WORDS * 64;

/// Makes a mailbox for `capacity` values, and returns its two ends.
///
/// Panics unless `capacity` lies between 1 and [`CAPACITY_MAX`].
pub fn mailbox<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!((1..=CAPACITY_MAX).contains(&capacity), "a mailbox holds 1 to {CAPACITY_MAX}, not {capacity}");
    let bits_in = |word: usize| match capacity.saturating_sub(word * 64) {
        0 => 0,
        slots_left => u64::MAX >> (64 - slots_left.min(64)),
    };
    let shared = Arc::new(Shared {
        free: Padded(std::array::from_fn(|word| AtomicU64::new(bits_in(word)))),
        filled: Padded(std::array::from_fn(|_| AtomicU64::new(0))),
        slots: (0..capacity).map(|_| Slot(UnsafeCell::new(MaybeUninit::uninit()))).collect(),
    });
    (Sender(Arc::clone(&shared)), Receiver { shared, batch: [0; WORDS] })
}

/// The end that puts values in; any number of threads may have one.
pub struct Sender<T>(Arc<Shared<T>>);

impl<T: Send> Sender<T> {
    /// Puts `value` in.
    ///
    /// # Errors
    /// The value itself, if every slot is taken.
    pub fn send(&self, value: T) -> Result<(), T> {
        let Some((word, bit)) = self.claim() else { return Err(value) };
        self.0.slot(word, bit).with_mut(|slot| {
            // SAFETY: the claim made the slot ours alone (rule 1); it holds no value, since the receiver has
            // moved out the last one before it freed the slot (rule 2). The pointer comes from the cell.
            unsafe { (*slot).write(value) };
        });
        // Release pairs with the Acquire in `Receiver::open`: who sees the bit sees the value.
        self.0.filled.0[word].fetch_or(bit, Ordering::Release);
        Ok(())
    }

    /// How many slots are taken: what waits, and what is being put in.
    pub fn len(&self) -> usize {
        let free = self.0.free.0.iter().map(|word| word.load(Ordering::Relaxed).count_ones());
        self.0.slots.len().saturating_sub(free.sum::<u32>() as usize)
    }

    /// Whether no slot is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a slot out of `free`. Each bit is tried once at most, so the loop is bounded.
    fn claim(&self) -> Option<(usize, u64)> {
        for (word, free) in self.0.free.0.iter().enumerate() {
            let mut untried = free.load(Ordering::Relaxed);
            while untried != 0 {
                let bit = untried & untried.wrapping_neg();
                // Acquire pairs with the Release in `Receiver::pop`: the value that was there is moved out.
                let before = free.fetch_and(!bit, Ordering::Acquire);
                if before & bit != 0 {
                    return Some((word, bit));
                }
                untried &= before & !bit;
            }
        }
        None
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender(Arc::clone(&self.0))
    }
}

/// The end that takes values out.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// Bits taken out of `filled` whose values are not taken yet.
    batch: [u64; WORDS],
}

impl<T: Send> Receiver<T> {
    /// Takes a value out, if one is there.
    pub fn pop(&mut self) -> Option<T> {
        if self.batch == [0; WORDS] {
            self.fetch_batch();
        }
        self.pop_from_batch()
    }

    /// Whether nothing waits. A sender may put something in right after.
    pub fn is_empty(&self) -> bool {
        self.batch == [0; WORDS] && self.shared.filled.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Takes over everything that waits.
    fn fetch_batch(&mut self) {
        for (batch, filled) in self.batch.iter_mut().zip(&self.shared.filled.0) {
            // A look before the swap: mostly nothing is there, and the line may stay where it is.
            if filled.load(Ordering::Relaxed) != 0 {
                // Acquire pairs with the Release in `send`.
                *batch = filled.swap(0, Ordering::Acquire);
            }
        }
    }
}

impl<T> Receiver<T> {
    fn pop_from_batch(&mut self) -> Option<T> {
        let word = self.batch.iter().position(|bits| *bits != 0)?;
        let bit = self.batch[word] & self.batch[word].wrapping_neg();
        self.batch[word] &= !bit;
        let value = self.shared.slot(word, bit).with(|slot| {
            // SAFETY: the bit was in `filled`, so a sender has put a value in, and the slot is ours (rule 2);
            // it is read once, since the bit is out of `opened` now, and not again before a sender wrote it.
            unsafe { (*slot).assume_init_read() }
        });
        // Release pairs with the Acquire in `claim`: our read is over before the slot is written anew.
        self.shared.free.0[word].fetch_or(bit, Ordering::Release);
        Some(value)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // What was opened is in neither set, so nobody else would find it.
        while self.batch != [0; WORDS] {
            drop(self.pop_from_batch());
        }
    }
}

struct Shared<T> {
    free: Padded<[AtomicU64; WORDS]>,
    filled: Padded<[AtomicU64; WORDS]>,
    slots: Box<[Slot<T>]>,
}

impl<T> Shared<T> {
    fn slot(&self, word: usize, bit: u64) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[word * 64 + bit.trailing_zeros() as usize].0
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        for word in 0..WORDS {
            // Acquire pairs with the Release in `send`.
            let mut filled = self.filled.0[word].load(Ordering::Acquire);
            while filled != 0 {
                let bit = filled & filled.wrapping_neg();
                filled &= !bit;
                self.slot(word, bit).with_mut(|slot| {
                    // SAFETY: the bit says that a value is there; nobody else is left (`&mut self`), and each
                    // bit is looked at once.
                    unsafe { (*slot).assume_init_drop() };
                });
            }
        }
    }
}

// SAFETY: the cells are the only part that is not `Sync` by itself; rules 1 and 2 give each slot one user at
// a time, and values cross threads, hence `T: Send`. No reference to a `T` is given to two threads.
unsafe impl<T: Send> Sync for Shared<T> {}

/// A line of the cache for each value: who fills one slot does not disturb who fills the next.
#[repr(align(64))]
struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

/// Alone on its cache line, and on the neighbour that x86-64 prefetches with it.
#[repr(align(128))]
struct Padded<T>(T);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn full_mailbox_returns_the_value() {
        for capacity in [1, 63, 64, 65, CAPACITY_MAX] {
            let (sender, mut receiver) = mailbox(capacity);
            assert!(sender.is_empty() && receiver.is_empty());
            (0..capacity).for_each(|value| sender.send(value).expect("there is room"));
            assert_eq!(sender.send(999), Err(999));
            assert_eq!(sender.len(), capacity);
            let received: HashSet<usize> = std::iter::from_fn(|| receiver.pop()).collect();
            assert_eq!(received, (0..capacity).collect());
            assert!(receiver.is_empty());
            assert_eq!(sender.send(999), Ok(()));
            assert_eq!(receiver.pop(), Some(999));
        }
    }

    #[test]
    fn queued_values_precede_later_ones() {
        let (sender, mut receiver) = mailbox(4);
        (1..=3).for_each(|value| sender.send(value).expect("there is room"));
        // Its slot is the lowest, and free again: what is put there must not overtake 2 and 3.
        assert_eq!(receiver.pop(), Some(1));
        sender.send(4).expect("there is room");
        assert!(!receiver.is_empty());
        assert_eq!(std::iter::from_fn(|| receiver.pop()).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn unreceived_values_are_dropped_once() {
        let value = Arc::new(());
        let (sender, mut receiver) = mailbox(8);
        (0..5).for_each(|_| assert!(sender.send(Arc::clone(&value)).is_ok()));
        // One is taken; three are opened and left; the fifth is seen by nobody.
        drop(receiver.pop());
        drop((sender, receiver));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    #[should_panic(expected = "a mailbox holds 1 to 256")]
    fn zero_capacity_is_refused() {
        mailbox::<u32>(0);
    }

    #[test]
    fn values_cross_threads_once_and_intact() {
        const SENDERS: u64 = 3;
        const VALUES: u64 = 50_000;
        let (sender, mut receiver) = mailbox::<[u64; 8]>(16);
        std::thread::scope(|scope| {
            for first in 0..SENDERS {
                let sender = sender.clone();
                scope.spawn(move || {
                    for value in (first..SENDERS * VALUES).step_by(SENDERS as usize) {
                        while sender.send([value; 8]).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut seen = HashSet::new();
            while seen.len() < (SENDERS * VALUES) as usize {
                let Some(value) = receiver.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(value, [value[0]; 8]);
                assert!(seen.insert(value[0]), "{} came twice", value[0]);
            }
        });
        assert!(receiver.is_empty());
    }
}
