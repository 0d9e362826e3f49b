//! The verdicts of `lab pipeline`. Their names are fixed; one that this run cannot reach is left out with the
//! reason.

use super::article::ARTICLE;
use super::target::Target;
use super::thread_limit::report::LimitHits;
use super::work::REQUESTS;
use super::{CONTROLS, FIGURES};
use crate::kit::measurements::{Row, Sample, Skipped};
use crate::kit::report::Report;
use crate::kit::verdict::{Threshold, Verdict, best_rival, paired_ratios};

/// A verdict, or why it is left out.
type Judged = Result<Verdict, String>;

/// The controls of 100,000 requests, to the digits that are published.
const PUBLISHED_CONTROLS: [(&str, &str); 4] = [
    ("requests", "1.00000e5"),
    ("sum_of_r", "6.49994e10"),
    ("waits_ms", "1.89200e4"),
    ("yields", "4.98000e4"),
];

/// Reaches all verdicts, or records why not.
pub(super) fn judge(report: &mut Report, requests: u32, limit_hits: &LimitHits, cpus: u32) {
    let judged = [
        ("controls-equal", controls_equal(report, requests)),
        ("io-aware-share-of-bound", share_of_bound("io-aware-share-of-bound", report, Target::IoAware, 0.95)),
        ("io-aware-vs-best-pool", beside_pools(report)),
        ("event-share-of-bound", share_of_bound("event-share-of-bound", report, Target::Event(None), 0.90)),
        ("event-vs-article-best", beside_article(report)),
        ("ordering-as-article", ordering(report, cpus)),
        ("death-explained", thread_limit(limit_hits)),
    ];
    for (name, judged) in judged {
        match judged {
            Ok(verdict) => report.verdicts.push(verdict),
            Err(reason) => report.left_out.push(Skipped { name: name.to_owned(), reason }),
        }
    }
}

/// How many trials differ from the first, or from the published values.
fn controls_equal(report: &Report, requests: u32) -> Judged {
    let rows = || report.rows.iter().filter(|row| row.part == CONTROLS);
    let runs: Vec<_> = rows().flat_map(|row| &row.runs).collect();
    let first = runs.first().ok_or("no strategy was measured")?;
    let is_published = |number: &(&str, f64)| {
        let published = PUBLISHED_CONTROLS.iter().find(|published| published.0 == number.0);
        requests != REQUESTS || published.is_none_or(|published| format!("{:.5e}", number.1) == published.1)
    };
    let differs =
        |numbers: &[(&'static str, f64)]| numbers != first.numbers || !numbers.iter().all(is_published);
    let differing = runs.iter().filter(|run| differs(&run.numbers)).count();
    let about = format!("trials of {} that did other work, of {} strategies", runs.len(), rows().count());
    on_single("controls-equal", Threshold::AtMost(0.0), differing as f64, &about)
}

fn share_of_bound(name: &'static str, report: &Report, target: Target, threshold: f64) -> Judged {
    let samples: Vec<Sample> =
        row(report, target)?.samples("share_of_bound").into_iter().map(|sample| sample.1).collect();
    let about = "the bound's time as a part of the time taken";
    Verdict::on_median(name, Threshold::AtLeast(threshold), &samples, about)
        .ok_or_else(|| not_measured(target))
}

/// Beside the best of all fixed pools, found by trying each size: a caller that does not know how long its
/// jobs wait cannot know that size.
fn beside_pools(report: &Report) -> Judged {
    let ours = row(report, Target::IoAware)?;
    let pools = report.rows.iter().filter_map(|row| row.target.parse().ok());
    let pools = pools.filter(|target| matches!(target, Target::Pool(_)));
    let names: Vec<String> = pools.map(|pool: Target| pool.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let threshold = Threshold::AtLeast(0.95);
    let rival = best_rival(&report.rows, FIGURES, "requests_per_s", threshold, &names);
    let rival = rival.ok_or("no pool was measured")?;
    let share = rival.median("share_of_bound").unwrap_or(f64::NAN);
    let about = format!("beside {}, which is at {share:.2} of the bound", rival.target);
    Verdict::on_median(
        "io-aware-vs-best-pool",
        threshold,
        &paired_ratios(ours, rival, "requests_per_s"),
        &about,
    )
    .ok_or_else(|| not_measured(Target::IoAware))
}

fn beside_article(report: &Report) -> Judged {
    let article =
        row(report, ARTICLE).map_err(|reason| match report.skipped.iter().any(|it| it.name == ARTICLE) {
            true => reason,
            false => "--article names no program".to_owned(),
        })?;
    let ours = row(report, Target::Event(None))?;
    let ratios = paired_ratios(ours, article, "whole_requests_per_s");
    let about = "event-all beside the program, from start to exit";
    Verdict::on_median("event-vs-article-best", Threshold::AtLeast(1.25), &ratios, about)
        .ok_or_else(|| "no round has both".to_owned())
}

/// The worse of two steps, each from the extremes of both sides, since slow strategies have few trials.
fn ordering(report: &Report, cpus: u32) -> Judged {
    let [batches, sequential, pool] = [Target::Batches(100), Target::Sequential, Target::Pool(cpus)];
    let step = |slower: Target, faster: Target| -> Judged {
        let (slow, fast) = (rates(row(report, slower)?), rates(row(report, faster)?));
        let pairs = fast.iter().flat_map(|fast| {
            slow.iter().map(move |slow| Sample {
                value: fast.value / slow.value,
                is_clean: fast.is_clean && slow.is_clean,
            })
        });
        let pairs: Vec<Sample> = pairs.collect();
        let about = format!("{faster} beside {slower}: all trials");
        let verdict = Verdict::on_worst("ordering-as-article", Threshold::AtLeast(1.0), &pairs, &about);
        let verdict = verdict.ok_or_else(|| format!("{slower} or {faster} was not measured"))?;
        match pairs.iter().all(|pair| pair.is_clean) {
            true => Ok(verdict),
            false => Ok(verdict.undecided_because("a trial of one was disturbed")),
        }
    };
    Ok(Threshold::AtLeast(1.0).worse(step(batches, sequential)?, step(sequential, pool)?))
}

fn rates(row: &Row) -> Vec<Sample> {
    row.samples("requests_per_s").into_iter().map(|sample| sample.1).collect()
}

/// Each mode must have reached one limit, and the prediction must be right where it was tested.
fn thread_limit(limit_hits: &LimitHits) -> Judged {
    if limit_hits.by_mode.is_empty() {
        return Err("no process reached a thread limit".to_owned());
    }
    let share = |hit: &super::thread_limit::probe::LimitHit| hit.cause().map_or(0.0, |limit| limit.share());
    let mut worst = limit_hits.by_mode.iter().map(|(_, hit)| share(hit)).fold(f64::INFINITY, f64::min);
    let mut descriptions: Vec<String> =
        limit_hits.by_mode.iter().map(|(mode, hit)| format!("{mode}: {}", hit.describe())).collect();
    if let Some(prediction) = &limit_hits.prediction {
        worst = worst.min(prediction.agreement());
        descriptions.push(prediction.describe());
    }
    let about = format!("the least share of the limit that was reached; {}", descriptions.join("; "));
    on_single("death-explained", Threshold::AtLeast(0.99), worst, &about)
}

/// A single value, which decides.
fn on_single(name: &'static str, threshold: Threshold, value: f64, about: &str) -> Judged {
    let sample = Sample { value, is_clean: true };
    Verdict::on_worst(name, threshold, &[sample], about).ok_or_else(|| "nothing was measured".to_owned())
}

fn row(report: &Report, target: impl ToString) -> Result<&Row, String> {
    let target = target.to_string();
    report.row(FIGURES, &target).ok_or_else(|| {
        match report.skipped.iter().find(|skipped| skipped.name == target) {
            Some(skipped) => format!("{target} was skipped: {}", skipped.reason),
            None => format!("{target} was not measured"),
        }
    })
}

fn not_measured(target: Target) -> String {
    format!("{target} has no trial that can be compared")
}

#[cfg(test)]
mod tests {
    use super::super::PRESENTATION;
    use super::*;
    use crate::kit::measurements::{Numbers, Run};
    use crate::kit::report::tests::assert_labels_are_complete;
    use crate::kit::verdict::Outcome;

    fn row(part: &'static str, target: &str, trials: usize, numbers: &[(&'static str, f64)]) -> Row {
        let run = |round| Run { round, marks: Vec::new(), numbers: numbers.to_vec() };
        Row { part, target: target.to_owned(), runs: (0..trials).map(run).collect() }
    }

    fn rate(target: &str, trials: usize, requests_per_s: f64) -> Row {
        row(FIGURES, target, trials, &[("requests_per_s", requests_per_s)])
    }

    fn judged(rows: Vec<Row>, requests: u32) -> Report {
        let skipped = vec![Skipped { name: "event-all".to_owned(), reason: "it failed".to_owned() }];
        let mut report = Report { rows, skipped, ..Report::new(&PRESENTATION, serde_json::Map::new()) };
        judge(&mut report, requests, &LimitHits::default(), 2);
        report
    }

    fn outcome(report: &Report, name: &str) -> Option<(f64, Outcome)> {
        let verdict = report.verdicts.iter().find(|verdict| verdict.name == name)?;
        Some((verdict.value, verdict.outcome))
    }

    #[test]
    fn nothing_measured_leaves_every_verdict_out() {
        let report = judged(Vec::new(), REQUESTS);
        assert_labels_are_complete(&report);
        let left_out: Vec<(&str, &str)> =
            report.left_out.iter().map(|it| (it.name.as_str(), it.reason.as_str())).collect();
        let expected = [
            ("controls-equal", "no strategy was measured"),
            ("io-aware-share-of-bound", "io-aware was not measured"),
            ("io-aware-vs-best-pool", "io-aware was not measured"),
            ("event-share-of-bound", "event-all was skipped: it failed"),
            ("event-vs-article-best", "--article names no program"),
            ("ordering-as-article", "batches-100 was not measured"),
            ("death-explained", "no process reached a thread limit"),
        ];
        assert_eq!(left_out, expected);
        assert!(report.verdicts.is_empty());
    }

    #[test]
    fn controls_must_equal_each_other_and_the_published() {
        let published: Numbers = vec![
            ("requests", 1e5),
            ("sum_of_r", 64_999_350_000.1),
            ("waits_ms", 18_920.0),
            ("yields", 49_800.0),
        ];
        let other = |change: f64| {
            let mut numbers = published.clone();
            numbers[1].1 += change;
            numbers
        };
        let check = |requests, controls: [&Numbers; 2], expected| {
            let [one, two] = controls;
            let rows = vec![row(CONTROLS, "sequential", 1, one), row(CONTROLS, "pool-2", 3, two)];
            assert_eq!(outcome(&judged(rows, requests), "controls-equal"), Some(expected));
        };
        check(REQUESTS, [&published, &published], (0.0, Outcome::Holds));
        check(REQUESTS, [&published, &other(1.0)], (3.0, Outcome::Fails));
        check(REQUESTS, [&other(1e6), &other(1e6)], (4.0, Outcome::Fails));
        check(2_000, [&other(1e6), &other(1e6)], (0.0, Outcome::Holds));
    }

    #[test]
    fn io_aware_is_judged_beside_the_best_pool() {
        let name = "io-aware-vs-best-pool";
        let ours = row(FIGURES, "io-aware", 5, &[("requests_per_s", 36_000.0)]);
        let pools = [("pool-2", 9_000.0, 0.2), ("pool-8", 24_000.0, 0.6), ("pool-16", 40_000.0, 0.99)];
        let rows = pools.map(|(pool, requests, share)| {
            row(FIGURES, pool, 5, &[("requests_per_s", requests), ("share_of_bound", share)])
        });
        let report = judged(rows.into_iter().chain([ours.clone()]).collect(), REQUESTS);
        assert_eq!(outcome(&report, name), Some((0.9, Outcome::Fails)));
        let note = report.verdicts.iter().find(|verdict| verdict.name == name).map(|it| it.note.as_str());
        assert_eq!(note, Some("beside pool-16, which is at 0.99 of the bound"));
        let alone = judged(vec![ours], REQUESTS);
        let left_out = alone.left_out.iter().find(|it| it.name == name).map(|it| it.reason.as_str());
        assert_eq!(left_out, Some("no pool was measured"));
    }

    #[test]
    fn ordering_is_judged_by_its_worse_step() {
        let check = |batches, sequential, pool, expected| {
            let rows = vec![
                rate("batches-100", 1, batches),
                rate("sequential", 1, sequential),
                rate("pool-2", 5, pool),
            ];
            assert_eq!(outcome(&judged(rows, REQUESTS), "ordering-as-article"), Some(expected));
        };
        check(4_000.0, 5_000.0, 10_000.0, (1.25, Outcome::Holds));
        check(2_000.0, 5_000.0, 6_000.0, (1.2, Outcome::Holds));
        check(5_000.0, 4_000.0, 9_000.0, (0.8, Outcome::Fails));
        let mut rows = vec![rate("batches-100", 1, 1.0), rate("sequential", 1, 2.0), rate("pool-2", 5, 3.0)];
        rows[0].runs[0].marks.push("disturbed".to_owned());
        let report = judged(rows, REQUESTS);
        assert_eq!(outcome(&report, "ordering-as-article").map(|it| it.1), Some(Outcome::Undecided));
    }

    #[test]
    fn article_is_compared_from_start_to_exit() {
        let whole = |target, requests| row(FIGURES, target, 5, &[("whole_requests_per_s", requests)]);
        let report = judged(vec![whole("event-all", 52_000.0), whole(ARTICLE, 40_000.0)], REQUESTS);
        assert_eq!(outcome(&report, "event-vs-article-best"), Some((1.3, Outcome::Holds)));
    }
}
