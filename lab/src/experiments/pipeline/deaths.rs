//! The deaths of one experiment: each manner once, and on request the test of what they taught. Promises:
//! the kernel's setting is as it was when the test is over (`setting.rs`). Leaves to others: one death
//! (`death.rs`).
//!
//! The test: if finished threads die of `max_map_count`, the same process must create as many more under a
//! higher one as that has room for. The published program created 32,747 threads under 65,530, and 49,983
//! under 100,000.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::death::{Death, MANNERS, Manner, PUBLISHED};
use crate::kit::measurements::{Row, Run, Skipped};
use crate::kit::progress::Progress;
use crate::kit::{child, kernel_setting};

/// The part of the report.
const PART: &str = "death";

/// The setting of the test, and its value there.
const SETTING: &str = "/proc/sys/vm/max_map_count";
const MAPS_MAX_OF_TEST: u64 = 100_000;

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    pub(super) seen: Vec<(Manner, Death)>,
    pub(super) confirmed: Option<Confirmed>,
}

/// A prediction, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Confirmed {
    pub(super) predicted: f64,
    pub(super) created: f64,
}

impl Confirmed {
    /// The smaller of both as a part of the other.
    pub(super) fn agreement(&self) -> f64 {
        (self.predicted / self.created).min(self.created / self.predicted)
    }

    /// In words.
    pub(super) fn told(&self) -> String {
        let Self { predicted, created } = self;
        format!("under {MAPS_MAX_OF_TEST} maps {predicted:.0} were predicted and {created} created")
    }
}

/// How many steps of progress they are.
pub(super) fn steps(is_test_wanted: bool) -> u64 {
    MANNERS.len() as u64 + u64::from(is_test_wanted)
}

impl Deaths {
    /// Lets a process die in each manner, and puts what was seen among `rows`.
    ///
    /// # Errors
    /// The user interrupted.
    pub(super) fn watch(
        text: Option<&PathBuf>,
        is_test_wanted: bool,
        progress: &Progress,
        rows: &mut Vec<Row>,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Self> {
        let mut deaths = Self::default();
        for manner in MANNERS {
            progress.begin(format!("thread-per-request, {manner}"));
            match die(manner, text, is_test_wanted) {
                Ok(death) => {
                    rows.push(row(manner.to_string(), &death, None));
                    deaths.seen.push((manner, death));
                }
                Err(error) => skipped.push(skip(&manner.to_string(), &error)),
            }
            child::fail_if_interrupted()?;
            progress.end();
        }
        if is_test_wanted {
            progress.begin(format!("thread-per-request, {PUBLISHED}, {MAPS_MAX_OF_TEST} maps"));
            if let Err(error) = deaths.test(text, rows) {
                skipped.push(skip("the confirming run", &error));
            }
            child::fail_if_interrupted()?;
            progress.end();
        }
        Ok(deaths)
    }

    fn test(&mut self, text: Option<&PathBuf>, rows: &mut Vec<Row>) -> Result<()> {
        let known = self.seen.iter().find(|(manner, _)| *manner == PUBLISHED);
        let (_, known) = known.context("there is no death to learn from")?;
        let changed = kernel_setting::change(Path::new(SETTING), &MAPS_MAX_OF_TEST.to_string());
        let changed = changed.with_context(|| format!("changing {SETTING}"))?;
        let death = die(PUBLISHED, text, true);
        drop(changed);
        let death = death?;
        let confirmed =
            Confirmed { predicted: known.predicted_under(MAPS_MAX_OF_TEST), created: death.created as f64 };
        rows.push(row(format!("{PUBLISHED}-{MAPS_MAX_OF_TEST}"), &death, Some(confirmed.predicted)));
        self.confirmed = Some(confirmed);
        Ok(())
    }
}

fn die(manner: Manner, text: Option<&PathBuf>, is_asked_for: bool) -> Result<Death> {
    if let Some(objection) = manner.objection(is_asked_for) {
        bail!("{objection}");
    }
    manner.run(text)?.context("a thread for every request could be created")
}

fn row(target: String, death: &Death, predicted: Option<f64>) -> Row {
    let mut numbers = death.numbers();
    numbers.extend(predicted.map(|predicted| ("threads_predicted", predicted)));
    Row { part: PART, target, runs: vec![Run { round: 0, marks: Vec::new(), numbers }] }
}

fn skip(name: &str, error: &anyhow::Error) -> Skipped {
    Skipped { name: format!("{PART}, {name}"), reason: format!("{error:#}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_agrees_from_either_side() {
        let check = |predicted, created, expected| {
            assert_eq!(Confirmed { predicted, created }.agreement(), expected);
        };
        check(50_000.0, 50_000.0, 1.0);
        check(50_000.0, 40_000.0, 0.8);
        check(40_000.0, 50_000.0, 0.8);
    }
}
