//! Checks that nothing in a ledger is damaged, and that its sums match its details.
//!
//! Guarantees: reads only, also while a gateway writes. A flipped bit in a file is found, or changes no bill.
//! Not handled here: the journal's chain (`repair::inspect`).
//!
//! SQLite's `integrity_check` covers the structure of pages, the row checksums cover values, and the
//! comparison of the schema covers the meaning of both. Missing rows show in the sums: each rollup is
//! recomputed from the flows, parts and aggregates of its month and the open flows, each day, month and total
//! from its quarter-hours.

mod files;
mod flows;
mod hosts;
mod sums;

use std::fmt;
use std::path::Path;

use crate::database::month::Month;
use crate::database::month_file;
use crate::database::schema::ledger_db::LEDGER;
use crate::database::schema::month_db::MONTH;
use crate::query::Usage as _;
use crate::sqlite_usage::{QueryError, SqliteUsage};

/// The number of problems that are listed; more are only counted.
const PROBLEMS_MAX: usize = 1_000;

/// The result of [`verify`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct VerifyReport {
    /// Files that were read.
    pub files: u64,
    /// Rows whose checksum was compared.
    pub rows: u64,
    /// Closed flows that are kept one by one.
    pub flows: u64,
    /// Sums that were recomputed and compared.
    pub sums: u64,
    /// The problems, at most a thousand.
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    pub more_problems: u64,
    /// The accepted losses: time, author and text.
    pub accepted: Vec<String>,
    /// What could not be checked, and why that is no problem by itself.
    pub notes: Vec<String>,
}

impl VerifyReport {
    /// Whether there is no problem.
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

/// A problem of a ledger.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Problem {
    /// A file could not be read to its end, or its structure is damaged.
    Damaged {
        /// The file's name.
        file: String,
        /// SQLite's error.
        text: String,
    },
    /// A row does not match its checksum.
    Row {
        /// The file's name.
        file: String,
        /// The table.
        table: String,
        /// The row's number in the order of the file, from 1.
        row: u64,
    },
    /// A month's file is missing, and retention did not remove it.
    Missing {
        /// The file's name.
        file: String,
    },
    /// A file is less far, or farther, than it can be.
    Watermark {
        /// The file's name.
        file: String,
        /// The contradiction.
        text: String,
    },
    /// A sum does not match what it is made of.
    Sum {
        /// The table.
        table: &'static str,
        /// The quarter-hour, day or month, the account, the class and the set.
        key: String,
        /// The recomputed sums.
        expected: String,
        /// The stored sums.
        found: String,
    },
    /// What a flow had moved before its last span is not the sum of its parts.
    Parts {
        /// The flow's id.
        flow: u128,
        /// Bytes up and down of the parts.
        expected: (i64, i64),
        /// Bytes up and down before its last span, according to the flow's row.
        found: (i64, i64),
    },
    /// A flow has more than one row.
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
                write!(formatter, "{file}: row {row} of {table} is damaged: its checksum does not match")
            }
            Self::Missing { file } => write!(formatter, "{file} is missing, and retention did not remove it"),
            Self::Sum { table, key, expected, found } => {
                write!(formatter, "{table} {key}: expected {expected}, found {found}")
            }
            Self::Parts { flow, expected, found } => write!(
                formatter,
                "flow {flow:032x}: its parts sum to {} up and {} down, and its row says {} and {}",
                expected.0, expected.1, found.0, found.1
            ),
            Self::Duplicate { flow } => write!(formatter, "flow {flow:032x} has more than one row"),
        }
    }
}

/// Checks the ledger in `directory` as of one snapshot.
///
/// An error means that `ledger.db` cannot be opened; all other problems are in the report.
pub fn verify(directory: &Path) -> Result<VerifyReport, QueryError> {
    let usage = SqliteUsage::open(directory)?;
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

/// Adds gaps and accepted losses to the report.
fn report_gaps(report: &mut VerifyReport, usage: &SqliteUsage) -> Result<(), QueryError> {
    report.accepted = usage.consents()?;
    let gaps = "SELECT count(*) FROM gap";
    let gaps: i64 = usage.connection.query_row(gaps, [], |row| row.get(0))?;
    if gaps > 0 {
        let text = format!("gaps in the journal, where frames were torn by a crash or damaged: {gaps}");
        report.notes.push(text);
    }
    Ok(())
}

/// Runs the checks that span files.
fn check_whole(
    report: &mut VerifyReport,
    usage: &SqliteUsage,
    months: &[MonthState],
) -> Result<(), QueryError> {
    files::check_watermarks(report, usage, months)?;
    files::check_row_ranges(report, months)?;
    hosts::check(report, months)?;
    sums::check_quarters(report, usage, months)?;
    sums::check_rollups(report, usage)?;
    flows::check_parts(report, usage, months)?;
    flows::check_duplicates(report, usage, months)
}

/// A month that has had a file.
struct MonthState {
    month: Month,
    name: String,
    /// `None` if it is missing or cannot be read.
    file: Option<rusqlite::Connection>,
    /// Whether it has every row that it should have, as far as is known.
    whole: bool,
    /// Whether some of its flows and parts are kept as sums only.
    aggregated: bool,
}

fn open_month(report: &mut VerifyReport, usage: &SqliteUsage, month: Month, dropped: bool) -> MonthState {
    let path = month.path(Path::new(""));
    let name = path.display().to_string();
    let mut state = MonthState { month, name, file: None, whole: false, aggregated: false };
    match usage.month(month) {
        Ok(Some(file)) => {
            let intact = files::check(report, &state.name, &file, MONTH);
            state.aggregated = month_file::has_aggregates(&file).unwrap_or(false);
            state.whole = intact && !dropped;
            state.file = intact.then_some(file);
        }
        Ok(None) if dropped => {}
        Ok(None) => report.problem(Problem::Missing { file: state.name.clone() }),
        Err(error) => report.problem(damaged(&state.name, &error)),
    }
    state
}

/// The first problem of `file` as that of `month`: its structure, a row, or sums that differ from those of
/// `ledger.db`.
pub(crate) fn month_problem(
    usage: &SqliteUsage,
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
