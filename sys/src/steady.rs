//! A wall clock that believes no short step forward.
//!
//! Guarantees: a step forward of more than [`STEP_MIN`] counts once it has lasted for [`PATIENCE`]; until
//! then time goes on from where it was; a step back counts at once. Any number of threads may read; none
//! waits. Leaves out: reading the machine's clocks (`clock`).
//!
//! A clock that is a day ahead for a second would have flows that are open billed to that day for as long
//! as they last, since no flow goes back to an hour that it had left.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A step forward of less is believed: clocks are set right by so much all the time.
const STEP_MIN: Duration = Duration::from_secs(2);

/// How long a larger one has to last.
const PATIENCE: Duration = Duration::from_secs(60);

/// What drifts by less is not stored: readers share the cell.
const DRIFT_MIN: Duration = Duration::from_millis(1);

/// See the file's header. All accesses are Relaxed: each cell stands alone, and a reader that sees an old
/// one judges as it would have a moment before.
#[derive(Debug, Default)]
pub(crate) struct Steady {
    /// The wall clock's lead over the clock that never steps, as it is believed; 0 before the first reading.
    lead: AtomicU64,
    /// When the wall clock was first found ahead, by the clock that never steps; 0 while it is not.
    ahead_since: AtomicU64,
}

impl Steady {
    pub(crate) const fn new() -> Steady {
        Steady { lead: AtomicU64::new(0), ahead_since: AtomicU64::new(0) }
    }

    /// The time that is believed, where the wall clock says `wall` and the one that never steps `now`, both
    /// in nanoseconds.
    pub(crate) fn read(&self, wall: u64, now: u64) -> u64 {
        let lead = wall.wrapping_sub(now);
        let believed = self.lead.load(Ordering::Relaxed);
        let ahead = lead.wrapping_sub(believed) as i64;
        if believed != 0 && ahead > nanos(STEP_MIN) {
            let since = match self.ahead_since.load(Ordering::Relaxed) {
                0 => {
                    self.ahead_since.store(now.max(1), Ordering::Relaxed);
                    now
                }
                since => since,
            };
            if now.saturating_sub(since) < PATIENCE.as_nanos() as u64 {
                return now.wrapping_add(believed);
            }
        }
        if believed == 0 || ahead.abs() > nanos(DRIFT_MIN) {
            self.lead.store(lead, Ordering::Relaxed);
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
    /// The wall clock's lead.
    const LEAD: u64 = 20_000 * DAY;

    fn at(steady: &Steady, second: u64, step: i64) -> i64 {
        let now = 100 * SECOND + second * SECOND;
        let wall = (now + LEAD).wrapping_add_signed(step);
        steady.read(wall, now).wrapping_sub(now + LEAD) as i64
    }

    #[test]
    fn a_glitch_forward_is_not_believed_and_a_step_that_lasts_is() {
        let (steady, day) = (Steady::new(), DAY as i64);
        assert_eq!(at(&steady, 0, 0), 0);
        for second in 1..30 {
            assert_eq!(at(&steady, second, day), 0, "{second}");
        }
        assert_eq!(at(&steady, 30, 0), 0);
        for second in 31..91 {
            assert_eq!(at(&steady, second, day), 0, "{second}: the glitch before is forgotten");
        }
        for second in 91..95 {
            assert_eq!(at(&steady, second, day), day, "{second}");
        }
    }

    #[test]
    fn steps_back_and_small_ones_are_believed_at_once() {
        let steady = Steady::new();
        for (second, step) in [(0, 0), (1, SECOND as i64), (2, -(DAY as i64)), (3, 1 - DAY as i64)] {
            assert_eq!(at(&steady, second, step), step);
        }
    }
}
