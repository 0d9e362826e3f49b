//! The sleep of one thread until a deadline that other threads may move without waking it.
//!
//! Guarantees: [`Alarm::wait`] returns when the deadline last set has passed, and not before. Setting it
//! is one system call (`timerfd_settime`, absolute on the monotonic clock), whether the thread sleeps or
//! not. Neither steps of the wall clock nor the slack of other sleeps (50 us, `PR_SET_TIMERSLACK`) change
//! the time of waking.
//!
//! Not handled here: threads that set different deadlines at the same time; the last call wins.

#[cfg(not(any(loom, shuttle)))]
pub use descriptor::Alarm;
#[cfg(any(loom, shuttle))]
pub use model::Alarm;

#[cfg(not(any(loom, shuttle)))]
mod descriptor {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::io::Errno;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::clock::{Nanos, monotonic};

    const NANOS_PER_SECOND: u64 = 1_000_000_000;
    const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    /// A timerfd on the monotonic clock: any thread sets it, one thread waits for it.
    #[derive(Debug)]
    pub struct Alarm(OwnedFd);

    impl Alarm {
        /// An alarm that is not set.
        ///
        /// # Errors
        /// `EMFILE`, `ENFILE`, `ENOMEM`.
        pub fn new() -> io::Result<Alarm> {
            Ok(Alarm(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?))
        }

        /// The current time of the monotonic clock.
        pub fn now() -> Nanos {
            monotonic()
        }

        /// Sets the deadline to `when` and replaces the previous one; [`Nanos::NEVER`] disarms the alarm. An
        /// expiry that no wait has consumed yet is discarded.
        pub fn set(&self, when: Nanos) {
            // A time of zero would disarm the timer (timerfd_settime(2)).
            let nanos = if when == Nanos::NEVER { 0 } else { when.0.max(1) };
            let value = Timespec {
                tv_sec: (nanos / NANOS_PER_SECOND) as i64,
                tv_nsec: (nanos % NANOS_PER_SECOND) as i64,
            };
            let new = Itimerspec { it_interval: ZERO, it_value: value };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &new)
                .expect("the descriptor is a timerfd and the time is in range");
        }

        /// Sleeps until the deadline and returns the time of waking. Only one thread may wait.
        pub fn wait(&self) -> Nanos {
            let mut count = [0; 8];
            while rustix::io::read(&self.0, &mut count) == Err(Errno::INTR) {}
            monotonic()
        }
    }
}

/// The same for model checkers: each deadline has passed at once, except [`Nanos::NEVER`].
#[cfg(any(loom, shuttle))]
mod model {
    use std::io;
    use std::sync::PoisonError;

    use crate::clock::Nanos;
    use crate::sync::{Condvar, Mutex};

    /// A deadline behind a lock: any thread sets it, one thread waits for it.
    #[derive(Debug)]
    pub struct Alarm {
        deadline: Mutex<Nanos>,
        changed: Condvar,
    }

    impl Alarm {
        /// An alarm that is not set.
        ///
        /// # Errors
        /// None.
        pub fn new() -> io::Result<Alarm> {
            Ok(Alarm { deadline: Mutex::new(Nanos::NEVER), changed: Condvar::new() })
        }

        /// The time at which every run of a model begins.
        pub fn now() -> Nanos {
            Nanos(0)
        }

        /// Sets the deadline to `when`.
        pub fn set(&self, when: Nanos) {
            *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = when;
            self.changed.notify_one();
        }

        /// Sleeps until a deadline is set and returns it.
        pub fn wait(&self) -> Nanos {
            let mut deadline = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
            while *deadline == Nanos::NEVER {
                deadline = self.changed.wait(deadline).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::replace(&mut *deadline, Nanos::NEVER)
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::clock::{Nanos, monotonic};
    use std::time::Duration;

    #[test]
    fn alarm_rings_at_the_last_set_time_not_before() {
        let alarm = Alarm::new().unwrap();
        alarm.set(Nanos(0));
        alarm.wait();
        for (first, second) in [(3_600_000, 5), (1, 5), (5, 5)] {
            let now = monotonic();
            let second = now + Duration::from_millis(second);
            alarm.set(now + Duration::from_millis(first));
            alarm.set(second);
            assert!(alarm.wait() >= second);
        }
    }

    #[test]
    fn earlier_set_during_wait_ends_it() {
        let alarm = Alarm::new().unwrap();
        alarm.set(monotonic() + Duration::from_secs(3600));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| alarm.wait());
            std::thread::sleep(Duration::from_millis(5));
            alarm.set(monotonic());
            sleeper.join().unwrap();
        });
    }
}
