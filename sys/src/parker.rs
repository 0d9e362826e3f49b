//! The sleep of one thread, and the token that ends it.
//!
//! Promises: a token that is given is taken once, whether it came before the sleep or during it; to give it
//! is one atomic exchange, and a system call only when the thread sleeps; it takes no lock. Leaves to others:
//! who gives it, and that one thread only sleeps here.
//!
//! `std::thread::park` is the same, with one token for each thread, which any library may give and take.

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

    /// See the file's header.
    #[derive(Debug, Default)]
    pub struct Parker(AtomicU32);

    impl Parker {
        /// A parker without a token.
        pub fn new() -> Parker {
            Parker::default()
        }

        /// Takes the token, and sleeps until there is one.
        pub fn park(&self) {
            let had_token = self.park_until(Nanos::NEVER);
            debug_assert!(had_token, "that moment never comes");
        }

        /// As [`Parker::park`], for at most so long; whether there was a token.
        pub fn park_for(&self, span: Duration) -> bool {
            self.park_until(monotonic() + span)
        }

        fn park_until(&self, deadline: Nanos) -> bool {
            loop {
                // Acquire pairs with the Release of `unpark`: what was done before it is seen here.
                if self.0.swap(EMPTY, Ordering::Acquire) == TOKEN {
                    return true;
                }
                let remaining = deadline.since(monotonic());
                if remaining.is_zero() {
                    return false;
                }
                if self.0.compare_exchange(EMPTY, ASLEEP, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    // Whatever ends it (a token, a signal, the time), the next turn looks again.
                    let _ =
                        futex::wait(&self.0, Flags::PRIVATE, ASLEEP, timeout(deadline, remaining).as_ref());
                }
            }
        }

        /// Gives the token; one that was given already is the same.
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

    /// See the file's header.
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

        /// Takes the token, and sleeps until there is one.
        pub fn park(&self) {
            let mut has_token = self.has_token.lock().unwrap_or_else(PoisonError::into_inner);
            while !*has_token {
                has_token = self.token_set.wait(has_token).unwrap_or_else(PoisonError::into_inner);
            }
            *has_token = false;
        }

        /// Takes the token if there is one; in a model time passes at once.
        pub fn park_for(&self, _span: Duration) -> bool {
            crate::sync::thread::yield_now();
            std::mem::take(&mut *self.has_token.lock().unwrap_or_else(PoisonError::into_inner))
        }

        /// Gives the token; one that was given already is the same.
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
