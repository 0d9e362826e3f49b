//! The rounds: trials in their order, contaminated ones repeated, everything recorded for the report.
//!
//! Guarantees: a strategy that fails is skipped with its reason, and the others go on.

use std::path::Path;

use anyhow::Result;

use super::article::{self, ARTICLE};
use super::plan;
use super::target::Target;
use super::text;
use super::trial::{Trial, TrialResult};
use super::work::Work;
use super::{CONTROLS, FIGURES, bounds};
use crate::kit::child;
use crate::kit::measurements::{self, Numbers, Row, Run, Skipped};
use crate::kit::progress::Progress;

/// The part of the report on the work itself.
const WORK: &str = "work";

/// Requests by which the time of one is measured.
const TIMED_REQUESTS: u32 = 2_000;

/// How often a contaminated trial that verdicts compare is repeated at once.
const REPEATS_MAX: usize = 1;

/// What all trials have in common.
pub(super) struct Rounds<'a> {
    pub(super) order: Vec<Vec<Target>>,
    /// Of every trial, with any strategy.
    pub(super) trial: Trial,
    pub(super) article: Option<&'a Path>,
    pub(super) cpus: u32,
}

/// The results of the rounds.
#[derive(Debug, Default)]
pub(super) struct RoundResults {
    pub(super) rows: Vec<Row>,
    pub(super) failed: Vec<Skipped>,
    /// Round numbers for repeated trials: the contaminated one is kept, and compared with nothing.
    spare_rounds: usize,
}

impl Rounds<'_> {
    /// The number of their steps of progress.
    pub(super) fn steps(&self) -> u64 {
        let articles = if self.article.is_some() { self.order.len() } else { 0 };
        (self.order.iter().map(Vec::len).sum::<usize>() + articles) as u64
    }

    /// Runs them all.
    ///
    /// # Errors
    /// The text cannot be read, or the user interrupts.
    pub(super) fn run(&self, progress: &Progress) -> Result<RoundResults> {
        let mut found = RoundResults::default();
        let text = text::read(self.trial.text.as_deref())?;
        for (round, targets) in self.order.iter().enumerate() {
            let time_us = Work::time_of_one(text.clone(), TIMED_REQUESTS).as_secs_f64() * 1e6;
            let numbers = vec![("us", time_us)];
            found.record(WORK, "steps-1-and-3-of-a-request", Run { round, marks: Vec::new(), numbers });
            for &target in targets {
                progress.begin(format!("{target}, round {}", round + 1));
                self.trials(target, round, &mut found)?;
                progress.end();
            }
            let has_failed = found.failed.iter().any(|failed| failed.name == ARTICLE);
            if let Some(program) = self.article.filter(|_| !has_failed) {
                progress.begin(format!("{ARTICLE}, round {}", round + 1));
                let figures = article::run(program);
                child::fail_if_interrupted()?;
                match figures {
                    Ok((numbers, marks)) => found.record(FIGURES, ARTICLE, Run { round, marks, numbers }),
                    Err(error) => found.fail(ARTICLE, round, &error),
                }
                progress.end();
            }
        }
        Ok(found)
    }

    fn trials(&self, target: Target, round: usize, found: &mut RoundResults) -> Result<()> {
        let name = target.to_string();
        if found.failed.iter().any(|failed| failed.name == name) {
            return Ok(());
        }
        let repeats_max = if plan::is_slow(target, self.cpus) { 0 } else { REPEATS_MAX };
        for repeat in 0..=repeats_max {
            let result = Trial { strategy: target, ..self.trial.clone() }.run();
            child::fail_if_interrupted()?;
            let result = match result {
                Ok(result) => result,
                Err(error) => {
                    found.fail(&name, round, &error);
                    return Ok(());
                }
            };
            let is_last = result.marks.is_empty() || repeat == repeats_max;
            let round = if is_last { round } else { self.order.len() + found.spare_rounds };
            for (part, numbers) in [
                (FIGURES, figures(target, self.trial.requests, self.cpus, &result)),
                (CONTROLS, controls(&result)),
            ] {
                found.record(part, &name, Run { round, marks: result.marks.clone(), numbers });
            }
            if is_last {
                return Ok(());
            }
            found.spare_rounds += 1;
        }
        Ok(())
    }
}

impl RoundResults {
    fn record(&mut self, part: &'static str, target: &str, run: Run) {
        measurements::push_run(&mut self.rows, part, target, run);
    }

    fn fail(&mut self, target: &str, round: usize, error: &anyhow::Error) {
        let reason = format!("round {}: {error:#}", round + 1);
        self.failed.push(Skipped { name: target.to_owned(), reason });
    }
}

fn figures(target: Target, requests: u32, cpus: u32, result: &TrialResult) -> Numbers {
    let elapsed_s = result.elapsed.as_secs_f64();
    let bound_s = bounds::seconds(requests, target.ahead(), result.cpu, cpus as usize);
    let requests = f64::from(requests);
    vec![
        ("requests_per_s", requests / elapsed_s),
        ("share_of_bound", bound_s / elapsed_s),
        ("threads_peak", result.threads_peak as f64),
        ("memory_peak_mb", result.memory_peak_bytes as f64 / 1e6),
        ("cpu_us_per_request", result.cpu.as_secs_f64() * 1e6 / requests),
        ("whole_requests_per_s", requests / result.whole.as_secs_f64()),
    ]
}

fn controls(result: &TrialResult) -> Numbers {
    let controls = result.controls;
    vec![
        ("requests", controls.requests as f64),
        ("sum_of_r", controls.sum_of_r),
        ("waits_ms", controls.waits_ms as f64),
        ("yields", controls.yields as f64),
        ("checksum", f64::from(controls.checksum)),
    ]
}
