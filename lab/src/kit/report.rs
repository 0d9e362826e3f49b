//! What an experiment found, and the three forms in which it is told: a table, JSON, one HTML page.
//! Promises: every run is kept, also the contaminated ones with their marks. Leaves to others: measuring
//! and judging.

mod html;
mod json;
mod plot;
mod table;

use serde_json::{Map, Value};

pub(crate) use html::page;
pub(crate) use json::document;
pub(crate) use plot::escape;
pub(crate) use table::print;

use crate::kit::statistics;
use crate::kit::verdict::Verdict;

/// A table has at most as many columns of subjects; with more of them it has a line for each.
const SUBJECTS_ACROSS_MAX: usize = 8;

/// Everything that one experiment found.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) experiment: &'static str,
    pub(crate) machine: Map<String, Value>,
    pub(crate) rows: Vec<Row>,
    /// What the terminal shows instead of a table for each part, where there are too many parts.
    pub(crate) grids: &'static [Grid],
    pub(crate) verdicts: Vec<Verdict>,
    /// Verdicts that this run could not pass.
    pub(crate) left_out: Vec<Skipped>,
    /// Subjects, or parts of the work, that could not be measured.
    pub(crate) skipped: Vec<Skipped>,
    /// What weakens all of its figures.
    pub(crate) warnings: Vec<String>,
}

/// One number of a family of parts whose names end in a count: subjects down, counts across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) family: &'static str,
    pub(crate) number: &'static str,
}

/// Something left out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// Numbers by name, the unit in the name, in the order of the table.
pub(crate) type Numbers = Vec<(&'static str, f64)>;

/// One case: a part of the experiment with one subject, over all rounds.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) part: &'static str,
    pub(crate) subject: String,
    pub(crate) runs: Vec<Run>,
}

/// One run of a case. Runs of different subjects are paired by their round.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) round: usize,
    /// Why it is contaminated; empty when it is not.
    pub(crate) marks: Vec<String>,
    pub(crate) numbers: Numbers,
}

/// A value that a verdict may rest on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) value: f64,
    /// Whether nothing disturbed the runs that it comes from.
    pub(crate) is_clean: bool,
}

impl Run {
    fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|number| number.0 == name).map(|number| number.1)
    }
}

impl Row {
    /// The case's name.
    pub(crate) fn case(&self) -> String {
        format!("{}/{}", self.part, self.subject)
    }

    /// The names of its numbers, in order.
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

    /// What one number is beyond that of another row in the same round; disturbed where either was.
    pub(crate) fn beyond(&self, other: &Row, name: &'static str) -> Row {
        let beyond = |run: &Run| {
            let base = other.runs.iter().find(|base| base.round == run.round)?;
            let marks = run.marks.iter().chain(&base.marks).cloned().collect();
            let numbers = vec![(name, run.number(name)? - base.number(name)?)];
            Some(Run { round: run.round, marks, numbers })
        };
        let runs = self.runs.iter().filter_map(beyond).collect();
        Row { part: self.part, subject: self.subject.clone(), runs }
    }

    /// The median over all runs.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        statistics::median(&self.series(name))
    }
}

impl Report {
    /// The row of a case, if it was measured.
    pub(crate) fn row(&self, part: &str, subject: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.part == part && row.subject == subject)
    }

    /// Leaves nothing decided where a warning makes every figure weak.
    pub(crate) fn weaken(&mut self) {
        let Some(warning) = self.warnings.first() else { return };
        let verdicts = std::mem::take(&mut self.verdicts);
        self.verdicts = verdicts.into_iter().map(|verdict| verdict.undecided_because(warning)).collect();
    }

    /// The parts in order, each with its rows.
    fn parts(&self) -> Vec<(&'static str, Vec<&Row>)> {
        let mut parts: Vec<(&'static str, Vec<&Row>)> = Vec::new();
        for row in &self.rows {
            match parts.iter_mut().find(|part| part.0 == row.part) {
                Some(part) => part.1.push(row),
                None => parts.push((row.part, vec![row])),
            }
        }
        parts
    }
}

/// The warning that a lab deserves which was built without optimisation.
pub(crate) fn of_the_build() -> Option<String> {
    cfg!(debug_assertions).then(|| "the lab is a build without optimisation".to_owned())
}

/// Adds a run to its row, which it begins if it is the first.
pub(crate) fn note(rows: &mut Vec<Row>, part: &'static str, subject: &str, run: Run) {
    match rows.iter_mut().find(|row| row.part == part && row.subject == subject) {
        Some(row) => row.runs.push(run),
        None => rows.push(Row { part, subject: subject.to_owned(), runs: vec![run] }),
    }
}

/// A part's family and count, where its name ends in one: `idle-1000`.
fn counted(part: &str) -> Option<(&str, f64)> {
    let (family, count) = part.rsplit_once('-')?;
    Some((family, count.parse().ok()?))
}

/// The names of all numbers of some rows, in order.
fn names_of(rows: &[&Row]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in rows.iter().flat_map(|row| row.names()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A number to three significant digits, without an exponent.
fn digits(value: f64) -> String {
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = (2 - magnitude).clamp(0, 6) as usize;
    let text = format!("{value:.decimals$}");
    if decimals == 0 { with_thousands(&text) } else { text }
}

fn with_thousands(whole: &str) -> String {
    let (sign, figures) = whole.strip_prefix('-').map_or(("", whole), |figures| ("-", figures));
    let mut text = String::from(sign);
    for (index, figure) in figures.char_indices() {
        if index > 0 && (figures.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(figure);
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kit::verdict::{Outcome, Target};

    /// A small report with every feature in it.
    pub(crate) fn sample() -> Report {
        let run = |round, rate, cpu, marks: &[&str]| Run {
            round,
            marks: marks.iter().map(|&mark| mark.to_owned()).collect(),
            numbers: vec![("connections_per_s", rate), ("process_cpu_us_per_connection", cpu)],
        };
        let row = |subject: &str, runs| Row { part: "short", subject: subject.to_owned(), runs };
        Report {
            experiment: "relay",
            machine: Map::from_iter([("cpus".to_owned(), Value::from(2))]),
            rows: vec![
                row(
                    "tollgate",
                    vec![run(0, 14_000.0, 60.0, &[]), run(1, 12_000.0, 70.0, &["busy <others>"])],
                ),
                row("haproxy", vec![run(0, 12_055.0, 79.8, &[]), run(1, 11_000.0, 82.0, &[])]),
            ],
            grids: &[],
            verdicts: vec![Verdict {
                name: "short-cpu",
                value: 0.75,
                interval: None,
                target: Target::AtMost(1.0),
                outcome: Outcome::Undecided,
                note: "fewer than 5 pairs".to_owned(),
            }],
            left_out: vec![Skipped { name: "growth".to_owned(), reason: "not yet".to_owned() }],
            skipped: vec![Skipped { name: "nginx".to_owned(), reason: "it is not installed".to_owned() }],
            warnings: vec!["an unoptimised build".to_owned()],
        }
    }

    #[test]
    fn what_is_beyond_a_base_is_of_the_same_round_and_as_clean() {
        let report = sample();
        let [ours, base] = ["haproxy", "tollgate"].map(|subject| report.row("short", subject).unwrap());
        let beyond = ours.beyond(base, "connections_per_s");
        let of = |round, value, is_clean| (round, Sample { value, is_clean });
        assert_eq!(
            beyond.samples("connections_per_s"),
            [of(0, 12_055.0 - 14_000.0, true), of(1, -1_000.0, false)]
        );
        assert!(beyond.samples("process_cpu_us_per_connection").is_empty());
    }

    #[test]
    fn a_row_knows_which_runs_are_clean() {
        let report = sample();
        let row = report.row("short", "tollgate").expect("the sample has it");
        assert_eq!(row.case(), "short/tollgate");
        assert_eq!(row.series("connections_per_s"), [14_000.0, 12_000.0]);
        let [first, second] =
            [(14_000.0, true), (12_000.0, false)].map(|(value, is_clean)| Sample { value, is_clean });
        assert_eq!(row.samples("connections_per_s"), [(0, first), (1, second)]);
        assert_eq!(row.median("connections_per_s"), Some(13_000.0));
        assert_eq!(row.median("no_such_number"), None);
        assert!(report.row("bulk", "tollgate").is_none());
    }

    #[test]
    fn numbers_are_read_at_a_glance() {
        let check = |value, expected| assert_eq!(digits(value), expected);
        check(0.0, "0.00");
        check(0.001_234_5, "0.00123");
        check(0.834, "0.834");
        check(79.84, "79.8");
        check(12_055.4, "12,055");
        check(1_234_567.0, "1,234,567");
        check(-1_500.0, "-1,500");
    }
}
