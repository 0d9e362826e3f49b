//! Tables of sums: the rollups by quarter-hour, day and month, and the sums of flows beyond a month's row
//! limit.
//!
//! Guarantees: what is added in memory reaches a table as one row for each key, in the order of the keys. A
//! damaged row is never added to. Sums end at 2^63 - 1, which stands for any larger sum: one faulty record
//! must not block all later ones.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row};

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
