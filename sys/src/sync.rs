//! Atomics, locks, threads and cells of `std`, replaced by those of `loom` or `shuttle` in their builds.
//!
//! Code that shares data between threads through these types only can be model-checked. The models are in
//! `tests/*_loom.rs`, and in `shuttle_tests.rs` of ledger and engine.

#[cfg(not(any(loom, shuttle)))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

// Loom's macro takes no const initializer; code under loom has no thread locals.
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

/// A fence under loom, otherwise nothing. Call it on both sides between a read-modify-write and a load of
/// another variable, all sequentially consistent. In C++20 these accesses suffice for one side to see the
/// other's write. But loom treats sequentially consistent accesses as weaker ones, and honours only fences of
/// that strength. (On x86-64 a fence costs as much as the exchange before it.)
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
