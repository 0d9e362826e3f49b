//! A stack that many threads push to and one takes whole: the cell of every inbox.
//!
//! Promises: a push is one allocation and a compare-and-swap loop, and a producer that is descheduled
//! anywhere in it holds up nobody: either its node is linked, or it is not there yet. (A bounded array
//! queue lacks this: a producer stopped between its claim and its publication blocks the consumer at
//! that slot.) [`Stack::take`] is one swap. Leaves to others: waking the one who takes, and a bound.
//!
//! The design is R. K. Treiber's (IBM RJ 5118, 1986); taking the whole list at once removes the ABA
//! problem, since no node is ever popped alone.

use std::ptr;

use crate::sync::atomic::{AtomicPtr, Ordering};

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

/// See the file's header.
pub struct Stack<T> {
    head: AtomicPtr<Node<T>>,
}

// SAFETY: a `Stack` owns its nodes; they are reached by one thread at a time (the pusher until the
// exchange succeeds, the taker after its swap), so sending values through it needs `T: Send` only.
unsafe impl<T: Send> Send for Stack<T> {}
// SAFETY: as above; `&Stack` gives no reference to a `T` inside.
unsafe impl<T: Send> Sync for Stack<T> {}

impl<T> Stack<T> {
    /// An empty stack.
    pub fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Puts `value` on top.
    pub fn push(&self, value: T) {
        let node = Box::into_raw(Box::new(Node { value, next: ptr::null_mut() }));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: `node` came from `Box::into_raw` above and is not linked yet: it is ours alone.
            unsafe { (*node).next = head };
            // Release pairs with the Acquire of `take`: who sees the node sees its contents.
            match self.head.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }

    /// Takes everything, oldest first.
    pub fn take(&self) -> Drain<T> {
        // Acquire pairs with the Release of `push`.
        let mut newest = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut oldest: *mut Node<T> = ptr::null_mut();
        while !newest.is_null() {
            // SAFETY: the swap made this chain ours; each node came from `Box::into_raw`.
            let next = unsafe { std::mem::replace(&mut (*newest).next, oldest) };
            oldest = newest;
            newest = next;
        }
        Drain { next: oldest }
    }

    /// Whether nothing is waiting. Another thread may push right after.
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

/// What was taken, as an iterator from the oldest to the newest.
pub struct Drain<T> {
    next: *mut Node<T>,
}

impl<T> Iterator for Drain<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: the chain belongs to this `Drain` alone; each node came from `Box::into_raw` and is
        // turned back exactly once, because `self.next` moves past it here.
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
