//! The verdicts of `lab timers`. Their names are fixed; one that this run cannot reach is left out with the
//! reason.

use clap::ValueEnum;

use super::cases::{CALLS, ECHO, HELD, INTERLEAVED};
use super::echo::DeadlineMode;
use super::target::BuiltIn;
use crate::kit::measurements::{Row, Sample, Skipped};
use crate::kit::report::Report;
use crate::kit::verdict::{Threshold, Verdict, paired_ratios};

/// A verdict, or why it is left out.
type Judged = Result<Verdict, String>;

/// 256 timers of 80 bytes and those of a pass, in pages, and the usual variation of a process's memory.
const HELD_MB_MAX: f64 = 0.25;

/// Reaches all verdicts, or records why not.
pub(super) fn judge(report: &mut Report) {
    let judged = [
        ("owner-cancel-1-thread", owner("owner-cancel-1-thread", report, ["owner-w1-1", "owner-w64-1"], 3.0)),
        ("owner-cancel-8", owner("owner-cancel-8", report, ["owner-w1-8", "owner-w64-8"], 3.0)),
        ("owner-cancel-50", owner("owner-cancel-50", report, ["owner-w1-50", "owner-w64-50"], 2.5)),
        ("cross-cancel-8", cross(report)),
        ("cancelled-memory-bounded", memory(report)),
        ("dead-wakes", dead_wakes(report)),
        ("echo-instructions-per-call-on/off", instructions(report)),
        ("never-early", never_early(report)),
    ];
    for (name, judged) in judged {
        match judged {
            Ok(verdict) => report.verdicts.push(verdict),
            Err(reason) => report.left_out.push(Skipped { name: name.to_owned(), reason }),
        }
    }
}

fn row<'a>(report: &'a Report, part: &str, target: &str) -> Result<&'a Row, String> {
    report.row(part, target).ok_or_else(|| format!("{part}/{target} was not measured"))
}

/// Where timers never leave their thread, as those of a reactor's flows: of both windows, the one that is
/// worse for us.
fn owner(name: &'static str, report: &Report, parts: [&str; 2], least: f64) -> Judged {
    let threshold = Threshold::AtLeast(least);
    let [one, other] =
        parts.map(|part| beside_bucketed(name, report, part, BuiltIn::TollgateOwnWheel, threshold));
    Ok(threshold.worse(one?, other?))
}

/// Where a thread arms in its own loop and another cancels, by the CPU time beyond that of the threads and
/// their transfer without any timers: with eight threads and 64 timers of each, every thread gives up its CPU
/// after some 60 of them, which takes longer than the timers of any implementation. A round in which ours
/// took no more than `nothing` is left out, for it has no ratio: it would be in our favour.
fn cross(report: &Report) -> Judged {
    let (name, part, number) = ("cross-cancel-8", INTERLEAVED, "cpu_ns_per_pair");
    let alone = row(report, part, BuiltIn::Nothing.name())?;
    let excess =
        |built_in: BuiltIn| Ok::<_, String>(row(report, part, built_in.name())?.excess_over(alone, number));
    let (ours, theirs) = (excess(BuiltIn::TollgateLocal)?, excess(BuiltIn::Bucketed)?);
    let ratios = paired_ratios(&theirs, &ours, number);
    let about = format!("CPU time of bucketed beside tollgate-local in {part}, both less that of nothing");
    Verdict::on_median(name, Threshold::AtLeast(1.5), &ratios, &about)
        .ok_or_else(|| format!("no round of {part} has all three"))
}

fn beside_bucketed(
    name: &'static str,
    report: &Report,
    part: &str,
    built_in: BuiltIn,
    threshold: Threshold,
) -> Judged {
    let (ours, theirs) = (row(report, part, built_in.name())?, row(report, part, BuiltIn::Bucketed.name())?);
    let ratios = paired_ratios(ours, theirs, "pairs_per_s");
    let about = format!("{} beside bucketed in {part}", built_in.name());
    Verdict::on_median(name, threshold, &ratios, &about).ok_or_else(|| format!("no round of {part} has both"))
}

/// The worst of the engine's forms in one number of one part.
fn worst_of_ours(
    report: &Report,
    part: &str,
    number: &str,
    threshold: Threshold,
) -> Result<(BuiltIn, f64), String> {
    let mut worst: Option<(BuiltIn, f64)> = None;
    for built_in in BuiltIn::value_variants().iter().copied().filter(|built_in| built_in.is_ours()) {
        for value in row(report, part, built_in.name())?.series(number) {
            if worst.is_none_or(|(_, before)| threshold.is_worse(value, before)) {
                worst = Some((built_in, value));
            }
        }
    }
    worst.ok_or_else(|| format!("{part} has no {number}"))
}

fn on_single(name: &'static str, threshold: Threshold, value: f64, about: &str) -> Judged {
    let sample = Sample { value, is_clean: true };
    Verdict::on_worst(name, threshold, &[sample], about).ok_or_else(|| "nothing was measured".to_owned())
}

fn memory(report: &Report) -> Judged {
    let threshold = Threshold::AtMost(HELD_MB_MAX);
    let (built_in, worst) = worst_of_ours(report, HELD, "held_mb", threshold)?;
    let cancelled = row(report, HELD, built_in.name())?.median("cancelled").unwrap_or(0.0) / 1e6;
    let about =
        format!("MB that {} gained while {cancelled:.1} million timers were cancelled", built_in.name());
    on_single("cancelled-memory-bounded", threshold, worst, &about)
}

fn dead_wakes(report: &Report) -> Judged {
    let threshold = Threshold::AtMost(1.0);
    let (built_in, worst) = worst_of_ours(report, CALLS, "dead_wakes_percent", threshold)?;
    let about = format!("percent of the wakes of {} that fired nothing", built_in.name());
    on_single("dead-wakes", threshold, worst, &about)
}

fn never_early(report: &Report) -> Judged {
    let threshold = Threshold::AtLeast(0.0);
    let (built_in, worst) = worst_of_ours(report, CALLS, "late_min_us", threshold)?;
    let about = format!("us after its deadline of the earliest timer, which was of {}", built_in.name());
    on_single("never-early", threshold, worst, &about)
}

fn instructions(report: &Report) -> Judged {
    let threshold = Threshold::AtMost(1.05);
    let mut worst: Option<(&str, f64)> = None;
    for (part, _) in ECHO {
        let count = |deadlines: DeadlineMode| {
            let count = row(report, part, deadlines.as_str())?.median("instructions_per_call");
            count.ok_or_else(|| "instructions were not counted".to_owned())
        };
        let ratio = count(DeadlineMode::Lazy)? / count(DeadlineMode::Off)?;
        if worst.is_none_or(|(_, before)| ratio > before) {
            worst = Some((part, ratio));
        }
    }
    let (part, ratio) = worst.ok_or("there is no echo")?;
    let about = format!(
        "outside the kernel, at {part}, both ends, with one timer for a connection, which a store postpones; \
         with a timer for each call it is `each`"
    );
    on_single("echo-instructions-per-call-on/off", threshold, ratio, &about)
}

#[cfg(test)]
mod tests {
    use super::super::PRESENTATION;
    use super::*;
    use crate::kit::report::tests::assert_labels_are_complete;

    #[test]
    fn nothing_measured_leaves_every_verdict_out() {
        let mut report = Report::new(&PRESENTATION, serde_json::Map::new());
        judge(&mut report);
        assert_labels_are_complete(&report);
        assert!(report.verdicts.is_empty());
    }
}
