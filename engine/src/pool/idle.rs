//! The worker slots of a pool, with a stack of those whose threads are idle.
//!
//! Guarantees: push and pop take a few exchanges and no lock; a descheduled thread delays no other. The
//! thread that became idle last is woken first: its caches are the warmest, and the others sleep long enough
//! to end.
//!
//! A linked list of slot numbers (Treiber's stack). Its head carries a count that makes each change unique,
//! which avoids the ABA problem (IBM's counted pointer). The slot of a thread that ends while in the list
//! stays there as [`LEFT`], and is removed when it is popped.

use std::sync::atomic::Ordering;

use sys::sync::atomic::AtomicU64;

use super::worker_slot::WorkerSlot;

/// The slot has no thread.
const FREE: u32 = 0;
/// The slot's thread is not in the list.
const AWAKE: u32 = 1;
/// The slot's thread is in the list.
const IDLE: u32 = 2;
/// The slot is in the list, but its thread has ended.
const LEFT: u32 = 3;

const INDEX_BITS: u32 = 32;

/// Worker slots, and a lock-free stack of the idle ones.
pub(super) struct IdleStack {
    /// Upper half: a count of changes. Lower half: the number of the top slot plus one; zero for an empty
    /// list.
    head: AtomicU64,
    slots: Box<[WorkerSlot]>,
}

impl IdleStack {
    pub(super) fn new(count: usize) -> IdleStack {
        IdleStack { head: AtomicU64::new(0), slots: (0..count).map(|_| WorkerSlot::new()).collect() }
    }

    /// The slot with this number.
    pub(super) fn at(&self, number: usize) -> &WorkerSlot {
        &self.slots[number]
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Reserves a free slot for a new thread, which is awake.
    pub(super) fn allocate(&self) -> Option<usize> {
        let try_allocate = |slot: &WorkerSlot| {
            slot.list_state.compare_exchange(FREE, AWAKE, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        self.slots.iter().position(try_allocate)
    }

    /// Frees the slot of a thread that is awake and ends.
    pub(super) fn free(&self, number: usize) {
        self.slots[number].list_state.store(FREE, Ordering::Release);
    }

    /// Whether the list is empty, of ended threads' slots too.
    pub(super) fn is_empty(&self) -> bool {
        top(self.head.load(Ordering::Acquire)) == 0
    }

    /// Adds the slot of a thread that becomes idle.
    pub(super) fn push(&self, number: usize) {
        let slot = &self.slots[number];
        slot.list_state.store(IDLE, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            slot.next.store(top(head), Ordering::Relaxed);
            let new = next_head(head, number as u32 + 1);
            // Release pairs with the Acquire in `pop`: a thread that pops the slot sees its state and its
            // successor.
            match self.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }

    /// Removes the thread that became idle last; the caller has to wake it.
    pub(super) fn pop(&self) -> Option<usize> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let number = (top(head) as usize).checked_sub(1)?;
            let slot = &self.slots[number];
            // Stale if another thread pops the slot meanwhile; then the count has changed and the exchange
            // fails.
            let new = next_head(head, slot.next.load(Ordering::Relaxed));
            match self.head.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if self.claim(slot, AWAKE) => return Some(number),
                // Its thread has ended. The slot is out of the list now, so another thread may use it.
                Ok(_) => slot.list_state.store(FREE, Ordering::Release),
                Err(current) => {
                    head = current;
                    continue;
                }
            }
            head = self.head.load(Ordering::Acquire);
        }
    }

    /// Marks the slot of an idle thread that ends; false if another thread is about to wake it.
    pub(super) fn try_remove(&self, number: usize) -> bool {
        self.claim(&self.slots[number], LEFT)
    }

    fn claim(&self, slot: &WorkerSlot, to: u32) -> bool {
        slot.list_state.compare_exchange(IDLE, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn top(head: u64) -> u32 {
    head as u32
}

/// The head that follows `head`, with another top.
fn next_head(head: u64, top: u32) -> u64 {
    let count = (head >> INDEX_BITS).wrapping_add(1);
    count << INDEX_BITS | u64::from(top)
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn pop_returns_the_last_pushed() {
        let stack = IdleStack::new(3);
        let numbers: Vec<usize> = (0..3).map(|_| stack.allocate().unwrap()).collect();
        assert_eq!((numbers, stack.allocate()), (vec![0, 1, 2], None));
        (0..3).for_each(|number| stack.push(number));
        assert_eq!([stack.pop(), stack.pop()], [Some(2), Some(1)]);
        stack.push(2);
        assert_eq!([stack.pop(), stack.pop(), stack.pop()], [Some(2), Some(0), None]);
    }

    #[test]
    fn departed_slot_is_skipped_then_reused() {
        let stack = IdleStack::new(2);
        (0..2).for_each(|_| stack.push(stack.allocate().unwrap()));
        assert!(stack.try_remove(1) && !stack.try_remove(1));
        assert_eq!(stack.allocate(), None, "still in the list");
        assert_eq!(stack.pop(), Some(0));
        assert_eq!(stack.allocate(), Some(1));
        assert!(!stack.try_remove(0), "it is awake");
        stack.free(0);
        assert_eq!(stack.allocate(), Some(0));
    }
}
