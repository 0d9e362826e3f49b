//! Tables of sums: the rollups by quarter-hour, day and month, the sums by host, and those of flows beyond a
//! month's row limit.
//!
//! Guarantees: a damaged row is never added to. Sums end at 2^63 - 1, which stands for any larger sum: one
//! faulty record must not block all later ones.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row};

use super::checksum;

/// Quarter-hours of a day.
pub(crate) const DAY_QUARTERS: i64 = 96;

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

    pub(super) fn values(&self) -> [ValueRef<'static>; 6] {
        let Self { flows, requests, up, down, uncertain_up, uncertain_down } = *self;
        [flows, requests, up, down, uncertain_up, uncertain_down].map(ValueRef::Integer)
    }
}

/// A table whose rows are a key, sums, and the checksum.
pub(crate) struct SumTable {
    name: &'static str,
    select: &'static str,
    pub(super) replace: &'static str,
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

pub(super) const ROLLUP_QUARTER: SumTable = rollup!("rollup_quarter", "quarter");
pub(super) const ROLLUP_DAY: SumTable = rollup!("rollup_day", "day");
pub(super) const ROLLUP_MONTH: SumTable = rollup!("rollup_month", "month");

/// A rollup by the column `unit`, class and set.
macro_rules! total {
    ($name:literal, $unit:literal) => {
        SumTable {
            name: $name,
            select: concat!(
                "SELECT * FROM ",
                $name,
                " WHERE ",
                $unit,
                " = ?1 AND class = ?2 AND set_number = ?3"
            ),
            replace: concat!(
                "INSERT OR REPLACE INTO ",
                $name,
                " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
            ),
        }
    };
}

pub(super) const TOTAL_QUARTER: SumTable = total!("total_quarter", "quarter");
pub(super) const TOTAL_DAY: SumTable = total!("total_day", "day");
pub(super) const TOTAL_MONTH: SumTable = total!("total_month", "month");

pub(crate) const AGGREGATE: SumTable = SumTable {
    name: "aggregate",
    select: "SELECT * FROM aggregate WHERE quarter = ?1 AND account = ?2 AND user = ?3 AND class = ?4
       AND set_number = ?5 AND host = ?6",
    replace: "INSERT OR REPLACE INTO aggregate
       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
};

/// The sums by host in a month's file (`host_sums`).
pub(crate) const HOST_DAY: SumTable = SumTable {
    name: "host_day",
    select: "SELECT * FROM host_day WHERE day = ?1 AND account = ?2 AND host = ?3 AND class = ?4
       AND set_number = ?5",
    replace: "INSERT OR REPLACE INTO host_day VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
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
        self.put(connection, key, &total)
    }

    /// Stores `sums` as the row with `key`.
    pub(super) fn put(
        &self,
        connection: &Connection,
        key: &[ValueRef<'_>],
        sums: &Sums,
    ) -> rusqlite::Result<()> {
        let mut values = key.to_vec();
        values.extend(sums.values());
        checksum::put(connection, self.replace, &values)
    }
}
