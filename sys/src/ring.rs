//! A ring buffer with one producer and one consumer.
//!
//! Guarantees: [`Producer::push`] and [`Consumer::drain`] are wait-free: no lock, no loop that depends on the
//! other end, no system call. A push to a full ring fails at once. Values arrive once each, in the order of
//! their pushes.
//!
//! Not handled here: a full ring, and waking a sleeping consumer (see `park_flag.rs`).
//!
//! Shared state, and its rules (the code cites them):
//!
//! ```text
//!            popped               pushed
//!              |                    |
//!   slots  . . [n] [n+1] ... [m-1]  . . .       value n lies in slot n & (capacity - 1)
//!              '-- the consumer's --'  '-- the producer's: [m, popped + capacity)
//! ```
//!
//! 1. Only the producer stores `pushed`, only the consumer stores `popped`; both count values since the start
//!    and wrap. `popped <= pushed <= popped + capacity`.
//! 2. The producer accesses a slot only while it lies outside `[popped, pushed)`, the consumer only while it
//!    lies inside. Each end caches the other's counter as last read. The cached value can only be too low, so
//!    the common case reads no cache line that the other end writes.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Makes a ring for `capacity` values, and returns its two ends. Each slot begins with `fill`, which is
/// written here: then no push causes a page fault. `fill` must not be all zero bytes, because the allocator
/// may provide zeroes as pages that are not mapped yet.
///
/// Panics unless `capacity` is a power of two.
pub fn ring<T: Copy + Send>(capacity: usize, fill: T) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, and {capacity} is none");
    let slots = (0..capacity).map(|_| UnsafeCell::new(fill)).collect();
    let shared = Arc::new(RingState {
        pushed: Padded(AtomicUsize::new(0)),
        popped: Padded(AtomicUsize::new(0)),
        slots,
    });
    let producer = Producer { shared: Arc::clone(&shared), pushed: 0, popped_seen: 0 };
    (producer, Consumer { shared, popped: 0, pushed_seen: 0 })
}

/// The ring has no free slot; the value was not pushed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the ring is full")
    }
}

impl Error for Full {}

/// The producing end.
pub struct Producer<T> {
    shared: Arc<RingState<T>>,
    /// Equal to the shared counter, which only this end stores.
    pushed: usize,
    /// `popped` when last read. popped_seen <= popped (rule 2)
    popped_seen: usize,
}

impl<T: Copy + Send> Producer<T> {
    /// Pushes a copy of `value`, or changes nothing if the ring is [`Full`].
    pub fn push(&mut self, value: &T) -> Result<(), Full> {
        self.push_over(|slot| *slot = *value)
    }

    /// Pushes a value by calling `write` on the slot's old value. For values of which only a part is in use:
    /// untouched memory need not enter the CPU's caches. Changes nothing if the ring is [`Full`].
    pub fn push_over(&mut self, write: impl FnOnce(&mut T)) -> Result<(), Full> {
        let capacity = self.shared.slots.len();
        if self.pushed.wrapping_sub(self.popped_seen) == capacity {
            // Acquire pairs with the Release of `popped` in `drain`: the consumer has read the slots below
            // it before the producer overwrites them.
            self.popped_seen = self.shared.popped.0.load(Ordering::Acquire);
            if self.pushed.wrapping_sub(self.popped_seen) == capacity {
                return Err(Full);
            }
        }
        self.shared.slot(self.pushed).with_mut(|slot| {
            // SAFETY: `pushed - popped < capacity`, so the slot lies outside `[popped, pushed)` and is
            // the producer's (rule 2); `&mut self` makes this the only producer. The pointer comes
            // from the cell, which holds a value, and the reference ends with the call.
            write(unsafe { &mut *slot });
        });
        self.pushed = self.pushed.wrapping_add(1);
        // Release pairs with the Acquire of `pushed` in `Consumer::load_pushed`: it sees the value with
        // the counter.
        self.shared.pushed.0.store(self.pushed, Ordering::Release);
        Ok(())
    }
}

/// The consuming end.
pub struct Consumer<T> {
    shared: Arc<RingState<T>>,
    /// Equal to the shared counter, which only this end stores.
    popped: usize,
    /// `pushed` when last read. pushed_seen <= pushed (rule 2)
    pushed_seen: usize,
}

impl<T: Copy + Send> Consumer<T> {
    /// Passes at most `max` values to `each`, oldest first, removes them, and returns their number.
    ///
    /// If `each` panics, no value is removed: the next drain passes the same values again.
    pub fn drain(&mut self, max: usize, mut each: impl FnMut(&T)) -> usize {
        let mut available = self.pushed_seen.wrapping_sub(self.popped);
        if available < max {
            self.pushed_seen = self.load_pushed();
            available = self.pushed_seen.wrapping_sub(self.popped);
        }
        let count = available.min(max);
        for offset in 0..count {
            self.shared.slot(self.popped.wrapping_add(offset)).with(|slot| {
                // SAFETY: the slot lies in `[popped, pushed)`, so it is the consumer's (rule 2);
                // `&mut self` makes this the only consumer, and the reference ends with the call,
                // before `popped` moves.
                each(unsafe { &*slot });
            });
        }
        self.popped = self.popped.wrapping_add(count);
        // Release pairs with the Acquire of `popped` in `push_over`: the reads are complete before the
        // producer overwrites these slots.
        self.shared.popped.0.store(self.popped, Ordering::Release);
        count
    }

    /// The number of queued values. The producer may push more at any time.
    pub fn len(&self) -> usize {
        self.load_pushed().wrapping_sub(self.popped)
    }

    /// Whether no value is queued. The producer may push right after.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn load_pushed(&self) -> usize {
        // Acquire pairs with the Release of `pushed` in `push_over`.
        self.shared.pushed.0.load(Ordering::Acquire)
    }
}

struct RingState<T> {
    pushed: Padded<AtomicUsize>,
    popped: Padded<AtomicUsize>,
    slots: Box<[UnsafeCell<T>]>,
}

impl<T> RingState<T> {
    fn slot(&self, index: usize) -> &UnsafeCell<T> {
        // The length is a power of two, so the mask also holds across the counters' wrap.
        &self.slots[index & (self.slots.len() - 1)]
    }
}

// SAFETY: the cells are the only part that is not `Sync` by itself. Only `Producer` and `Consumer` access
// them, one of each exists, and rule 2 keeps them on different slots; values cross threads, hence `T: Send`.
// No two threads have a reference to the same `T`.
unsafe impl<T: Send> Sync for RingState<T> {}

/// Alone on its cache line, and on the neighbour that x86-64 prefetches with it.
#[repr(align(128))]
struct Padded<T>(T);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn drained(consumer: &mut Consumer<u32>, max: usize) -> Vec<u32> {
        let mut values = Vec::new();
        let count = consumer.drain(max, |value| values.push(*value));
        assert_eq!(count, values.len());
        values
    }

    #[test]
    fn full_ring_refuses_and_keeps_its_values() {
        for capacity in [1, 2, 4, 64] {
            let (mut producer, mut consumer) = ring(capacity, u32::MAX);
            let expected: Vec<u32> = (0..capacity as u32).collect();
            expected.iter().for_each(|value| producer.push(value).expect("a slot is free"));
            assert_eq!(producer.push(&99), Err(Full));
            assert_eq!(consumer.len(), capacity);
            assert_eq!(drained(&mut consumer, usize::MAX), expected);
            assert!(consumer.is_empty());
            assert_eq!(producer.push(&100), Ok(()));
            assert_eq!(drained(&mut consumer, usize::MAX), [100]);
        }
    }

    #[test]
    fn push_over_starts_from_the_old_value() {
        let (mut producer, mut consumer) = ring(2, [7, 7]);
        for value in 0..4 {
            producer.push_over(|slot| slot[0] = value).expect("a slot is free");
            assert_eq!(consumer.drain(1, |slot| assert_eq!(*slot, [value, 7])), 1);
        }
    }

    #[test]
    fn drain_stops_at_its_maximum() {
        let (mut producer, mut consumer) = ring(8, u32::MAX);
        (0..5).for_each(|value| producer.push(&value).expect("a slot is free"));
        assert_eq!(drained(&mut consumer, 0), []);
        assert_eq!(drained(&mut consumer, 2), [0, 1]);
        assert_eq!(drained(&mut consumer, 2), [2, 3]);
        assert_eq!(drained(&mut consumer, 2), [4]);
        assert_eq!(drained(&mut consumer, 2), []);
    }

    #[test]
    fn counters_wrap_around() {
        let (mut producer, mut consumer) = ring(4, u32::MAX);
        let start = usize::MAX - 5;
        producer.shared.pushed.0.store(start, Ordering::Relaxed);
        producer.shared.popped.0.store(start, Ordering::Relaxed);
        (producer.pushed, producer.popped_seen) = (start, start);
        (consumer.popped, consumer.pushed_seen) = (start, start);
        for round in 0..6 {
            (0..4).for_each(|n| producer.push(&(round * 4 + n)).expect("a slot is free"));
            assert_eq!(producer.push(&99), Err(Full));
            let expected: Vec<u32> = (0..4).map(|n| round * 4 + n).collect();
            assert_eq!(drained(&mut consumer, usize::MAX), expected);
        }
    }

    #[test]
    fn panic_in_drain_loses_no_value() {
        let (mut producer, mut consumer) = ring(4, u32::MAX);
        (0..3).for_each(|value| producer.push(&value).expect("a slot is free"));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            consumer.drain(usize::MAX, |value| assert_ne!(*value, 1));
        }));
        assert!(panicked.is_err());
        assert_eq!(drained(&mut consumer, usize::MAX), [0, 1, 2]);
    }

    #[test]
    #[should_panic(expected = "power of two")]
    fn capacity_not_power_of_two_is_refused() {
        ring(3, u32::MAX);
    }

    #[test]
    fn values_cross_threads_intact_and_in_order() {
        const VALUES: u64 = 200_000;
        let (mut producer, mut consumer) = ring(64, [u64::MAX; 8]);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for value in 0..VALUES {
                    while producer.push(&[value; 8]).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
            let mut next = 0;
            while next < VALUES {
                consumer.drain(48, |value| {
                    assert_eq!(*value, [next; 8]);
                    next += 1;
                });
            }
        });
        assert!(consumer.is_empty());
    }
}
