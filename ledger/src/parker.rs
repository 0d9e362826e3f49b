//! A thread of the ledger that sleeps while there is nothing for it to do.
//!
//! Promises: work that was put where the thread looks, before [`Parker::wake`], is seen by its look or ends
//! its sleep; while it is awake a wake costs a fence and a load. Leaves to others: what the work is.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

use sys::parking::ParkFlag;

/// See the file's header.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    flag: ParkFlag,
    thread: OnceLock<Thread>,
}

/// What a thread does that has looked for work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ParkDecision {
    /// There is some.
    None,
    /// There will be, after so long.
    For(Duration),
    /// It waits to be told of some.
    UntilWoken,
}

impl Parker {
    /// Makes the calling thread the one that sleeps here; to be called once, before anything else.
    pub(crate) fn bind_current_thread(&self) {
        self.thread.set(thread::current()).expect("one thread sleeps here");
    }

    /// Rests as `look` says, which is called when a wake would end the rest; returns whether it did.
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

    /// Pauses, whatever there is to do: only [`Parker::interrupt`] ends it early.
    pub(crate) fn pause(&self, pause: Duration) {
        thread::park_timeout(pause);
    }

    /// Ends the thread's sleep, if it sleeps: there is work.
    pub(crate) fn wake(&self) {
        if self.flag.must_wake() {
            self.unpark();
        }
    }

    /// Ends the thread's sleep or its pause: something has changed that it must know.
    pub(crate) fn interrupt(&self) {
        // Before the thread is there, it is enough that its first look sees what has changed: either it
        // finds itself here, or, after the fence of its announcement, the change.
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
        let (given, taken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (shared, work, done) = (Arc::clone(&parker), Arc::clone(&given), Arc::clone(&taken));
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
            given.store(round, Ordering::Relaxed);
            match round % 2 {
                0 => parker.wake(),
                _ => parker.interrupt(),
            }
            while taken.load(Ordering::Relaxed) < round {
                std::hint::spin_loop();
            }
        }
        worker.join().expect("it has done all");
    }
}
