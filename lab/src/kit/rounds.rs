//! Rounds: in each, every target does the same work once, in an order that rotates. So slow changes of the
//! machine affect all targets alike, and runs of one round may be paired.
//!
//! Guarantees: contaminated rounds are repeated up to a bound; a target that fails is skipped with its
//! reason, and the others go on.

use anyhow::Result;

use crate::kit::child;
use crate::kit::disturbance::DisturbanceWatch;
use crate::kit::measurements::{self, Numbers, Row, Run, Skipped};
use crate::kit::progress::Progress;

/// How often a part of the experiment runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// The name of the work in the progress.
    pub(crate) what: &'static str,
    /// Rounds without disturbance that are wanted.
    pub(crate) wanted: usize,
    /// Further rounds in place of disturbed ones, at most.
    pub(crate) extra_max: usize,
    /// Whether other work on the machine spoils the numbers.
    pub(crate) watched: bool,
}

/// The results of one part's rounds.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    pub(crate) failed: Vec<Skipped>,
}

/// One target of a round.
pub(crate) trait RoundTarget {
    fn name(&self) -> &'static str;
}

impl Rounds {
    /// Runs all rounds. `work` returns the numbers of each case that one run of a target yields.
    ///
    /// # Errors
    /// The user interrupts; nothing else.
    pub(crate) fn run<S: RoundTarget>(
        &self,
        targets: &mut Vec<S>,
        progress: &Progress,
        mut work: impl FnMut(&mut S) -> Result<Vec<(&'static str, Numbers)>>,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let (mut round, mut clean) = (0, 0);
        while clean < self.wanted && round < self.wanted + self.extra_max && !targets.is_empty() {
            if round >= self.wanted {
                progress.expect_more(targets.len() as u64);
            }
            let marked = self.round(round, targets, progress, &mut work, &mut outcome)?;
            clean += usize::from(!marked);
            round += 1;
        }
        Ok(outcome)
    }

    /// One round; returns whether any of its runs was contaminated.
    fn round<S: RoundTarget>(
        &self,
        round: usize,
        targets: &mut Vec<S>,
        progress: &Progress,
        work: &mut impl FnMut(&mut S) -> Result<Vec<(&'static str, Numbers)>>,
        outcome: &mut Outcome,
    ) -> Result<bool> {
        let mut marked = false;
        let mut failed = Vec::new();
        for step in 0..targets.len() {
            let index = (step + round) % targets.len();
            let target = &mut targets[index];
            progress.begin(format!("{}, {}, round {}", self.what, target.name(), round + 1));
            let watch = self.watched.then(DisturbanceWatch::start);
            let result = work(target);
            let marks = watch.map_or_else(Vec::new, |watch| watch.finish().marks);
            child::fail_if_interrupted()?;
            progress.end();
            match result {
                Ok(cases) => {
                    marked |= !marks.is_empty();
                    outcome.record(target.name(), round, &marks, cases);
                }
                Err(error) => {
                    outcome.fail(self.what, target.name(), &error);
                    failed.push(index);
                }
            }
        }
        failed.sort_unstable();
        failed.into_iter().rev().for_each(|index| drop(targets.remove(index)));
        Ok(marked)
    }
}

impl Outcome {
    /// Adds targets that failed before the first round.
    pub(crate) fn with_failed(mut self, failed: Vec<Skipped>) -> Self {
        self.failed.extend(failed);
        self
    }

    /// Adds the results of another part.
    pub(crate) fn merge(&mut self, other: Outcome) {
        self.rows.extend(other.rows);
        self.failed.extend(other.failed);
    }

    /// Adds the numbers of one run of a target.
    pub(crate) fn record(
        &mut self,
        target: &str,
        round: usize,
        marks: &[String],
        cases: Vec<(&'static str, Numbers)>,
    ) {
        for (part, numbers) in cases {
            let run = Run { round, marks: marks.to_vec(), numbers };
            measurements::push_run(&mut self.rows, part, target, run);
        }
    }

    /// Records why a target, or a part of its work, could not be measured.
    pub(crate) fn fail(&mut self, what: &str, target: &str, error: &anyhow::Error) {
        let name = format!("{target} in {what}");
        self.failed.push(Skipped { name, reason: format!("{error:#}") });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str);

    impl RoundTarget for Named {
        fn name(&self) -> &'static str {
            self.0
        }
    }

    const ROUNDS: Rounds = Rounds { what: "test", wanted: 3, extra_max: 2, watched: false };

    #[test]
    fn order_rotates_and_runs_keep_their_round() {
        let mut order = Vec::new();
        let mut targets = vec![Named("a"), Named("b"), Named("c")];
        let outcome = ROUNDS.run(&mut targets, &Progress::new(9), |target| {
            order.push(target.0);
            Ok(vec![("part", vec![("step", order.len() as f64)])])
        });
        let rows = outcome.expect("no signal interrupts the run").rows;
        assert_eq!(order, ["a", "b", "c", "b", "c", "a", "c", "a", "b"]);
        let b = rows.iter().find(|row| row.target == "b").expect("each target has its row");
        let steps: Vec<(usize, f64)> =
            b.samples("step").into_iter().map(|(round, sample)| (round, sample.value)).collect();
        assert_eq!(steps, [(0, 2.0), (1, 4.0), (2, 9.0)]);
    }

    #[test]
    fn failing_target_is_skipped_alone() {
        let mut targets = vec![Named("good"), Named("bad")];
        let outcome = ROUNDS.run(&mut targets, &Progress::new(6), |target| match target.0 {
            "bad" => anyhow::bail!("it ended at once"),
            _ => Ok(vec![("part", vec![("number", 1.0)])]),
        });
        let outcome = outcome.expect("no signal interrupts the run");
        assert_eq!(outcome.rows.len(), 1);
        assert_eq!(outcome.rows[0].series("number"), [1.0, 1.0, 1.0]);
        let expected = Skipped { name: "bad in test".to_owned(), reason: "it ended at once".to_owned() };
        assert_eq!(outcome.failed, [expected]);
    }
}
