//! Looks inside the strategies, on request: what their threads did over time. Promises: each look is a turn
//! of its own with fewer requests, and no other figure comes from it; a strategy that fails is named and
//! costs the other looks nothing. Leaves to others: the pages (`timeline.rs`, `trace.rs`) and who is looked
//! at (`plan.rs`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::kind::Kind;
use super::picture::Picture;
use super::recording::Recording;
use super::timeline::Chapter;
use super::turn::Turn;
use super::{timeline, trace};
use crate::child;
use crate::progress::Progress;
use crate::report::Skipped;

/// Requests of a turn that is looked at: a fifth of all, with waits in the same proportion, and few enough
/// for a thread to be made for each of them.
const REQUESTS_MAX: u32 = 20_000;

/// What `lab pipeline` may be told about looks.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Looks {
    /// Write what each thread did over time as a page
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write the same for trace viewers, up to request 5,000
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl Looks {
    /// How many turns they take.
    pub(super) fn steps(&self, kinds: &[Kind]) -> u64 {
        u64::from(self.records()) * kinds.len() as u64
    }

    fn records(&self) -> bool {
        self.timeline.is_some() || self.trace.is_some()
    }

    /// Takes them, on turns like `turn` of these strategies, writes the files, and says what is missing.
    ///
    /// # Errors
    /// A file could not be written, or the user interrupted.
    pub(super) fn take(
        &self,
        turn: &Turn,
        kinds: &[Kind],
        cpus: usize,
        progress: &Progress,
    ) -> Result<Vec<Skipped>> {
        let mut skipped = Vec::new();
        if !self.records() {
            return Ok(skipped);
        }
        let recorded = each(turn, kinds, progress, "recorded", &mut skipped, record)?;
        if let Some(file) = &self.timeline {
            write(file, &timeline::page(&chapters(&recorded), &skipped, cpus))?;
        }
        if let Some(file) = &self.trace {
            let recordings: Vec<_> = recorded.into_iter().map(|one| (one.name, one.recording)).collect();
            write(file, &trace::document(&recordings).to_string())?;
        }
        Ok(skipped)
    }
}

/// A turn of each strategy, by `look`, which may use a directory for files.
fn each<Found>(
    turn: &Turn,
    kinds: &[Kind],
    progress: &Progress,
    how: &str,
    skipped: &mut Vec<Skipped>,
    look: impl Fn(&Turn, &Path) -> Result<Found>,
) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for &strategy in kinds {
        progress.begin(format!("{strategy}, {how}"));
        let directory = TempDir::with_prefix("lab-").context("making a temporary directory")?;
        let requests = turn.requests.min(REQUESTS_MAX);
        let looked = look(&Turn { strategy, requests, ..turn.clone() }, directory.path());
        child::fail_if_interrupted()?;
        match looked {
            Ok(one) => found.push(one),
            Err(error) => {
                skipped.push(Skipped { name: format!("{strategy}, {how}"), reason: format!("{error:#}") });
            }
        }
        progress.end();
    }
    Ok(found)
}

/// A turn that noted what its threads did.
struct Recorded {
    name: String,
    recording: Recording,
    cpu_ns: f64,
}

fn record(turn: &Turn, directory: &Path) -> Result<Recorded> {
    let file = directory.join("recording");
    let turn = Turn { recording: Some(file.clone()), ..turn.clone() };
    let finished = turn.run()?;
    let recording = Recording::read(&file)?;
    Ok(Recorded { name: turn.strategy.to_string(), recording, cpu_ns: finished.cpu.as_nanos() as f64 })
}

fn chapters(recorded: &[Recorded]) -> Vec<Chapter> {
    let chapter = |one: &Recorded| {
        let picture = Picture::of(&one.name, &one.recording);
        Chapter { picture, process_cpu_ns: one.cpu_ns }
    };
    recorded.iter().map(chapter).collect()
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeline_and_trace_share_their_turns() {
        let file = |is_wanted: bool| is_wanted.then(|| PathBuf::from("file"));
        let steps = |timeline, trace| {
            let looks = Looks { timeline: file(timeline), trace: file(trace) };
            looks.steps(&[Kind::Sequential, Kind::Pool(2)])
        };
        assert_eq!([steps(false, false), steps(true, false), steps(true, true)], [0, 2, 2]);
    }

    #[test]
    fn a_strategy_that_fails_costs_the_others_nothing() {
        let turn = Turn { strategy: Kind::Sequential, requests: 100_000, text: None, recording: None };
        let kinds = [Kind::Sequential, Kind::ThreadPerRequest, Kind::Pool(2)];
        let mut skipped = Vec::new();
        let look = |turn: &Turn, directory: &Path| {
            anyhow::ensure!(turn.strategy != Kind::ThreadPerRequest, "out of threads");
            assert!(directory.is_dir());
            Ok((turn.strategy, turn.requests))
        };
        let found = each(&turn, &kinds, &Progress::new(3), "recorded", &mut skipped, look);
        let expected = [Kind::Sequential, Kind::Pool(2)].map(|kind| (kind, REQUESTS_MAX));
        assert_eq!(found.expect("nobody interrupts"), expected);
        let (name, reason) = ("thread-per-request, recorded".to_owned(), "out of threads".to_owned());
        assert_eq!(skipped, [Skipped { name, reason }]);
    }
}
