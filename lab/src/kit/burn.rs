//! Work that takes a known CPU time.
//!
//! Guarantees: each run does the same number of steps, so a preempted job takes longer and does not do less.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Steps of one speed measurement, and how many measurements: the fastest one was not disturbed.
const PROBE_STEPS: u64 = 200_000;
const PROBES: usize = 20;

/// The work of one job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burn {
    steps: u64,
}

impl Burn {
    /// Calibrates work that takes `time` of this machine when nothing disturbs it.
    pub(crate) fn of(time: Duration) -> Burn {
        let probe = || {
            let start = Instant::now();
            Burn { steps: PROBE_STEPS }.run();
            start.elapsed()
        };
        let fastest = (0..PROBES).map(|_| probe()).min().unwrap_or_default();
        let steps = PROBE_STEPS as f64 * time.as_secs_f64() / fastest.as_secs_f64().max(1e-9);
        Burn { steps: (steps as u64).max(1) }
    }

    /// Does the work.
    pub(crate) fn run(self) {
        let mut word = 1u64;
        for step in 0..self.steps {
            // Each step depends on the previous one, so the compiler cannot drop any (Knuth's MMIX
            // constants).
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
        }
        black_box(word);
    }
}
