//! Atomics, locks, threads and cells from `std`, or from `loom` or `shuttle` when one of them runs the same
//! code under schedules of its own.
//!
//! Promises: code that uses these, and nothing of `std` for what threads share, can be explored. Leaves to
//! others: the models (`tests/*_loom.rs`, and in ledger and engine `schedules.rs`).

#[cfg(not(any(loom, shuttle)))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

// Loom's takes no constant; what loom explores has no thread locals.
#[cfg(not(shuttle))]
pub use std::thread_local;

#[cfg(loom)]
pub use loom::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

#[cfg(shuttle)]
pub use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

/// Between a read-modify-write and a load of another variable, both sequentially consistent, and so on the
/// other side: nothing, since no more is needed for one side to see the other's write. But loom takes
/// sequentially consistent accesses for weaker ones, and knows only fences of that strength. (On x86-64 a
/// fence costs as much as the exchange before it.)
pub fn fence_for_loom() {
    #[cfg(loom)]
    atomic::fence(atomic::Ordering::SeqCst);
}

/// An `UnsafeCell` with loom's interface, so that one source serves both.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;
