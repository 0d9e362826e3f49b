//! Detects an overloaded queue by how long its jobs wait: CoDel for requests.
//!
//! Guarantees: a burst that drains within an interval is no overload; a standing queue is one until it
//! drains. Pure: the times are arguments.
//!
//! A queue absorbs bursts, so its length says nothing. What counts is the least wait within an interval,
//! which is near zero in a queue that ever empties (Nichols and Jacobson, "Controlling Queue Delay", 2012).
//! As in folly's `Codel.h`, a limit replaces the drop rate of the original: under overload, jobs that waited
//! for twice the target are shed, since a server, unlike a router, can look at each of them.

use std::time::Duration;

use sys::clock::Nanos;

use super::settings::Shedding;

/// Tracks the least wait of each interval and compares it with the target.
#[derive(Clone, Debug)]
pub(super) struct Shedder {
    settings: Shedding,
    /// When the current interval ends.
    interval_end: Nanos,
    /// The least wait in the current interval.
    wait_min: Duration,
    is_overloaded: bool,
}

impl Shedder {
    pub(super) fn new(settings: Shedding) -> Shedder {
        Shedder { settings, interval_end: Nanos(0), wait_min: Duration::ZERO, is_overloaded: false }
    }

    /// The job at the head of the queue has waited for `wait`; zero for an empty queue.
    pub(super) fn observe(&mut self, wait: Duration, now: Nanos) {
        if now < self.interval_end {
            self.wait_min = self.wait_min.min(wait);
            return;
        }
        // An interval that ended long ago, without observations since, says nothing about now.
        let is_recent = now.since(self.interval_end) < self.settings.interval;
        self.is_overloaded = is_recent && self.wait_min > self.settings.target;
        self.interval_end = now + self.settings.interval;
        self.wait_min = wait;
    }

    pub(super) fn is_overloaded(&self) -> bool {
        self.is_overloaded
    }

    /// Whether a job that has waited for `wait` is to be shed.
    pub(super) fn sheds(&self, wait: Duration) -> bool {
        self.is_overloaded && wait > 2 * self.settings.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes a wait of `wait_ms` each millisecond; returns the moments at which the queue was overloaded.
    fn overloaded(until_ms: u64, wait_ms: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut shedder = Shedder::new(Shedding::default());
        let at = |ms: u64| Nanos(1_000_000_000_000) + Duration::from_millis(ms);
        let mut seen = Vec::new();
        for ms in 0..until_ms {
            shedder.observe(Duration::from_millis(wait_ms(ms)), at(ms));
            if shedder.is_overloaded() {
                seen.push(ms);
            }
        }
        seen
    }

    #[test]
    fn draining_burst_is_no_overload() {
        assert!(overloaded(1_000, |ms| if ms % 90 < 80 { 50 } else { 0 }).is_empty());
        assert!(overloaded(1_000, |_| 5).is_empty(), "the target itself is no overload");
    }

    #[test]
    fn standing_queue_is_overloaded_until_it_drains() {
        let seen = overloaded(1_000, |ms| if ms < 500 { 20 } else { 1 });
        assert_eq!(seen.first(), Some(&100), "known at the end of the first interval");
        assert_eq!(seen.last(), Some(&599), "over at the end of the first interval with a short wait");
        assert_eq!(seen.len(), 500);
    }

    #[test]
    fn old_waits_do_not_count() {
        let mut shedder = Shedder::new(Shedding::default());
        shedder.observe(Duration::from_millis(50), Nanos(1_000_000_000));
        shedder.observe(Duration::from_millis(50), Nanos(9_000_000_000));
        assert!(!shedder.is_overloaded());
    }

    #[test]
    fn only_late_jobs_are_shed_under_overload() {
        let mut shedder = Shedder::new(Shedding::default());
        let late = Duration::from_millis(11);
        assert!(!shedder.sheds(late));
        for ms in [0, 50, 100] {
            shedder.observe(late, Nanos(1_000_000_000) + Duration::from_millis(ms));
        }
        assert!(shedder.sheds(late));
        assert!(!shedder.sheds(Duration::from_millis(10)));
    }
}
