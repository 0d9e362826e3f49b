//! Sums over whole quarter-hours, from the rollups.
//!
//! Guarantees: the same sums as from details.
//!
//! Whole months and days in the window are read from their own rollups, unless a key is finer:
//!
//! ```text
//!   quarter-hours | days |        months        | days | quarter-hours
//! ```

use rusqlite::params;

use super::row_checks::RowChecks;
use super::{Filter, GroupBy, Groups, QueryError, Usage, Window, positions};
use crate::database::details;
use crate::database::month::{HOUR_NS, Month, QUARTER_NS};
use crate::record::Class;

const DAY_NS: i64 = 24 * HOUR_NS;

/// A table of rollups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unit {
    Quarter,
    Day,
    Month,
}

impl Window {
    /// The largest part of the window that consists of whole quarter-hours, if there is any.
    pub(super) fn whole_quarters(self) -> Option<Window> {
        self.whole(QUARTER_NS)
    }

    /// The largest part that consists of whole units of `unit_ns`.
    fn whole(self, unit_ns: i64) -> Option<Window> {
        let first = self.since_ns.checked_add(unit_ns - 1)? / unit_ns;
        // The database's last moment counts as the end of a unit too.
        let end = match self.last_ns {
            i64::MAX => return Some(Window { since_ns: first * unit_ns, ..self }),
            last => (last + 1) / unit_ns,
        };
        (first < end).then_some(Window { since_ns: first * unit_ns, last_ns: end * unit_ns - 1 })
    }

    /// The largest part that consists of whole months.
    fn whole_months(self) -> Option<Window> {
        let mut first = Month::containing(self.since_ns);
        if first.beginning_ns() < self.since_ns {
            first = first.next()?;
        }
        let mut last = Month::containing(self.last_ns);
        if last.last_ns() > self.last_ns {
            last = Month::containing(last.beginning_ns().checked_sub(1).filter(|ns| *ns >= 0)?);
        }
        let whole = Window { since_ns: first.beginning_ns(), last_ns: last.last_ns() };
        (first <= last && whole.since_ns >= self.since_ns).then_some(whole)
    }

    /// The parts of the window before and after `inner`.
    pub(super) fn without(self, inner: Window) -> impl Iterator<Item = Window> {
        let before = (self.since_ns < inner.since_ns).then(|| Window { last_ns: inner.since_ns - 1, ..self });
        let after = (inner.last_ns < self.last_ns).then(|| Window { since_ns: inner.last_ns + 1, ..self });
        before.into_iter().chain(after)
    }

    /// The tables that have the sums of this window, which consists of whole quarter-hours, and their parts
    /// of it. `coarsest`: the longest unit that the keys permit.
    fn units(self, coarsest: Unit) -> Vec<(Unit, Window)> {
        let (inner, finer) = match coarsest {
            Unit::Quarter => return vec![(Unit::Quarter, self)],
            Unit::Day => (self.whole(DAY_NS), Unit::Quarter),
            Unit::Month => (self.whole_months(), Unit::Day),
        };
        let Some(inner) = inner else { return self.units(finer) };
        let mut units = vec![(coarsest, inner)];
        self.without(inner).for_each(|rest| units.extend(rest.units(finer)));
        units
    }
}

impl Usage {
    /// Adds the sums of a window of whole quarter-hours.
    pub(super) fn add_rollups(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let needs_account = filter.user.is_some() || keys.contains(&GroupBy::User);
        let coarsest = match () {
            () if !needs_account
                || keys.iter().any(|key| matches!(key, GroupBy::Quarter | GroupBy::Hour)) =>
            {
                Unit::Quarter
            }
            () if keys.contains(&GroupBy::Day) => Unit::Day,
            () => Unit::Month,
        };
        for (unit, part) in self.parts_by_unit(keys, window, coarsest)? {
            let (table, column, start_ns, first, last) = match unit {
                Unit::Quarter => {
                    let table = if needs_account { "rollup_quarter" } else { "total_quarter" };
                    let start_ns = format!("(quarter * {QUARTER_NS})");
                    (table, "quarter", start_ns, part.since_ns / QUARTER_NS, part.last_ns / QUARTER_NS)
                }
                Unit::Day => {
                    let start_ns = format!("(day * {DAY_NS})");
                    ("rollup_day", "day", start_ns, part.since_ns / DAY_NS, part.last_ns / DAY_NS)
                }
                Unit::Month => {
                    let number = |ns| Month::containing(ns).number();
                    let start_ns =
                        "(strftime('%s', printf('%d-%02d-01', month / 100, month % 100)) * 1000000000)";
                    (
                        "rollup_month",
                        "month",
                        start_ns.to_owned(),
                        number(part.since_ns),
                        number(part.last_ns),
                    )
                }
            };
            let (key_sql, count) = self.expressions(keys, &start_ns);
            let is_intact = RowChecks::condition(&self.connection, table)?;
            let account = if needs_account { "(?3 IS NULL OR account = ?3)" } else { "?3 IS NULL" };
            let sums = format!(
                "SELECT {key_sql}, sum(flows), 0, sum(requests), sum(up), sum(down),
                        sum(uncertain_up), sum(uncertain_down)
                 FROM {table} WHERE {is_intact} AND {column} BETWEEN ?1 AND ?2
                   AND {account} AND (?4 IS NULL OR class = ?4)
                   AND (?5 IS NULL OR set_number = ?5) GROUP BY {}",
                positions(count)
            );
            self.add_sums(&sums, (first, last), filter, groups)?;
        }
        self.add_open(filter, keys, window, groups)
    }

    /// The tables that have the sums of this window, and their parts of it. A part lies within one day or one
    /// month of the zone, if the keys have that.
    fn parts_by_unit(
        &self,
        keys: &[GroupBy],
        window: Window,
        coarsest: Unit,
    ) -> Result<Vec<(Unit, Window)>, QueryError> {
        if coarsest == Unit::Quarter {
            return Ok(window.units(coarsest));
        }
        let span = "SELECT min(quarter), max(quarter) FROM total_quarter";
        let span: (Option<i64>, Option<i64>) =
            self.connection.query_row(span, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(first), Some(last)) = span else { return Ok(Vec::new()) };
        let since_ns = window.since_ns.max(first.saturating_mul(QUARTER_NS));
        let last_ns = window.last_ns.min(last.saturating_add(1).saturating_mul(QUARTER_NS) - 1);
        let periods = self.zone.periods(keys, Window { since_ns, last_ns });
        Ok(periods.into_iter().flat_map(|period| period.units(coarsest)).collect())
    }

    /// Counts the open flows, whose bytes are in the rollups.
    fn add_open(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let (key_sql, count) = self.expressions(keys, "at_ns");
        let sums = format!(
            "SELECT {key_sql}, 0, count(*), 0, 0, 0, 0, 0 FROM ({}) WHERE at_ns BETWEEN ?1 AND ?2
               AND (?3 IS NULL OR account = ?3) AND (?4 IS NULL OR class = ?4)
               AND (?5 IS NULL OR set_number = ?5) GROUP BY {}",
            details::select_live(&RowChecks::condition(&self.connection, "live")?),
            positions(count)
        );
        self.add_sums(&sums, (window.since_ns, window.last_ns), filter, groups)
    }

    fn add_sums(
        &self,
        sql: &str,
        span: (i64, i64),
        filter: &Filter,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let (account, set) = (filter.account(&self.registry), filter.set(&self.registry));
        let mut select = self.connection.prepare(sql)?;
        let class = filter.class.map(Class::as_str);
        let mut rows = select.query(params![span.0, span.1, account, class, set])?;
        while let Some(row) = rows.next()? {
            groups.add(row)?;
        }
        Ok(())
    }
}
