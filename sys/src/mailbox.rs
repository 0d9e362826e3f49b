//! A bounded mailbox with many senders and one receiver: a set of slots and two bit sets over them.
//!
//! Guarantees:
//! - A descheduled sender delays no other thread and blocks only its own slot. (In a bounded queue it blocks
//!   the receiver, which cannot skip the position that the sender has claimed.)
//! - A full mailbox returns the value at once.
//! - The receiver takes all queued values before later ones.
//! - Values that are never received are dropped with the mailbox.
//!
//! Not handled here: the order among values that are queued together; waking a sleeping receiver (see
//! `park_flag.rs`).
//!
//! Shared state, and its rules (the code cites them):
//!
//! ```text
//!   free     [1 1 . . 1 ...]   bit n: slot n is free
//!   filled   [. . . 1 . ...]   bit n: slot n holds a value that the receiver has not fetched
//!   slots     0 1 2 3 4
//! ```
//!
//! 1. The sender that clears a bit of `free` owns the slot until it sets the bit in `filled`.
//! 2. Only the receiver clears bits of `filled`; it owns their slots until it sets the bits in `free` again.
//!    So no slot is in both sets, and a slot in neither set is owned by a sender or by the receiver.

use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Words of each set: as many as a sender should have to scan.
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
    let shared = Arc::new(MailboxState {
        free: Padded(std::array::from_fn(|word| AtomicU64::new(bits_in(word)))),
        filled: Padded(std::array::from_fn(|_| AtomicU64::new(0))),
        slots: (0..capacity).map(|_| Slot(UnsafeCell::new(MaybeUninit::uninit()))).collect(),
    });
    (Sender(Arc::clone(&shared)), Receiver { shared, batch: [0; WORDS] })
}

/// The sending end; any number of threads may have one.
pub struct Sender<T>(Arc<MailboxState<T>>);

impl<T: Send> Sender<T> {
    /// Puts `value` into a free slot.
    ///
    /// # Errors
    /// The value itself, if no slot is free.
    pub fn send(&self, value: T) -> Result<(), T> {
        let Some((word, bit)) = self.claim() else { return Err(value) };
        self.0.slot(word, bit).with_mut(|slot| {
            // SAFETY: the claim made this sender the slot's only owner (rule 1). It holds no value: the
            // receiver moved out the last one before it freed the slot (rule 2). The pointer comes from the
            // cell.
            unsafe { (*slot).write(value) };
        });
        // Release pairs with the Acquire in `Receiver::fetch_batch`: it sees the value with the bit.
        self.0.filled.0[word].fetch_or(bit, Ordering::Release);
        Ok(())
    }

    /// The number of slots in use: queued values, and values that are being put in.
    pub fn len(&self) -> usize {
        let free = self.0.free.0.iter().map(|word| word.load(Ordering::Relaxed).count_ones());
        self.0.slots.len().saturating_sub(free.sum::<u32>() as usize)
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Claims a free slot. Each bit is tried at most once, so the loop is bounded.
    fn claim(&self) -> Option<(usize, u64)> {
        for (word, free) in self.0.free.0.iter().enumerate() {
            let mut untried = free.load(Ordering::Relaxed);
            while untried != 0 {
                let bit = untried & untried.wrapping_neg();
                // Acquire pairs with the Release in `Receiver::pop_from_batch`: the old value is moved out.
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

/// The receiving end.
pub struct Receiver<T> {
    shared: Arc<MailboxState<T>>,
    /// Bits fetched from `filled` whose values are not received yet.
    batch: [u64; WORDS],
}

impl<T: Send> Receiver<T> {
    /// Receives a value, if one is available.
    pub fn pop(&mut self) -> Option<T> {
        if self.batch == [0; WORDS] {
            self.fetch_batch();
        }
        self.pop_from_batch()
    }

    /// Whether no value is queued. A sender may put one in right after.
    pub fn is_empty(&self) -> bool {
        self.batch == [0; WORDS] && self.shared.filled.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Moves all bits of `filled` into the batch.
    fn fetch_batch(&mut self) {
        for (batch, filled) in self.batch.iter_mut().zip(&self.shared.filled.0) {
            // A load before the swap: mostly the word is zero, and its cache line stays shared.
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
            // SAFETY: the bit was in `filled`, so a sender has put a value in, and the receiver owns the slot
            // (rule 2). The value is read once: the bit is no longer in `batch`, and returns there only after
            // a sender has written the slot again.
            unsafe { (*slot).assume_init_read() }
        });
        // Release pairs with the Acquire in `claim`: the read is complete before a sender writes the slot.
        self.shared.free.0[word].fetch_or(bit, Ordering::Release);
        Some(value)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Slots of the batch are in neither set, so the drop of `MailboxState` would not find them.
        while self.batch != [0; WORDS] {
            drop(self.pop_from_batch());
        }
    }
}

struct MailboxState<T> {
    free: Padded<[AtomicU64; WORDS]>,
    filled: Padded<[AtomicU64; WORDS]>,
    slots: Box<[Slot<T>]>,
}

impl<T> MailboxState<T> {
    fn slot(&self, word: usize, bit: u64) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[word * 64 + bit.trailing_zeros() as usize].0
    }
}

impl<T> Drop for MailboxState<T> {
    fn drop(&mut self) {
        for word in 0..WORDS {
            // Acquire pairs with the Release in `send`.
            let mut filled = self.filled.0[word].load(Ordering::Acquire);
            while filled != 0 {
                let bit = filled & filled.wrapping_neg();
                filled &= !bit;
                self.slot(word, bit).with_mut(|slot| {
                    // SAFETY: the bit says that the slot holds a value; `&mut self` excludes other threads,
                    // and each bit is visited once.
                    unsafe { (*slot).assume_init_drop() };
                });
            }
        }
    }
}

// SAFETY: the cells are the only part that is not `Sync` by itself; rules 1 and 2 give each slot one owner at
// a time, and values cross threads, hence `T: Send`. No two threads have a reference to the same `T`.
unsafe impl<T: Send> Sync for MailboxState<T> {}

/// One cache line per slot, against false sharing between senders of neighbouring slots.
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
            (0..capacity).for_each(|value| sender.send(value).expect("a slot is free"));
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
        (1..=3).for_each(|value| sender.send(value).expect("a slot is free"));
        // Its slot is the lowest, and free again: the next value there must not overtake 2 and 3.
        assert_eq!(receiver.pop(), Some(1));
        sender.send(4).expect("a slot is free");
        assert!(!receiver.is_empty());
        assert_eq!(std::iter::from_fn(|| receiver.pop()).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn unreceived_values_are_dropped_once() {
        let value = Arc::new(());
        let (sender, mut receiver) = mailbox(8);
        (0..5).for_each(|_| assert!(sender.send(Arc::clone(&value)).is_ok()));
        // The receiver pops one value and drops the four others of the batch.
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
