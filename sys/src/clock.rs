//! The clocks; no other file of the project reads time.
//!
//! Guarantees: [`monotonic`] never goes back and ignores changes of the wall clock; all deadlines use it.
//! [`wall`] is for records that people read.

use std::ops::Add;
use std::time::Duration;

use rustix::time::ClockId;

use crate::kernel;
use crate::step_filter::StepFilter;

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
    Nanos(kernel::clock(ClockId::Monotonic))
}

/// The wall clock now (`CLOCK_REALTIME`). It may step either way at any time.
pub fn wall() -> WallNanos {
    WallNanos(kernel::clock(ClockId::Realtime))
}

/// The wall clock for bills: as [`wall`], but a step forward counts only after it has lasted for a minute.
/// A shorter step would bill flows to hours that have not come yet. A suspended machine has made no step:
/// `CLOCK_BOOTTIME` is the reference.
pub fn steady_wall() -> WallNanos {
    static STEP_FILTER: StepFilter = StepFilter::new();
    // The filter is the process's, and a simulation has a clock of its own, which never steps.
    #[cfg(feature = "simulation")]
    if crate::simulation::current().is_some() {
        return wall();
    }
    WallNanos(STEP_FILTER.read(kernel::clock(ClockId::Realtime), kernel::clock(ClockId::Boottime)))
}

/// CPU time that the calling thread has used since it began (`CLOCK_THREAD_CPUTIME_ID`). It does not
/// advance while the thread waits, also not while it waits for a CPU.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(kernel::clock(ClockId::ThreadCPUTime))
}

/// CPU time that all threads of the calling process have used, those that have ended included
/// (`CLOCK_PROCESS_CPUTIME_ID`).
pub fn process_cpu() -> Duration {
    Duration::from_nanos(kernel::clock(ClockId::ProcessCPUTime))
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
        let start_of_2020 = Duration::from_secs(1_577_836_800).as_nanos() as u64;
        assert!(wall().0 > start_of_2020);
    }
}
