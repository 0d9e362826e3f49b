//! `lab pipeline`: 100,000 requests that compute, wait and answer, done by the strategies that servers have.
//!
//! Guarantees: every strategy does the same work in a process of its own, interleaved with the others, and
//! proves it by the same controls; the bound that no scheduler can exceed is computed beside it.
//!
//! | strategy | a wait holds | threads | advantage and cost |
//! |---|---|---|---|
//! | `sequential` | everything | 1 | the baseline |
//! | `thread-per-request` | its own thread | one a request | simplest; stopped by a limit of the kernel |
//! | `batches` | its batch | the batch | bounded; the slowest of a batch delays all; a thread per request |
//! | `pool` | one of few threads | fixed | cheap; too few threads idle the CPUs, too many are guesswork |
//! | `io-aware` | a thread, no CPU | up to eight a CPU | as many threads as waits need; waits are declared |
//! | `event` | nothing | one a CPU | the fastest; a request must be cut into steps |

mod activity;
mod article;
mod batches;
mod binned_timeline;
mod bounds;
mod cpu_shares;
mod event;
mod io_aware;
mod plan;
mod pool;
mod presentation;
mod profiles;
mod recording;
mod rounds;
mod sequential;
mod target;
mod text;
mod thread_limit;
mod thread_per_request;
mod timeline;
mod trace;
mod trial;
mod verdicts;
mod waits;
mod work;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

pub(crate) use self::plan::Options;
use self::plan::{Effort, Part};
pub(crate) use self::presentation::PRESENTATION;
use self::rounds::Rounds;
use self::target::Target;
pub(crate) use self::thread_limit::child::{CreateThreads, create_threads};
use self::thread_limit::report::{LimitHits, probe_steps};
pub(crate) use self::trial::{Trial, run_trial};
use self::work::Work;
use crate::kit::measurements::{Row, Skipped};
use crate::kit::options::{Scale, debug_build_warning};
use crate::kit::progress::Progress;
use crate::kit::report::Report;
use crate::kit::strace::{self, SyscallCounts};
use crate::kit::{child, machine};

/// The part of the report with the figures, and the one with the controls.
const FIGURES: &str = "requests";
const CONTROLS: &str = "controls";

/// Requests of a traced trial; with 100,000 it would take minutes.
const TRACED_REQUESTS_MAX: u32 = 10_000;

/// A way to do all requests of some work.
trait Strategy {
    /// Does each request once and returns when the last response has been consumed.
    ///
    /// # Errors
    /// The machine provides no further thread or descriptor.
    fn run(&self, work: &Arc<Work>) -> Result<()>;
}

/// Runs the experiment.
///
/// # Errors
/// The lab itself could not work, or the user interrupted it; a strategy that fails is left out of the report
/// instead.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let machine = machine::facts();
    let cpus = machine::allowed_cpus().len() as u32;
    let effort = Effort::of(options);
    let has = |part: Part| options.common.has(&part);
    let parts = options.common.parts();
    let targets = plan::targets(&parts, cpus);
    let (strategy, requests, text) = (Target::Sequential, effort.requests, options.text.clone());
    let trial = Trial { strategy, requests, text, recording: None };
    let order = plan::rounds(&targets, &effort, cpus);
    let rounds = Rounds { order, trial, article: options.article.as_deref(), cpus };
    let traced = if has(Part::Calls) { plan::traced(&parts, cpus) } else { Vec::new() };
    let probes_limit = has(Part::ThreadPerRequest);
    let steps_of_probes = if probes_limit { probe_steps(options.confirm) } else { 0 };
    let profiled = plan::traced(&parts, cpus);
    let profile_steps = options.profiles.steps(&profiled);
    let progress = Progress::new(rounds.steps() + steps_of_probes + traced.len() as u64 + profile_steps);
    let rounds::RoundResults { mut rows, failed: mut skipped, .. } = rounds.run(&progress)?;
    rows.sort_by_key(|row| (row.part == CONTROLS, position(&targets, row)));
    let mut limit_hits = LimitHits::default();
    if probes_limit {
        let text = options.text.as_ref();
        limit_hits = LimitHits::run(text, options.confirm, &progress, &mut rows, &mut skipped)?;
    }
    rows.extend(calls(&traced, &rounds.trial, &progress, &mut skipped)?);
    let seen = options.profiles.run(&rounds.trial, &profiled, cpus as usize, &progress)?;
    rows.extend(seen.rows);
    skipped.extend(seen.skipped);
    progress.finish();
    let warnings = warnings(options, &effort);
    let mut report = Report { rows, skipped, warnings, ..Report::new(&PRESENTATION, machine) };
    verdicts::judge(&mut report, effort.requests, &limit_hits, cpus);
    report.mark_undecided();
    Ok(report)
}

/// The position of a row: as planned, and behind them what is no strategy of ours.
fn position(targets: &[Target], row: &Row) -> usize {
    targets.iter().position(|target| target.to_string() == row.target).unwrap_or(targets.len())
}

/// The table of system calls.
fn calls(
    targets: &[Target],
    trial: &Trial,
    progress: &Progress,
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<Row>> {
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    if !strace::is_installed() {
        let reason = "strace is not installed".to_owned();
        skipped.push(Skipped { name: "system calls".to_owned(), reason });
        return Ok(Vec::new());
    }
    let directory = tempfile::TempDir::with_prefix("lab-")?;
    let mut counted: Vec<(String, SyscallCounts)> = Vec::new();
    for &strategy in targets {
        progress.begin(format!("{strategy}, traced"));
        let requests = trial.requests.min(TRACED_REQUESTS_MAX);
        match count(&Trial { strategy, requests, ..trial.clone() }, directory.path()) {
            Ok(calls) => counted.push((strategy.to_string(), calls)),
            Err(error) => {
                let name = format!("system calls of {strategy}");
                skipped.push(Skipped { name, reason: format!("{error:#}") });
            }
        }
        child::fail_if_interrupted()?;
        progress.end();
    }
    Ok(strace::rows(&counted))
}

/// Runs the trial under strace, which writes into `directory`.
fn count(trial: &Trial, directory: &Path) -> Result<SyscallCounts> {
    let file = directory.join("calls");
    let mut arguments = strace::counting_arguments(&file);
    arguments.push(child::own_program()?.into());
    trial.run_under(Path::new("strace"), &arguments)?;
    strace::read_counts(&file)
}

/// Reasons why every figure of this run is weak.
fn warnings(options: &Options, effort: &Effort) -> Vec<String> {
    let is_short = options.common.scale() == Scale::Quick || effort.requests != work::REQUESTS;
    let short = is_short.then(|| format!("a run of {} requests decides nothing", effort.requests));
    short.into_iter().chain(debug_build_warning()).collect()
}
