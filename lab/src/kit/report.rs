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

use crate::kit::measurements::{self, Row, Skipped};
use crate::kit::verdict::Verdict;

/// A table has at most as many columns of subjects; with more of them it has a line for each.
const TARGETS_ACROSS_MAX: usize = 8;

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

impl Report {
    /// The row of a case, if it was measured.
    pub(crate) fn row(&self, part: &str, target: &str) -> Option<&Row> {
        measurements::row(&self.rows, part, target)
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
    for (index, number_in) in figures.char_indices() {
        if index > 0 && (figures.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(number_in);
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kit::verdict::{Outcome, Threshold};

    /// A small report with every feature in it.
    pub(crate) fn sample() -> Report {
        Report {
            experiment: "relay",
            machine: Map::from_iter([("cpus".to_owned(), Value::from(2))]),
            rows: crate::kit::measurements::tests::rows(),
            grids: &[],
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
        }
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
