//! Arrival times of independent clients.
//!
//! Guarantees: the gaps are exponential, as those of independent callers are; a seed makes them the same in
//! every run.

use std::time::Duration;

/// Any value would do; runs that are compared share it.
const SEED: u64 = 0x7011_6a7e;

/// The arrivals that are still to come.
#[derive(Debug)]
pub(crate) struct Arrivals {
    mean: Duration,
    end: Duration,
    next: Duration,
    rng_state: u64,
}

impl Arrivals {
    /// Arrivals at `rate_per_s` on average, for `time`.
    pub(crate) fn new(rate_per_s: u32, time: Duration) -> Self {
        let mean = Duration::from_secs(1) / rate_per_s.max(1);
        let mut arrivals = Self { mean, end: time, next: Duration::ZERO, rng_state: SEED };
        arrivals.next = arrivals.gap();
        arrivals
    }

    /// The time from `now`, counted from the first moment, until the next arrival; zero is returned once for
    /// each arrival, and `None` when no more are to come.
    pub(crate) fn until_next(&mut self, now: Duration) -> Option<Duration> {
        if self.next >= self.end {
            return None;
        }
        let left = self.next.saturating_sub(now);
        if left.is_zero() {
            let gap = self.gap();
            self.next += gap;
        }
        Some(left)
    }

    fn gap(&mut self) -> Duration {
        // The upper 53 bits as a number above 0 and up to 1.
        let uniform = ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        self.mean.mul_f64(-uniform.ln())
    }

    /// The next 64 bits of SplitMix64 (Steele, Lea, Flood 2014).
    fn next_u64(&mut self) -> u64 {
        self.rng_state = self.rng_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.rng_state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(rate_per_s: u32, time: Duration) -> Vec<Duration> {
        let (mut arrivals, mut now, mut moments) =
            (Arrivals::new(rate_per_s, time), Duration::ZERO, Vec::new());
        while let Some(left) = arrivals.until_next(now) {
            if left.is_zero() {
                moments.push(now);
            }
            now += left;
        }
        moments
    }

    #[test]
    fn arrivals_follow_the_rate_and_repeat_by_seed() {
        let ten_seconds = Duration::from_secs(10);
        let moments_of_two = [moments(1_000, ten_seconds), moments(1_000, ten_seconds)];
        assert_eq!(moments_of_two[0], moments_of_two[1]);
        assert!((9_700..10_300).contains(&moments_of_two[0].len()), "{}", moments_of_two[0].len());
        assert!(moments_of_two[0].iter().all(|moment| *moment < ten_seconds));
        let gaps = moments_of_two[0].windows(2).map(|pair| pair[1] - pair[0]);
        let longer = gaps.filter(|gap| *gap > Duration::from_millis(1)).count() as f64;
        let share = longer / moments_of_two[0].len() as f64;
        assert!((0.34..0.40).contains(&share), "1/e of exponential gaps exceed the mean: {share}");
    }

    #[test]
    fn late_poll_returns_all_due_arrivals() {
        let mut arrivals = Arrivals::new(100, Duration::from_secs(1));
        let late = Duration::from_secs(2);
        let arrived = std::iter::from_fn(|| arrivals.until_next(late)).count();
        assert_eq!(arrived, moments(100, Duration::from_secs(1)).len());
    }
}
