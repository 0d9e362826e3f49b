//! Work that takes a known CPU time. Promises: the same number of steps each time, so a job that is held up
//! takes longer and does not do less.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Steps by which the speed is found, and how often: the fastest is the one that nothing disturbed.
const PROBE_STEPS: u64 = 200_000;
const PROBES: usize = 20;

/// A job's work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burn {
    steps: u64,
}

impl Burn {
    /// Work that takes `time` of this machine when nothing disturbs it.
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

    /// Does it.
    pub(crate) fn run(self) {
        let mut word = 1u64;
        for step in 0..self.steps {
            // A step depends on the one before it: none can be left out (Knuth's MMIX constants).
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
        }
        black_box(word);
    }
}
