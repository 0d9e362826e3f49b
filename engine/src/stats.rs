//! Counters with one writer and any number of readers.
//!
//! Promises: counting is a load and a store without a locked instruction (1.3 ns against 6 ns for a
//! fetch-and-add); a reader sees a value that was true a moment ago, never a torn one. Leaves to others:
//! that each counter really has one writing thread, and what the numbers are called outside.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sys::clock::Nanos;
use sys::socket::ResourceExhausted;

/// A number that its one writer moves and everybody may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `amount`. Only the counter's own thread may call it: additions of two threads get lost.
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Takes `amount` off, for a gauge. Only the counter's own thread may call it.
    pub fn sub(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Puts `value` in place, for a gauge. Only the counter's own thread may call it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value a moment ago.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one reactor thread counts about itself. It has its cache lines for itself.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReactorStats {
    /// Turns of the loop.
    pub turns: Counter,
    /// Events that the kernel reported.
    pub events: Counter,
    /// Events for sources that were gone by then.
    pub stale_events: Counter,
    /// Timers that were due.
    pub timers: Counter,
    /// Client connections that the thread serves and those that wait for it, as the loop's owner last told.
    pub connections: Counter,
    /// 1 while the thread has no place for another connection, else 0.
    pub is_full: Counter,
    /// Wakes for a listener.
    pub accept_wakes: Counter,
    /// Connections accepted.
    pub accepts: Counter,
    /// Accept calls that found nothing after a wake for the listener.
    pub accepts_empty: Counter,
    /// Connections accepted that another thread serves.
    pub handed_over: Counter,
    /// Accept calls that failed because a resource was used up, by [`ResourceExhausted`].
    pub shortages: [Counter; ResourceExhausted::ALL.len()],
    /// When a resource was last used up, in monotonic nanoseconds, by [`ResourceExhausted`]; 0 if it never
    /// was.
    exhausted_at: [Counter; ResourceExhausted::ALL.len()],
    /// Tasks that ended by a panic.
    pub panics: Counter,
    /// When the turn that goes on began, in monotonic nanoseconds; 0 while the thread sleeps.
    busy_since: Counter,
    /// How long turns take, without their sleep, in nanoseconds: a moving average.
    pass_length: Counter,
}

/// What a turn counts for in the average of their lengths is 2 to the power of minus this.
const AVERAGE_SHIFT: u32 = 3;

impl ReactorStats {
    /// How long new work waits for this thread, as far as anybody can know at `now`: not at all while it
    /// sleeps, else as long as turns usually take, or as this one has taken already.
    pub fn lag(&self, now: Nanos) -> Duration {
        match self.busy_since.value() {
            0 => Duration::ZERO,
            since => self.turn_length().max(now.since(Nanos(since))),
        }
    }

    /// How long turns take, without their sleep: a moving average.
    pub fn turn_length(&self) -> Duration {
        Duration::from_nanos(self.pass_length.value())
    }

    /// Notes that a resource was used up at `now`, by an accept or a dial.
    pub fn note_shortage(&self, resource: ResourceExhausted, now: Nanos) {
        self.exhausted_at[resource as usize].set(now.0);
    }

    /// When a resource was last used up; the clock's zero if it never was.
    pub fn short_at(&self, resource: ResourceExhausted) -> Nanos {
        Nanos(self.exhausted_at[resource as usize].value())
    }

    /// A turn of the loop begins.
    pub(crate) fn begin_pass(&self, now: Nanos) {
        self.turns.add(1);
        self.busy_since.set(now.0);
    }

    /// The turn that goes on, if one does, is over at `now`; the thread goes to sleep, or looks for more.
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
        assert_eq!(lag(&stats, 5 * MS), 0, "what is before the first turn is none");
        stats.begin_pass(Nanos(10 * MS));
        assert_eq!(lag(&stats, 11 * MS), 1_000, "so long it has not come round");
        stats.end_pass(Nanos(12 * MS), true);
        assert_eq!(lag(&stats, 20 * MS), 0, "it sleeps");
        stats.begin_pass(Nanos(20 * MS));
        assert_eq!(lag(&stats, 20 * MS), 250, "an eighth of the last turn");
        for _ in 0..100 {
            stats.end_pass(Nanos(21 * MS), false);
        }
        assert!((990..=1_000).contains(&lag(&stats, 20 * MS)), "in time the average is what they take");
        stats.end_pass(Nanos(20 * MS), false);
        assert!(lag(&stats, 20 * MS) < 900, "and goes down with them");
    }
}
