//! The thread limits of one experiment: each mode once, and on request the test of the explanation.
//!
//! Guarantees: the kernel's setting is as before when the test is over (`kernel_setting.rs`).
//!
//! The test: if finished threads exhaust `max_map_count`, the same process must create as many more under a
//! higher one as that has maps for. The published program created 32,747 threads under 65,530, and 49,983
//! under 100,000.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::probe::{CreationMode, LimitHit, MODES, PUBLISHED};
use crate::kit::measurements::{Row, Run, Skipped};
use crate::kit::progress::Progress;
use crate::kit::{child, kernel_setting};

/// The part of the report.
const PART: &str = "death";

/// The setting of the test, and its value there.
const SETTING: &str = "/proc/sys/vm/max_map_count";
const MAPS_MAX_OF_TEST: u64 = 100_000;

/// The results of all modes.
#[derive(Debug, Default)]
pub(in crate::experiments::pipeline) struct LimitHits {
    pub(in crate::experiments::pipeline) by_mode: Vec<(CreationMode, LimitHit)>,
    pub(in crate::experiments::pipeline) prediction: Option<Prediction>,
}

/// A prediction, and the number that was created.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::experiments::pipeline) struct Prediction {
    pub(in crate::experiments::pipeline) predicted: f64,
    pub(in crate::experiments::pipeline) created: f64,
}

impl Prediction {
    /// The smaller of both as a part of the other.
    pub(in crate::experiments::pipeline) fn agreement(&self) -> f64 {
        (self.predicted / self.created).min(self.created / self.predicted)
    }

    /// In words.
    pub(in crate::experiments::pipeline) fn describe(&self) -> String {
        let Self { predicted, created } = self;
        format!("under {MAPS_MAX_OF_TEST} maps {predicted:.0} were predicted and {created} created")
    }
}

/// The number of their steps of progress.
pub(in crate::experiments::pipeline) fn probe_steps(with_test: bool) -> u64 {
    MODES.len() as u64 + u64::from(with_test)
}

impl LimitHits {
    /// Runs each mode to its limit, and adds the results to `rows`.
    ///
    /// # Errors
    /// The user interrupted.
    pub(in crate::experiments::pipeline) fn run(
        text: Option<&PathBuf>,
        with_test: bool,
        progress: &Progress,
        rows: &mut Vec<Row>,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Self> {
        let mut hits = Self::default();
        for mode in MODES {
            progress.begin(format!("thread-per-request, {mode}"));
            match probe(mode, text, with_test) {
                Ok(hit) => {
                    rows.push(row(mode.to_string(), &hit, None));
                    hits.by_mode.push((mode, hit));
                }
                Err(error) => skipped.push(skipped_entry(&mode.to_string(), &error)),
            }
            child::fail_if_interrupted()?;
            progress.end();
        }
        if with_test {
            progress.begin(format!("thread-per-request, {PUBLISHED}, {MAPS_MAX_OF_TEST} maps"));
            if let Err(error) = hits.confirm(text, rows) {
                skipped.push(skipped_entry("the test under a higher limit", &error));
            }
            child::fail_if_interrupted()?;
            progress.end();
        }
        Ok(hits)
    }

    fn confirm(&mut self, text: Option<&PathBuf>, rows: &mut Vec<Row>) -> Result<()> {
        let known = self.by_mode.iter().find(|(mode, _)| *mode == PUBLISHED);
        let (_, known) = known.context("the mode of the published program has not reached its limit")?;
        let changed = kernel_setting::change(Path::new(SETTING), &MAPS_MAX_OF_TEST.to_string());
        let changed = changed.with_context(|| format!("changing {SETTING}"))?;
        let hit = probe(PUBLISHED, text, true);
        drop(changed);
        let hit = hit?;
        let prediction =
            Prediction { predicted: known.predicted_under(MAPS_MAX_OF_TEST), created: hit.created as f64 };
        rows.push(row(format!("{PUBLISHED}-{MAPS_MAX_OF_TEST}"), &hit, Some(prediction.predicted)));
        self.prediction = Some(prediction);
        Ok(())
    }
}

fn probe(mode: CreationMode, text: Option<&PathBuf>, is_forced: bool) -> Result<LimitHit> {
    if let Some(refusal) = mode.refusal(is_forced) {
        bail!("{refusal}");
    }
    mode.run(text)?.context("a thread for every request could be created")
}

fn row(target: String, hit: &LimitHit, predicted: Option<f64>) -> Row {
    let mut numbers = hit.numbers();
    numbers.extend(predicted.map(|predicted| ("threads_predicted", predicted)));
    Row { part: PART, target, runs: vec![Run { round: 0, marks: Vec::new(), numbers }] }
}

fn skipped_entry(name: &str, error: &anyhow::Error) -> Skipped {
    Skipped { name: format!("{PART}, {name}"), reason: format!("{error:#}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_is_symmetric() {
        let check = |predicted, created, expected| {
            assert_eq!(Prediction { predicted, created }.agreement(), expected);
        };
        check(50_000.0, 50_000.0, 1.0);
        check(50_000.0, 40_000.0, 0.8);
        check(40_000.0, 50_000.0, 0.8);
    }
}
