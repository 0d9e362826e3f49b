//! Where the rows of a quarter-hour lie in a month's file: the first and the last row number of each kind.
//!
//! Guarantees: every flow and part of the present tables lies in the range of its quarter-hour, or before the
//! first row of all ranges: there lie the rows that a file had before its migration. Rows of other
//! quarter-hours may lie in a range too.
//!
//! Rows are appended as their entries come, which is nearly the order of their quarter-hours. So a range
//! holds little else, and stands for an index that would cost a part of each insert.

use std::collections::BTreeMap;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};

use super::checksum;
use super::details::{DetailKind, DetailTables};

/// The numbers of the first and the last row; none if the last is before the first.
pub(crate) type RowRange = (i64, i64);

/// All rows.
pub(crate) const ALL_ROWS: RowRange = (i64::MIN, i64::MAX);

const NO_ROWS: RowRange = (i64::MAX, i64::MIN);
const SELECT: &str = "SELECT * FROM row_range WHERE quarter = ?1";
const SELECT_ALL: &str = "SELECT * FROM row_range";
const PUT: &str = "INSERT OR REPLACE INTO row_range VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// The ranges of a quarter-hour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct QuarterRows {
    flows: RowRange,
    parts: RowRange,
}

impl Default for QuarterRows {
    fn default() -> Self {
        Self { flows: NO_ROWS, parts: NO_ROWS }
    }
}

impl QuarterRows {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        checksum::check(row, "row_range")?;
        Ok(Self {
            flows: (row.get("flow_first")?, row.get("flow_last")?),
            parts: (row.get("part_first")?, row.get("part_last")?),
        })
    }

    fn joined(self, other: Self) -> Self {
        Self { flows: joined(self.flows, other.flows), parts: joined(self.parts, other.parts) }
    }

    fn put(self, connection: &Connection, quarter: i64) -> rusqlite::Result<()> {
        let Self { flows, parts } = self;
        let values = [quarter, flows.0, flows.1, parts.0, parts.1].map(ValueRef::Integer);
        checksum::put(connection, PUT, &values)
    }
}

fn joined(one: RowRange, other: RowRange) -> RowRange {
    (one.0.min(other.0), one.1.max(other.1))
}

/// The ranges of rows that a transaction has inserted.
#[derive(Default)]
pub(crate) struct NewRows {
    quarters: BTreeMap<i64, QuarterRows>,
}

impl NewRows {
    /// Notes row `number` of a flow.
    pub(crate) fn add_flow(&mut self, quarter: i64, number: i64) {
        let rows = self.quarters.entry(quarter).or_default();
        rows.flows = joined(rows.flows, (number, number));
    }

    /// Notes row `number` of a part.
    pub(crate) fn add_part(&mut self, quarter: i64, number: i64) {
        let rows = self.quarters.entry(quarter).or_default();
        rows.parts = joined(rows.parts, (number, number));
    }

    /// Extends the stored ranges. One that is damaged becomes that of all rows, which is right too.
    pub(crate) fn write(self, connection: &Connection) -> rusqlite::Result<()> {
        for (quarter, rows) in self.quarters {
            let mut select = connection.prepare_cached(SELECT)?;
            let stored = match select.query_row([quarter], QuarterRows::read).optional() {
                Err(error) if checksum::is_damage(&error) => {
                    Some(QuarterRows { flows: ALL_ROWS, parts: ALL_ROWS })
                }
                stored => stored?,
            };
            rows.joined(stored.unwrap_or_default()).put(connection, quarter)?;
        }
        Ok(())
    }
}

/// The ranges of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowRanges {
    quarters: BTreeMap<i64, QuarterRows>,
}

impl RowRanges {
    /// Reads the ranges of a file; none if it is of a version that had none.
    ///
    /// # Errors
    /// SQLite's, or a range is damaged.
    pub(crate) fn read(file: &Connection, tables: &DetailTables) -> rusqlite::Result<RowRanges> {
        let mut ranges = RowRanges::default();
        if tables.have_sums() {
            let mut select = file.prepare_cached(SELECT_ALL)?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                ranges.quarters.insert(row.get("quarter")?, QuarterRows::read(row)?);
            }
        }
        Ok(ranges)
    }

    /// The range that holds every flow, or every part, of the quarter-hours in a span, both ends included.
    pub(crate) fn of(&self, kind: DetailKind, (first, last): (i64, i64)) -> RowRange {
        let of = |rows: &QuarterRows| if kind == DetailKind::Part { rows.parts } else { rows.flows };
        let spanned = if first <= last { Some(self.quarters.range(first..=last)) } else { None };
        let range = spanned.into_iter().flatten().map(|(_, rows)| of(rows)).fold(NO_ROWS, joined);
        // Any quarter-hour may have rows from before the first range.
        match self.quarters.values().map(|rows| of(rows).0).filter(|first| *first > 0).min() {
            Some(1) => range,
            Some(covered) => joined(range, (i64::MIN, covered - 1)),
            None => ALL_ROWS,
        }
    }
}

/// The number of rows that lie outside the range of their quarter-hour: none unless a range is damaged.
pub(crate) fn misplaced(file: &Connection) -> rusqlite::Result<i64> {
    let outside = |table: &str| {
        format!(
            "SELECT count(*) FROM {table} LEFT JOIN row_range USING (quarter)
             WHERE ({table}.rowid BETWEEN {table}_first AND {table}_last) IS NOT TRUE
               AND {table}.rowid >= (SELECT min({table}_first) FROM row_range WHERE {table}_first > 0)"
        )
    };
    let count = |table| file.query_row(&outside(table), [], |row| row.get::<_, i64>(0));
    Ok(count("flow")? + count("part")?)
}
