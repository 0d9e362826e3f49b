//! Verdicts: whether a claim holds, from paired runs.
//!
//! Guarantees: a verdict holds or fails only when the whole interval lies on one side of the threshold, and
//! only by undisturbed runs; otherwise it is undecided and gives the reason.

use std::fmt;

use crate::kit::measurements::{self, Row, Sample};
use crate::kit::statistics::{self, Interval};

/// Why most verdicts are undecided.
const SPANS: &str = "; the interval spans the target";

/// The bound on a verdict's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Threshold {
    AtMost(f64),
    AtLeast(f64),
}

/// The result of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Holds,
    Fails,
    Undecided,
}

/// A claim, and its result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) interval: Option<Interval>,
    pub(crate) threshold: Threshold,
    pub(crate) outcome: Outcome,
    /// What was compared, and why the verdict is undecided if it is.
    pub(crate) note: String,
}

impl Outcome {
    pub(crate) const ALL: [Self; 3] = [Self::Holds, Self::Fails, Self::Undecided];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Undecided => "undecided",
        }
    }
}

impl Threshold {
    /// Reads what `Display` wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (relation, value) = text.split_once(' ')?;
        let value = value.parse().ok()?;
        match relation {
            "<=" => Some(Self::AtMost(value)),
            ">=" => Some(Self::AtLeast(value)),
            _ => None,
        }
    }

    fn outcome(self, range: Interval) -> Outcome {
        let (holds, fails) = match self {
            Self::AtMost(threshold) => (range.high <= threshold, range.low > threshold),
            Self::AtLeast(threshold) => (range.low >= threshold, range.high < threshold),
        };
        match (holds, fails) {
            (true, _) => Outcome::Holds,
            (_, true) => Outcome::Fails,
            _ => Outcome::Undecided,
        }
    }

    /// Whether `value` is nearer to breaking the claim than `other`.
    pub(crate) fn is_worse(self, value: f64, other: f64) -> bool {
        match self {
            Self::AtMost(_) => value > other,
            Self::AtLeast(_) => value < other,
        }
    }

    /// Of two verdicts with this threshold, the one that is worse for us.
    pub(crate) fn worse(self, one: Verdict, other: Verdict) -> Verdict {
        let rank = |verdict: &Verdict| match verdict.outcome {
            Outcome::Holds => 0,
            Outcome::Undecided => 1,
            Outcome::Fails => 2,
        };
        let other_is_worse = (rank(&other), self.is_worse(other.value, one.value))
            > (rank(&one), !self.is_worse(other.value, one.value));
        if other_is_worse { other } else { one }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(threshold) => write!(text, "<= {threshold:.2}"),
            Self::AtLeast(threshold) => write!(text, ">= {threshold:.2}"),
        }
    }
}

impl Verdict {
    /// Judges the median of the clean `samples` by its interval; `about` describes them. Where too few are
    /// clean the value is that of all, for orientation, and decides nothing.
    pub(crate) fn on_median(
        name: &'static str,
        threshold: Threshold,
        samples: &[Sample],
        about: &str,
    ) -> Option<Self> {
        let clean = clean(samples);
        let interval = statistics::median_interval(&clean);
        let value = statistics::median(&clean).filter(|_| interval.is_some());
        let value = value.or_else(|| statistics::median(&all(samples)))?;
        let outcome = interval.map_or(Outcome::Undecided, |range| threshold.outcome(range));
        let reason = match (interval, outcome) {
            (None, _) => format!("; of {} runs {} were undisturbed: too few", samples.len(), clean.len()),
            (Some(_), Outcome::Undecided) => SPANS.to_owned(),
            _ => String::new(),
        };
        Some(Self { name, value, interval, threshold, outcome, note: format!("{about}{reason}") })
    }

    /// Judges the worst of all `samples`, for values that hardly vary.
    pub(crate) fn on_worst(
        name: &'static str,
        threshold: Threshold,
        samples: &[Sample],
        about: &str,
    ) -> Option<Self> {
        let values = all(samples);
        let interval = statistics::range_interval(&values)?;
        let value = statistics::median(&values)?;
        let outcome = threshold.outcome(interval);
        let reason = if outcome == Outcome::Undecided { SPANS } else { "" };
        Some(Self {
            name,
            value,
            interval: Some(interval),
            threshold,
            outcome,
            note: format!("{about}{reason}"),
        })
    }

    /// Turns the verdict undecided, for a reason that concerns all of its runs.
    #[must_use]
    pub(crate) fn undecided_because(mut self, reason: &str) -> Self {
        self.outcome = Outcome::Undecided;
        self.note = format!("{}; {reason}", self.note);
        self
    }
}

/// For each round, the first row's value divided by the second's; clean where both runs of the round were.
pub(crate) fn paired_ratios(ours: &Row, theirs: &Row, number: &str) -> Vec<Sample> {
    let theirs = theirs.samples(number);
    let pair = |(round, our): (usize, Sample)| {
        let their = theirs.iter().find(|their| their.0 == round)?.1;
        let is_clean = our.is_clean && their.is_clean;
        (their.value > 0.0).then(|| Sample { value: our.value / their.value, is_clean })
    };
    ours.samples(number).into_iter().filter_map(pair).collect()
}

fn clean(samples: &[Sample]) -> Vec<f64> {
    samples.iter().filter(|sample| sample.is_clean).map(|sample| sample.value).collect()
}

fn all(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.value).collect()
}

/// Of these targets, the row whose median is the hardest to beat.
pub(crate) fn best_rival<'a>(
    rows: &'a [Row],
    part: &str,
    number: &str,
    threshold: Threshold,
    targets: &[&str],
) -> Option<&'a Row> {
    let rivals = targets.iter().filter_map(|target| measurements::row(rows, part, target));
    let measured = rivals.filter_map(|row| Some((row.median(number)?, row)));
    let harder = |best: (f64, &'a Row), next: (f64, &'a Row)| {
        // Beside the better rival our ratio is the worse one; the ratio falls as the rival's number grows.
        if threshold.is_worse(1.0 / next.0, 1.0 / best.0) { next } else { best }
    };
    measured.reduce(harder).map(|(_, row)| row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::measurements::{Run, tests::rows};

    fn row(values: &[(usize, f64, bool)]) -> Row {
        let run = |&(round, value, marked): &(usize, f64, bool)| Run {
            round,
            marks: if marked { vec!["disturbed".to_owned()] } else { Vec::new() },
            numbers: vec![("cpu_us", value)],
        };
        Row { part: "short", target: "some".to_owned(), runs: values.iter().map(run).collect() }
    }

    #[test]
    fn thresholds_are_read_as_written() {
        for threshold in [Threshold::AtMost(1.05), Threshold::AtLeast(5e6)] {
            assert_eq!(Threshold::parse(&threshold.to_string()), Some(threshold));
        }
        for wrong in ["", "< 1.00", ">= much", "1.00"] {
            assert_eq!(Threshold::parse(wrong), None, "{wrong:?}");
        }
    }

    fn samples(values: &[f64], is_clean: bool) -> Vec<Sample> {
        values.iter().map(|&value| Sample { value, is_clean }).collect()
    }

    #[test]
    fn ratios_pair_rounds_and_need_both_clean() {
        let ours = row(&[(0, 60.0, false), (1, 50.0, true), (2, 90.0, false), (3, 80.0, false)]);
        let theirs = row(&[(0, 80.0, false), (1, 80.0, false), (2, 90.0, true), (3, 100.0, false)]);
        let expected = [(0.75, true), (0.625, false), (1.0, false), (0.8, true)];
        let expected = expected.map(|(value, is_clean)| Sample { value, is_clean });
        assert_eq!(paired_ratios(&ours, &theirs, "cpu_us"), expected);
    }

    #[test]
    fn interval_across_the_threshold_is_undecided() {
        let check = |values: &[f64], threshold, expected| {
            let verdict = Verdict::on_median("some", threshold, &samples(values, true), "cpu");
            let verdict = verdict.expect("there are values");
            assert_eq!(verdict.outcome, expected, "{values:?} {threshold}");
        };
        let at_most = Threshold::AtMost(1.0);
        check(&[0.7, 0.8, 0.9, 0.95, 1.0], at_most, Outcome::Holds);
        check(&[0.7, 0.8, 0.9, 0.95, 1.01], at_most, Outcome::Undecided);
        check(&[1.1, 1.2, 1.3, 1.4, 1.5], at_most, Outcome::Fails);
        check(&[0.1, 0.1, 0.1, 0.1], at_most, Outcome::Undecided);
        let at_least = Threshold::AtLeast(1.05);
        check(&[1.05, 1.2, 1.3, 1.4, 1.5], at_least, Outcome::Holds);
        check(&[1.04, 1.2, 1.3, 1.4, 1.5], at_least, Outcome::Undecided);
        check(&[0.5, 0.6, 0.7, 0.8, 1.0], at_least, Outcome::Fails);
    }

    #[test]
    fn steady_value_is_judged_by_its_worst_run() {
        let threshold = Threshold::AtMost(1_024.0);
        let outcome = |values: &[f64]| {
            Verdict::on_worst("some", threshold, &samples(values, true), "bytes").map(|it| it.outcome)
        };
        assert_eq!(outcome(&[900.0, 1_000.0]), Some(Outcome::Holds));
        assert_eq!(outcome(&[900.0, 1_100.0]), Some(Outcome::Undecided));
        assert_eq!(outcome(&[1_050.0, 1_100.0]), Some(Outcome::Fails));
        assert_eq!(outcome(&[]), None);
    }

    #[test]
    fn disturbed_runs_decide_nothing() {
        let mut mixed = samples(&[0.5, 0.5, 0.5, 0.5], true);
        mixed.extend(samples(&[0.7, 0.7, 0.7, 0.7, 0.7], false));
        let verdict = Verdict::on_median("some", Threshold::AtMost(1.0), &mixed, "cpu");
        let verdict = verdict.expect("there are values");
        assert_eq!((verdict.value, verdict.interval, verdict.outcome), (0.7, None, Outcome::Undecided));
        assert_eq!(verdict.note, "cpu; of 9 runs 4 were undisturbed: too few");
    }

    #[test]
    fn best_rival_is_the_cheaper_or_the_faster() {
        let rows = rows();
        let both = ["tollgate", "haproxy"];
        let best = |number, threshold| {
            best_rival(&rows, "short", number, threshold, &both).map(|row| row.target.as_str())
        };
        assert_eq!(best("process_cpu_us_per_connection", Threshold::AtMost(1.0)), Some("tollgate"));
        assert_eq!(best("connections_per_s", Threshold::AtLeast(1.0)), Some("tollgate"));
        assert_eq!(best("connections_per_s", Threshold::AtMost(1.0)), Some("haproxy"));
        assert_eq!(best("no_such_number", Threshold::AtMost(1.0)), None);
    }

    #[test]
    fn undecided_verdict_keeps_the_reason() {
        let values = samples(&[0.1, 0.1, 0.1, 0.1, 0.1], true);
        let verdict =
            Verdict::on_median("some", Threshold::AtMost(1.0), &values, "cpu").expect("there are values");
        let verdict = verdict.undecided_because("the rival did not splice");
        assert_eq!(
            (verdict.outcome, verdict.note.as_str()),
            (Outcome::Undecided, "cpu; the rival did not splice")
        );
    }
}
