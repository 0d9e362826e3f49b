//! A trial: one strategy does all requests once, in a process of its own, so that its CPU time, its peak
//! memory and its threads are its own.
//!
//! Guarantees: the process exists, with its text read, before the disturbance watch begins, and until after
//! it ends; only the requests are timed.
//!
//! ```text
//!   lab:    start ..............  watch, "go" ................  unwatch, end of input
//!   child:         read, "ready"               work, figures                          exit
//! ```

use std::ffi::OsString;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sys::clock::process_cpu;

use super::recording::Recorder;
use super::target::Target;
use super::text;
use super::work::{Controls, Work};
use crate::kit::child;
use crate::kit::disturbance::DisturbanceWatch;
use crate::kit::machine;
use crate::kit::usage::own_memory_bytes;
use crate::kit::worker_process::{GO, READY, WorkerProcess, print_line};

/// The arguments of `lab trial`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Trial {
    /// The strategy
    #[arg(long)]
    pub(super) strategy: Target,
    /// How many requests
    #[arg(long)]
    pub(super) requests: u32,
    /// The text that responses quote
    #[arg(long)]
    pub(super) text: Option<PathBuf>,
    /// Where to write what each thread did
    #[arg(long)]
    pub(super) recording: Option<PathBuf>,
}

/// The result of a trial.
#[derive(Debug)]
pub(super) struct TrialResult {
    /// The process's id.
    pub(super) process: u32,
    /// From the first request to after the last.
    pub(super) elapsed: Duration,
    /// The process's life without the time in which it waited for the lab.
    pub(super) whole: Duration,
    /// CPU time of all its threads between the same moments as `elapsed`.
    pub(super) cpu: Duration,
    pub(super) threads_peak: u64,
    pub(super) memory_peak_bytes: u64,
    pub(super) controls: Controls,
    /// Why the trial is contaminated.
    pub(super) marks: Vec<String>,
}

impl Trial {
    /// Runs the trial.
    ///
    /// # Errors
    /// The strategy failed, or the user interrupted.
    pub(super) fn run(&self) -> Result<TrialResult> {
        self.run_under(&child::own_program()?, &[])
    }

    /// Runs the trial by a program that starts others, such as a tracer.
    ///
    /// # Errors
    /// As `run`, and the errors of that program.
    pub(super) fn run_under(&self, program: &Path, its_arguments: &[OsString]) -> Result<TrialResult> {
        let arguments: Vec<OsString> = its_arguments.iter().cloned().chain(self.arguments()).collect();
        let started = Instant::now();
        let mut worker = WorkerProcess::start(program, &arguments)?;
        worker.expect_line(READY)?;
        let to_begin = started.elapsed();
        let watch = DisturbanceWatch::start();
        let commanded = Instant::now();
        worker.send(GO)?;
        let answer = worker.read_line()?;
        let working = commanded.elapsed();
        let marks = watch.finish().marks;
        let ending = Instant::now();
        worker.finish()?;
        let whole = to_begin + working + ending.elapsed();
        let answer: Value = serde_json::from_str(&answer).context("an answer is one line of JSON")?;
        if let Some(reason) = answer.get("error").and_then(Value::as_str) {
            bail!("{reason}");
        }
        TrialResult::from_json(&answer, whole, marks).context("a trial's answer has all figures")
    }

    fn arguments(&self) -> Vec<OsString> {
        let (strategy, requests) = (self.strategy.to_string(), self.requests.to_string());
        let words = ["trial", "--strategy", &strategy, "--requests", &requests];
        let mut arguments: Vec<OsString> = words.map(Into::into).into();
        if let Some(text) = &self.text {
            arguments.extend(["--text".into(), text.into()]);
        }
        if let Some(recording) = &self.recording {
            arguments.extend(["--recording".into(), recording.into()]);
        }
        arguments
    }
}

impl TrialResult {
    fn from_json(answer: &Value, whole: Duration, marks: Vec<String>) -> Option<Self> {
        Some(Self {
            elapsed: Duration::from_nanos(answer["elapsed_ns"].as_u64()?),
            process: u32::try_from(answer["process"].as_u64()?).ok()?,
            whole,
            cpu: Duration::from_nanos(answer["cpu_ns"].as_u64()?),
            threads_peak: answer["threads_peak"].as_u64()?,
            memory_peak_bytes: answer["memory_peak_bytes"].as_u64()?,
            controls: Controls::from_json(&answer["controls"])?,
            marks,
        })
    }
}

/// The child's side: runs the strategy on command, and stays until its input ends.
///
/// # Errors
/// The text cannot be read, or the lab has ended.
pub(crate) fn run_trial(trial: &Trial) -> Result<()> {
    let work = Work::new(trial.requests, text::read(trial.text.as_deref())?);
    let strategy = trial.strategy.strategy(machine::allowed_cpus().len());
    print_line(READY)?;
    let mut words = std::io::stdin().lock().lines();
    let Some(GO) = words.next().transpose()?.as_deref() else { return Ok(()) };
    let recorder = trial.recording.as_ref().map(|_| Recorder::start());
    let work = Arc::new(match &recorder {
        Some(recorder) => work.recorded(recorder.clone()),
        None => work,
    });
    let (began, cpu_before) = (Instant::now(), process_cpu());
    let done = strategy.run(&work);
    let (elapsed, cpu) = (began.elapsed(), process_cpu() - cpu_before);
    if let (Some(recorder), Some(file)) = (recorder, &trial.recording) {
        recorder.finish().write(file)?;
    }
    let answer = match done {
        Ok(()) => json!({
            "process": std::process::id(),
            "elapsed_ns": elapsed.as_nanos() as u64,
            "cpu_ns": cpu.as_nanos() as u64,
            "threads_peak": work.threads_peak(),
            "memory_peak_bytes": own_memory_bytes("VmHWM")?,
            "controls": work.controls().to_json(),
        }),
        Err(error) => json!({ "error": format!("{error:#}") }),
    };
    print_line(&answer.to_string())?;
    words.next();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        trial: Trial,
    }

    #[test]
    fn trial_survives_the_command_line() {
        for file in [None, Some(PathBuf::from("a file"))] {
            let (text, recording) = (file.clone(), file);
            let trial = Trial { strategy: Target::Batches(50), requests: 2_000, text, recording };
            let line = Line::try_parse_from(trial.arguments()).expect("the child parses its own arguments");
            assert_eq!((line.trial.strategy, line.trial.requests), (trial.strategy, trial.requests));
            assert_eq!((line.trial.text, line.trial.recording), (trial.text, trial.recording));
        }
    }
}
