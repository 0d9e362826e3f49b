//! `mutex`: one socket, watched by the one thread whose turn it is. nginx's `accept_mutex`.
//!
//! A thread tries for the turn before each sleep, and never waits for it: where another has it, it does
//! without the socket, and tries again before its next sleep, or after [`ACCEPT_MUTEX_DELAY`]. The turn's
//! holder gives it up when it has accepted, and keeps it where nobody comes. If it leaves some who wait, or
//! is slow, and none of the others comes round soon by itself, it wakes the one with the least load. A thread
//! that has far more to do than the others stands back for one that has not, and sees to it likewise that
//! there is one. One that has no place, and so does not come back for the turn, wakes all who have. A turn
//! that becomes free between a thread's attempt and its sleep is seen at the last look before the sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sys::clock::{self, Nanos};
use sys::epoll::Trigger;

use super::{Strategy, WorkerHandle};

/// How long a thread that sleeps does without a turn before it tries again: nginx's `accept_mutex_delay`. It
/// looks for who waits then, whoever has the turn, and goes on as long as more wait than it takes at a time;
/// so nobody waits much longer than that for a thread that was quick until it got stuck.
pub(super) const ACCEPT_MUTEX_DELAY: Duration = Duration::from_millis(500);

/// So much more than the mean, and an eighth of it, a thread may have to do before it leaves the turn to
/// others: a few connections are no imbalance, and turns of a few hundred microseconds no lag.
const LOAD_MARGIN: u64 = 3;

/// See the file's header.
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

/// Whose turn it is at an address: one thread's, or nobody's.
#[derive(Debug, Default)]
pub(super) struct AcceptMutex {
    locked: AtomicBool,
}

impl AcceptMutex {
    /// Takes the turn for `seat`'s thread, if nobody has it, and unless that thread stands back: then another
    /// one takes it, as soon as it comes round, or is woken. `now` is when the loop's turn began.
    pub(super) fn try_lock(&self, worker: &WorkerHandle, now: Nanos) -> LockAttempt {
        // The look before the swap leaves the cache line where it is while another has the turn.
        if !self.is_free() {
            return LockAttempt::Contended;
        }
        let bound = load_bound(worker, now);
        if worker.load_awake(worker.number(), now) > bound && worker.wake_another(bound, clock::monotonic()) {
            return LockAttempt::Yielded;
        }
        if self.locked.swap(true, Ordering::Relaxed) { LockAttempt::Contended } else { LockAttempt::Acquired }
    }

    /// Whether nobody has it.
    pub(super) fn is_free(&self) -> bool {
        // Relaxed, as everywhere here: the turn guards no memory, only a place in the kernel's wait queue.
        !self.locked.load(Ordering::Relaxed)
    }

    /// Gives the turn up. Only who has it may call.
    pub(super) fn unlock(&self) {
        self.locked.store(false, Ordering::Relaxed);
    }
}

/// What became of an attempt to take the turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LockAttempt {
    Acquired,
    Contended,
    Yielded,
}

/// Sees to it that another thread takes the turn that `seat`'s thread has left to others, as in
/// [`AcceptMutex::try_lock`]. Answers whether there is one.
pub(super) fn wake_less_loaded(worker: &WorkerHandle) -> bool {
    let now = clock::monotonic();
    worker.wake_another(load_bound(worker, now), now)
}

/// The most that a thread may have to do at `now` to take the turn, by what all have that have place. The
/// eighth is nginx's, of what its connection table has left; that lag counts too is ours.
fn load_bound(worker: &WorkerHandle, now: Nanos) -> u64 {
    let mean = worker.load_mean(now);
    mean + mean / 8 + LOAD_MARGIN
}
