//! The sleep of a thread that has nothing else to do, never shorter than requested.

use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute};
use sys::clock::{Nanos, monotonic};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Sleeps until then; not at all if that has passed.
pub(super) fn until(until: Nanos) {
    while monotonic() < until {
        // A signal may end it early: the next pass checks the time again.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(until));
    }
}

/// A point on the monotonic clock as the kernel takes it.
pub(super) fn timespec(point: Nanos) -> Timespec {
    let (seconds, nanos) = (point.0 / NANOS_PER_SECOND, point.0 % NANOS_PER_SECOND);
    // Below 2^35 and below 2^30: neither cast changes anything.
    Timespec { tv_sec: seconds as i64, tv_nsec: nanos as i64 }
}
