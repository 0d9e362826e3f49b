//! Sums over any span, from the details of its months and from the flows that go on.
//!
//! Promises: a file that is ahead of `ledger.db`, whose commit comes later, is read as far as that has come.
//! Leaves to others: which questions the rollups answer.

use rusqlite::Connection;

use super::{Filter, GroupBy, Groups, QueryError, Usage, Window, condition, expressions, positions};
use crate::sink::month::{HOUR_NS, Month};

impl Usage {
    /// The months whose details would be needed and are gone, wholly or in part.
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
        let asks_for_ways = keys.iter().any(|key| matches!(key, GroupBy::Port | GroupBy::Protocol));
        let ways = match months.keys().next() {
            Some(first) if asks_for_ways => Some(self.ways(filter, window, *first)?),
            _ => None,
        };
        for (month, dropped) in months {
            let file = self.month(month)?;
            if dropped || file.is_none() {
                missing.push(month);
            }
            let Some(file) = file else { continue };
            add(&file, &self.details(ways.is_none()), filter, keys, window, groups)?;
            if let Some(ways) = &ways {
                self.add_parts(&file, filter, keys, window, ways, groups)?;
            }
        }
        add(&self.connection, LIVE, filter, keys, window, groups)?;
        Ok(missing)
    }

    /// What is in a month's file, in the columns of [`LIVE`], with or without the parts of flows.
    fn details(&self, with_parts: bool) -> String {
        let visible = self.is_visible();
        let at_ns = format!("hour * {HOUR_NS} + {}", HOUR_NS - 1);
        let parts = if with_parts { &visible } else { "FALSE" };
        format!(
            "SELECT closed_ns AS at_ns, user, host, port, protocol, class, 1 AS flows, 0 AS live,
                    up - up_before AS up, down - down_before AS down, uncertain_up, uncertain_down
             FROM flow WHERE {visible}
             UNION ALL
             SELECT {at_ns}, user, host, '', '', class, 0, 0, up, down, 0, 0 FROM part WHERE {parts}
             UNION ALL
             SELECT {at_ns}, user, host, '', '', class, flows, 0, up, down, uncertain_up, uncertain_down
             FROM aggregate"
        )
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
