//! The verdicts of `lab quota`. Their names are fixed; one that this run cannot reach is left out with the
//! reason.

use super::{overshoot, rate_cost, rates};
use crate::kit::measurements::{Row, Sample, Skipped};
use crate::kit::relays::target::Target;
use crate::kit::report::Report;
use crate::kit::verdict::{Threshold, Verdict, paired_ratios};

/// Percent of a cap, in one second.
const LEAST_MIN: f64 = 95.0;
const GREATEST_MAX: f64 = 105.0;

/// Jain's index.
const FAIR_MIN: f64 = 0.95;

/// The CPU time at a cap, as a multiple.
const COST_MAX: f64 = 1.5;

pub(super) const OVERSHOOT: &str = "overshoot";
pub(super) const UNUSED: &str = "unused";
pub(super) const ENDED: &str = "tunnels-ended";
pub(super) const LEAST: &str = "rate-least";
pub(super) const GREATEST: &str = "rate-greatest";
pub(super) const FAIR: &str = "rate-fair";
pub(super) const COST: &str = "rate-cpu";

/// Reaches all verdicts, or records why not.
pub(super) fn judge(report: &mut Report) {
    let nothing = Threshold::AtMost(0.0);
    let judged = [
        (OVERSHOOT, of_quota(OVERSHOOT, report, overshoot::OVERSHOOT, nothing, "bytes beyond the quota")),
        (UNUSED, of_quota(UNUSED, report, overshoot::UNUSED, nothing, "bytes of the quota without use")),
        (ENDED, of_quota(ENDED, report, overshoot::OPEN, nothing, "tunnels that are left open")),
        (LEAST, of_rates(LEAST, report, rates::LEAST, Threshold::AtLeast(LEAST_MIN))),
        (GREATEST, of_rates(GREATEST, report, rates::GREATEST, Threshold::AtMost(GREATEST_MAX))),
        (FAIR, of_rates(FAIR, report, rates::JAIN, Threshold::AtLeast(FAIR_MIN))),
        (COST, cost(report)),
    ];
    for (name, verdict) in judged {
        match verdict {
            Some(verdict) => report.verdicts.push(verdict),
            None => {
                let reason = "tollgate was not measured in this part of the work".to_owned();
                report.left_out.push(Skipped { name: name.to_owned(), reason });
            }
        }
    }
}

fn ours<'a>(report: &'a Report, part: &str) -> Option<&'a Row> {
    report.row(part, Target::Tollgate.name())
}

fn samples(row: &Row, number: &str) -> Vec<Sample> {
    row.samples(number).into_iter().map(|sample| sample.1).collect()
}

/// The worst run of both directions.
fn of_quota(
    name: &'static str,
    report: &Report,
    number: &str,
    threshold: Threshold,
    about: &str,
) -> Option<Verdict> {
    let verdict = |case: overshoot::Case| {
        let values = samples(ours(report, case.part)?, number);
        Verdict::on_worst(name, threshold, &values, &format!("{}: {about}", case.part))
    };
    let [down, up] = overshoot::CASES.map(verdict);
    Some(threshold.worse(down?, up?))
}

/// The cap that is worst for us; those that have the number must all be measured.
fn of_rates(name: &'static str, report: &Report, number: &str, threshold: Threshold) -> Option<Verdict> {
    let cases = rates::CASES.into_iter().filter(|case| number != rates::JAIN || case.tunnels > 1);
    let verdict = |case: rates::Case| {
        let values = samples(ours(report, case.part)?, number);
        Verdict::on_median(name, threshold, &values, case.what)
    };
    let verdicts: Option<Vec<Verdict>> = cases.map(verdict).collect();
    verdicts?.into_iter().reduce(|one, other| threshold.worse(one, other))
}

fn cost(report: &Report) -> Option<Verdict> {
    let capped = report.row(rate_cost::PART, Target::TollgateLimited.name())?;
    let ratios = paired_ratios(capped, ours(report, rate_cost::PART)?, rate_cost::CPU);
    let about = "the relaying threads' time for a gigabyte at 1 Gbit/s as a share of that without a cap";
    Verdict::on_median(COST, Threshold::AtMost(COST_MAX), &ratios, about)
}

#[cfg(test)]
mod tests {
    use super::super::PRESENTATION;
    use super::*;
    use crate::kit::measurements::{Numbers, Run};
    use crate::kit::report::tests::assert_labels_are_complete;
    use crate::kit::verdict::Outcome;

    fn row(part: &'static str, target: Target, numbers: Numbers) -> Row {
        let run = |round| Run { round, marks: Vec::new(), numbers: numbers.clone() };
        Row { part, target: target.name().to_owned(), runs: (0..5).map(run).collect() }
    }

    /// All rows of a run that is as it should be, but for one number.
    fn judged(changed: &str, value: f64) -> Vec<(&'static str, Outcome)> {
        let with = |numbers: &[(&'static str, f64)]| -> Numbers {
            numbers.iter().map(|&(name, usual)| (name, if name == changed { value } else { usual })).collect()
        };
        let quota = [(overshoot::OVERSHOOT, 0.0), (overshoot::UNUSED, 0.0), (overshoot::OPEN, 0.0)];
        let rate = [(rates::LEAST, 99.0), (rates::GREATEST, 101.0), (rates::JAIN, 0.99)];
        let quotas = overshoot::CASES.map(|case| row(case.part, Target::Tollgate, with(&quota)));
        let rates = rates::CASES.map(|case| row(case.part, Target::Tollgate, with(&rate)));
        let costs = [
            row(rate_cost::PART, Target::Tollgate, vec![(rate_cost::CPU, 1.0)]),
            row(rate_cost::PART, Target::TollgateLimited, with(&[(rate_cost::CPU, 1.2)])),
        ];
        let rows = quotas.into_iter().chain(rates).chain(costs).collect();
        let mut report = Report { rows, ..Report::new(&PRESENTATION, serde_json::Map::new()) };
        judge(&mut report);
        report.verdicts.iter().map(|verdict| (verdict.name, verdict.outcome)).collect()
    }

    #[test]
    fn each_verdict_can_fail() {
        let all = [OVERSHOOT, UNUSED, ENDED, LEAST, GREATEST, FAIR, COST];
        assert_eq!(judged("", 0.0), all.map(|name| (name, Outcome::Holds)));
        for (number, value, name) in [
            (overshoot::OVERSHOOT, 1.0, OVERSHOOT),
            (overshoot::UNUSED, 1.0, UNUSED),
            (overshoot::OPEN, 1.0, ENDED),
            (rates::LEAST, 94.0, LEAST),
            (rates::GREATEST, 106.0, GREATEST),
            (rates::JAIN, 0.9, FAIR),
            (rate_cost::CPU, 1.6, COST),
        ] {
            let expected = all.map(|it| (it, if it == name { Outcome::Fails } else { Outcome::Holds }));
            assert_eq!(judged(number, value), expected, "{number}");
        }
    }

    #[test]
    fn verdict_without_rows_is_left_out() {
        let mut report = Report::new(&PRESENTATION, serde_json::Map::new());
        judge(&mut report);
        assert_labels_are_complete(&report);
        assert_eq!((report.verdicts.len(), report.left_out.len()), (0, 7));
    }
}
