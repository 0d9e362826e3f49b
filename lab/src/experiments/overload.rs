//! `lab overload`: half to three times the load that the CPUs can do, while jobs of one class block for ever.
//! The engine's job pool beside a fixed pool, as most servers have it: fixed threads, one unbounded queue.
//!
//! Guarantees: jobs arrive when they are due and not when the server is ready; offered jobs without an answer
//! count.
//!
//! ```text
//!   jobs of one kind, every 1/rate s --.
//!                                      +--> target --> answers: in time, late, refused, expired, shed
//!   jobs that never return, 50 a second'
//! ```

mod counters;
mod offered_load;
mod plan;
mod presentation;
mod target;
mod verdicts;

use std::time::Duration;

use anyhow::Result;

use self::offered_load::OfferedLoad;
pub(crate) use self::plan::Options;
use self::plan::{Effort, Part};
pub(crate) use self::presentation::PRESENTATION;
use self::target::{Measured, Target};
use crate::kit::burn::Burn;
use crate::kit::measurements::Numbers;
use crate::kit::progress::Progress;
use crate::kit::report::Report;
use crate::kit::rounds::{RoundTarget, Rounds};
use crate::kit::{child, machine};

/// The part in which the capacity is measured.
const CAPACITY: &str = "capacity";

/// CPU time of a job: a rendered page.
const JOB: Duration = Duration::from_micros(200);

/// After this long an answer is of no use: the user has given up.
const DEADLINE: Duration = Duration::from_millis(50);

/// Rounds beyond those wanted, where some were disturbed: one takes half a minute.
const EXTRA_ROUNDS_MAX: usize = 2;

/// Runs the experiment.
///
/// # Errors
/// The lab itself could not work, or the user interrupted it.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let Effort { rounds, time } = Effort::of(options);
    let parts = options.common.parts();
    let mut machine = machine::facts();
    let burn = Burn::of(JOB);
    machine.insert("job_us".to_owned(), (JOB.as_secs_f64() * 1e6).into());
    machine.insert("deadline_ms".to_owned(), (DEADLINE.as_secs_f64() * 1e3).into());
    machine.insert("poisoned_threads_share".to_owned(), target::poisoned_share().into());
    let mut targets = Target::ALL.to_vec();
    let progress = Progress::new((targets.len() * rounds) as u64);
    let plan = Rounds { what: "overload", wanted: rounds, extra_max: EXTRA_ROUNDS_MAX, watched: true };
    let found = plan.run(&mut targets, &progress, |target| one(*target, burn, time, &parts))?;
    progress.finish();
    let mut rows = found.rows;
    rows.sort_by_key(|row| {
        std::iter::once(CAPACITY).chain(Part::ALL.map(Part::name)).position(|it| it == row.part)
    });
    let mut report = Report {
        rows,
        skipped: found.failed,
        warnings: options.common.warnings(),
        ..Report::new(&PRESENTATION, machine)
    };
    verdicts::judge(&mut report);
    report.mark_undecided();
    Ok(report)
}

impl RoundTarget for Target {
    fn name(&self) -> &'static str {
        Target::name(*self)
    }
}

/// One round of a target: its capacity, then every multiple of it.
fn one(target: Target, burn: Burn, time: Duration, parts: &[Part]) -> Result<Vec<(&'static str, Numbers)>> {
    let capacity = offered_load::capacity(target, burn, time)?;
    let mut cases = vec![(CAPACITY, vec![("finished_per_s", capacity)])];
    for part in parts {
        child::fail_if_interrupted()?;
        let measured = OfferedLoad { target, burn, rate: part.load() * capacity, time }.run()?;
        cases.push((part.name(), numbers(&measured, capacity, time)));
    }
    Ok(cases)
}

fn numbers(measured: &Measured, capacity: f64, time: Duration) -> Numbers {
    let counters = &measured.counters;
    let percent = |count: u64| 100.0 * count as f64 / counters.offered as f64;
    let goodput = counters.in_time as f64 / time.as_secs_f64();
    vec![
        ("goodput_per_s", goodput),
        ("goodput_percent_of_capacity", 100.0 * goodput / capacity),
        ("in_time_p99_ms", counters.in_time_ms(0.99)),
        ("answer_p99_ms", counters.answer_ms(0.99)),
        ("in_time_percent", percent(counters.in_time)),
        ("refused_percent", percent(counters.refused)),
        ("expired_percent", percent(counters.expired)),
        ("shed_percent", percent(counters.shed)),
        ("late_or_never_percent", percent(counters.late)),
        ("poisoned_threads_max", measured.poisoned_threads_max as f64),
        ("threads_max", measured.threads_max as f64),
    ]
}
