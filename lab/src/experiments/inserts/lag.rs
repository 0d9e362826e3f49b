//! How far a stage of a store is behind the accepted rows.
//!
//! Guarantees: sampled from outside, about once a millisecond: the accepted rows of each sample, and when the
//! stage had passed them. Rows that never pass count with their age at the end, which is less than their lag.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Longer lags count as this one: an hour.
const LAG_US_MAX: u64 = 3_600_000_000;

#[derive(Debug)]
pub(super) struct Lag {
    /// Samples that the stage has not caught up with: the time, and the accepted rows.
    samples: VecDeque<(Instant, u64)>,
    accepted: u64,
    microseconds: Histogram<u64>,
}

impl Lag {
    pub(super) fn new() -> Result<Self> {
        let microseconds =
            Histogram::new_with_bounds(1, LAG_US_MAX, 2).context("the histogram's bounds are valid")?;
        Ok(Self { samples: VecDeque::new(), accepted: 0, microseconds })
    }

    /// Adds a sample: at `now`, `accepted` rows were accepted and `passed` have passed the stage.
    pub(super) fn observe(&mut self, now: Instant, accepted: u64, passed: u64) {
        if accepted > self.accepted {
            self.accepted = accepted;
            self.samples.push_back((now, accepted));
        }
        while let Some((since, _)) = self.samples.pop_front_if(|sample| sample.1 <= passed) {
            self.record(now, since);
        }
    }

    /// Whether all accepted rows have passed.
    pub(super) fn is_caught_up(&self) -> bool {
        self.samples.is_empty()
    }

    /// The lag in milliseconds; `None` where nothing was accepted.
    pub(super) fn finish(mut self, now: Instant) -> Option<Histogram<u64>> {
        for (since, _) in std::mem::take(&mut self.samples) {
            self.record(now, since);
        }
        (!self.microseconds.is_empty()).then_some(self.microseconds)
    }

    fn record(&mut self, now: Instant, since: Instant) {
        let lag = now.saturating_duration_since(since);
        self.microseconds.saturating_record(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sample_lags_until_the_stage_has_passed_it() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut lag = Lag::new().expect("the histogram's bounds are valid");
        lag.observe(at(0), 10, 0);
        lag.observe(at(1), 20, 9);
        lag.observe(at(4), 20, 10);
        assert!(!lag.is_caught_up());
        let lags = lag.finish(at(7)).expect("rows were accepted");
        let values: Vec<u64> = lags.iter_recorded().map(|step| step.value_iterated_to() / 1_000).collect();
        assert_eq!((lags.len(), values), (2, vec![4, 6]));
    }

    #[test]
    fn lag_without_accepted_rows_is_none() {
        let mut lag = Lag::new().expect("the histogram's bounds are valid");
        lag.observe(Instant::now(), 0, 0);
        assert!(lag.is_caught_up() && lag.finish(Instant::now()).is_none());
    }
}
