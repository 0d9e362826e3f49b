//! The results of runs: rows of runs of numbers, and the cases that could not be measured.
//!
//! Guarantees: every run is kept, also a contaminated one with its marks.

use crate::kit::statistics;

/// A target, a part or a verdict that was left out, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// Numbers by name, with the unit in the name, in the order of the table.
pub(crate) type Numbers = Vec<(&'static str, f64)>;

/// One case: a part of the experiment with one target, over all rounds.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) part: &'static str,
    pub(crate) target: String,
    pub(crate) runs: Vec<Run>,
}

/// One run of a case. Runs of different targets are paired by their round.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) round: usize,
    /// Why the run is contaminated; empty when it is not.
    pub(crate) marks: Vec<String>,
    pub(crate) numbers: Numbers,
}

/// A measured value, or the ratio of two, and whether its runs were undisturbed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) value: f64,
    /// Whether nothing disturbed the runs behind the value.
    pub(crate) is_clean: bool,
}

impl Run {
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|number| number.0 == name).map(|number| number.1)
    }
}

impl Row {
    /// The case's name.
    pub(crate) fn case(&self) -> String {
        format!("{}/{}", self.part, self.target)
    }

    /// The names of the numbers, in order.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for (name, _) in self.runs.iter().flat_map(|run| &run.numbers) {
            if !names.contains(name) {
                names.push(*name);
            }
        }
        names
    }

    /// One number over all runs that have it.
    pub(crate) fn series(&self, name: &str) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.number(name)).collect()
    }

    /// One number by round, each with whether nothing disturbed its run.
    pub(crate) fn samples(&self, name: &str) -> Vec<(usize, Sample)> {
        let sample = |run: &Run| {
            let sample = Sample { value: run.number(name)?, is_clean: run.marks.is_empty() };
            Some((run.round, sample))
        };
        self.runs.iter().filter_map(sample).collect()
    }

    /// One number minus that of another row in the same round; contaminated where either run was.
    pub(crate) fn excess_over(&self, other: &Row, name: &'static str) -> Row {
        let excess = |run: &Run| {
            let base = other.runs.iter().find(|base| base.round == run.round)?;
            let marks = run.marks.iter().chain(&base.marks).cloned().collect();
            let numbers = vec![(name, run.number(name)? - base.number(name)?)];
            Some(Run { round: run.round, marks, numbers })
        };
        let runs = self.runs.iter().filter_map(excess).collect();
        Row { part: self.part, target: self.target.clone(), runs }
    }

    /// The median over all runs.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        statistics::median(&self.series(name))
    }
}

/// The row of a case, if it was measured.
pub(crate) fn row<'a>(rows: &'a [Row], part: &str, target: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.part == part && row.target == target)
}

/// Appends a run to the row of its case, which the first run creates.
pub(crate) fn push_run(rows: &mut Vec<Row>, part: &'static str, target: &str, run: Run) {
    match rows.iter_mut().find(|row| row.part == part && row.target == target) {
        Some(row) => row.runs.push(run),
        None => rows.push(Row { part, target: target.to_owned(), runs: vec![run] }),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two rows of two runs, one of them contaminated.
    pub(crate) fn rows() -> Vec<Row> {
        let run = |round, rate, cpu, marks: &[&str]| Run {
            round,
            marks: marks.iter().map(|&mark| mark.to_owned()).collect(),
            numbers: vec![("connections_per_s", rate), ("process_cpu_us_per_connection", cpu)],
        };
        let row = |target: &str, runs| Row { part: "short", target: target.to_owned(), runs };
        vec![
            row("tollgate", vec![run(0, 14_000.0, 60.0, &[]), run(1, 12_000.0, 70.0, &["busy <others>"])]),
            row("haproxy", vec![run(0, 12_055.0, 79.8, &[]), run(1, 11_000.0, 82.0, &[])]),
        ]
    }

    #[test]
    fn excess_pairs_rounds_and_keeps_marks() {
        let rows = rows();
        let [ours, base] = ["haproxy", "tollgate"].map(|target| row(&rows, "short", target).unwrap());
        let excess = ours.excess_over(base, "connections_per_s");
        let of = |round, value, is_clean| (round, Sample { value, is_clean });
        assert_eq!(
            excess.samples("connections_per_s"),
            [of(0, 12_055.0 - 14_000.0, true), of(1, -1_000.0, false)]
        );
        assert!(excess.samples("process_cpu_us_per_connection").is_empty());
    }

    #[test]
    fn row_samples_know_which_runs_are_clean() {
        let rows = rows();
        let row = super::row(&rows, "short", "tollgate").expect("the sample has it");
        assert_eq!(row.case(), "short/tollgate");
        assert_eq!(row.series("connections_per_s"), [14_000.0, 12_000.0]);
        let [first, second] =
            [(14_000.0, true), (12_000.0, false)].map(|(value, is_clean)| Sample { value, is_clean });
        assert_eq!(row.samples("connections_per_s"), [(0, first), (1, second)]);
        assert_eq!(row.median("connections_per_s"), Some(13_000.0));
        assert_eq!(row.median("no_such_number"), None);
        assert!(super::row(&rows, "bulk", "tollgate").is_none());
    }
}
