//! The verdicts of `lab accept`. Their names are fixed; one that this run cannot reach is left out with the
//! reason.

use super::counts::WAKES;
use super::losses::Losses;
use super::short::{CPU, FIRST_BYTE_P99};
use super::strategy::Strategy;
use super::{BUSY, CROWD, LIGHT, LONG_LIVED, WORKERS, long_lived};
use crate::kit::measurements::{Row, Sample, Skipped};
use crate::kit::report::Report;
use crate::kit::verdict::{Threshold, Verdict, best_rival, paired_ratios};

/// The verdict, or its name and why it is left out.
type Judged = Result<Verdict, (&'static str, String)>;

/// Reaches all verdicts, or records why not.
pub(super) fn judge(report: &mut Report, losses: &Losses, cpus: u32) {
    let verdicts = [
        herd_reproduced(report),
        best_wakes(report),
        lost(report, losses),
        long_lived_balance(report),
        busy_worker_p99(report),
        default_cpu(report, cpus),
    ];
    for verdict in verdicts {
        match verdict {
            Ok(verdict) => report.verdicts.push(verdict),
            Err((name, reason)) => report.left_out.push(Skipped { name: name.to_owned(), reason }),
        }
    }
}

/// Shows that the herd exists: otherwise a better strategy has proved nothing.
fn herd_reproduced(report: &Report) -> Judged {
    let name = "herd-reproduced";
    let row = row(name, report, LIGHT, WORKERS, Strategy::Shared)?;
    let about = format!("wakes per accept of shared at light load, {WORKERS} workers");
    on_median(name, Threshold::AtLeast(1.5), &values(row, WAKES), &about)
}

fn best_wakes(report: &Report) -> Judged {
    let name = "best-wakes-per-accept";
    let threshold = Threshold::AtMost(1.05);
    let best =
        best_rival(&report.rows, &part(LIGHT, WORKERS), WAKES, threshold, &Strategy::ALL.map(Strategy::name));
    let best = best.ok_or_else(|| (name, "light load was not measured".to_owned()))?;
    let about = format!("wakes per accept of {} at light load, {WORKERS} workers", best.target);
    on_median(name, threshold, &values(best, WAKES), &about)
}

/// Of all parts together. A strategy that could not go on may have lost connections that were not counted.
fn lost(report: &Report, losses: &Losses) -> Judged {
    let name = "lost";
    if losses.tried() == 0 {
        return Err((name, "no connection was attempted".to_owned()));
    }
    let about =
        format!("failed connections of {} in all runs of all parts{}", losses.tried(), losses.reasons());
    let sample = Sample { value: losses.count() as f64, is_clean: true };
    let verdict = Verdict::on_worst(name, Threshold::AtMost(0.0), &[sample], &about)
        .ok_or_else(|| (name, "nothing was counted".to_owned()))?;
    let failed = report.skipped.iter().find(|skipped| skipped.name.contains(" in "));
    Ok(match failed {
        Some(failed) if losses.count() == 0 => {
            verdict.undecided_because(&format!("{} could not be measured", failed.name))
        }
        _ => verdict,
    })
}

/// By the worst of all runs: a guaranteed balance hardly varies.
fn long_lived_balance(report: &Report) -> Judged {
    let name = "long-lived-balance-handoff";
    let row = row(name, report, LONG_LIVED, WORKERS, Strategy::Handoff)?;
    let about =
        format!("long-lived connections of the fullest of {WORKERS} workers as a multiple of the mean");
    Verdict::on_worst(name, Threshold::AtMost(1.05), &values(row, long_lived::BALANCE), &about)
        .ok_or_else(|| not_measured(name, Strategy::Handoff))
}

fn busy_worker_p99(report: &Report) -> Judged {
    let name = "busy-worker-p99-handoff";
    let [ours, theirs] =
        [Strategy::Handoff, Strategy::ReusePort].map(|strategy| row(name, report, BUSY, WORKERS, strategy));
    let ratios = paired_ratios(ours?, theirs?, FIRST_BYTE_P99);
    let about =
        format!("p99 from connect to first byte as a share of reuse_port's, one of {WORKERS} workers busy");
    on_median(name, Threshold::AtMost(0.5), &ratios, &about)
}

/// Beside the cheapest of the others: a default that is the cheapest itself has a ratio below 1.
fn default_cpu(report: &Report, cpus: u32) -> Judged {
    let name = "default-cpu";
    let threshold = Threshold::AtMost(1.03);
    let ours = row(name, report, CROWD, cpus, Strategy::DEFAULT)?;
    let others = Strategy::ALL.into_iter().filter(|strategy| *strategy != Strategy::DEFAULT);
    let others: Vec<&str> = others.map(Strategy::name).collect();
    let best = best_rival(&report.rows, &part(CROWD, cpus), CPU, threshold, &others)
        .ok_or_else(|| (name, "no other strategy was measured".to_owned()))?;
    let (ours_name, theirs) = (Strategy::DEFAULT.name(), &best.target);
    let about = format!(
        "CPU per connection of {ours_name} as a share of {theirs}'s, the cheapest other, {cpus} workers"
    );
    on_median(name, threshold, &paired_ratios(ours, best, CPU), &about)
}

fn part(family: &str, workers: u32) -> String {
    format!("{family}-{workers}")
}

fn row<'a>(
    name: &'static str,
    report: &'a Report,
    family: &str,
    workers: u32,
    strategy: Strategy,
) -> Result<&'a Row, (&'static str, String)> {
    report.row(&part(family, workers), strategy.name()).ok_or_else(|| not_measured(name, strategy))
}

fn values(row: &Row, number: &str) -> Vec<Sample> {
    row.samples(number).into_iter().map(|sample| sample.1).collect()
}

fn on_median(name: &'static str, threshold: Threshold, samples: &[Sample], about: &str) -> Judged {
    Verdict::on_median(name, threshold, samples, about)
        .ok_or_else(|| (name, "the runs that it compares never shared a round".to_owned()))
}

fn not_measured(name: &'static str, strategy: Strategy) -> (&'static str, String) {
    (name, format!("{} was not measured in this part of the work", strategy.name()))
}

#[cfg(test)]
mod tests {
    use super::super::PRESENTATION;
    use crate::kit::report::tests::assert_labels_are_complete;
    use serde_json::json;

    use super::*;
    use crate::kit::measurements::Run;
    use crate::kit::verdict::Outcome;

    /// A row of five runs with one value.
    fn row(part: &'static str, strategy: Strategy, number: &'static str, value: f64) -> Row {
        let run = |round| Run { round, marks: Vec::new(), numbers: vec![(number, value)] };
        Row { part, target: strategy.name().to_owned(), runs: (0..5).map(run).collect() }
    }

    fn judged(rows: Vec<Row>, losses: &Losses, skipped: &[&str]) -> Report {
        let skipped = skipped.iter().map(|name| Skipped { name: (*name).to_owned(), reason: String::new() });
        let skipped = skipped.collect();
        let mut report = Report { rows, skipped, ..Report::new(&PRESENTATION, serde_json::Map::new()) };
        judge(&mut report, losses, 2);
        report
    }

    fn check(rows: Vec<Row>, name: &str, expected: (f64, Outcome)) {
        let report = judged(rows, &Losses::default(), &[]);
        let verdict = report.verdicts.iter().find(|verdict| verdict.name == name);
        let verdict = verdict.unwrap_or_else(|| panic!("{name} was left out: {:?}", report.left_out));
        assert_eq!((verdict.value, verdict.outcome), expected, "{}", verdict.note);
    }

    #[test]
    fn every_verdict_is_reached_or_left_out() {
        let report = judged(Vec::new(), &Losses::default(), &[]);
        assert_labels_are_complete(&report);
        let left_out: Vec<&str> = report.left_out.iter().map(|it| it.name.as_str()).collect();
        let expected = [
            "herd-reproduced",
            "best-wakes-per-accept",
            "lost",
            "long-lived-balance-handoff",
            "busy-worker-p99-handoff",
            "default-cpu",
        ];
        assert_eq!(left_out, expected);
        assert!(report.verdicts.is_empty());
    }

    #[test]
    fn wakes_verdicts_judge_the_herd_and_the_best() {
        let light = |shared, others| {
            let other = |strategy| row("light-8", strategy, WAKES, others);
            vec![
                row("light-8", Strategy::Shared, WAKES, shared),
                other(Strategy::Exclusive),
                other(Strategy::Handoff),
            ]
        };
        check(light(1.9, 1.0), "herd-reproduced", (1.9, Outcome::Holds));
        check(light(1.2, 1.0), "herd-reproduced", (1.2, Outcome::Fails));
        check(light(1.9, 1.0), "best-wakes-per-accept", (1.0, Outcome::Holds));
        check(light(1.9, 1.1), "best-wakes-per-accept", (1.1, Outcome::Fails));
    }

    #[test]
    fn handoff_is_judged_beside_reuse_port() {
        let busy = |ours| {
            let of = |strategy, value| row("busy-8", strategy, FIRST_BYTE_P99, value);
            vec![of(Strategy::Handoff, ours), of(Strategy::ReusePort, 2.0)]
        };
        check(busy(0.5), "busy-worker-p99-handoff", (0.25, Outcome::Holds));
        check(busy(1.5), "busy-worker-p99-handoff", (0.75, Outcome::Fails));
        let balance = |value| vec![row("long-lived-8", Strategy::Handoff, long_lived::BALANCE, value)];
        check(balance(1.01), "long-lived-balance-handoff", (1.01, Outcome::Holds));
        check(balance(1.2), "long-lived-balance-handoff", (1.2, Outcome::Fails));
    }

    #[test]
    fn default_is_judged_beside_the_cheapest_other() {
        let crowd = |part, default| {
            let of = |strategy, value| row(part, strategy, CPU, value);
            vec![of(Strategy::DEFAULT, default), of(Strategy::Handoff, 100.0), of(Strategy::Shared, 140.0)]
        };
        check(crowd("crowd-2", 96.0), "default-cpu", (0.96, Outcome::Holds));
        check(crowd("crowd-2", 120.0), "default-cpu", (1.2, Outcome::Fails));
        let elsewhere = judged(crowd("crowd-8", 96.0), &Losses::default(), &[]);
        assert!(elsewhere.verdicts.is_empty());
    }

    #[test]
    fn lost_connection_fails_and_skip_undecides() {
        let check = |failed: u64, skipped: &[&str], expected| {
            let failures = if failed > 0 { json!({ "refused": failed }) } else { json!({}) };
            let mut losses = Losses::default();
            losses
                .record("crowd-2/mutex", &json!({ "completed": 9, "failed": failed, "failures": failures }));
            let report = judged(Vec::new(), &losses, skipped);
            let verdict = report.verdicts.first().expect("connections were counted");
            assert_eq!((verdict.name, verdict.value, verdict.outcome), ("lost", failed as f64, expected));
        };
        check(0, &[], Outcome::Holds);
        check(0, &["tollgate", "system calls of mutex"], Outcome::Holds);
        check(1, &[], Outcome::Fails);
        check(0, &["mutex in crowd-2"], Outcome::Undecided);
        check(1, &["mutex in crowd-2"], Outcome::Fails);
    }
}
