//! The flag by which a thread that sleeps and those that hand it work agree on who must wake it.
//!
//! Promises: work handed over before [`ParkFlag::must_wake`] is either seen by the sleeper's last look or
//! answered with `true`; under load, while nobody sleeps, a producer pays one fence and one load.
//! Leaves to others: the queue, and the call that ends the sleep.
//!
//! ```text
//!   sleeper                         producer
//!   announce()                      put work where the sleeper looks
//!   look for work: none             must_wake()? -> end the sleep
//!   sleep
//!   retract()
//! ```
//!
//! Both sides write, fence, then read what the other wrote (Dekker's pattern): of two sequentially
//! consistent fences one comes first, so at least one side sees the other's write.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// See the file's header.
#[derive(Debug)]
pub struct ParkFlag {
    parked: AtomicBool,
}

impl ParkFlag {
    /// The flag of a thread that is awake.
    pub fn new() -> Self {
        Self { parked: AtomicBool::new(false) }
    }

    /// Says that this thread will sleep unless its next look finds work.
    pub fn announce(&self) {
        self.parked.store(true, Ordering::Relaxed);
        // Pairs with the fence in `must_wake`.
        fence(Ordering::SeqCst);
    }

    /// Says that this thread is awake.
    pub fn retract(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }

    /// Whether the thread has said that it will sleep, and nobody has ended that sleep since. Who writes,
    /// then has a sequentially consistent fence, then asks, has a part in the pattern: what he wrote is seen
    /// by the thread's last look if the answer is no.
    pub fn is_announced(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    /// Whether the caller, who has just handed over work, must end the sleep. Of several producers one
    /// is told so; the others rely on its signal, also if it is descheduled before it gives that.
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
