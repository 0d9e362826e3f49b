//! Sums over any span, from the details of its months and from open flows.
//!
//! Guarantees: of a file that is ahead of `ledger.db`, which commits later, only rows that `ledger.db` has
//! are read.

use rusqlite::Connection;

use super::row_checks::RowChecks;
use super::{Filter, GroupBy, Groups, QueryError, Usage, Window, condition, expressions, positions};
use crate::database::month::{HOUR_NS, Month};

impl Usage {
    /// Adds the details in `window`; returns the months whose details are missing, wholly or in part.
    pub(super) fn add_details(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        groups: &mut Groups,
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
            add(&file, &self.details(&file, port_protocols.is_none())?, filter, keys, window, groups)?;
            if let Some(port_protocols) = &port_protocols {
                self.add_parts(&file, filter, keys, window, port_protocols, groups)?;
            }
        }
        let live = format!("{LIVE} WHERE {}", RowChecks::condition(&self.connection, "live")?);
        add(&self.connection, &live, filter, keys, window, groups)?;
        Ok(missing)
    }

    /// The rows of a month's file in the columns of [`LIVE`], with or without the parts of flows.
    fn details(&self, file: &Connection, with_parts: bool) -> Result<String, QueryError> {
        let visible = self.is_visible();
        let is_intact = |table| RowChecks::condition(file, table);
        let (flow, part, aggregate) = (is_intact("flow")?, is_intact("part")?, is_intact("aggregate")?);
        let at_ns = format!("hour * {HOUR_NS} + {}", HOUR_NS - 1);
        let parts = if with_parts { format!("{visible} AND {part}") } else { "FALSE".to_owned() };
        Ok(format!(
            "SELECT closed_ns AS at_ns, user, host, port, protocol, class, 1 AS flows, 0 AS live,
                    up - up_before AS up, down - down_before AS down, uncertain_up, uncertain_down
             FROM flow WHERE {visible} AND {flow}
             UNION ALL
             SELECT {at_ns}, user, host, '', '', class, 0, 0, up, down, 0, 0 FROM part WHERE {parts}
             UNION ALL
             SELECT {at_ns}, user, host, '', '', class, flows, 0, up, down, uncertain_up, uncertain_down
             FROM aggregate WHERE {aggregate}"
        ))
    }
}

const LIVE: &str = "SELECT counted_ns AS at_ns, user, host, port, protocol, class, 0 AS flows, 1 AS live,
     upstream_tx - up_before AS up, client_tx - down_before AS down, 0 AS uncertain_up, 0 AS uncertain_down
     FROM live";

fn add(
    connection: &Connection,
    items: &str,
    filter: &Filter,
    keys: &[GroupBy],
    window: Window,
    groups: &mut Groups,
) -> Result<(), QueryError> {
    let (keys, count) = expressions(keys, "at_ns");
    let sql = format!(
        "SELECT {keys}, sum(flows), sum(live), sum(up), sum(down), sum(uncertain_up), sum(uncertain_down)
         FROM ({items}) WHERE {} GROUP BY {}",
        condition("at_ns"),
        positions(count)
    );
    filter.select(connection, &sql, window, |row| groups.add(row, count))
}
