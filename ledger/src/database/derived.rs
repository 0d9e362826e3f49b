//! Sums in `ledger.db` that are made of others there: those of all accounts by day and by month, and days and
//! months that are over as packed values.
//!
//! Guarantees: they can be made again. A change of the sums of a day or a month discards its packed value in
//! the same transaction, and a value is not made of a damaged row.
//! Not handled here: what adds to the totals (`sums`).

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::checksum;
use super::month::{DAY_NS, Month};
use super::packed;
use super::schema::{SchemaError, sqlite};
use super::sums::{DAY_QUARTERS, Sums, TOTAL_DAY, TOTAL_MONTH};
use crate::limits::{PACKED_AT_ONCE_MAX, PACKED_ROWS_MAX};

/// A table of packed values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Packed {
    /// The quarter-hours of a day, of all accounts.
    Quarters,
    /// The accounts of a day.
    Day,
    /// The accounts of a month.
    Month,
}

impl Packed {
    /// All of them.
    pub(crate) const ALL: [Packed; 3] = [Packed::Quarters, Packed::Day, Packed::Month];

    /// The table.
    pub(crate) fn table(self) -> &'static str {
        match self {
            Packed::Quarters => "packed_quarter",
            Packed::Day => "packed_day",
            Packed::Month => "packed_month",
        }
    }

    /// The column of the key: a day or a month.
    pub(crate) fn unit(self) -> &'static str {
        if self == Packed::Month { "month" } else { "day" }
    }

    /// The rows of which the values of unit `?1` are made, with the column `number`.
    pub(crate) fn rows(self) -> String {
        match self {
            Packed::Quarters => format!(
                "SELECT *, quarter AS number FROM total_quarter
                 WHERE quarter BETWEEN ?1 * {DAY_QUARTERS} AND ?1 * {DAY_QUARTERS} + {}",
                DAY_QUARTERS - 1
            ),
            Packed::Day => "SELECT *, account AS number FROM rollup_day WHERE day = ?1".to_owned(),
            Packed::Month => "SELECT *, account AS number FROM rollup_month WHERE month = ?1".to_owned(),
        }
    }

    fn total(self) -> &'static str {
        if self == Packed::Month { "total_month" } else { "total_day" }
    }

    /// The first units from `from` on and before `end` that have sums and no value.
    fn missing(self, connection: &Connection, (from, end): (i64, i64)) -> rusqlite::Result<Vec<i64>> {
        let (table, unit, total) = (self.table(), self.unit(), self.total());
        let sql = format!(
            "SELECT DISTINCT {unit} FROM {total} WHERE {unit} >= ?1 AND {unit} < ?2
                AND {unit} NOT IN (SELECT {unit} FROM {table}) ORDER BY {unit} LIMIT ?3"
        );
        let mut select = connection.prepare_cached(&sql)?;
        select.query_map([from, end, PACKED_AT_ONCE_MAX], |row| row.get(0))?.collect()
    }

    /// Stores the value of `unit`; returns the number of its rows. A damaged row leaves it without one.
    fn make(self, connection: &Connection, unit: i64) -> rusqlite::Result<i64> {
        let (mut sums, mut count): (BTreeMap<i64, Sums>, _) = (BTreeMap::new(), 0);
        let mut select = connection.prepare_cached(&self.rows())?;
        let mut rows = select.query([unit])?;
        while let Some(row) = rows.next()? {
            count += 1;
            if !checksum::is_intact(row)? {
                // Not counted: it must not keep the other units waiting at each call.
                return Ok(0);
            }
            sums.entry(row.get("number")?).or_default().add(&Sums::read(row)?);
        }
        if let Some(packed) = packed::pack(sums.iter().map(|(number, sums)| (*number, sums))) {
            let put = format!("INSERT OR REPLACE INTO {} VALUES (?1, ?2, ?3)", self.table());
            checksum::put(connection, &put, &[ValueRef::Integer(unit), ValueRef::Blob(&packed)])?;
        }
        Ok(count)
    }
}

/// Packs days and months that are over, from day `from` on, 0 for the first call; the present day is that of
/// `now_ns`. Returns the day from which on the next call is to look.
pub(crate) fn pack(connection: &mut Connection, now_ns: i64, from: i64) -> rusqlite::Result<i64> {
    let last = "SELECT max(day) FROM total_day";
    let last: Option<i64> = connection.prepare_cached(last)?.query_row([], |row| row.get(0))?;
    let Some(last) = last else { return Ok(from) };
    if from == 0 {
        // A start: damaged values are made again.
        packed::delete_damaged(connection, &Packed::ALL.map(Packed::table))?;
    }
    // The clock may have been ahead for some time: then a day that is not over is before the last one.
    let end = last.min(now_ns / DAY_NS);
    let month = |day: i64| Month::containing(day.saturating_mul(DAY_NS)).number();
    let (mut due, mut is_whole) = (Vec::new(), true);
    for kind in Packed::ALL {
        let span = if kind == Packed::Month { (month(from), month(end)) } else { (from, end) };
        let missing = kind.missing(connection, span)?;
        is_whole &= missing.len() < PACKED_AT_ONCE_MAX as usize;
        due.extend(missing.into_iter().map(|unit| (kind, unit)));
    }
    if !due.is_empty() {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut rows = 0;
        for (kind, unit) in due {
            is_whole &= rows < PACKED_ROWS_MAX;
            if rows < PACKED_ROWS_MAX {
                rows += kind.make(&transaction, unit)?;
            }
        }
        transaction.commit()?;
    }
    Ok(if is_whole { from.max(end.saturating_sub(LATE_DAYS)) } else { from })
}

/// Days before the present one whose values are made again where a late entry discarded them. A start looks
/// at all others.
const LATE_DAYS: i64 = 2;

/// Discards the values of `day` and of `month`, whose sums change.
pub(super) fn discard(connection: &Connection, (day, month): (i64, i64)) -> rusqlite::Result<()> {
    for kind in Packed::ALL {
        let delete = format!("DELETE FROM {} WHERE {} = ?1", kind.table(), kind.unit());
        let unit = if kind == Packed::Month { month } else { day };
        connection.prepare_cached(&delete)?.execute([unit])?;
    }
    Ok(())
}

/// Whether the database has these tables. A reader may open one of an earlier version.
pub(crate) fn exist(connection: &Connection) -> rusqlite::Result<bool> {
    let exists = "SELECT 1 FROM sqlite_schema WHERE name = 'total_day'";
    Ok(connection.query_row(exists, [], |_| Ok(())).optional()?.is_some())
}

/// Fills the totals by day and month, which are empty.
///
/// A damaged row leaves a damaged one in each: an answer from those says that it lacks something, as one from
/// the quarter-hours did.
pub(super) fn fill_totals(connection: &Connection, path: &Path) -> Result<(), SchemaError> {
    fill(connection).map_err(|cause| sqlite(path, cause))
}

fn fill(connection: &Connection) -> rusqlite::Result<()> {
    type Totals = BTreeMap<(i64, String, i64), Sums>;
    let (mut days, mut months) = (Totals::new(), Totals::new());
    let mut select = connection.prepare("SELECT * FROM total_quarter")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        // A damaged row may have anything.
        let (is_intact, quarter) = (checksum::is_intact(row)?, row.get("quarter").unwrap_or(0));
        let (day, month) = (quarter / DAY_QUARTERS, Month::of_quarter(quarter).number());
        if !is_intact {
            for (table, unit) in [("total_day", day), ("total_month", month)] {
                let damaged =
                    format!("INSERT OR IGNORE INTO {table} VALUES (?1, '', -1, 0, 0, 0, 0, 0, 0, 0)");
                connection.execute(&damaged, [unit])?;
            }
            continue;
        }
        let (class, set): (String, i64) = (row.get("class")?, row.get("set_number")?);
        let sums = Sums::read(row)?;
        days.entry((day, class.clone(), set)).or_default().add(&sums);
        months.entry((month, class, set)).or_default().add(&sums);
    }
    for (table, totals) in [(TOTAL_DAY, days), (TOTAL_MONTH, months)] {
        for ((unit, class, set), sums) in &totals {
            let class = ValueRef::Text(class.as_bytes());
            table.put(connection, &[ValueRef::Integer(*unit), class, ValueRef::Integer(*set)], sums)?;
        }
    }
    Ok(())
}

/// The sums of all accounts over `quarters`, from those of the quarter-hours.
pub(super) fn total_of(
    connection: &Connection,
    (first, last): (i64, i64),
    class: &str,
    set: i64,
) -> rusqlite::Result<Sums> {
    let mut total = Sums::default();
    let mut select = connection.prepare_cached(
        "SELECT * FROM total_quarter WHERE quarter BETWEEN ?1 AND ?2 AND class = ?3 AND set_number = ?4",
    )?;
    let mut rows = select.query((first, last, class, set))?;
    while let Some(row) = rows.next()? {
        checksum::check(row, "total_quarter")?;
        total.add(&Sums::read(row)?);
    }
    Ok(total)
}
