//! Puts a thread of the ledger to sleep while it has no work.
//!
//! Guarantees: work that is published before [`Parker::wake`] is found by the thread's check, or ends its
//! sleep. While the thread is awake, a wake costs a fence and a load.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

use sys::park_flag::ParkFlag;

/// The sleep flag and the handle of one thread.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    flag: ParkFlag,
    thread: OnceLock<Thread>,
}

/// What a thread does after its check for work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ParkDecision {
    /// Go on: there is work.
    None,
    /// Sleep for this long at most: there will be work.
    For(Duration),
    /// Sleep until a wake.
    UntilWoken,
}

impl Parker {
    /// Makes the calling thread the one that sleeps here. Call it once, before anything else.
    pub(crate) fn bind_current_thread(&self) {
        self.thread.set(thread::current()).expect("a parker is bound to one thread once");
    }

    /// Sleeps as `decide` says; returns whether the thread slept. `decide` is called when a wake would
    /// already end the sleep.
    pub(crate) fn sleep(&self, decide: impl FnOnce() -> ParkDecision) -> bool {
        self.flag.announce();
        let decision = decide();
        match decision {
            ParkDecision::None => {}
            ParkDecision::For(pause) => thread::park_timeout(pause),
            ParkDecision::UntilWoken => thread::park(),
        }
        self.flag.retract();
        decision != ParkDecision::None
    }

    /// Sleeps for `pause` even if there is work: only [`Parker::interrupt`] ends it early.
    pub(crate) fn pause(&self, pause: Duration) {
        thread::park_timeout(pause);
    }

    /// Ends the thread's sleep, if it sleeps: there is work.
    pub(crate) fn wake(&self) {
        if self.flag.must_wake() {
            self.unpark();
        }
    }

    /// Ends the thread's sleep or its pause: a stage has changed.
    pub(crate) fn interrupt(&self) {
        // Before the thread is bound, its first check has to see the change. Either the unpark finds the
        // thread, or its check, after the fence of its announcement, sees the change.
        fence(Ordering::SeqCst);
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn wake_and_interrupt_lose_no_work() {
        const ROUNDS: u64 = 20_000;
        let parker = Arc::new(Parker::default());
        let (requested, completed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (shared, work, done) = (Arc::clone(&parker), Arc::clone(&requested), Arc::clone(&completed));
        let worker = thread::spawn(move || {
            shared.bind_current_thread();
            while done.load(Ordering::Relaxed) < ROUNDS {
                if work.load(Ordering::Relaxed) > done.load(Ordering::Relaxed) {
                    done.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                shared.sleep(|| match work.load(Ordering::Relaxed) > done.load(Ordering::Relaxed) {
                    true => ParkDecision::None,
                    false => ParkDecision::UntilWoken,
                });
            }
        });
        for round in 1..=ROUNDS {
            requested.store(round, Ordering::Relaxed);
            match round % 2 {
                0 => parker.wake(),
                _ => parker.interrupt(),
            }
            while completed.load(Ordering::Relaxed) < round {
                std::hint::spin_loop();
            }
        }
        worker.join().expect("the worker does not panic");
    }
}
