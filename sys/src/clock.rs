//! The clocks; no other file of the project reads time.
//!
//! Guarantees: [`monotonic`] never goes back and ignores changes of the wall clock; all deadlines use it.
//! [`wall`] is for records that people read.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::step_filter::StepFilter;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A point on the monotonic clock, in nanoseconds since some fixed event in the past (on Linux: boot).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than every other point: a deadline that never comes.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// The time that has passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point `span` earlier; the clock's beginning where that is before it.
    pub fn before(self, span: Duration) -> Nanos {
        Nanos(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Add<Duration> for Nanos {
    type Output = Nanos;

    /// The point `span` later; [`Nanos::NEVER`] where that is beyond the clock's end (584 years).
    fn add(self, span: Duration) -> Nanos {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Nanos(self.0.saturating_add(span))
    }
}

/// A point in wall-clock time, in nanoseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WallNanos(pub u64);

/// The monotonic clock now (`CLOCK_MONOTONIC`).
pub fn monotonic() -> Nanos {
    Nanos(read(ClockId::Monotonic))
}

/// The wall clock now (`CLOCK_REALTIME`). It may step either way at any time.
pub fn wall() -> WallNanos {
    WallNanos(read(ClockId::Realtime))
}

/// The wall clock for bills: as [`wall`], but a step forward counts only after it has lasted for a minute.
/// A shorter step would bill flows to hours that have not come yet. A suspended machine has made no step:
/// `CLOCK_BOOTTIME` is the reference.
pub fn steady_wall() -> WallNanos {
    static STEP_FILTER: StepFilter = StepFilter::new();
    WallNanos(STEP_FILTER.read(read(ClockId::Realtime), read(ClockId::Boottime)))
}

/// CPU time that the calling thread has used since it began (`CLOCK_THREAD_CPUTIME_ID`). It does not
/// advance while the thread waits, also not while it waits for a CPU.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(read(ClockId::ThreadCPUTime))
}

/// CPU time that all threads of the calling process have used, those that have ended included
/// (`CLOCK_PROCESS_CPUTIME_ID`).
pub fn process_cpu() -> Duration {
    Duration::from_nanos(read(ClockId::ProcessCPUTime))
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Negative only before 1970 or before boot. Clamped: a broken clock then gives a wrong record and not
    // a panic on the data plane.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_never_goes_back() {
        let mut last = monotonic();
        for _ in 0..10_000 {
            let now = monotonic();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Nanos(5).since(Nanos(7)), Duration::ZERO);
        assert_eq!(Nanos(7) + Duration::MAX, Nanos::NEVER);
        assert_eq!(Nanos(7) + Duration::from_nanos(3), Nanos(10));
    }

    #[test]
    fn thread_cpu_time_counts_own_work_only() {
        let before = thread_cpu();
        let mut iterations = 0u64;
        while thread_cpu() == before {
            iterations = std::hint::black_box(iterations + 1);
        }
        let fresh = std::thread::spawn(thread_cpu).join().unwrap();
        let work = Duration::from_millis(20);
        while thread_cpu() - before < work {
            iterations = std::hint::black_box(iterations + 1);
        }
        assert!(fresh < thread_cpu());
    }

    #[test]
    fn wall_clock_is_after_2020() {
        let start_of_2020 = 1_577_836_800 * NANOS_PER_SECOND;
        assert!(wall().0 > start_of_2020);
    }
}
