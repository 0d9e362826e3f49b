//! A task: one timer implementation does one kind of work in a process of its own, so that its memory, its
//! threads and its CPU time are its own.
//!
//! An external program can do the same task: it receives the same arguments and prints the same line.
//!
//! ```text
//!   lab timer-task --built-in bucketed --work pairs --for-ms 40
//!   PATH                               --work pairs --for-ms 40
//!     -> {"owner-w1-1": {"pairs_per_s": 7200000, "cpu_ns_per_pair": 139}, ...}
//! ```

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::cases::{self, CALLS, HELD, PAIRS};
use super::pairs::{CancelledBy, Done, Pairs};
use super::target::{BuiltIn, Target, TimerWork};
use super::timer_impl::TimerImpl;
use crate::kit::child;
use crate::kit::measurements::Numbers;
use crate::kit::worker_process::{WorkerProcess, print_line};

/// An implementation that cannot cancel many timers has cancelled enough after this long.
const HELD_TIME_MAX: Duration = Duration::from_secs(5);

/// The kind of work.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskKind {
    /// Schedule and cancel with 1 to 50 threads, `--for-ms` in each case
    Pairs,
    /// 20,000 calls a second for `--for-ms`
    Calls,
    /// `--timers` timers armed and cancelled
    Held,
}

/// The arguments of `lab timer-task`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TaskArguments {
    #[arg(long)]
    built_in: BuiltIn,
    #[command(flatten)]
    task: Task,
}

/// The arguments that every program understands.
#[derive(clap::Args, Clone, Debug, PartialEq)]
pub(super) struct Task {
    #[arg(long)]
    pub(super) work: TaskKind,
    #[arg(long, default_value_t = 40)]
    pub(super) for_ms: u64,
    #[arg(long, default_value_t = 1_000_000)]
    pub(super) timers: u64,
    /// Of schedule and cancel this case alone
    #[arg(long, value_parser = cases::pairs_named)]
    pub(super) case: Option<&'static str>,
}

/// The numbers of each case of a task.
pub(super) type Cases = Vec<(&'static str, Numbers)>;

impl Task {
    /// Has the implementation's process do the task.
    ///
    /// # Errors
    /// The process failed, or the user interrupts.
    pub(super) fn run(&self, target: &Target) -> Result<Cases> {
        let program = match target.program() {
            Some(program) => program.to_owned(),
            None => child::own_program()?,
        };
        let mut worker = WorkerProcess::start(&program, &self.arguments(target))?;
        let answer = worker.read_line()?;
        worker.finish()?;
        let answer: Value = serde_json::from_str(&answer).context("an answer is one line of JSON")?;
        parse(&answer)
    }

    fn arguments(&self, target: &Target) -> Vec<OsString> {
        let kind = clap::ValueEnum::to_possible_value(&self.work).expect("no value is hidden");
        let (time, timers) = (self.for_ms.to_string(), self.timers.to_string());
        let words = ["--work", kind.get_name(), "--for-ms", &time, "--timers", &timers];
        let built_in = match target {
            Target::BuiltIn(built_in) => vec!["timer-task", "--built-in", built_in.name()],
            Target::Brpc(_) => Vec::new(),
        };
        let case = self.case.map(|case| ["--case", case]).into_iter().flatten();
        built_in.into_iter().chain(words).chain(case).map(OsString::from).collect()
    }
}

fn parse(answer: &Value) -> Result<Cases> {
    let cases = answer.as_object().context("an answer is an object of cases")?;
    let mut parsed = Vec::new();
    for (name, numbers) in cases {
        let part = cases::part(name).with_context(|| format!("{name:?} names no case"))?;
        let numbers = numbers.as_object().with_context(|| format!("{name} has no numbers"))?;
        let number = |(name, value): (&String, &Value)| {
            let number =
                cases::number_named(name).with_context(|| format!("{name:?} names no number of a case"))?;
            Ok((number, value.as_f64().with_context(|| format!("{name} is not a number"))?))
        };
        parsed.push((part, numbers.iter().map(number).collect::<Result<Numbers>>()?));
    }
    if parsed.is_empty() {
        bail!("an answer has at least one case");
    }
    Ok(parsed)
}

/// The child's side: does the work and prints its results.
///
/// # Errors
/// A timer could not be armed, or it fired where it must not.
pub(crate) fn run_task(settings: &TaskArguments) -> Result<()> {
    // One implementation has a descriptor for each timer.
    child::raise_descriptor_limit();
    let answer = settings.built_in.with(TaskRunner(settings))?;
    print_line(&Value::Object(answer).to_string())
}

struct TaskRunner<'a>(&'a TaskArguments);

impl TimerWork for TaskRunner<'_> {
    type Output = Result<Map<String, Value>>;

    fn with<F: TimerImpl>(self) -> Self::Output {
        let task = &self.0.task;
        let time = Duration::from_millis(task.for_ms);
        match task.work {
            TaskKind::Pairs => pairs::<F>(self.0.built_in, task.case, time),
            TaskKind::Calls => calls::<F>(time),
            TaskKind::Held => held::<F>(task.timers),
        }
    }
}

fn pairs<F: TimerImpl>(built_in: BuiltIn, only: Option<&str>, time: Duration) -> Result<Map<String, Value>> {
    let mut cases = Map::new();
    let takes_part = |(name, pairs): &(&str, Pairs)| {
        (built_in.is_shared() || pairs.by == CancelledBy::Owner) && only.is_none_or(|only| only == *name)
    };
    for (name, pairs) in PAIRS.into_iter().filter(takes_part) {
        let timer_impl = F::start(std::sync::Arc::new(|_| ()))?;
        let Done { counts, elapsed, cpu } = pairs.run(&timer_impl, time).with_context(|| name.to_owned())?;
        let numbers = json!({
            "pairs_per_s": counts.pairs as f64 / elapsed.as_secs_f64(),
            "cpu_ns_per_pair": cpu.as_nanos() as f64 / counts.pairs.max(1) as f64,
            "fired": counts.fired,
        });
        cases.insert(name.to_owned(), numbers);
    }
    Ok(cases)
}

fn calls<F: TimerImpl>(time: Duration) -> Result<Map<String, Value>> {
    let results = super::calls::run::<F>(time)?;
    let late =
        |share: f64| results.lateness[((results.lateness.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    let mut numbers = json!({
        "calls": results.calls,
        "fired": results.fired,
        "gained_mb": results.gained_bytes as f64 / 1e6,
    });
    if let (Some((all, last)), Some(numbers)) = (results.wakes, numbers.as_object_mut()) {
        let time = time.as_secs_f64();
        numbers.insert("wakes_per_s".to_owned(), (all.all as f64 / time).into());
        numbers.insert("wakes_per_s_at_the_end".to_owned(), (last.all as f64 / (time / 4.0)).into());
        let dead = 100.0 * all.dead as f64 / all.all.max(1) as f64;
        numbers.insert("dead_wakes_percent".to_owned(), dead.into());
    }
    if let (false, Some(numbers)) = (results.lateness.is_empty(), numbers.as_object_mut()) {
        numbers.insert("late_p50_us".to_owned(), late(0.5).into());
        numbers.insert("late_p99.9_us".to_owned(), late(0.999).into());
        numbers.insert("late_min_us".to_owned(), late(0.0).into());
    }
    Ok(Map::from_iter([(CALLS.to_owned(), numbers)]))
}

fn held<F: TimerImpl>(timers: u64) -> Result<Map<String, Value>> {
    let held = super::held::run::<F>(timers, HELD_TIME_MAX)?;
    let numbers = json!({
        "cancelled": held.cancelled,
        "held_mb": held.bytes_max as f64 / 1e6,
        "held_bytes_per_timer": held.bytes_max as f64 / held.cancelled as f64,
    });
    Ok(Map::from_iter([(HELD.to_owned(), numbers)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: TaskArguments,
    }

    #[test]
    fn task_survives_the_command_line() {
        let task = Task { work: TaskKind::Calls, for_ms: 20, timers: 3, case: Some("owner-w1-8") };
        let words = task.arguments(&Target::BuiltIn(BuiltIn::TollgateOwnWheel));
        assert_eq!(words[0], "timer-task");
        let line = Line::try_parse_from(&words).expect("the child parses its own arguments");
        assert_eq!((line.arguments.built_in, &line.arguments.task), (BuiltIn::TollgateOwnWheel, &task));
        assert_eq!(task.arguments(&Target::Brpc("x".into()))[0], "--work");
    }

    #[test]
    fn answer_with_unknown_names_is_refused() {
        let check = |answer: Value| parse(&answer).map_err(|error| error.to_string());
        let good = check(json!({"held": {"cancelled": 3, "held_mb": 0.5}}));
        assert_eq!(good, Ok(vec![("held", vec![("cancelled", 3.0), ("held_mb", 0.5)])]));
        assert!(check(json!({"hold": {"cancelled": 3}})).unwrap_err().contains("hold"));
        assert!(check(json!({"held": {"cancel": 3}})).unwrap_err().contains("cancel"));
        assert!(check(json!({"held": {"cancelled": "3"}})).is_err());
        assert!(check(json!({})).is_err());
    }

    #[test]
    fn every_implementation_does_every_kind_of_work() {
        use clap::ValueEnum;
        child::raise_descriptor_limit();
        for &built_in in BuiltIn::value_variants() {
            let all = if built_in.is_shared() { PAIRS.len() } else { 10 };
            let works = [(TaskKind::Pairs, all), (TaskKind::Calls, 1), (TaskKind::Held, 1)];
            for (work, cases) in works.into_iter().take(if built_in.has_timers() { 3 } else { 1 }) {
                let for_ms = if work == TaskKind::Calls { 60 } else { 1 };
                let task = Task { work, for_ms, timers: 20_000, case: None };
                let done = built_in
                    .with(TaskRunner(&TaskArguments { built_in, task }))
                    .unwrap_or_else(|it| panic!("{built_in:?} {it:#}"));
                assert_eq!(done.len(), cases, "{built_in:?} {work:?}");
                parse(&Value::Object(done)).expect("the child's line is parsed");
            }
        }
    }
}
