//! A parker: one thread sleeps until another one sets its token.
//!
//! Guarantees: a token is consumed once, whether it is set before the sleep or during it. Setting it takes no
//! lock: it is one atomic exchange, and a futex wake only when the thread sleeps.
//!
//! Not handled here: a second thread that parks on the same parker; the caller must not let it.
//!
//! `std::thread::park` is the same with one token per thread, which any library may set and consume.

#[cfg(not(any(loom, shuttle)))]
pub use futex::Parker;
#[cfg(any(loom, shuttle))]
pub use model::Parker;

#[cfg(not(any(loom, shuttle)))]
mod futex {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use rustix::thread::futex::{self, Flags, Timespec};

    use crate::clock::{Nanos, monotonic};

    const EMPTY: u32 = 0;
    const TOKEN: u32 = 1;
    const ASLEEP: u32 = 2;

    /// A one-token semaphore for one waiting thread, on a futex.
    #[derive(Debug, Default)]
    pub struct Parker(AtomicU32);

    impl Parker {
        /// A parker without a token.
        pub fn new() -> Parker {
            Parker::default()
        }

        /// Consumes the token; sleeps until there is one.
        pub fn park(&self) {
            let had_token = self.park_until(Nanos::NEVER);
            debug_assert!(had_token, "a wait without deadline ends by a token only");
        }

        /// As [`Parker::park`], for at most `span`; returns whether there was a token.
        pub fn park_for(&self, span: Duration) -> bool {
            self.park_until(monotonic() + span)
        }

        fn park_until(&self, deadline: Nanos) -> bool {
            loop {
                // Acquire pairs with the Release of `unpark`: writes before it are visible here.
                if self.0.swap(EMPTY, Ordering::Acquire) == TOKEN {
                    return true;
                }
                let remaining = deadline.since(monotonic());
                if remaining.is_zero() {
                    return false;
                }
                if self.0.compare_exchange(EMPTY, ASLEEP, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    // Whatever ends the wait (a token, a signal, the timeout), the next pass checks again.
                    let _ =
                        futex::wait(&self.0, Flags::PRIVATE, ASLEEP, timeout(deadline, remaining).as_ref());
                }
            }
        }

        /// Sets the token; setting it again before it is consumed changes nothing.
        pub fn unpark(&self) {
            if self.0.swap(TOKEN, Ordering::Release) == ASLEEP {
                let _ = futex::wake(&self.0, Flags::PRIVATE, 1);
            }
        }
    }

    fn timeout(deadline: Nanos, remaining: Duration) -> Option<Timespec> {
        let span =
            Timespec { tv_sec: remaining.as_secs() as i64, tv_nsec: i64::from(remaining.subsec_nanos()) };
        (deadline != Nanos::NEVER).then_some(span)
    }
}

/// The same for model checkers, whose threads must not sleep in the kernel.
#[cfg(any(loom, shuttle))]
mod model {
    use std::sync::PoisonError;
    use std::time::Duration;

    use crate::sync::{Condvar, Mutex};

    /// A one-token semaphore for one waiting thread, on a condition variable.
    #[derive(Debug, Default)]
    pub struct Parker {
        has_token: Mutex<bool>,
        token_set: Condvar,
    }

    impl Parker {
        /// A parker without a token.
        pub fn new() -> Parker {
            Parker::default()
        }

        /// Consumes the token; sleeps until there is one.
        pub fn park(&self) {
            let mut has_token = self.has_token.lock().unwrap_or_else(PoisonError::into_inner);
            while !*has_token {
                has_token = self.token_set.wait(has_token).unwrap_or_else(PoisonError::into_inner);
            }
            *has_token = false;
        }

        /// Consumes the token if there is one; in a model the timeout passes at once.
        pub fn park_for(&self, _span: Duration) -> bool {
            crate::sync::thread::yield_now();
            std::mem::take(&mut *self.has_token.lock().unwrap_or_else(PoisonError::into_inner))
        }

        /// Sets the token; setting it again before it is consumed changes nothing.
        pub fn unpark(&self) {
            *self.has_token.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.token_set.notify_one();
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn token_is_consumed_once_before_or_during_sleep() {
        let parker = Parker::new();
        parker.unpark();
        parker.unpark();
        parker.park();
        assert!(!parker.park_for(Duration::ZERO), "two tokens are one");
        assert!(!parker.park_for(Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| parker.park_for(Duration::from_secs(3600)));
            parker.unpark();
            assert!(sleeper.join().unwrap());
        });
    }

    #[test]
    fn no_token_is_lost_between_threads() {
        let (ping, pong) = (Parker::new(), Parker::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..20_000).for_each(|_| {
                    ping.park();
                    pong.unpark();
                });
            });
            (0..20_000).for_each(|_| {
                ping.unpark();
                pong.park();
            });
        });
    }
}
