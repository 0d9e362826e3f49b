//! `mutex`: one socket, watched by the thread that holds the accept mutex. nginx's `accept_mutex`.
//!
//! A thread tries to lock the mutex before each sleep, and never waits for it. If another thread holds it,
//! the thread stops watching the socket, and tries again before its next sleep or after
//! [`ACCEPT_MUTEX_DELAY`].
//!
//! The holder unlocks the mutex after it has accepted, and keeps it while no connection comes. If it leaves
//! connections queued, or is slow, and no other thread is awake, it wakes the one with the least load.
//!
//! A thread with far more load than the others yields the mutex, and ensures in the same way that another
//! thread takes it. A thread without capacity does not try again, so it wakes all threads with capacity. A
//! mutex that is unlocked between a thread's attempt and its sleep is found by the last check before the
//! sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sys::clock::{self, Nanos};
use sys::epoll::Trigger;

use super::{Strategy, WorkerHandle};

/// How long a sleeping thread without the mutex waits before it tries again: nginx's `accept_mutex_delay`.
/// Then it accepts, even if another thread holds the mutex, and goes on as long as more connections are
/// queued than it accepts at a time. So no connection waits much longer than this for a thread that was quick
/// until it got stuck.
pub(super) const ACCEPT_MUTEX_DELAY: Duration = Duration::from_millis(500);

/// A thread yields the mutex when its load exceeds the mean by more than this and an eighth of the mean: a
/// few connections are no imbalance, and passes of a few hundred microseconds no lag.
const LOAD_MARGIN: u64 = 3;

/// One socket, watched only by the holder of the accept mutex.
pub(super) struct Mutex;

impl Strategy for Mutex {
    fn name(&self) -> &'static str {
        "mutex"
    }

    fn trigger(&self) -> Trigger {
        Trigger::LevelRead
    }

    fn accepts_per_wake_max(&self) -> u32 {
        4
    }

    fn uses_accept_mutex(&self) -> bool {
        true
    }
}

/// The accept mutex of a listener; at most one thread holds it.
#[derive(Debug, Default)]
pub(super) struct AcceptMutex {
    locked: AtomicBool,
}

impl AcceptMutex {
    /// Locks the mutex for `worker`'s thread, unless it is locked or that thread yields. After a yield
    /// another thread locks it in its next pass, or is woken for that. `now` is when this pass began.
    pub(super) fn try_lock(&self, worker: &WorkerHandle, now: Nanos) -> LockAttempt {
        // A load before the swap leaves the cache line shared while another thread holds the mutex.
        if !self.is_free() {
            return LockAttempt::Contended;
        }
        let bound = load_bound(worker, now);
        if worker.load_awake(worker.number(), now) > bound && worker.wake_another(bound, clock::monotonic()) {
            return LockAttempt::Yielded;
        }
        if self.locked.swap(true, Ordering::Relaxed) { LockAttempt::Contended } else { LockAttempt::Acquired }
    }

    /// Whether no thread holds it.
    pub(super) fn is_free(&self) -> bool {
        // Relaxed, as everywhere here: the mutex guards no memory, only the registration with epoll.
        !self.locked.load(Ordering::Relaxed)
    }

    /// Unlocks the mutex. Only its holder may call this.
    pub(super) fn unlock(&self) {
        self.locked.store(false, Ordering::Relaxed);
    }
}

/// The result of an attempt to lock the mutex.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LockAttempt {
    Acquired,
    Contended,
    Yielded,
}

/// Ensures that another thread locks the mutex to which `worker`'s thread has yielded, as in
/// [`AcceptMutex::try_lock`]. Returns whether there is one.
pub(super) fn wake_less_loaded(worker: &WorkerHandle) -> bool {
    let now = clock::monotonic();
    worker.wake_another(load_bound(worker, now), now)
}

/// The load at `now` up to which a thread locks the mutex, by the mean of all threads with capacity. The
/// eighth is nginx's, of the free part of its connection table; counting lag is ours.
fn load_bound(worker: &WorkerHandle, now: Nanos) -> u64 {
    let mean = worker.load_mean(now);
    mean + mean / 8 + LOAD_MARGIN
}
