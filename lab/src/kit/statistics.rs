//! The few statistics behind verdicts: median, spread, and the interval of a median of paired ratios.
//!
//! Guarantees: intervals come from order statistics, so they assume nothing about the noise.

/// The share of cases in which an interval must cover the true median before a verdict may rest on it. Five
/// pairs give 1 - 2/32 = 0.9375, which is why fewer pairs give no verdict.
pub(crate) const COVERAGE_MIN: f64 = 0.90;

/// Median and spread of a series of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) runs: usize,
}

/// A range, and how often such a range covers the true median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) coverage: f64,
}

/// Summarises a series; `None` when it is empty.
pub(crate) fn summary(values: &[f64]) -> Option<Summary> {
    let sorted = sorted(values);
    Some(Summary { median: median(values)?, min: *sorted.first()?, max: *sorted.last()?, runs: values.len() })
}

/// The middle value, or the mean of the two middle values; `None` when there is none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0)
}

/// The narrowest symmetric pair of order statistics that covers the true median at least `COVERAGE_MIN` of
/// the time; `None` when even the smallest and the largest value do not.
pub(crate) fn median_interval(values: &[f64]) -> Option<Interval> {
    let sorted = sorted(values);
    let count = sorted.len();
    let skipped = (0..count.div_ceil(2)).rev().find(|&skipped| coverage(count, skipped) >= COVERAGE_MIN)?;
    Some(Interval {
        low: sorted[skipped],
        high: sorted[count - 1 - skipped],
        coverage: coverage(count, skipped),
    })
}

/// The whole range of a series, for quantities that hardly vary and are judged by their worst value.
pub(crate) fn range_interval(values: &[f64]) -> Option<Interval> {
    let sorted = sorted(values);
    let coverage = coverage(sorted.len(), 0).max(0.0);
    Some(Interval { low: *sorted.first()?, high: *sorted.last()?, coverage })
}

/// How often the range between the values of rank `skipped` from either end covers the true median: each
/// value lies above or below it like a fair coin, so the range misses it when at most `skipped` coins fall to
/// one side.
fn coverage(count: usize, skipped: usize) -> f64 {
    let mut ways = 1.0;
    let mut missed = 0.0;
    for heads in 0..=skipped {
        missed += ways;
        ways = ways * (count - heads) as f64 / (heads + 1) as f64;
    }
    1.0 - 2.0 * missed / 2f64.powi(count as i32)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_the_mean_of_two() {
        let check =
            |values: &[f64], expected: Option<f64>| assert_eq!(median(values), expected, "{values:?}");
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[9.0, 1.0], Some(5.0));
        check(&[9.0, 1.0, 2.0], Some(2.0));
        check(&[4.0, 1.0, 3.0, 2.0], Some(2.5));
    }

    #[test]
    fn summary_keeps_the_spread() {
        let expected = Summary { median: 2.0, min: 1.0, max: 9.0, runs: 3 };
        assert_eq!(summary(&[9.0, 1.0, 2.0]), Some(expected));
        assert_eq!(summary(&[]), None);
    }

    #[test]
    fn coverage_is_the_binomial_tail() {
        let check = |count, skipped, expected: f64| {
            let actual = coverage(count, skipped);
            assert!((actual - expected).abs() < 1e-12, "{count} {skipped}: {actual} is not {expected}");
        };
        check(5, 0, 1.0 - 2.0 / 32.0);
        check(8, 1, 1.0 - 2.0 * 9.0 / 256.0);
        check(11, 2, 1.0 - 2.0 * 67.0 / 2048.0);
        check(1, 0, 0.0);
    }

    #[test]
    fn intervals_narrow_with_more_runs() {
        let check = |count: usize, expected: Option<(f64, f64)>| {
            let values: Vec<f64> = (1..=count).map(|value| value as f64).collect();
            assert_eq!(median_interval(&values).map(|i| (i.low, i.high)), expected, "{count} values");
        };
        check(0, None);
        check(4, None);
        check(5, Some((1.0, 5.0)));
        check(7, Some((1.0, 7.0)));
        check(8, Some((2.0, 7.0)));
        check(11, Some((3.0, 9.0)));
    }

    #[test]
    fn range_spans_worst_and_best() {
        let range = range_interval(&[2.0, 8.0, 4.0]).expect("three values have a range");
        assert_eq!((range.low, range.high), (2.0, 8.0));
        assert!(range_interval(&[]).is_none());
    }
}
