//! The verdicts of `lab inserts`. Their names are fixed; one that this run cannot reach is left out with the
//! reason. A verdict for every number of hogs is judged by its worst, and only if all were measured.

use super::fair_share;
use super::plan::{self, HOGS};
use super::target::Target;
use crate::kit::measurements::{Row, Sample, Skipped};
use crate::kit::report::Report;
use crate::kit::verdict::{Outcome, Threshold, Verdict};

/// The number of hogs beside which a ticket lock shows its collapse.
const COLLAPSE_HOGS: usize = 16;

/// A verdict, or why it is left out.
type Judged = Result<Verdict, String>;

/// Reaches the verdict of that name.
type Judge = fn(&'static str, &Report) -> Judged;

/// Reaches all verdicts, or records why not.
pub(super) fn judge(report: &mut Report) {
    let judges: [(&'static str, Judge); 9] = [
        ("appended >= 5 M/s", appended),
        ("appended >= 50 x postgres-async at every K", appended_beside_postgres),
        ("visible >= 100 k/s", visible),
        ("visible >= 2 x postgres-async", visible_beside_postgres),
        ("sync-256-in-flight >= 3 x postgres-256-in-flight", in_flight),
        ("T(K) >= 0.5 x share x T(0) at every K", no_cliff),
        ("blocked = 0 at every K", blocked),
        ("open-loop accepted = 100 %", open_loop),
        ("collapse-shown", collapse),
    ];
    for (name, judge) in judges {
        match judge(name, report) {
            Ok(verdict) => report.verdicts.push(verdict),
            Err(reason) => report.left_out.push(Skipped { name: name.to_owned(), reason }),
        }
    }
}

fn appended(name: &'static str, report: &Report) -> Judged {
    let ours = row(report, "hogs-0", Target::Ours)?;
    on_median(name, Threshold::AtLeast(5e6), &values(ours, "appended_per_s"), "rows a second in the journal")
}

fn appended_beside_postgres(name: &'static str, report: &Report) -> Judged {
    let threshold = Threshold::AtLeast(50.0);
    at_every_k(threshold, report, &HOGS, |report, part| {
        let theirs = row(report, part, Target::PostgresAsync)?;
        let ratios = ratios((row(report, part, Target::Ours)?, "appended_per_s"), (theirs, "inserts_per_s"));
        on_median(name, threshold, &ratios, &format!("{part}: as a multiple of postgres-async"))
    })
}

fn visible(name: &'static str, report: &Report) -> Judged {
    let ours = row(report, "visible", Target::Ours)?;
    on_median(
        name,
        Threshold::AtLeast(1e5),
        &values(ours, "visible_per_s"),
        "rows a second that a query finds",
    )
}

fn visible_beside_postgres(name: &'static str, report: &Report) -> Judged {
    let theirs = row(report, "hogs-0", Target::PostgresAsync)?;
    let ratios = ratios((row(report, "visible", Target::Ours)?, "visible_per_s"), (theirs, "inserts_per_s"));
    on_median(name, Threshold::AtLeast(2.0), &ratios, "as a multiple of postgres-async without hogs")
}

fn in_flight(name: &'static str, report: &Report) -> Judged {
    let part = plan::name("in-flight", plan::IN_FLIGHT as usize);
    let theirs = row(report, part, Target::PostgresSync)?;
    let ratios = ratios((row(report, part, Target::OursSync)?, "inserts_per_s"), (theirs, "inserts_per_s"));
    on_median(name, Threshold::AtLeast(3.0), &ratios, "as a multiple of postgres-sync on 256 connections")
}

/// The quotient of the kept rate and the fair share, which is to be at least a half.
fn no_cliff(name: &'static str, report: &Report) -> Judged {
    let threshold = Threshold::AtLeast(0.5);
    at_every_k(threshold, report, &HOGS[1..], |report, part| {
        let ours = row(report, part, Target::Ours)?;
        let ratios = ratios((ours, fair_share::KEPT), (ours, fair_share::FAIR));
        on_median(name, threshold, &ratios, &format!("{part}: T(K) / T(0) as a part of the fair share"))
    })
}

/// The most of any run of ours, disturbed or not: disturbance is no excuse for sleeping.
fn blocked(name: &'static str, report: &Report) -> Judged {
    for hogs in HOGS {
        row(report, plan::name("hogs", hogs), Target::Ours)?;
    }
    let ours = report.rows.iter().filter(|row| row.target == Target::Ours.name());
    let most = ours.flat_map(|row| row.series("blocked_inserts")).fold(0.0, f64::max);
    let threshold = Threshold::AtMost(0.0);
    on_extreme(
        name,
        threshold,
        most,
        "the most voluntary context switches inside inserts of any run, pinned or not",
    )
}

/// The least that any run accepted.
fn open_loop(name: &'static str, report: &Report) -> Judged {
    row(report, plan::name("open-loop", 0), Target::Ours)?;
    let is_ours = |row: &&Row| row.part.starts_with("open-loop-") && row.target == Target::Ours.name();
    let ours = report.rows.iter().filter(is_ours);
    let least = ours.flat_map(|row| row.series("accepted_percent")).fold(100.0, f64::min);
    on_extreme(name, Threshold::AtLeast(100.0), least, "the least percent of 100,000 a second of any run")
}

fn collapse(name: &'static str, report: &Report) -> Judged {
    let part = plan::name("one-per-cpu", COLLAPSE_HOGS);
    let ratios: Vec<Sample> = values(row(report, part, Target::Ticket)?, fair_share::KEPT)
        .into_iter()
        .map(|kept| Sample { value: kept.value / 100.0, ..kept })
        .collect();
    let about = "what a ticket lock keeps of its rate with 16 hogs, a writer on each CPU";
    on_median(name, Threshold::AtMost(0.05), &ratios, about)
}

/// The worst verdict of all parts; undecided where one was not measured.
fn at_every_k(
    threshold: Threshold,
    report: &Report,
    hogs: &[usize],
    judge: impl Fn(&Report, &'static str) -> Judged,
) -> Judged {
    let mut worst: Option<Verdict> = None;
    let mut missing = None;
    for &hogs in hogs {
        match judge(report, plan::name("hogs", hogs)) {
            Ok(verdict) => {
                worst = Some(match worst {
                    Some(worst) => threshold.worse(worst, verdict),
                    None => verdict,
                });
            }
            Err(reason) => missing = Some(reason),
        }
    }
    match (worst, missing) {
        (Some(worst), Some(reason)) if worst.outcome != Outcome::Fails => {
            Ok(worst.undecided_because(&reason))
        }
        (Some(worst), _) => Ok(worst),
        (None, reason) => Err(reason.unwrap_or_else(|| "nothing was measured".to_owned())),
    }
}

fn row<'a>(report: &'a Report, part: &str, target: Target) -> Result<&'a Row, String> {
    let name = target.name();
    report.row(part, name).ok_or_else(|| match report.skipped.iter().find(|skipped| skipped.name == name) {
        Some(skipped) => format!("{name} was skipped: {}", skipped.reason),
        None => format!("{part}/{name} was not measured"),
    })
}

fn on_median(name: &'static str, threshold: Threshold, samples: &[Sample], about: &str) -> Judged {
    let verdict = Verdict::on_median(name, threshold, samples, about);
    verdict.ok_or_else(|| format!("{about}: no round has both"))
}

/// A single value, which decides.
fn on_extreme(name: &'static str, threshold: Threshold, value: f64, about: &str) -> Judged {
    let sample = Sample { value, is_clean: true };
    Verdict::on_worst(name, threshold, &[sample], about).ok_or_else(|| "nothing was measured".to_owned())
}

fn values(row: &Row, number: &str) -> Vec<Sample> {
    row.samples(number).into_iter().map(|sample| sample.1).collect()
}

/// Quotients of two numbers, round by round.
fn ratios(numerator: (&Row, &str), denominator: (&Row, &str)) -> Vec<Sample> {
    let denominators = denominator.0.samples(denominator.1);
    let pair = |(round, numerator): (usize, Sample)| {
        let (_, denominator) =
            denominators.iter().find(|denominator| denominator.0 == round && denominator.1.value > 0.0)?;
        Some(Sample {
            value: numerator.value / denominator.value,
            is_clean: numerator.is_clean && denominator.is_clean,
        })
    };
    numerator.0.samples(numerator.1).into_iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::super::PRESENTATION;
    use super::*;
    use crate::kit::measurements::Run;
    use crate::kit::report::tests::assert_labels_are_complete;

    fn row(part: &'static str, target: Target, numbers: &[(&'static str, f64)]) -> Row {
        let run = |round| Run { round, marks: Vec::new(), numbers: numbers.to_vec() };
        Row { part, target: target.name().to_owned(), runs: (0..5).map(run).collect() }
    }

    fn judged(rows: Vec<Row>) -> Report {
        let skipped = vec![Skipped { name: "ours-sync".to_owned(), reason: "missing".to_owned() }];
        let mut report = Report { rows, skipped, ..Report::new(&PRESENTATION, serde_json::Map::new()) };
        judge(&mut report);
        report
    }

    fn outcome(report: &Report, name: &str) -> Option<(f64, Outcome)> {
        let verdict = report.verdicts.iter().find(|verdict| verdict.name.starts_with(name))?;
        Some((verdict.value, verdict.outcome))
    }

    /// Ours and PostgreSQL beside every number of hogs, where `of(hogs)` changes ours.
    fn beside_hogs(of: impl Fn(usize) -> (f64, f64, f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for hogs in HOGS {
            let part = plan::name("hogs", hogs);
            let (appended, kept, blocked) = of(hogs);
            let ours = [
                ("appended_per_s", appended),
                (fair_share::KEPT, kept),
                (fair_share::FAIR, 50.0),
                ("blocked_inserts", blocked),
            ];
            rows.push(row(part, Target::Ours, &ours));
            rows.push(row(part, Target::PostgresAsync, &[("inserts_per_s", 1e4)]));
        }
        rows
    }

    #[test]
    fn nothing_measured_leaves_every_verdict_out() {
        let report = judged(Vec::new());
        assert_labels_are_complete(&report);
        let names: Vec<&str> = report.left_out.iter().map(|left_out| left_out.name.as_str()).collect();
        let expected = [
            "appended >= 5 M/s",
            "appended >= 50 x postgres-async at every K",
            "visible >= 100 k/s",
            "visible >= 2 x postgres-async",
            "sync-256-in-flight >= 3 x postgres-256-in-flight",
            "T(K) >= 0.5 x share x T(0) at every K",
            "blocked = 0 at every K",
            "open-loop accepted = 100 %",
            "collapse-shown",
        ];
        assert_eq!(names, expected);
        assert!(report.verdicts.is_empty());
        assert_eq!(report.left_out[0].reason, "hogs-0/ours was not measured");
    }

    #[test]
    fn every_k_verdict_is_judged_by_its_worst() {
        let report = judged(beside_hogs(|hogs| if hogs == 5 { (4e5, 20.0, 0.0) } else { (6e6, 40.0, 0.0) }));
        assert_eq!(outcome(&report, "appended >= 5 M/s"), Some((6e6, Outcome::Holds)));
        assert_eq!(outcome(&report, "appended >= 50 x"), Some((40.0, Outcome::Fails)));
        assert_eq!(outcome(&report, "T(K)"), Some((0.4, Outcome::Fails)));
        assert_eq!(outcome(&report, "blocked"), Some((0.0, Outcome::Holds)));
    }

    #[test]
    fn one_blocked_insert_fails_the_verdict() {
        let report = judged(beside_hogs(|hogs| (6e6, 40.0, f64::from(u8::from(hogs == 16)))));
        assert_eq!(outcome(&report, "blocked"), Some((1.0, Outcome::Fails)));
    }

    #[test]
    fn missing_k_undecides_the_verdict() {
        let mut rows = beside_hogs(|_| (6e6, 40.0, 0.0));
        rows.retain(|row| row.part != "hogs-6");
        let report = judged(rows);
        assert_eq!(outcome(&report, "T(K)").map(|it| it.1), Some(Outcome::Undecided));
        assert_eq!(outcome(&report, "blocked"), None);
    }

    #[test]
    fn other_verdicts_judge_their_rows() {
        let mut rows = beside_hogs(|_| (6e6, 40.0, 0.0));
        rows.push(row("visible", Target::Ours, &[("visible_per_s", 1.5e5)]));
        rows.push(row("open-loop-0", Target::Ours, &[("accepted_percent", 100.0)]));
        rows.push(row("open-loop-8", Target::Ours, &[("accepted_percent", 99.9)]));
        rows.push(row("one-per-cpu-16", Target::Ticket, &[(fair_share::KEPT, 0.3)]));
        let report = judged(rows);
        assert_eq!(outcome(&report, "visible >= 100 k/s"), Some((1.5e5, Outcome::Holds)));
        assert_eq!(outcome(&report, "visible >= 2 x"), Some((15.0, Outcome::Holds)));
        assert_eq!(outcome(&report, "open-loop"), Some((99.9, Outcome::Fails)));
        assert_eq!(outcome(&report, "collapse-shown").map(|it| it.1), Some(Outcome::Holds));
        let left_out = &report.left_out[0];
        assert_eq!(left_out.reason, "in-flight-256/postgres-sync was not measured");
    }
}
