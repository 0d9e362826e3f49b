//! Counters with one writer and any number of readers.
//!
//! Guarantees: an addition is a load and a store without a locked instruction (1.3 ns against 6 ns for a
//! fetch-and-add). A reader sees a recent value, never a torn one.
//!
//! Not handled here: the caller ensures that each counter has one writing thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sys::clock::Nanos;
use sys::socket::ResourceExhausted;

/// A number with one writing thread and any number of readers.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `amount`. Only the counter's own thread may call it: concurrent additions lose updates.
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Subtracts `amount`, for a gauge. Only the counter's own thread may call it.
    pub fn sub(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Sets the value, for a gauge. Only the counter's own thread may call it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The latest value that is visible to this thread.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one reactor thread, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReactorStats {
    /// Passes of the event loop.
    pub passes: Counter,
    /// Events that epoll reported.
    pub events: Counter,
    /// Events for sources that had been removed by then.
    pub stale_events: Counter,
    /// Timers that were due.
    pub timers: Counter,
    /// Client connections that the thread serves or has queued, as the owner of the loop last reported.
    pub connections: Counter,
    /// 1 while the thread has no capacity for another connection, else 0.
    pub is_full: Counter,
    /// Events of a listener.
    pub accept_wakes: Counter,
    /// Connections accepted.
    pub accepts: Counter,
    /// Accept calls that found no connection after an event of the listener.
    pub accepts_empty: Counter,
    /// Accepted connections that another thread serves.
    pub handed_off: Counter,
    /// Accept calls that failed on an exhausted resource, by [`ResourceExhausted`].
    pub exhausted: [Counter; ResourceExhausted::ALL.len()],
    /// When a resource was last exhausted, in monotonic nanoseconds, by [`ResourceExhausted`]; 0 means never.
    exhausted_at: [Counter; ResourceExhausted::ALL.len()],
    /// Tasks that ended by a panic.
    pub panics: Counter,
    /// When the current pass began, in monotonic nanoseconds; 0 while the thread sleeps.
    busy_since: Counter,
    /// Length of a pass without its sleep, in nanoseconds: a moving average.
    pass_length: Counter,
}

/// A pass has the weight 2^-`AVERAGE_SHIFT` in the moving average of pass lengths.
const AVERAGE_SHIFT: u32 = 3;

impl ReactorStats {
    /// An estimate at `now` of how long new work waits for this thread. It is zero while the thread sleeps;
    /// else it is the mean length of a pass, or the age of the current pass if that is longer.
    pub fn lag(&self, now: Nanos) -> Duration {
        match self.busy_since.value() {
            0 => Duration::ZERO,
            since => self.pass_length().max(now.since(Nanos(since))),
        }
    }

    /// Length of a pass without its sleep: a moving average.
    pub fn pass_length(&self) -> Duration {
        Duration::from_nanos(self.pass_length.value())
    }

    /// Records that an accept or a dial exhausted a resource at `now`.
    pub fn record_exhausted(&self, resource: ResourceExhausted, now: Nanos) {
        self.exhausted_at[resource as usize].set(now.0);
    }

    /// When a resource was last exhausted; zero means never.
    pub fn last_exhausted(&self, resource: ResourceExhausted) -> Nanos {
        Nanos(self.exhausted_at[resource as usize].value())
    }

    /// Counts a pass that begins at `now`.
    pub(crate) fn begin_pass(&self, now: Nanos) {
        self.passes.add(1);
        self.busy_since.set(now.0);
    }

    /// Ends the current pass, if there is one, at `now`. `sleeps` is false where the thread polls without
    /// sleeping.
    pub(crate) fn end_pass(&self, now: Nanos, sleeps: bool) {
        let began = self.busy_since.value();
        if began != 0 {
            let (average, length) = (self.pass_length.value(), now.since(Nanos(began)).as_nanos() as u64);
            self.pass_length.set(average - (average >> AVERAGE_SHIFT) + (length >> AVERAGE_SHIFT));
        }
        if sleeps {
            self.busy_since.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_follows_pass_length_and_is_zero_asleep() {
        const MS: u64 = 1_000_000;
        let lag = |stats: &ReactorStats, now: u64| stats.lag(Nanos(now)).as_micros();
        let stats = ReactorStats::default();
        stats.end_pass(Nanos(5 * MS), false);
        assert_eq!(lag(&stats, 5 * MS), 0, "no lag before the first pass");
        stats.begin_pass(Nanos(10 * MS));
        assert_eq!(lag(&stats, 11 * MS), 1_000, "the age of the current pass");
        stats.end_pass(Nanos(12 * MS), true);
        assert_eq!(lag(&stats, 20 * MS), 0, "asleep");
        stats.begin_pass(Nanos(20 * MS));
        assert_eq!(lag(&stats, 20 * MS), 250, "an eighth of the last pass");
        for _ in 0..100 {
            stats.end_pass(Nanos(21 * MS), false);
        }
        assert!(
            (990..=1_000).contains(&lag(&stats, 20 * MS)),
            "the average converges to the length of a pass"
        );
        stats.end_pass(Nanos(20 * MS), false);
        assert!(lag(&stats, 20 * MS) < 900, "the average follows shorter passes");
    }
}
