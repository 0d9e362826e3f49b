//! Tables of sums: the rollups by quarter-hour, day and month, and the sums of flows beyond a month's row
//! limit.
//!
//! Guarantees: what is added in memory reaches a table as one row for each key, in the order of the keys. A
//! damaged row is never added to. Sums end at 2^63 - 1, which stands for any larger sum: one faulty record
//! must not block all later ones.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, Statement, ffi};

use super::checksum;
use super::month::Month;

/// Quarter-hours of a day.
const DAY_QUARTERS: i64 = 96;

/// The sums of several flows. No field is negative.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Sums {
    pub(crate) flows: i64,
    pub(crate) requests: i64,
    pub(crate) up: i64,
    pub(crate) down: i64,
    pub(crate) uncertain_up: i64,
    pub(crate) uncertain_down: i64,
}

impl Sums {
    /// Reads a row with these columns.
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            flows: row.get("flows")?,
            requests: row.get("requests")?,
            up: row.get("up")?,
            down: row.get("down")?,
            uncertain_up: row.get("uncertain_up")?,
            uncertain_down: row.get("uncertain_down")?,
        })
    }

    pub(crate) fn add(&mut self, other: &Sums) {
        *self = Self {
            flows: self.flows.saturating_add(other.flows),
            requests: self.requests.saturating_add(other.requests),
            up: self.up.saturating_add(other.up),
            down: self.down.saturating_add(other.down),
            uncertain_up: self.uncertain_up.saturating_add(other.uncertain_up),
            uncertain_down: self.uncertain_down.saturating_add(other.uncertain_down),
        };
    }

    /// These sums without `part`; `None` if that has more, or one of both is not known.
    pub(super) fn without(&self, part: &Sums) -> Option<Sums> {
        let less = |whole: i64, part: i64| match whole.checked_sub(part) {
            Some(less @ 0..) if whole < i64::MAX => Some(less),
            _ => None,
        };
        Some(Self {
            flows: less(self.flows, part.flows)?,
            requests: less(self.requests, part.requests)?,
            up: less(self.up, part.up)?,
            down: less(self.down, part.down)?,
            uncertain_up: less(self.uncertain_up, part.uncertain_up)?,
            uncertain_down: less(self.uncertain_down, part.uncertain_down)?,
        })
    }

    fn values(&self) -> [ValueRef<'static>; 6] {
        let Self { flows, requests, up, down, uncertain_up, uncertain_down } = *self;
        [flows, requests, up, down, uncertain_up, uncertain_down].map(ValueRef::Integer)
    }
}

/// A table whose rows are a key, sums, and the checksum.
pub(crate) struct SumTable {
    name: &'static str,
    select: &'static str,
    replace: &'static str,
}

/// A rollup by the column `unit`, account, class and set.
macro_rules! rollup {
    ($name:literal, $unit:literal) => {
        SumTable {
            name: $name,
            select: concat!(
                "SELECT * FROM ",
                $name,
                " WHERE ",
                $unit,
                " = ?1 AND account = ?2 AND class = ?3
                   AND set_number = ?4"
            ),
            replace: concat!(
                "INSERT OR REPLACE INTO ",
                $name,
                " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
            ),
        }
    };
}

const ROLLUP_QUARTER: SumTable = rollup!("rollup_quarter", "quarter");
const ROLLUP_DAY: SumTable = rollup!("rollup_day", "day");
const ROLLUP_MONTH: SumTable = rollup!("rollup_month", "month");

const TOTAL_QUARTER: SumTable = SumTable {
    name: "total_quarter",
    select: "SELECT * FROM total_quarter WHERE quarter = ?1 AND class = ?2 AND set_number = ?3",
    replace: "INSERT OR REPLACE INTO total_quarter VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
};

pub(crate) const AGGREGATE: SumTable = SumTable {
    name: "aggregate",
    select: "SELECT * FROM aggregate WHERE quarter = ?1 AND account = ?2 AND user = ?3 AND class = ?4
       AND set_number = ?5 AND host = ?6",
    replace: "INSERT OR REPLACE INTO aggregate
       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
};

impl SumTable {
    /// Adds `sums` to the row with `key`.
    pub(crate) fn add(
        &self,
        connection: &Connection,
        key: &[ValueRef<'_>],
        sums: &Sums,
    ) -> rusqlite::Result<()> {
        let mut select = connection.prepare_cached(self.select)?;
        for (parameter, value) in (1..).zip(key) {
            select.raw_bind_parameter(parameter, ToSqlOutput::Borrowed(*value))?;
        }
        let mut total = Sums::default();
        let mut rows = select.raw_query();
        if let Some(row) = rows.next()? {
            checksum::check(row, self.name)?;
            total = Sums::read(row)?;
        }
        drop(rows);
        total.add(sums);
        let mut values = key.to_vec();
        values.extend(total.values());
        checksum::put(connection, self.replace, &values)
    }
}

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
        type Units<'k, 'a> = BTreeMap<(i64, &'k SumKey<'a>), Sums>;
        let (mut days, mut months): (Units<'_, '_>, Units<'_, '_>) = Default::default();
        let mut totals: BTreeMap<(i64, &str, i64), Sums> = BTreeMap::new();
        for ((quarter, key), sums) in &self.quarters {
            ROLLUP_QUARTER.add(connection, &key.values(*quarter), sums)?;
            days.entry((quarter / DAY_QUARTERS, key)).or_default().add(sums);
            months.entry((Month::of_quarter(*quarter).number(), key)).or_default().add(sums);
            totals.entry((*quarter, &key.class, key.set)).or_default().add(sums);
        }
        for ((day, key), sums) in &days {
            ROLLUP_DAY.add(connection, &key.values(*day), sums)?;
        }
        for ((month, key), sums) in &months {
            ROLLUP_MONTH.add(connection, &key.values(*month), sums)?;
        }
        for ((quarter, class, set), sums) in &totals {
            let class = ValueRef::Text(class.as_bytes());
            TOTAL_QUARTER.add(
                connection,
                &[ValueRef::Integer(*quarter), class, ValueRef::Integer(*set)],
                sums,
            )?;
        }
        self.quarters.clear();
        Ok(())
    }
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
