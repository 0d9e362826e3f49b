//! `lab timers`: deadlines that are set and nearly always cancelled, kept by the timer implementations that
//! servers have.
//!
//! Guarantees: every implementation does the same calls in a process of its own, interleaved with the others;
//! the engine's three forms and six rivals are built in, and an external program may take part as a seventh.
//!
//! | implementation | arming | cancelling | fired by | a cancelled timer |
//! |---|---|---|---|---|
//! | `tollgate-shared` | push to a wheel's arrivals | an exchange | a thread, woken when one is due | 256 at most |
//! | `tollgate-local` | own wheel | own wheel, or an exchange | the thread's loop | gone, or 256 at most |
//! | `tollgate-own-wheel` | own wheel | own wheel; no other thread can | the thread's loop | gone |
//! | `heap` | a mutex and a heap | the mutex, a mark | a thread | in the heap until due |
//! | `bucketed` | one mutex of 13 | an exchange | a thread | in a heap until due |
//! | `timerfd` | three system calls | one | a thread, from epoll | gone |
//! | `threads` | a mutex and a heap for each user | that mutex, a mark | a thread each | in the heap until due |
//! | `tick` | a push | a push | a thread, awake each ms | gone after a tick |
//! | `tokio` | the runtime's mutex | the mutex | a worker | gone |
//! | `nothing` | no timers: the cost of the experiment itself | | | |

mod bucketed;
mod calls;
mod cases;
mod counters;
mod echo;
mod free_list;
mod heap;
mod held;
mod instructions;
mod local;
mod no_timers;
mod own_wheel;
mod pairs;
mod plan;
mod presentation;
mod shared;
mod sleep;
mod slots;
mod target;
mod task;
mod threads;
mod tick;
mod timer_impl;
#[cfg(test)]
mod timer_impl_tests;
mod timer_thread;
mod timerfd;
mod tokio;
mod verdicts;

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use clap::ValueEnum;

use self::cases::{CALLS, ECHO, HELD, INTERLEAVED, INTERLEAVED_CASE, INTERLEAVED_TARGETS};
use self::echo::DeadlineMode as EchoDeadlineMode;
pub(crate) use self::echo::{Echo, echo};
pub(crate) use self::plan::Options;
use self::plan::{Effort, Part};
pub(crate) use self::presentation::PRESENTATION;
use self::target::{BuiltIn, Target};
use self::task::{Task, TaskKind};
pub(crate) use self::task::{TaskArguments, run_task};
use crate::kit::child;
use crate::kit::disturbance::DisturbanceWatch;
use crate::kit::machine;
use crate::kit::measurements::{Numbers, Skipped};
use crate::kit::progress::Progress;
use crate::kit::report::Report;
use crate::kit::rounds::{Outcome, RoundTarget, Rounds};

/// The deadline of every call.
const DEADLINE: Duration = Duration::from_millis(500);

/// Rounds beyond those wanted, where some were disturbed.
const EXTRA_ROUNDS_MAX: usize = 2;

/// Implementations whose wake-ups are counted at a time: more would take the CPUs from each other.
const CALLERS_AT_ONCE: usize = 3;

/// Runs the experiment.
///
/// # Errors
/// The lab itself could not work, or the user interrupted it; an implementation that fails is left out of the
/// report instead.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let machine = machine::facts();
    let effort = Effort::of(options);
    let targets: Vec<Target> = BuiltIn::value_variants().iter().copied().map(Target::BuiltIn).collect();
    let mut targets: Vec<Target> =
        targets.into_iter().chain(options.brpc.clone().map(Target::Brpc)).collect();
    let timer_targets: Vec<Target> = targets.iter().filter(|target| target.has_timers()).cloned().collect();
    let parts = options.common.parts();
    let steps = |part: &Part| steps(*part, &effort, targets.len(), timer_targets.len());
    let progress = Progress::new(parts.iter().map(steps).sum::<usize>() as u64);
    let mut found = Outcome::default();
    for part in parts {
        match part {
            Part::Pairs => {
                let task = Task { work: TaskKind::Pairs, for_ms: effort.case_ms, timers: 0, case: None };
                let rounds = rounds("schedule and cancel", &effort);
                found.merge(rounds.run(&mut targets, &progress, |target| task.run(target))?);
            }
            Part::Interleaved => found.merge(interleaved(&effort, &progress)?),
            Part::Calls => calls(&timer_targets, &effort, &progress, &mut found)?,
            Part::Held => held(&timer_targets, &effort, &progress, &mut found)?,
            Part::Echo => {
                found.merge(echoes_of(&effort, &progress)?);
                for round in 0..effort.counts {
                    count_instructions(round, &progress, &mut found)?;
                }
            }
        }
    }
    let Outcome { mut rows, failed: mut skipped } = found;
    if options.brpc.is_none() {
        let reason = "--brpc names no program".to_owned();
        skipped.push(Skipped { name: "brpc".to_owned(), reason });
    }
    progress.finish();
    rows.sort_by_key(|row| cases::position(row.part));
    let warnings = options.common.warnings();
    let mut report = Report { rows, skipped, warnings, ..Report::new(&PRESENTATION, machine) };
    verdicts::judge(&mut report);
    report.mark_undecided();
    Ok(report)
}

/// Steps of progress of a part, with `targets` targets of which `timer_targets` keep timers.
fn steps(part: Part, effort: &Effort, targets: usize, timer_targets: usize) -> usize {
    let modes = EchoDeadlineMode::value_variants().len();
    match part {
        Part::Pairs => effort.rounds * targets,
        Part::Interleaved => effort.interleaved_rounds() * INTERLEAVED_TARGETS.len(),
        Part::Calls => timer_targets.div_ceil(CALLERS_AT_ONCE),
        Part::Held => timer_targets,
        Part::Echo => (effort.rounds + effort.counts * ECHO.len()) * modes,
    }
}

fn rounds(what: &'static str, effort: &Effort) -> Rounds {
    Rounds { what, wanted: effort.rounds, extra_max: EXTRA_ROUNDS_MAX, watched: true }
}

/// The implementations of one verdict, one case each and one after another.
fn interleaved(effort: &Effort, progress: &Progress) -> Result<Outcome> {
    let task =
        Task { work: TaskKind::Pairs, for_ms: effort.case_ms, timers: 0, case: Some(INTERLEAVED_CASE) };
    let rounds = Rounds { wanted: effort.interleaved_rounds(), ..rounds("another thread cancels", effort) };
    rounds.run(&mut INTERLEAVED_TARGETS.map(Target::BuiltIn).to_vec(), progress, |target| {
        let numbers = task.run(target)?.into_iter().map(|(_, numbers)| (INTERLEAVED, numbers));
        Ok(numbers.collect())
    })
}

/// 20,000 calls per second with each implementation, a few of them at a time.
fn calls(targets: &[Target], effort: &Effort, progress: &Progress, found: &mut Outcome) -> Result<()> {
    let task = Task { work: TaskKind::Calls, for_ms: effort.calls_ms, timers: 0, case: None };
    for group in targets.chunks(CALLERS_AT_ONCE) {
        let names: Vec<_> = group.iter().map(RoundTarget::name).collect();
        progress.begin(format!("calls of 5 ms, {}", names.join(" and ")));
        let watch = DisturbanceWatch::start();
        let done: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = group.iter().map(|target| scope.spawn(|| task.run(target))).collect();
            started.into_iter().map(|it| it.join().unwrap_or_else(|_| Err(anyhow!("a panic")))).collect()
        });
        let marks = watch.finish().marks;
        child::fail_if_interrupted()?;
        for (target, done) in group.iter().zip(done) {
            note(CALLS, target, done, &marks, found);
        }
        progress.end();
    }
    Ok(())
}

/// The memory of cancelled timers with each implementation.
fn held(targets: &[Target], effort: &Effort, progress: &Progress, found: &mut Outcome) -> Result<()> {
    let task = Task { work: TaskKind::Held, for_ms: 0, timers: effort.timers, case: None };
    for target in targets {
        progress.begin(format!("memory of cancelled timers, {}", target.name()));
        let done = task.run(target);
        child::fail_if_interrupted()?;
        note(HELD, target, done, &[], found);
        progress.end();
    }
    Ok(())
}

fn note(what: &str, target: &Target, done: Result<task::Cases>, marks: &[String], found: &mut Outcome) {
    match done {
        Ok(cases) => found.record(target.name(), 0, marks, cases),
        Err(error) => found.fail(what, target.name(), &error),
    }
}

impl RoundTarget for EchoDeadlineMode {
    fn name(&self) -> &'static str {
        self.as_str()
    }
}

/// The echo, without deadlines and with them.
fn echoes_of(effort: &Effort, progress: &Progress) -> Result<Outcome> {
    let mut targets = EchoDeadlineMode::value_variants().to_vec();
    rounds("echo", effort).run(&mut targets, progress, |deadlines| {
        let one = |(part, in_flight): (&'static str, usize)| {
            let figures = echo::run(in_flight, *deadlines, effort.echo_calls)?;
            ensure!(figures.deadlines_fired == 0, "{} deadlines fired", figures.deadlines_fired);
            let numbers: Numbers =
                vec![("calls_per_s", figures.calls_per_s), ("cpu_ns_per_call", figures.cpu_ns_per_call)];
            Ok((part, numbers))
        };
        ECHO.into_iter().map(one).collect()
    })
}

fn count_instructions(round: usize, progress: &Progress, found: &mut Outcome) -> Result<()> {
    for (part, in_flight) in ECHO {
        for deadlines in EchoDeadlineMode::value_variants() {
            let target = deadlines.as_str();
            progress.begin(format!("instructions of {part}, deadlines {target}"));
            let counted = instructions::per_call(in_flight, *deadlines);
            child::fail_if_interrupted()?;
            match counted {
                Ok(count) => {
                    found.record(target, round, &[], vec![(part, vec![("instructions_per_call", count)])]);
                }
                // A count that fails once would fail in the other rounds as well.
                Err(error) if round == 0 => found.fail(&format!("instructions of {part}"), target, &error),
                Err(_) => {}
            }
            progress.end();
        }
    }
    Ok(())
}
