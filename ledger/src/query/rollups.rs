//! Sums over whole hours, from the rollups.
//!
//! Guarantees: the same sums as from details.

use rusqlite::params;

use super::row_checks::RowChecks;
use super::{Filter, GroupBy, Groups, QueryError, Usage, Window, expressions, positions};
use crate::database::month::HOUR_NS;
use crate::record::Class;

const DAY_NS: i64 = 24 * HOUR_NS;

impl Window {
    /// The largest part of the window that consists of whole hours, if there is any.
    pub(super) fn whole_hours(self) -> Option<Window> {
        let first = self.since_ns.checked_add(HOUR_NS - 1)? / HOUR_NS;
        // The database's last moment counts as the end of an hour too.
        let end = match self.last_ns {
            i64::MAX => return Some(Window { since_ns: first * HOUR_NS, ..self }),
            last => (last + 1) / HOUR_NS,
        };
        (first < end).then_some(Window { since_ns: first * HOUR_NS, last_ns: end * HOUR_NS - 1 })
    }

    /// The parts of the window before and after `inner`.
    pub(super) fn without(self, inner: Window) -> impl Iterator<Item = Window> {
        let before = (self.since_ns < inner.since_ns).then(|| Window { last_ns: inner.since_ns - 1, ..self });
        let after = (inner.last_ns < self.last_ns).then(|| Window { since_ns: inner.last_ns + 1, ..self });
        before.into_iter().chain(after)
    }

    /// Whether the window consists of whole days.
    fn is_whole_days(self) -> bool {
        let ends = self.last_ns == i64::MAX || (self.last_ns + 1) % DAY_NS == 0;
        self.since_ns % DAY_NS == 0 && ends
    }
}

impl Usage {
    pub(super) fn add_rollups(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        hours: Window,
        groups: &mut Groups,
    ) -> Result<(), QueryError> {
        let daily = hours.is_whole_days() && !keys.contains(&GroupBy::Hour);
        let (table, unit, unit_ns) =
            if daily { ("rollup_day", "day", DAY_NS) } else { ("rollup_hour", "hour", HOUR_NS) };
        let (key_sql, count) = expressions(keys, &format!("({unit} * {unit_ns})"));
        let sums = format!(
            "SELECT {key_sql}, sum(flows), 0, sum(up), sum(down), sum(uncertain_up), sum(uncertain_down)
             FROM {table} WHERE {} AND {unit} BETWEEN ?1 AND ?2
               AND (?3 IS NULL OR user = ?3) AND (?4 IS NULL OR class = ?4) GROUP BY {}",
            RowChecks::condition(&self.connection, table)?,
            positions(count)
        );
        let class = filter.class.map(Class::as_str);
        let span = (hours.since_ns / unit_ns, hours.last_ns / unit_ns);
        let mut select = self.connection.prepare(&sums)?;
        let mut rows = select.query(params![span.0, span.1, filter.user, class])?;
        while let Some(row) = rows.next()? {
            groups.add(row, count)?;
        }
        let live = format!(
            "SELECT {}, 0, count(*), 0, 0, 0, 0 FROM live WHERE {} AND counted_ns BETWEEN ?1 AND ?2
               AND (?3 IS NULL OR user = ?3) AND (?4 IS NULL OR class = ?4) GROUP BY {}",
            expressions(keys, "counted_ns").0,
            RowChecks::condition(&self.connection, "live")?,
            positions(count)
        );
        let mut select = self.connection.prepare(&live)?;
        let mut rows = select.query(params![hours.since_ns, hours.last_ns, filter.user, class])?;
        while let Some(row) = rows.next()? {
            groups.add(row, count)?;
        }
        Ok(())
    }
}
