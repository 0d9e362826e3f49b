//! The rollups by quarter-hour, day and month: changes of them, and how new ones are filled.
//!
//! Guarantees: what is added in memory reaches a table as one row for each key, in the order of the keys.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Statement, ffi};

use super::month::{Month, QUARTER_NS};
use super::sums::{
    DAY_QUARTERS, ROLLUP_DAY, ROLLUP_MONTH, ROLLUP_QUARTER, SumTable, Sums, TOTAL_DAY, TOTAL_MONTH,
    TOTAL_QUARTER,
};
use super::{checksum, derived};

/// The account, the class and the set by which sums are kept.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct SumKey<'a> {
    pub(crate) account: i64,
    pub(crate) class: Cow<'a, str>,
    pub(crate) set: i64,
}

impl SumKey<'_> {
    fn values(&self, time: i64) -> [ValueRef<'_>; 4] {
        let [time, account, set] = [time, self.account, self.set].map(ValueRef::Integer);
        [time, account, ValueRef::Text(self.class.as_bytes()), set]
    }
}

/// Changes that are to be added to the rollups, by quarter-hour.
#[derive(Default)]
pub(crate) struct Rollups<'a> {
    quarters: BTreeMap<(i64, SumKey<'a>), Sums>,
}

impl<'a> Rollups<'a> {
    pub(crate) fn add(&mut self, quarter: i64, key: SumKey<'a>, sums: &Sums) {
        self.quarters.entry((quarter, key)).or_default().add(sums);
    }

    /// The number of quarter-hours that a write would change.
    pub(crate) fn len(&self) -> usize {
        self.quarters.len()
    }

    /// Adds everything to the tables of `connection`, and becomes empty.
    pub(crate) fn write(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let changes = Changes::of(&self.quarters);
        changes.write(connection)?;
        changes.write_derived(connection)?;
        self.quarters.clear();
        Ok(())
    }

    /// The same, in a migration to the version that had no derived sums.
    pub(super) fn write_in_version_5(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        Changes::of(&self.quarters).write(connection)?;
        self.quarters.clear();
        Ok(())
    }
}

/// Changes of each table.
struct Changes<'k, 'a> {
    quarters: &'k BTreeMap<(i64, SumKey<'a>), Sums>,
    days: BTreeMap<(i64, &'k SumKey<'a>), Sums>,
    months: BTreeMap<(i64, &'k SumKey<'a>), Sums>,
    /// Of all accounts, by quarter-hour, day and month.
    totals: [BTreeMap<(i64, &'k str, i64), Sums>; 3],
}

impl<'k, 'a> Changes<'k, 'a> {
    fn of(quarters: &'k BTreeMap<(i64, SumKey<'a>), Sums>) -> Self {
        let (days, months, totals) = Default::default();
        let mut changes = Changes { quarters, days, months, totals };
        for ((quarter, key), sums) in quarters {
            let (day, month) = (quarter / DAY_QUARTERS, Month::of_quarter(*quarter).number());
            changes.days.entry((day, key)).or_default().add(sums);
            changes.months.entry((month, key)).or_default().add(sums);
            for (unit, totals) in [*quarter, day, month].into_iter().zip(&mut changes.totals) {
                totals.entry((unit, &key.class, key.set)).or_default().add(sums);
            }
        }
        changes
    }

    /// Adds to the sums that others are made of.
    fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        for ((quarter, key), sums) in self.quarters {
            ROLLUP_QUARTER.add(connection, &key.values(*quarter), sums)?;
        }
        for ((day, key), sums) in &self.days {
            ROLLUP_DAY.add(connection, &key.values(*day), sums)?;
        }
        for ((month, key), sums) in &self.months {
            ROLLUP_MONTH.add(connection, &key.values(*month), sums)?;
        }
        let [quarters, ..] = &self.totals;
        quarters.iter().try_for_each(|((quarter, class, set), sums)| {
            TOTAL_QUARTER.add(connection, &total_key(*quarter, class, *set), sums)
        })
    }

    /// Adds to the sums that are made of those, or makes them again where a row is damaged.
    fn write_derived(&self, connection: &Connection) -> rusqlite::Result<()> {
        let [_, days, months] = &self.totals;
        for (table, is_month, totals) in [(TOTAL_DAY, false, days), (TOTAL_MONTH, true, months)] {
            for ((unit, class, set), sums) in totals {
                let key = total_key(*unit, class, *set);
                match table.add(connection, &key, sums) {
                    Err(error) if checksum::is_damage(&error) => {
                        let quarters = if is_month { month_quarters(*unit) } else { day_quarters(*unit) };
                        let total = derived::total_of(connection, quarters, class, *set)?;
                        table.put(connection, &key, &total)?;
                    }
                    added => added?,
                }
            }
        }
        let mut units: Vec<(i64, i64)> = Vec::new();
        for (day, ..) in days.keys() {
            let unit = (*day, Month::of_quarter(day.saturating_mul(DAY_QUARTERS)).number());
            if units.last() != Some(&unit) {
                units.push(unit);
            }
        }
        units.into_iter().try_for_each(|unit| derived::discard(connection, unit))
    }
}

fn total_key(unit: i64, class: &str, set: i64) -> [ValueRef<'_>; 3] {
    [ValueRef::Integer(unit), ValueRef::Text(class.as_bytes()), ValueRef::Integer(set)]
}

fn day_quarters(day: i64) -> (i64, i64) {
    (day.saturating_mul(DAY_QUARTERS), day.saturating_mul(DAY_QUARTERS).saturating_add(DAY_QUARTERS - 1))
}

fn month_quarters(month: i64) -> (i64, i64) {
    let span = |month: Month| (month.beginning_ns() / QUARTER_NS, month.last_ns() / QUARTER_NS);
    Month::from_number(month).map_or((0, -1), span)
}

/// Fills rollups that have no rows, in the order of the quarter-hours.
///
/// Each row is written once, in the order of its table's keys: no row is searched, and no page is changed
/// again.
pub(crate) struct RollupFiller<'a> {
    put_quarter: Statement<'a>,
    put_total: Statement<'a>,
    put_day: Statement<'a>,
    put_month: Statement<'a>,
    quarter: i64,
    quarters: KeyedSums,
    days: KeyedSums,
    months: KeyedSums,
}

type KeyedSums = BTreeMap<SumKey<'static>, Sums>;

impl<'a> RollupFiller<'a> {
    pub(crate) fn new(connection: &'a Connection) -> rusqlite::Result<Self> {
        let put = |table: &SumTable| connection.prepare(table.replace);
        Ok(Self {
            put_quarter: put(&ROLLUP_QUARTER)?,
            put_total: put(&TOTAL_QUARTER)?,
            put_day: put(&ROLLUP_DAY)?,
            put_month: put(&ROLLUP_MONTH)?,
            quarter: 0,
            quarters: KeyedSums::new(),
            days: KeyedSums::new(),
            months: KeyedSums::new(),
        })
    }

    /// Adds to `quarter`, the same one as before or a later one.
    ///
    /// # Errors
    /// It is an earlier one, or the database's.
    pub(crate) fn add(&mut self, quarter: i64, key: SumKey<'static>, sums: &Sums) -> rusqlite::Result<()> {
        if quarter < self.quarter {
            let text = "the sums by hour are not in their order".to_owned();
            return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(text)));
        }
        if quarter > self.quarter {
            self.write_quarter()?;
            if quarter / DAY_QUARTERS != self.quarter / DAY_QUARTERS {
                self.write_day()?;
            }
            if Month::of_quarter(quarter) != Month::of_quarter(self.quarter) {
                self.write_month()?;
            }
            self.quarter = quarter;
        }
        self.quarters.entry(key).or_default().add(sums);
        Ok(())
    }

    /// Writes what is not written yet.
    pub(crate) fn finish(mut self) -> rusqlite::Result<()> {
        self.write_quarter().and_then(|()| self.write_day()).and_then(|()| self.write_month())
    }

    fn write_quarter(&mut self) -> rusqlite::Result<()> {
        let mut totals: BTreeMap<(Cow<'_, str>, i64), Sums> = BTreeMap::new();
        for (key, sums) in &self.quarters {
            checksum::run(&mut self.put_quarter, key.values(self.quarter).into_iter().chain(sums.values()))?;
            totals.entry((Cow::Borrowed(&*key.class), key.set)).or_default().add(sums);
        }
        for ((class, set), sums) in &totals {
            let class = ValueRef::Text(class.as_bytes());
            let key = [ValueRef::Integer(self.quarter), class, ValueRef::Integer(*set)];
            checksum::run(&mut self.put_total, key.into_iter().chain(sums.values()))?;
        }
        for (key, sums) in std::mem::take(&mut self.quarters) {
            self.days.entry(key).or_default().add(&sums);
        }
        Ok(())
    }

    fn write_day(&mut self) -> rusqlite::Result<()> {
        for (key, sums) in std::mem::take(&mut self.days) {
            let values = key.values(self.quarter / DAY_QUARTERS);
            checksum::run(&mut self.put_day, values.into_iter().chain(sums.values()))?;
            self.months.entry(key).or_default().add(&sums);
        }
        Ok(())
    }

    fn write_month(&mut self) -> rusqlite::Result<()> {
        let month = Month::of_quarter(self.quarter).number();
        for (key, sums) in std::mem::take(&mut self.months) {
            checksum::run(&mut self.put_month, key.values(month).into_iter().chain(sums.values()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Row;

    use super::super::schema;
    use super::super::schema::ledger_db::LEDGER;
    use super::*;

    const TABLES: [&str; 4] = ["rollup_quarter", "rollup_day", "rollup_month", "total_quarter"];

    fn rows(connection: &Connection, table: &str) -> Vec<String> {
        let mut select = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = select.column_count();
        let row =
            |row: &Row<'_>| Ok((0..columns).map(|at| format!("{:?} ", row.get_ref_unwrap(at))).collect());
        select.query_map([], row).unwrap().map(Result::unwrap).collect()
    }

    /// Quarter-hours across the ends of days and months, of several accounts, classes and sets.
    #[test]
    fn filled_rollups_are_those_that_are_added_to() {
        let (added, filled) =
            (schema::new_in_memory(LEDGER).unwrap(), schema::new_in_memory(LEDGER).unwrap());
        let (mut rollups, mut filler) = (Rollups::default(), RollupFiller::new(&filled).unwrap());
        for quarter in (0..40 * DAY_QUARTERS).step_by(7) {
            for (account, class, set) in [(2, "internal", 0), (1, "external", 0), (2, "external", 1)] {
                let key = || SumKey { account, class: class.into(), set };
                let sums = Sums { flows: 1, up: quarter, down: account, ..Sums::default() };
                // Some twice.
                for _ in 0..1 + quarter % 2 {
                    rollups.add(quarter, key(), &sums);
                    filler.add(quarter, key(), &sums).unwrap();
                }
            }
        }
        rollups.write(&added).unwrap();
        filler.finish().unwrap();
        for table in TABLES {
            let rows = [rows(&added, table), rows(&filled, table)];
            assert!(!rows[0].is_empty());
            assert_eq!(rows[0], rows[1], "{table}");
        }
    }

    #[test]
    fn filler_refuses_earlier_quarters() {
        let filled = schema::new_in_memory(LEDGER).unwrap();
        let mut filler = RollupFiller::new(&filled).unwrap();
        let mut add = |quarter| {
            filler.add(quarter, SumKey { account: 1, class: "external".into(), set: 0 }, &Sums::default())
        };
        add(7).unwrap();
        assert!(add(6).is_err());
    }
}
