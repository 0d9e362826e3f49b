//! The flag by which producers find out whether they must wake a consumer that is about to sleep.
//!
//! Guarantees: for work that is queued before [`ParkFlag::must_wake`], either the sleeper's last check finds
//! it or that call returns `true`. Under load, while the consumer is awake, a producer pays one fence and one
//! load.
//!
//! Not handled here: the queue, and the system call that ends the sleep.
//!
//! ```text
//!   sleeper                         producer
//!   announce()                      queue the work
//!   check the queue: empty          must_wake()? -> end the sleep
//!   sleep
//!   retract()
//! ```
//!
//! Both sides write, fence, then read what the other side wrote (Dekker's pattern): of two sequentially
//! consistent fences one comes first, so at least one side sees the other's write.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether a thread sleeps or is about to.
#[derive(Debug)]
pub struct ParkFlag {
    parked: AtomicBool,
}

impl ParkFlag {
    /// The flag of an awake thread.
    pub fn new() -> Self {
        Self { parked: AtomicBool::new(false) }
    }

    /// Announces that this thread will sleep unless its next check finds work.
    pub fn announce(&self) {
        self.parked.store(true, Ordering::Relaxed);
        // Pairs with the fence in `must_wake`.
        fence(Ordering::SeqCst);
    }

    /// Marks this thread as awake.
    pub fn retract(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }

    /// Whether the thread has announced its sleep, and no producer has ended that sleep since. A caller that
    /// writes, then executes a sequentially consistent fence, then calls this, takes part in the pattern: if
    /// the result is `false`, the thread's last check sees the write.
    pub fn is_announced(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    /// Whether the caller, which has just queued work, must end the sleep. Of several producers one gets
    /// `true`; the others rely on its signal, even if it is descheduled before sending it.
    pub fn must_wake(&self) -> bool {
        // Pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
        self.is_announced() && self.parked.swap(false, Ordering::Relaxed)
    }
}

impl Default for ParkFlag {
    fn default() -> Self {
        Self::new()
    }
}
