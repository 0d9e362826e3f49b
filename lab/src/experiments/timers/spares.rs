//! What is to be used again, in stacks of the threads that use it. Promises: a spare costs no lock but once
//! in [`CHUNK`] of them, also where one thread takes and another gives. Leaves to others: making new ones.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Spares that a thread holds before it gives them to all, and takes at once.
const CHUNK: usize = 256;

/// The spares of no thread, in chunks.
pub(super) struct Spares<T> {
    chunks: Mutex<Vec<Vec<T>>>,
    /// As many as there are chunks: read before the lock is taken.
    count: AtomicUsize,
}

/// A thread's own spares.
pub(super) struct Stack<T> {
    own: Vec<T>,
    shared: Arc<Spares<T>>,
}

impl<T> Spares<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { chunks: Mutex::default(), count: AtomicUsize::new(0) })
    }

    /// A thread's end, empty.
    pub(super) fn stack(self: &Arc<Self>) -> Stack<T> {
        Stack { own: Vec::new(), shared: Arc::clone(self) }
    }

    fn give(&self, chunk: Vec<T>) {
        let mut chunks = self.lock();
        chunks.push(chunk);
        self.count.store(chunks.len(), Ordering::Relaxed);
    }

    fn take(&self) -> Option<Vec<T>> {
        // Relaxed: one that was just given may be missed, and is taken next time.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut chunks = self.lock();
        let chunk = chunks.pop();
        self.count.store(chunks.len(), Ordering::Relaxed);
        chunk
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<T>>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Stack<T> {
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own.is_empty() {
            self.own = self.shared.take()?;
        }
        self.own.pop()
    }

    pub(super) fn push(&mut self, spare: T) {
        if self.own.len() >= CHUNK {
            self.shared.give(mem::replace(&mut self.own, Vec::with_capacity(CHUNK)));
        }
        self.own.push(spare);
    }

    /// Adds new ones, the first of which comes last.
    pub(super) fn extend(&mut self, fresh: impl IntoIterator<Item = T>) {
        self.own.extend(fresh);
    }
}

impl<T> Drop for Stack<T> {
    fn drop(&mut self) {
        if !self.own.is_empty() {
            self.shared.give(mem::take(&mut self.own));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_one_thread_gives_another_takes_and_nothing_is_lost() {
        let spares = Spares::new();
        let mut giver = spares.stack();
        let all: BTreeSet<usize> = (0..3 * CHUNK + 7).collect();
        all.iter().for_each(|&spare| giver.push(spare));
        let mut taker = spares.stack();
        let taken: Vec<usize> = (0..3 * CHUNK).map(|_| taker.pop().unwrap()).collect();
        assert_eq!(taker.pop(), None, "the rest is the giver's own");
        drop(giver);
        let rest: Vec<usize> = std::iter::from_fn(|| taker.pop()).collect();
        assert_eq!(taken.into_iter().chain(rest).collect::<BTreeSet<_>>(), all);
    }
}
