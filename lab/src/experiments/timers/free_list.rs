//! A free list: values for reuse, in stacks of the threads that use them.
//!
//! Guarantees: taking or returning a value locks once in [`BATCH`] of them, also where one thread takes and
//! another returns.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values that a thread holds before it gives them to all, and takes at once.
const BATCH: usize = 256;

/// The values of no thread, in chunks.
pub(super) struct FreeList<T> {
    batches: Mutex<Vec<Vec<T>>>,
    /// The number of chunks: read before the lock is taken.
    count: AtomicUsize,
}

/// A thread's own values.
pub(super) struct LocalFreeList<T> {
    own: Vec<T>,
    shared: Arc<FreeList<T>>,
}

impl<T> FreeList<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { batches: Mutex::default(), count: AtomicUsize::new(0) })
    }

    /// A thread's own list, empty.
    pub(super) fn local(self: &Arc<Self>) -> LocalFreeList<T> {
        LocalFreeList { own: Vec::new(), shared: Arc::clone(self) }
    }

    fn give(&self, batch: Vec<T>) {
        let mut batches = self.lock();
        batches.push(batch);
        self.count.store(batches.len(), Ordering::Relaxed);
    }

    fn take(&self) -> Option<Vec<T>> {
        // Relaxed: a chunk that was just returned may be missed, and is taken next time.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut batches = self.lock();
        let batch = batches.pop();
        self.count.store(batches.len(), Ordering::Relaxed);
        batch
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<T>>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> LocalFreeList<T> {
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own.is_empty() {
            self.own = self.shared.take()?;
        }
        self.own.pop()
    }

    pub(super) fn push(&mut self, item: T) {
        if self.own.len() >= BATCH {
            self.shared.give(mem::replace(&mut self.own, Vec::with_capacity(BATCH)));
        }
        self.own.push(item);
    }

    /// Adds new values, the first of which is taken last.
    pub(super) fn extend(&mut self, fresh: impl IntoIterator<Item = T>) {
        self.own.extend(fresh);
    }
}

impl<T> Drop for LocalFreeList<T> {
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
    fn values_move_between_threads_without_loss() {
        let free = FreeList::new();
        let mut giver = free.local();
        let all: BTreeSet<usize> = (0..3 * BATCH + 7).collect();
        all.iter().for_each(|&item| giver.push(item));
        let mut taker = free.local();
        let taken: Vec<usize> = (0..3 * BATCH).map(|_| taker.pop().unwrap()).collect();
        assert_eq!(taker.pop(), None, "the remaining values are the giver's own");
        drop(giver);
        let rest: Vec<usize> = std::iter::from_fn(|| taker.pop()).collect();
        assert_eq!(taken.into_iter().chain(rest).collect::<BTreeSet<_>>(), all);
    }
}
