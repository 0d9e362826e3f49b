//! Sums over any span, from the details of its months and from open flows.
//!
//! Guarantees: of a file that is ahead of `ledger.db`, which commits later, only rows that `ledger.db` has
//! are read.

use rusqlite::Connection;

use super::row_checks::RowChecks;
use super::{Filter, GroupBy, Groups, QueryError, Usage, Window, condition, positions};
use crate::database::details::{self, DetailKind, DetailTables};
use crate::database::month::Month;

impl Usage {
    /// Adds the details in `window`; returns the months whose details are missing, wholly or in part.
    pub(super) fn add_details(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        groups: &mut Groups<'_>,
    ) -> Result<Vec<Month>, QueryError> {
        let mut missing = Vec::new();
        let mut months = self.months()?;
        months
            .retain(|month, _| month.last_ns() >= window.since_ns && month.beginning_ns() <= window.last_ns);
        let needs_ports = keys.iter().any(|key| matches!(key, GroupBy::Port | GroupBy::Protocol));
        let port_protocols = match months.keys().next() {
            Some(first) if needs_ports => Some(self.port_protocols(filter, window, *first)?),
            _ => None,
        };
        for (month, dropped) in months {
            let file = self.month(month)?;
            if dropped || file.is_none() {
                missing.push(month);
            }
            let Some(file) = file else { continue };
            let details = self.details(&file, |kind| port_protocols.is_none() || kind != DetailKind::Part)?;
            self.add(&file, &details, filter, keys, window, groups)?;
            if let Some(port_protocols) = &port_protocols {
                self.add_parts(&file, filter, keys, window, port_protocols, groups)?;
            }
        }
        let live = details::select_live(&RowChecks::condition(&self.connection, "live")?);
        self.add(&self.connection, &live, filter, keys, window, groups)?;
        Ok(missing)
    }

    /// The visible rows of a month's file, of the kinds that `is_wanted` admits.
    pub(super) fn details(
        &self,
        file: &Connection,
        is_wanted: impl Fn(DetailKind) -> bool,
    ) -> Result<String, QueryError> {
        let mut selects = Vec::new();
        for table in DetailTables::read(file)?.all().filter(|table| is_wanted(table.kind)) {
            let is_intact = RowChecks::condition(file, table.name)?;
            let condition = match table.kind {
                DetailKind::Aggregate => is_intact,
                _ => format!("{} AND {is_intact}", self.is_visible()),
            };
            selects.push(table.select(&condition));
        }
        Ok(selects.join(" UNION ALL "))
    }

    fn add(
        &self,
        connection: &Connection,
        items: &str,
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let (keys, count) = self.expressions(keys, "at_ns");
        let sql = format!(
            "SELECT {keys}, sum(flows), sum(live), sum(requests), sum(up), sum(down),
                    sum(uncertain_up), sum(uncertain_down)
             FROM ({items}) WHERE {} GROUP BY {}",
            condition("at_ns"),
            positions(count)
        );
        filter.select(connection, &sql, (&self.registry, window), |row| groups.add(row))
    }
}
