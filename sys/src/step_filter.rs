//! A filter for the wall clock that ignores short steps forward.
//!
//! Guarantees: a step forward of more than [`STEP_MIN`] counts once it has lasted for [`CONFIRM_AFTER`];
//! until then the time continues from its value before the step. A step back counts at once. Any number of
//! threads may read; none waits.
//!
//! Reason: a clock that is a day ahead for one second would bill all open flows to that day until they end,
//! because a flow never returns to an earlier hour.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A step forward of less counts at once: time synchronization makes such steps all the time.
const STEP_MIN: Duration = Duration::from_secs(2);

/// How long a larger step must last before it counts.
const CONFIRM_AFTER: Duration = Duration::from_secs(60);

/// Drift of less is not stored: readers share the cell's cache line.
const DRIFT_MIN: Duration = Duration::from_millis(1);

/// The accepted offset of the wall clock, and the start of an unconfirmed step. All accesses are Relaxed: no
/// cell guards other data, and a reader of an old value decides as it would have a moment before.
#[derive(Debug, Default)]
pub(crate) struct StepFilter {
    /// The accepted difference of the wall clock to the clock that never steps; 0 before the first reading.
    offset: AtomicU64,
    /// When the wall clock was first found ahead, on the clock that never steps; 0 while it is not.
    ahead_since: AtomicU64,
}

impl StepFilter {
    pub(crate) const fn new() -> StepFilter {
        StepFilter { offset: AtomicU64::new(0), ahead_since: AtomicU64::new(0) }
    }

    /// The filtered time, for the wall clock's time `wall` and the time `now` of the clock that never steps,
    /// all in nanoseconds.
    pub(crate) fn read(&self, wall: u64, now: u64) -> u64 {
        let offset = wall.wrapping_sub(now);
        let accepted = self.offset.load(Ordering::Relaxed);
        let step = offset.wrapping_sub(accepted) as i64;
        if accepted != 0 && step > nanos(STEP_MIN) {
            let since = match self.ahead_since.load(Ordering::Relaxed) {
                0 => {
                    self.ahead_since.store(now.max(1), Ordering::Relaxed);
                    now
                }
                since => since,
            };
            if now.saturating_sub(since) < CONFIRM_AFTER.as_nanos() as u64 {
                return now.wrapping_add(accepted);
            }
        }
        if accepted == 0 || step.abs() > nanos(DRIFT_MIN) {
            self.offset.store(offset, Ordering::Relaxed);
        }
        if self.ahead_since.load(Ordering::Relaxed) != 0 {
            self.ahead_since.store(0, Ordering::Relaxed);
        }
        wall
    }
}

fn nanos(span: Duration) -> i64 {
    span.as_nanos() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 86_400 * SECOND;
    /// The wall clock's difference to the clock that never steps.
    const OFFSET: u64 = 20_000 * DAY;

    fn error_at(step_filter: &StepFilter, second: u64, step: i64) -> i64 {
        let now = 100 * SECOND + second * SECOND;
        let wall = (now + OFFSET).wrapping_add_signed(step);
        step_filter.read(wall, now).wrapping_sub(now + OFFSET) as i64
    }

    #[test]
    fn short_forward_step_is_ignored_lasting_counts() {
        let (step_filter, day) = (StepFilter::new(), DAY as i64);
        assert_eq!(error_at(&step_filter, 0, 0), 0);
        for second in 1..30 {
            assert_eq!(error_at(&step_filter, second, day), 0, "{second}");
        }
        assert_eq!(error_at(&step_filter, 30, 0), 0);
        for second in 31..91 {
            assert_eq!(error_at(&step_filter, second, day), 0, "{second}: the glitch before is forgotten");
        }
        for second in 91..95 {
            assert_eq!(error_at(&step_filter, second, day), day, "{second}");
        }
    }

    #[test]
    fn backward_and_small_steps_count_at_once() {
        let step_filter = StepFilter::new();
        for (second, step) in [(0, 0), (1, SECOND as i64), (2, -(DAY as i64)), (3, 1 - DAY as i64)] {
            assert_eq!(error_at(&step_filter, second, step), step);
        }
    }
}
