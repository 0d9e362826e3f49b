//! The table of a run: the outcomes of each kind of damage, and of each part.
//!
//! Guarantees: the last line is complete by itself, to be quoted.

use std::collections::BTreeMap;
use std::fmt;

use crate::case::{Case, Report};
use crate::verdict::Outcome;

/// Counts of outcomes.
#[derive(Default)]
pub(crate) struct Table {
    kinds: BTreeMap<&'static str, Counts>,
    parts: BTreeMap<&'static str, Counts>,
    all: Counts,
    /// Failures by outcome and part: kinds of damage, and how often.
    classes: BTreeMap<(Outcome, &'static str), BTreeMap<&'static str, usize>>,
    /// Impossible cases: there is no such file, or nothing would change.
    skipped: usize,
    /// Cases that were reported or refused, and of which `verify` had found no problem before the start.
    undetected_before_start: usize,
}

type Counts = BTreeMap<Outcome, usize>;

impl Table {
    pub(crate) fn add(&mut self, case: &Case, report: Option<&Report>) {
        let Some(report) = report else {
            self.skipped += 1;
            return;
        };
        let (kind, part) = match case.damages[..] {
            [] => ("no damage", "no damage"),
            [(kind, part)] => (kind.name(), part.name()),
            _ => ("two of them", "two of them"),
        };
        for counts in
            [self.kinds.entry(kind).or_default(), self.parts.entry(part).or_default(), &mut self.all]
        {
            *counts.entry(report.outcome).or_default() += 1;
        }
        if report.outcome.is_failure() {
            *self.classes.entry((report.outcome, part)).or_default().entry(kind).or_default() += 1;
        }
        let is_undetected =
            matches!(report.outcome, Outcome::Reported | Outcome::Refused) && !report.was_known;
        self.undetected_before_start += usize::from(is_undetected);
    }

    pub(crate) fn failures(&self) -> usize {
        self.all.iter().filter(|(outcome, _)| outcome.is_failure()).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rows in [&self.kinds, &self.parts] {
            write!(out, "{:24}", "")?;
            for outcome in Outcome::ALL {
                write!(out, "{:>9}", outcome.name())?;
            }
            writeln!(out)?;
            for (name, counts) in rows {
                write!(out, "{name:24}")?;
                for outcome in Outcome::ALL {
                    write!(out, "{:>9}", counts.get(&outcome).copied().unwrap_or_default())?;
                }
                writeln!(out)?;
            }
            writeln!(out)?;
        }
        for ((outcome, part), kinds) in &self.classes {
            let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
            writeln!(out, "{}, {part}: {}", outcome.name(), kinds.join(", "))?;
        }
        let cases: usize = self.all.values().sum();
        let counts: Vec<String> =
            self.all.iter().map(|(outcome, count)| format!("{count} {}", outcome.name())).collect();
        write!(
            out,
            "damage: {cases} cases: {}; {} failures. Of those reported or refused `verify` had not found {} \
             before the start. {} cases are impossible",
            counts.join(", "),
            self.failures(),
            self.undetected_before_start,
            self.skipped,
        )
    }
}
