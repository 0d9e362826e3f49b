//! Checks a ledger: that nothing in it is damaged, and that its sums are those of its details.
//!
//! Promises: reads only, also while a gateway writes; a flipped bit in a file is found, or changes no bill.
//! Leaves to others: the journal's chain, and what to do about a problem.
//!
//! SQLite's `integrity_check` sees the structure of pages, each row's checksum its values, and a schema that
//! is compared the meaning of both. Rows that are missing as a whole show in the sums: each rollup is made
//! again from the flows, parts and aggregates of its month and the flows that go on, each day from its hours.

mod files;
mod flows;
mod sums;

use std::fmt;
use std::path::Path;

use crate::query::{QueryError, Usage};
use crate::sink::month::Month;
use crate::sink::schema::ledger_db::LEDGER;
use crate::sink::schema::month_db::MONTH;

/// Problems that are listed; more are only counted.
const PROBLEMS_MAX: usize = 1_000;

/// What [`verify`] found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct VerifyReport {
    /// Files that were read.
    pub files: u64,
    /// Rows whose checksum was compared.
    pub rows: u64,
    /// Flows that are over and kept one by one.
    pub flows: u64,
    /// Sums that were made again and compared.
    pub sums: u64,
    /// What is wrong, at most a thousand.
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    pub more_problems: u64,
    /// What is missing with consent: when it was given, by whom, and what for.
    pub accepted: Vec<String>,
    /// What could not be checked, and why that is no problem by itself.
    pub notes: Vec<String>,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        } else {
            self.more_problems += 1;
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Problem {
    /// A file could not be read to its end, or its structure is damaged.
    Damaged {
        /// The file's name.
        file: String,
        /// What SQLite said.
        text: String,
    },
    /// A row is not as it was written.
    Row {
        /// The file's name.
        file: String,
        /// The table.
        table: String,
        /// Which row of it, from 1, in the order of the file.
        row: u64,
    },
    /// A month's file is not there, and we did not remove it.
    Missing {
        /// The file's name.
        file: String,
    },
    /// A file has come less far, or farther, than it can have.
    Watermark {
        /// The file's name.
        file: String,
        /// What is impossible.
        text: String,
    },
    /// A sum is not that of what it is made of.
    Sum {
        /// The table.
        table: &'static str,
        /// The hour or day, the user and the class.
        key: String,
        /// What its parts come to.
        expected: String,
        /// What it says.
        found: String,
    },
    /// What a flow had moved before its last hour is not the sum of its parts.
    Parts {
        /// The flow's id.
        flow: u128,
        /// Bytes up and down of the parts.
        expected: (i64, i64),
        /// Bytes up and down that the flow says it had before.
        found: (i64, i64),
    },
    /// A flow is there more than once.
    Duplicate {
        /// The flow's id.
        flow: u128,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { file, text } | Self::Watermark { file, text } => {
                write!(formatter, "{file}: {text}")
            }
            Self::Row { file, table, row } => {
                write!(formatter, "{file}: row {row} of {table} is not as it was written")
            }
            Self::Missing { file } => write!(formatter, "{file} is missing, and was not removed by us"),
            Self::Sum { table, key, expected, found } => {
                write!(formatter, "{table} {key}: expected {expected}, found {found}")
            }
            Self::Parts { flow, expected, found } => write!(
                formatter,
                "flow {flow:032x}: its parts come to {} up and {} down, and it says {} and {}",
                expected.0, expected.1, found.0, found.1
            ),
            Self::Duplicate { flow } => write!(formatter, "flow {flow:032x} is there more than once"),
        }
    }
}

/// Checks the ledger in `directory` as of one moment.
///
/// An error means that `ledger.db` cannot be opened; what is wrong behind that is in the report.
pub fn verify(directory: &Path) -> Result<VerifyReport, QueryError> {
    let usage = Usage::open(directory)?;
    let mut report = VerifyReport::default();
    let known = usage.months();
    files::check(&mut report, "ledger.db", &usage.connection, LEDGER);
    let known = match known {
        Ok(known) => known,
        Err(error) => {
            report.problem(damaged("ledger.db", &error));
            return Ok(report);
        }
    };
    let mut months = Vec::new();
    for (month, dropped) in known {
        months.push(open_month(&mut report, &usage, month, dropped));
    }
    if let Err(error) = report_gaps(&mut report, &usage) {
        report.problem(damaged("ledger.db", &error));
    }
    if let Err(error) = check_whole(&mut report, &usage, &months) {
        report.problem(damaged("ledger.db", &error));
    }
    Ok(report)
}

/// Tells what is missing and is no problem any more.
fn report_gaps(report: &mut VerifyReport, usage: &Usage) -> Result<(), QueryError> {
    report.accepted = usage.consents()?;
    let gaps = "SELECT count(*) FROM gap";
    let gaps: i64 = usage.connection.query_row(gaps, [], |row| row.get(0))?;
    if gaps > 0 {
        report
            .notes
            .push(format!("{gaps} gaps in the journal, where frames were torn by a crash or damaged"));
    }
    Ok(())
}

/// What spans files.
fn check_whole(report: &mut VerifyReport, usage: &Usage, months: &[MonthState]) -> Result<(), QueryError> {
    files::check_watermarks(report, usage, months)?;
    sums::check_hours(report, usage, months)?;
    sums::check_days(report, usage)?;
    flows::check_parts(report, usage, months)?;
    flows::check_duplicates(report, usage, months)
}

/// A month that has had a file.
struct MonthState {
    month: Month,
    name: String,
    /// `None` if there is none, or none that can be read.
    file: Option<rusqlite::Connection>,
    /// Whether it has every row that it should have, as far as is known.
    whole: bool,
    /// Whether some of its flows and parts are kept as sums only.
    aggregated: bool,
}

fn open_month(report: &mut VerifyReport, usage: &Usage, month: Month, dropped: bool) -> MonthState {
    let path = month.path(Path::new(""));
    let name = path.display().to_string();
    let mut state = MonthState { month, name, file: None, whole: false, aggregated: false };
    match usage.month(month) {
        Ok(Some(file)) => {
            let intact = files::check(report, &state.name, &file, MONTH);
            state.aggregated = files::count(&file, "aggregate").is_ok_and(|rows| rows > 0);
            state.whole = intact && !dropped;
            state.file = intact.then_some(file);
        }
        Ok(None) if dropped => {}
        Ok(None) => report.problem(Problem::Missing { file: state.name.clone() }),
        Err(error) => report.problem(damaged(&state.name, &error)),
    }
    state
}

/// What is wrong with `file` as that of `month`: its structure, a row, or that its sums are not those of
/// `ledger.db`.
pub(crate) fn month_problem(
    usage: &Usage,
    month: Month,
    file: &rusqlite::Connection,
) -> Result<Option<Problem>, QueryError> {
    let mut report = VerifyReport::default();
    if files::check(&mut report, &month.path(Path::new("")).display().to_string(), file, MONTH) {
        sums::check_month(&mut report, usage, month, Some(file))?;
    }
    Ok(report.problems.into_iter().next())
}

fn damaged(file: &str, error: &QueryError) -> Problem {
    Problem::Damaged { file: file.to_owned(), text: error.to_string() }
}

#[cfg(test)]
mod tests;
