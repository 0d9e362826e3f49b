//! The report of an experiment: its results as a terminal's table, as JSON, as an HTML page, as a plot.
//!
//! Guarantees: every run is kept, also a contaminated one with its marks.

mod html;
mod json;
mod notes;
mod read;
mod table;

use serde_json::{Map, Value};

pub(crate) use html::page;
pub(crate) use json::document;
pub(crate) use read::read;
pub(crate) use table::print;

use crate::kit::measurements::{self, Row, Skipped};
use crate::kit::plot::Figure;
use crate::kit::presentation::Presentation;
use crate::kit::verdict::Verdict;

/// A table has at most as many columns of targets; with more of them it has a line for each.
const TARGETS_ACROSS_MAX: usize = 8;

/// Everything that one experiment found.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) presentation: &'static Presentation,
    pub(crate) machine: Map<String, Value>,
    pub(crate) rows: Vec<Row>,
    pub(crate) verdicts: Vec<Verdict>,
    /// Verdicts that this run could not reach.
    pub(crate) left_out: Vec<Skipped>,
    /// Targets, or parts of the work, that could not be measured.
    pub(crate) skipped: Vec<Skipped>,
    /// What weakens all of its figures.
    pub(crate) warnings: Vec<String>,
}

impl Report {
    /// A report without results.
    pub(crate) fn new(presentation: &'static Presentation, machine: Map<String, Value>) -> Self {
        Self {
            presentation,
            machine,
            rows: Vec::new(),
            verdicts: Vec::new(),
            left_out: Vec::new(),
            skipped: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The row of a case, if it was measured.
    pub(crate) fn row(&self, part: &str, target: &str) -> Option<&Row> {
        measurements::row(&self.rows, part, target)
    }

    /// The main plot, with notes on reading it and on the machine; `None` where its data was not measured.
    pub(crate) fn figure(&self) -> Option<Figure> {
        let figure = (self.presentation.figure)(&self.rows)?;
        Some(notes::with_notes(figure, self))
    }

    /// Leaves nothing decided where a warning makes every figure weak.
    pub(crate) fn mark_undecided(&mut self) {
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

/// The names of all numbers of some rows, in the order of tables.
fn names_of(presentation: &Presentation, rows: &[&Row]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in rows.iter().flat_map(|row| row.names()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_by_key(|name| presentation.number_position(name));
    names
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kit::presentation::tests::SAMPLE;
    use crate::kit::verdict::{Outcome, Threshold};

    /// Every verdict, reached or left out, has a label, and there is no label without a verdict.
    pub(crate) fn assert_labels_are_complete(report: &Report) {
        let reached = report.verdicts.iter().map(|verdict| verdict.name);
        let mut ids: Vec<&str> = reached.chain(report.left_out.iter().map(|it| it.name.as_str())).collect();
        let mut labelled: Vec<&str> = report.presentation.verdicts.iter().map(|verdict| verdict.0).collect();
        ids.sort_unstable();
        labelled.sort_unstable();
        assert_eq!(ids, labelled);
    }

    /// A small report with every feature in it.
    pub(crate) fn sample() -> Report {
        Report {
            rows: crate::kit::measurements::tests::rows(),
            verdicts: vec![Verdict {
                name: "short-cpu",
                value: 0.75,
                interval: None,
                threshold: Threshold::AtMost(1.0),
                outcome: Outcome::Undecided,
                note: "fewer than 5 pairs".to_owned(),
            }],
            left_out: vec![Skipped { name: "growth".to_owned(), reason: "not yet".to_owned() }],
            skipped: vec![Skipped { name: "nginx".to_owned(), reason: "it is not installed".to_owned() }],
            warnings: vec!["an unoptimised build".to_owned()],
            ..Report::new(&SAMPLE, Map::from_iter([("cpus".to_owned(), Value::from(2))]))
        }
    }
}
