//! The verdicts of `lab overload`. Their names are fixed; one that this run cannot reach is left out with the
//! reason.

use super::DEADLINE;
use super::target::{self, Target};
use crate::kit::measurements::{Row, Sample, Skipped};
use crate::kit::report::Report;
use crate::kit::verdict::{Threshold, Verdict};

/// The load of the verdicts.
const OVERLOADED: &str = "load-3";

pub(super) const GOODPUT: &str = "goodput at 3x >= 90 % of capacity";
pub(super) const ANSWER: &str = "p99 of admitted at 3x < 2 x deadline";
pub(super) const POISONED: &str = "poisoned class within its share";

/// Reaches all verdicts, or records why not.
pub(super) fn judge(report: &mut Report) {
    for (name, judged) in [(GOODPUT, goodput(report)), (ANSWER, answer(report)), (POISONED, poisoned(report))]
    {
        match judged {
            Some(verdict) => report.verdicts.push(verdict),
            None => {
                let reason = format!("{} was not measured", Target::Ours.name());
                report.left_out.push(Skipped { name: name.to_owned(), reason });
            }
        }
    }
}

fn goodput(report: &Report) -> Option<Verdict> {
    let about = "percent of the same round's capacity, done within the deadline";
    let samples = values(report.row(OVERLOADED, Target::Ours.name())?, "goodput_percent_of_capacity");
    Verdict::on_median(GOODPUT, Threshold::AtLeast(90.0), &samples, about)
}

fn answer(report: &Report) -> Option<Verdict> {
    let threshold = Threshold::AtMost(2.0 * DEADLINE.as_secs_f64() * 1e3);
    let samples = values(report.row(OVERLOADED, Target::Ours.name())?, "answer_p99_ms");
    Verdict::on_median(ANSWER, threshold, &samples, "ms until an accepted job was answered, run or not")
}

/// The most of any load of any run: disturbance by other processes is no excuse.
fn poisoned(report: &Report) -> Option<Verdict> {
    let ours = report.rows.iter().filter(|row| row.target == Target::Ours.name());
    let most = ours.flat_map(|row| row.series("poisoned_threads_max")).reduce(f64::max)?;
    let threshold = Threshold::AtMost(target::poisoned_share() as f64);
    let sample = Sample { value: most, is_clean: true };
    Verdict::on_worst(POISONED, threshold, &[sample], "the most threads that poisoned jobs held, of any run")
}

fn values(row: &Row, number: &str) -> Vec<Sample> {
    row.samples(number).into_iter().map(|sample| sample.1).collect()
}

#[cfg(test)]
mod tests {
    use super::super::PRESENTATION;
    use super::*;
    use crate::kit::measurements::Run;
    use crate::kit::report::tests::assert_labels_are_complete;
    use crate::kit::verdict::Outcome;

    fn judged(goodput: f64, answer: f64, poisoned: f64) -> Vec<(&'static str, Outcome)> {
        let numbers = vec![
            ("goodput_percent_of_capacity", goodput),
            ("answer_p99_ms", answer),
            ("poisoned_threads_max", poisoned),
        ];
        let run = |round| Run { round, marks: Vec::new(), numbers: numbers.clone() };
        let target = Target::Ours.name().to_owned();
        let rows = vec![Row { part: OVERLOADED, target, runs: (0..5).map(run).collect() }];
        let mut report = crate::kit::report::tests::sample();
        (report.rows, report.verdicts) = (rows, Vec::new());
        judge(&mut report);
        report.verdicts.iter().map(|verdict| (verdict.name, verdict.outcome)).collect()
    }

    #[test]
    fn each_verdict_can_fail() {
        let share = target::poisoned_share() as f64;
        let (holds, fails) = (Outcome::Holds, Outcome::Fails);
        let check = |(goodput, answer, poisoned), expected: [Outcome; 3]| {
            let expected: Vec<_> = [GOODPUT, ANSWER, POISONED].into_iter().zip(expected).collect();
            assert_eq!(judged(goodput, answer, poisoned), expected);
        };
        check((97.0, 12.0, share), [holds, holds, holds]);
        check((80.0, 12.0, share), [fails, holds, holds]);
        check((97.0, 120.0, share), [holds, fails, holds]);
        check((97.0, 12.0, share + 1.0), [holds, holds, fails]);
    }

    #[test]
    fn verdict_without_rows_is_left_out() {
        let mut report = Report::new(&PRESENTATION, serde_json::Map::new());
        judge(&mut report);
        assert_labels_are_complete(&report);
        assert_eq!((report.verdicts.len(), report.left_out.len()), (0, 3));
    }
}
