//! A stack that many threads push to and one thread takes whole; every inbox is built on it.
//!
//! Guarantees: a push is one allocation and a compare-and-swap loop. A producer that is descheduled anywhere
//! in it blocks no other thread: its node is either linked or not. (A bounded array queue lacks this: a
//! producer stopped between its claim and its publication blocks the consumer at that slot.)
//! [`Stack::take`] is one swap.
//!
//! Not handled here: waking the consumer, and a bound on the size.
//!
//! The design is R. K. Treiber's (IBM RJ 5118, 1986); taking the whole list at once removes the ABA
//! problem, since no node is ever popped alone.

use std::ptr;

use crate::sync::atomic::{AtomicPtr, Ordering};

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

/// An unbounded lock-free stack; `take` returns everything in the order of the pushes.
pub struct Stack<T> {
    head: AtomicPtr<Node<T>>,
}

// SAFETY: a `Stack` owns its nodes, and one thread at a time accesses a node (the producer until the
// exchange succeeds, the consumer after its swap). So sending values through it needs `T: Send` only.
unsafe impl<T: Send> Send for Stack<T> {}
// SAFETY: as above; `&Stack` gives no reference to a `T` inside.
unsafe impl<T: Send> Sync for Stack<T> {}

impl<T> Stack<T> {
    /// An empty stack.
    pub fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Pushes `value`.
    pub fn push(&self, value: T) {
        let node = Box::into_raw(Box::new(Node { value, next: ptr::null_mut() }));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: `node` came from `Box::into_raw` above and is not linked yet: no other thread has it.
            unsafe { (*node).next = head };
            // Release pairs with the Acquire of `take`, which sees the node's contents with its pointer.
            match self.head.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }

    /// Takes all values, oldest first.
    pub fn take(&self) -> Drain<T> {
        // Acquire pairs with the Release of `push`.
        let mut newest = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut oldest: *mut Node<T> = ptr::null_mut();
        while !newest.is_null() {
            // SAFETY: the swap made this thread the chain's only owner; each node came from
            // `Box::into_raw`.
            let next = unsafe { std::mem::replace(&mut (*newest).next, oldest) };
            oldest = newest;
            newest = next;
        }
        Drain { next: oldest }
    }

    /// Whether it is empty. Another thread may push right after.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire).is_null()
    }
}

impl<T> Default for Stack<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Stack<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// An iterator over the taken values, from the oldest to the newest.
pub struct Drain<T> {
    next: *mut Node<T>,
}

impl<T> Iterator for Drain<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: the chain belongs to this `Drain` alone; each node came from `Box::into_raw` and becomes
        // a box again exactly once, because `self.next` moves past it here.
        let node = unsafe { Box::from_raw(self.next) };
        self.next = node.next;
        Some(node.value)
    }
}

impl<T> Drop for Drain<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn take_returns_values_in_push_order() {
        let stack = Stack::new();
        (0..100).for_each(|n| stack.push(n));
        assert!(!stack.is_empty());
        assert_eq!(stack.take().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        assert!(stack.is_empty());
    }

    #[test]
    fn untaken_values_are_dropped() {
        let value = std::sync::Arc::new(());
        let stack = Stack::new();
        (0..10).for_each(|_| stack.push(value.clone()));
        let mut taken = stack.take();
        taken.next();
        stack.push(value.clone());
        drop(taken);
        drop(stack);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }

    #[test]
    fn contention_loses_no_value() {
        const PUSHES: usize = 20_000;
        let stack = Stack::new();
        let mut seen = 0;
        std::thread::scope(|scope| {
            for producer in 0..4 {
                let stack = &stack;
                scope.spawn(move || (0..PUSHES).for_each(|n| stack.push((producer, n))));
            }
            let mut next = [0; 4];
            while seen < 4 * PUSHES {
                for (producer, n) in stack.take() {
                    assert_eq!(n, next[producer], "each producer's values arrive in its order");
                    next[producer] += 1;
                    seen += 1;
                }
            }
        });
    }
}
