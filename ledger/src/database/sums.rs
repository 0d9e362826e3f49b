//! Tables of sums: the rollups by hour and by day, and the sums of flows beyond a month's row limit.
//!
//! Guarantees: what is added in memory reaches a table as one row for each key, in the order of the keys. A
//! damaged row is never added to. Sums end at 2^63 - 1, which stands for any larger sum: one faulty record
//! must not block all later ones.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row};

use super::checksum;

/// Hours of a day.
const DAY_HOURS: i64 = 24;

/// The sums of several flows. No field is negative.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Sums {
    pub(crate) flows: i64,
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
            up: row.get("up")?,
            down: row.get("down")?,
            uncertain_up: row.get("uncertain_up")?,
            uncertain_down: row.get("uncertain_down")?,
        })
    }

    pub(crate) fn add(&mut self, other: &Sums) {
        *self = Self {
            flows: self.flows.saturating_add(other.flows),
            up: self.up.saturating_add(other.up),
            down: self.down.saturating_add(other.down),
            uncertain_up: self.uncertain_up.saturating_add(other.uncertain_up),
            uncertain_down: self.uncertain_down.saturating_add(other.uncertain_down),
        };
    }

    fn values(&self) -> [ValueRef<'static>; 5] {
        [self.flows, self.up, self.down, self.uncertain_up, self.uncertain_down].map(ValueRef::Integer)
    }
}

/// A table whose rows are a key, sums, and the checksum.
pub(crate) struct SumTable {
    name: &'static str,
    select: &'static str,
    replace: &'static str,
}

pub(crate) const ROLLUP_HOUR: SumTable = SumTable {
    name: "rollup_hour",
    select: "SELECT * FROM rollup_hour WHERE hour = ?1 AND user = ?2 AND class = ?3",
    replace: "INSERT OR REPLACE INTO rollup_hour VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
};

pub(crate) const ROLLUP_DAY: SumTable = SumTable {
    name: "rollup_day",
    select: "SELECT * FROM rollup_day WHERE day = ?1 AND user = ?2 AND class = ?3",
    replace: "INSERT OR REPLACE INTO rollup_day VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
};

pub(crate) const AGGREGATE: SumTable = SumTable {
    name: "aggregate",
    select: "SELECT * FROM aggregate WHERE hour = ?1 AND user = ?2 AND class = ?3 AND host = ?4",
    replace: "INSERT OR REPLACE INTO aggregate VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
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

/// Changes that are to be added to the rollups.
#[derive(Default)]
pub(crate) struct Rollups<'a> {
    /// By hour, user and class.
    hours: BTreeMap<(i64, Cow<'a, str>, Cow<'a, str>), Sums>,
}

impl<'a> Rollups<'a> {
    pub(crate) fn add(
        &mut self,
        hour: i64,
        user: impl Into<Cow<'a, str>>,
        class: impl Into<Cow<'a, str>>,
        sums: &Sums,
    ) {
        self.hours.entry((hour, user.into(), class.into())).or_default().add(sums);
    }

    /// The number of rows that a write would change.
    pub(crate) fn len(&self) -> usize {
        self.hours.len()
    }

    /// Adds everything to the tables of `connection`, and becomes empty.
    pub(crate) fn write(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut days: BTreeMap<(i64, &str, &str), Sums> = BTreeMap::new();
        for ((hour, user, class), sums) in &self.hours {
            ROLLUP_HOUR.add(connection, &key(*hour, user, class), sums)?;
            days.entry((hour / DAY_HOURS, user, class)).or_default().add(sums);
        }
        for ((day, user, class), sums) in &days {
            ROLLUP_DAY.add(connection, &key(*day, user, class), sums)?;
        }
        self.hours.clear();
        Ok(())
    }
}

fn key<'a>(time: i64, user: &'a str, class: &'a str) -> [ValueRef<'a>; 3] {
    [ValueRef::Integer(time), ValueRef::Text(user.as_bytes()), ValueRef::Text(class.as_bytes())]
}
