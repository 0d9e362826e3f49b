//! `lab inserts`: one record at a time from several writers while CPU hogs spin. The ledger, SQLite and
//! PostgreSQL beside locks around a last page, each fresh in every case, the cases interleaved.
//!
//! Guarantees: a refused insert is not counted; records in the ledger's journal and records that a query
//! finds are two columns; the machine is as before at the end.
//!
//! ```text
//!   writers 1..N --insert--> store         hogs 1..K: processes of their own sessions
//!      |  time, switches      |  watermarks: appended, durable, visible
//!      '------- the lab samples them once a millisecond, and syncs a page of its own beside each case
//! ```

mod append_table;
mod case;
mod disk;
mod fair_share;
mod hogs;
mod lag;
mod latch;
mod ledger_store;
mod placement;
mod plan;
mod postgres;
mod presentation;
mod row;
mod sqlite;
mod store;
mod target;
mod ticket;
mod turnstile;
mod verdicts;
mod writers;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use self::case::{Case, CaseResult, Environment};
use self::disk::Disk;
pub(crate) use self::hogs::{Hog, spin};
use self::placement::Placement;
pub(crate) use self::plan::Options;
use self::plan::{Effort, Part};
pub(crate) use self::presentation::PRESENTATION;
use self::target::Target;
use crate::kit::kernel_setting::{self, HeldSetting};
use crate::kit::measurements::{Row, Run, Skipped};
use crate::kit::progress::Progress;
use crate::kit::report::Report;
use crate::kit::{child, machine};

/// How often a contaminated run is repeated at once.
const REPEATS_MAX: usize = 1;

/// The scheduler's automatic groups.
const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// The `f_type` of statfs(2) for a file system in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Runs the experiment.
///
/// # Errors
/// The lab itself could not work, or the user interrupted it; a store that fails is left out of the report
/// instead.
pub(crate) fn run(options: &Options) -> Result<Report> {
    // With automatic groups each session weighs as much as any other, however many threads it has: runs
    // beside hogs would show something else.
    let autogroup = kernel_setting::hold(Path::new(AUTOGROUP), "0");
    let directory = options.directory.clone().unwrap_or_else(std::env::temp_dir);
    let directory = TempDir::with_prefix_in("lab-", directory).context("creating a temporary directory")?;
    let mut machine = machine::facts();
    machine.insert("sched_autogroup_enabled_before".to_owned(), autogroup.before().into());
    machine.insert("writers".to_owned(), plan::WRITERS.into());
    let environment = Environment {
        directory: directory.path().to_owned(),
        services: options.services.clone().or_else(services_file),
        disk: Disk::open(directory.path())?,
    };
    machine.insert("sqlite_version".to_owned(), rusqlite::version().into());
    machine.insert("postgres_version".to_owned(), postgres::version(environment.services.as_deref()).into());
    let effort = Effort::of(options);
    let (cases, mut skipped) = cases(options, &effort, &environment)?;
    let (mut rows, failed) = rounds(&cases, &effort, &environment)?;
    skipped.extend(failed);
    let cpus = machine::allowed_cpus().len();
    fair_share::add_shares(&mut rows, cpus, |family| writers_of(&cases, family));
    let warnings = warnings(options, &autogroup, directory.path());
    let mut report = Report { rows, skipped, warnings, ..Report::new(&PRESENTATION, machine) };
    verdicts::judge(&mut report);
    report.mark_undecided();
    Ok(report)
}

/// The services' file of the checkout around the current directory.
fn services_file() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|above| above.join("target/services.env")).find(|file| file.exists())
}

/// The cases of each round, and the stores that cannot take part.
fn cases(options: &Options, effort: &Effort, environment: &Environment) -> Result<(Vec<Case>, Vec<Skipped>)> {
    let mut skipped = Vec::new();
    let mut parts = options.common.parts();
    if parts.contains(&Part::Siblings) && Placement::Siblings.assign(1, 1).is_none() {
        parts.retain(|part| *part != Part::Siblings);
        let reason = "no two allowed CPUs share a core".to_owned();
        skipped.push(Skipped { name: "siblings".to_owned(), reason });
    }
    let cpus = machine::allowed_cpus().len();
    let mut cases = plan::cases(&parts, &Target::ALL, effort, cpus);
    for target in Target::ALL {
        let Some(case) = cases.iter().find(|case| case.target == target) else { continue };
        let reason = match options.without.contains(&target) {
            true => "skipped by --without".to_owned(),
            false => match check_opens(case, environment) {
                Ok(()) => continue,
                Err(error) => format!("{error:#}"),
            },
        };
        skipped.push(Skipped { name: target.name().to_owned(), reason });
        cases.retain(|case| case.target != target);
    }
    child::fail_if_interrupted()?;
    Ok((cases, skipped))
}

/// Opens the case's store once, for the error.
fn check_opens(case: &Case, environment: &Environment) -> Result<()> {
    let directory = TempDir::new_in(&environment.directory)?;
    case.open(directory.path(), environment).map(drop)
}

/// Every case once in each round, in an order that begins elsewhere each time, so that slow changes of the
/// machine affect all alike.
fn rounds(cases: &[Case], effort: &Effort, environment: &Environment) -> Result<(Vec<Row>, Vec<Skipped>)> {
    let progress = Progress::new((cases.len() * effort.rounds) as u64);
    let mut results = Results { rows: Vec::new(), failed: Vec::new(), spare_round: effort.rounds };
    for round in 0..effort.rounds {
        for step in 0..cases.len() {
            let case = &cases[(step + round * cases.len() / effort.rounds) % cases.len()];
            progress.begin(format!("{}, {}, round {}", case.part, case.target.name(), round + 1));
            results.case(case, round, environment)?;
            progress.end();
        }
    }
    progress.finish();
    results.rows.sort_by_key(|row| position(cases, row));
    Ok((results.rows, results.failed))
}

fn position(cases: &[Case], row: &Row) -> Option<usize> {
    cases.iter().position(|case| case.part == row.part && case.target.name() == row.target)
}

/// The number of writers in the cases of a family.
fn writers_of(cases: &[Case], family: &str) -> usize {
    let of_family = |case: &&Case| case.part.rsplit_once('-').is_some_and(|part| part.0 == family);
    cases.iter().find(of_family).map_or(plan::WRITERS, |case| case.writers)
}

/// The results of the rounds so far.
struct Results {
    rows: Vec<Row>,
    failed: Vec<Skipped>,
    /// A round number for a repeated run: it is kept, and compared with nothing.
    spare_round: usize,
}

impl Results {
    fn case(&mut self, case: &Case, round: usize, environment: &Environment) -> Result<()> {
        let name = format!("{}/{}", case.part, case.target.name());
        if self.failed.iter().any(|failed| failed.name == name) {
            return Ok(());
        }
        for repeat in 0..=REPEATS_MAX {
            let found = case.run(environment);
            child::fail_if_interrupted()?;
            match found {
                Err(error) => {
                    let reason = format!("round {}: {error:#}", round + 1);
                    self.failed.push(Skipped { name, reason });
                    return Ok(());
                }
                Ok(found) if found.marks.is_empty() || repeat == REPEATS_MAX => {
                    self.record(case, round, found);
                    return Ok(());
                }
                Ok(found) => {
                    self.record(case, self.spare_round, found);
                    self.spare_round += 1;
                }
            }
        }
        Ok(())
    }

    fn record(&mut self, case: &Case, round: usize, found: CaseResult) {
        let run = Run { round, marks: found.marks, numbers: found.numbers };
        let target = case.target.name();
        match self.rows.iter_mut().find(|row| row.part == case.part && row.target == target) {
            Some(row) => row.runs.push(run),
            None => self.rows.push(Row { part: case.part, target: target.to_owned(), runs: vec![run] }),
        }
    }
}

/// Reasons why every figure of this run is weak.
fn warnings(options: &Options, autogroup: &HeldSetting, directory: &Path) -> Vec<String> {
    let mut warnings = options.common.warnings();
    warnings.extend(autogroup.warning());
    let is_in_memory = rustix::fs::statfs(directory).is_ok_and(|statfs| statfs.f_type == TMPFS_MAGIC);
    if is_in_memory {
        warnings.push("the directory is in memory, where a sync costs nothing: see --directory".to_owned());
    }
    warnings
}
