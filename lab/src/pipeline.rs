//! `lab pipeline`: 100,000 requests that compute, wait and answer, done in the ways that servers do them.
//! Promises: every strategy does the same work in a process of its own, interleaved with the others, and
//! must prove it by the same controls; what no scheduler can beat is computed beside it. Leaves to others:
//! what is decided from the figures (`pipeline/verdicts.rs`).
//!
//! | strategy | a wait holds | threads | what it is for, and what it costs |
//! |---|---|---|---|
//! | `sequential` | everything | 1 | the measure of all others |
//! | `thread-per-request` | its own thread | one a request | simplest; dies of a limit of the kernel |
//! | `batches` | its batch | the batch | bounded; the slowest of a batch holds up all, each request pays for a thread |
//! | `pool` | one of few threads | fixed | cheap; too few threads idle the CPUs, too many are guesswork |
//! | `event` | nothing | one a CPU | as fast as can be; a request must be cut into steps |

mod batches;
mod bounds;
mod event;
mod kind;
mod plan;
mod pool;
mod recording;
mod sequential;
mod text;
mod thread_per_request;
mod turn;
mod waits;
mod work;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;

use self::kind::Kind;
use self::plan::{Effort, Part};
use self::turn::Finished;
pub(crate) use self::turn::{Turn, take};
use self::work::Work;
use crate::progress::Progress;
use crate::report::{Numbers, Report, Row, Run, Skipped};
use crate::{child, machine};

/// The part of the report that has the figures, and the one that has the controls.
const FIGURES: &str = "requests";
const CONTROLS: &str = "controls";

/// How often a contaminated turn of what verdicts compare is taken again at once.
const REPEATS_MAX: usize = 1;

/// Requests by which one is timed.
const TIMED_REQUESTS: u32 = 2_000;

/// A way to do all requests of some work.
trait Strategy {
    /// Does each request once and returns when the last response has been consumed.
    ///
    /// # Errors
    /// The machine gives no further thread or descriptor.
    fn run(&self, work: &Arc<Work>) -> Result<()>;
}

/// What `lab pipeline` may be told.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// More rounds: half an hour
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// One round of 2,000 requests, which decides nothing: seconds
    #[arg(long)]
    quick: bool,
    /// Only these strategies, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "STRATEGY")]
    only: Vec<Part>,
    /// Rounds [default: 5, with --long 11]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// The text that responses quote, up to 16,384 bytes of it [default: one that the lab makes]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
}

/// Runs the experiment.
///
/// # Errors
/// The lab itself could not work, or the user interrupted it; a strategy that fails is left out of the
/// report instead.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut machine = machine::facts(child::raise_descriptor_limit());
    let text = text::read(options.text.as_deref())?;
    let work_us = Work::time_of_one(text, TIMED_REQUESTS).as_secs_f64() * 1e6;
    machine.insert("work_of_one_request_us".to_owned(), work_us.into());
    let effort = effort(options);
    let cpus = machine::allowed_cpus().len() as u32;
    let mut parts = Part::value_variants().to_vec();
    parts.retain(|part| options.only.is_empty() || options.only.contains(part));
    let kinds = plan::kinds(&parts, cpus);
    let (rows, skipped) = rounds(options, &effort, &kinds, cpus)?;
    let (verdicts, left_out) = (Vec::new(), Vec::new());
    let warnings = warnings(options, &effort);
    Ok(Report { experiment: "pipeline", machine, rows, grids: &[], verdicts, left_out, skipped, warnings })
}

fn effort(options: &Options) -> Effort {
    let mut effort = match (options.quick, options.long) {
        (true, _) => Effort::QUICK,
        (_, true) => Effort::LONG,
        _ => Effort::USUAL,
    };
    effort.rounds = options.rounds.map_or(effort.rounds, |rounds| rounds as usize);
    effort.slow_turns = effort.slow_turns.min(effort.rounds);
    effort
}

/// All turns of all rounds.
fn rounds(options: &Options, effort: &Effort, kinds: &[Kind], cpus: u32) -> Result<(Vec<Row>, Vec<Skipped>)> {
    let rounds = plan::rounds(kinds, effort, cpus);
    let progress = Progress::new(rounds.iter().map(|round| round.len() as u64).sum());
    let mut notes = Notes { rows: Vec::new(), failed: Vec::new(), spare_round: rounds.len(), cpus };
    for (round, kinds) in rounds.iter().enumerate() {
        for &kind in kinds {
            progress.begin(format!("{kind}, round {}", round + 1));
            let turn = Turn {
                strategy: kind,
                requests: effort.requests,
                text: options.text.clone(),
                recording: None,
            };
            notes.turn(&turn, round)?;
            progress.end();
        }
    }
    progress.finish();
    notes.rows.sort_by_key(|row| {
        let place = kinds.iter().position(|kind| kind.to_string() == row.subject);
        (row.part == CONTROLS, place)
    });
    Ok((notes.rows, notes.failed))
}

/// What the rounds have found so far.
struct Notes {
    rows: Vec<Row>,
    failed: Vec<Skipped>,
    /// A round that nothing else is in, for a contaminated turn that was taken again: it is kept, and
    /// compared with nothing.
    spare_round: usize,
    cpus: u32,
}

impl Notes {
    fn turn(&mut self, turn: &Turn, round: usize) -> Result<()> {
        let name = turn.strategy.to_string();
        if self.failed.iter().any(|failed| failed.name == name) {
            return Ok(());
        }
        let repeats_max = if plan::is_slow(turn.strategy, self.cpus) { 0 } else { REPEATS_MAX };
        for repeat in 0..=repeats_max {
            let finished = turn.run();
            child::fail_if_interrupted()?;
            match finished {
                Err(error) => {
                    let reason = format!("round {}: {error:#}", round + 1);
                    self.failed.push(Skipped { name, reason });
                    return Ok(());
                }
                Ok(finished) if finished.marks.is_empty() || repeat == repeats_max => {
                    self.note(turn, round, &finished);
                    return Ok(());
                }
                Ok(finished) => {
                    self.note(turn, self.spare_round, &finished);
                    self.spare_round += 1;
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, turn: &Turn, round: usize, finished: &Finished) {
        let subject = turn.strategy.to_string();
        for (part, numbers) in [(FIGURES, figures(turn, finished, self.cpus)), (CONTROLS, controls(finished))]
        {
            let run = Run { round, marks: finished.marks.clone(), numbers };
            match self.rows.iter_mut().find(|row| row.part == part && row.subject == subject) {
                Some(row) => row.runs.push(run),
                None => self.rows.push(Row { part, subject: subject.clone(), runs: vec![run] }),
            }
        }
    }
}

fn figures(turn: &Turn, finished: &Finished, cpus: u32) -> Numbers {
    let requests = f64::from(turn.requests);
    let bound_s = bounds::seconds(turn.requests, turn.strategy.ahead(), finished.cpu, cpus as usize);
    let elapsed_s = finished.elapsed.as_secs_f64();
    vec![
        ("requests_per_s", requests / elapsed_s),
        ("share_of_bound", bound_s / elapsed_s),
        ("threads_peak", finished.threads_peak as f64),
        ("memory_peak_mb", finished.memory_peak_bytes as f64 / 1e6),
        ("cpu_us_per_request", finished.cpu.as_secs_f64() * 1e6 / requests),
        ("whole_requests_per_s", requests / finished.whole.as_secs_f64()),
    ]
}

fn controls(finished: &Finished) -> Numbers {
    let controls = finished.controls;
    vec![
        ("requests", controls.requests as f64),
        ("sum_of_r", controls.sum_of_r),
        ("waits_ms", controls.waits_ms as f64),
        ("yields", controls.yields as f64),
        ("checksum", f64::from(controls.checksum)),
    ]
}

/// What makes every figure of this run weak.
fn warnings(options: &Options, effort: &Effort) -> Vec<String> {
    let mut warnings = Vec::new();
    if options.quick {
        warnings.push(format!("a quick run of {} requests decides nothing", effort.requests));
    }
    if cfg!(debug_assertions) {
        warnings.push("the lab is a build without optimisation".to_owned());
    }
    warnings
}
