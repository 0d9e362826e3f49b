//! Profiles of the strategies, on request: what their threads did over time, and where their CPU time went.
//!
//! Guarantees: each profile is a trial of its own with fewer requests, and no other figure comes from it; a
//! strategy that fails, or a machine without `perf`, is skipped with its reason and does not affect the other
//! profiles.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::binned_timeline::BinnedTimeline;
use super::recording::Recording;
use super::target::Target;
use super::timeline::Section;
use super::trial::Trial;
use super::{cpu_shares, timeline, trace};
use crate::kit::child;
use crate::kit::flame;
use crate::kit::measurements::{Row, Run, Skipped};
use crate::kit::progress::Progress;
use crate::kit::stacks::{Profile, SampleScope};

/// Requests of a profiled trial: a fifth of all, with waits in the same proportion, and few enough for a
/// thread for each of them.
const REQUESTS_MAX: u32 = 20_000;

/// The part of the report with the shares of CPU time.
const SHARES: &str = "cpu-shares";

/// The options of `lab pipeline` for profiles.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ProfileOptions {
    /// Write what each thread did over time as a page
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write the same for trace viewers, up to request 5,000
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write where CPU time goes as a flame graph, and report its shares; it needs perf
    #[arg(long, value_name = "FILE")]
    flame: Option<PathBuf>,
}

/// What the profiles add to the report.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    pub(super) rows: Vec<Row>,
    pub(super) skipped: Vec<Skipped>,
}

impl ProfileOptions {
    /// The number of their trials.
    pub(super) fn steps(&self, targets: &[Target]) -> u64 {
        (u64::from(self.records()) + u64::from(self.flame.is_some())) * targets.len() as u64
    }

    fn records(&self) -> bool {
        self.timeline.is_some() || self.trace.is_some()
    }

    /// Profiles trials like `trial` of these strategies, and writes the files.
    ///
    /// # Errors
    /// A file could not be written, or the user interrupted.
    pub(super) fn run(
        &self,
        trial: &Trial,
        targets: &[Target],
        cpus: usize,
        progress: &Progress,
    ) -> Result<Profiles> {
        let mut found = Profiles::default();
        if self.records() {
            let recorded = for_each_target(trial, targets, progress, "recorded", &mut found.skipped, record)?;
            if let Some(file) = &self.timeline {
                write(file, &timeline::page(&sections(&recorded), &found.skipped, cpus))?;
            }
            if let Some(file) = &self.trace {
                let recordings: Vec<_> = recorded.into_iter().map(|one| (one.name, one.recording)).collect();
                write(file, &trace::document(&recordings).to_string())?;
            }
        }
        if let Some(file) = &self.flame {
            let scope = SampleScope::permitted(TempDir::with_prefix("lab-")?.path());
            match scope {
                Ok(scope) => {
                    let sample = |trial: &Trial, directory: &Path| sample(trial, scope, directory);
                    let profiles =
                        for_each_target(trial, targets, progress, "sampled", &mut found.skipped, sample)?;
                    found.rows.extend(profiles.iter().map(row));
                    write(file, &flame::svg(&cpu_shares::PALETTE, &profiles))?;
                }
                Err(error) => {
                    let reason = format!("{error:#}");
                    found
                        .skipped
                        .push(Skipped { name: "flame graph and shares of CPU time".to_owned(), reason });
                }
            }
        }
        Ok(found)
    }
}

/// One trial of each strategy, by `look`, which may use a directory for files.
fn for_each_target<Found>(
    trial: &Trial,
    targets: &[Target],
    progress: &Progress,
    how: &str,
    skipped: &mut Vec<Skipped>,
    run_one: impl Fn(&Trial, &Path) -> Result<Found>,
) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for &strategy in targets {
        progress.begin(format!("{strategy}, {how}"));
        let directory = TempDir::with_prefix("lab-").context("creating a temporary directory")?;
        let requests = trial.requests.min(REQUESTS_MAX);
        let outcome = run_one(&Trial { strategy, requests, ..trial.clone() }, directory.path());
        child::fail_if_interrupted()?;
        match outcome {
            Ok(one) => found.push(one),
            Err(error) => {
                skipped.push(Skipped { name: format!("{strategy}, {how}"), reason: format!("{error:#}") });
            }
        }
        progress.end();
    }
    Ok(found)
}

fn sample(trial: &Trial, scope: SampleScope, directory: &Path) -> Result<Profile> {
    Profile::sample_started(trial.strategy.to_string(), scope, directory, |mut arguments| {
        arguments.push(child::own_program()?.into());
        Ok(trial.run_under(Path::new("perf"), &arguments)?.process)
    })
}

/// A trial that recorded what its threads did.
struct Recorded {
    name: String,
    recording: Recording,
    cpu_ns: f64,
}

fn record(trial: &Trial, directory: &Path) -> Result<Recorded> {
    let file = directory.join("recording");
    let trial = Trial { recording: Some(file.clone()), ..trial.clone() };
    let result = trial.run()?;
    let recording = Recording::read(&file)?;
    Ok(Recorded { name: trial.strategy.to_string(), recording, cpu_ns: result.cpu.as_nanos() as f64 })
}

fn sections(recorded: &[Recorded]) -> Vec<Section> {
    let section = |one: &Recorded| {
        let timeline = BinnedTimeline::new(&one.name, &one.recording);
        Section { timeline, process_cpu_ns: one.cpu_ns }
    };
    recorded.iter().map(section).collect()
}

fn row(profile: &Profile) -> Row {
    let run = Run { round: 0, marks: Vec::new(), numbers: cpu_shares::numbers(profile) };
    Row { part: SHARES, target: profile.name.clone(), runs: vec![run] }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(timeline: bool, flame: bool) -> ProfileOptions {
        let file = |is_wanted: bool| is_wanted.then(|| PathBuf::from("file"));
        ProfileOptions { timeline: file(timeline), trace: None, flame: file(flame) }
    }

    #[test]
    fn timeline_and_trace_share_their_trials() {
        let steps = |options: ProfileOptions| options.steps(&[Target::Sequential, Target::Pool(2)]);
        assert_eq!(steps(options(false, false)), 0);
        assert_eq!(steps(options(true, false)), 2);
        assert_eq!(steps(ProfileOptions { trace: Some(PathBuf::from("file")), ..options(true, true) }), 4);
    }

    #[test]
    fn failing_strategy_leaves_the_other_profiles() {
        let trial = Trial { strategy: Target::Sequential, requests: 100_000, text: None, recording: None };
        let targets = [Target::Sequential, Target::ThreadPerRequest, Target::Pool(2)];
        let mut skipped = Vec::new();
        let run_one = |trial: &Trial, directory: &Path| {
            anyhow::ensure!(trial.strategy != Target::ThreadPerRequest, "out of threads");
            assert!(directory.is_dir());
            Ok((trial.strategy, trial.requests))
        };
        let found = for_each_target(&trial, &targets, &Progress::new(3), "recorded", &mut skipped, run_one);
        let expected = [Target::Sequential, Target::Pool(2)].map(|target| (target, REQUESTS_MAX));
        assert_eq!(found.expect("no signal interrupts the run"), expected);
        let (name, reason) = ("thread-per-request, recorded".to_owned(), "out of threads".to_owned());
        assert_eq!(skipped, [Skipped { name, reason }]);
    }
}
