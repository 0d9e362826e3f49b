//! Sums over any span, from the details of its months and from the flows that go on.
//!
//! Promises: a file that is ahead of `ledger.db`, whose commit comes later, is read as far as that has come.
//! Leaves to others: which questions the rollups answer.

use rusqlite::{Connection, params};

use super::{Filter, GroupBy, Groups, QueryError, Usage, Window, key};
use crate::record::Class;
use crate::sink::month::{HOUR_NS, Month};

impl Usage {
    /// The months whose details would be needed and are gone, wholly or in part.
    pub(super) fn add_details(
        &self,
        filter: &Filter,
        group: Option<GroupBy>,
        window: Window,
        groups: &mut Groups,
    ) -> Result<Vec<Month>, QueryError> {
        let mut missing = Vec::new();
        for (month, dropped) in self.months()? {
            if month.last_ns() < window.since_ns || month.beginning_ns() > window.last_ns {
                continue;
            }
            let file = self.month(month)?;
            if dropped || file.is_none() {
                missing.push(month);
            }
            if let Some(file) = file {
                add(&file, &self.details(), filter, group, window, groups)?;
            }
        }
        add(&self.connection, LIVE, filter, group, window, groups)?;
        Ok(missing)
    }

    /// What is in a month's file, in the columns of [`LIVE`].
    fn details(&self) -> String {
        let visible = self.is_visible();
        let at_ns = format!("hour * {HOUR_NS} + {}", HOUR_NS - 1);
        format!(
            "SELECT closed_ns AS at_ns, user, host, class, 1 AS flows, 0 AS live, up - up_before AS up,
                    down - down_before AS down, uncertain_up, uncertain_down FROM flow WHERE {visible}
             UNION ALL
             SELECT {at_ns}, user, host, class, 0, 0, up, down, 0, 0 FROM part WHERE {visible}
             UNION ALL
             SELECT {at_ns}, user, host, class, flows, 0, up, down, uncertain_up, uncertain_down
             FROM aggregate"
        )
    }
}

const LIVE: &str = "SELECT counted_ns AS at_ns, user, host, class, 0 AS flows, 1 AS live,
     upstream_tx - up_before AS up, client_tx - down_before AS down, 0 AS uncertain_up, 0 AS uncertain_down
     FROM live";

fn add(
    connection: &Connection,
    items: &str,
    filter: &Filter,
    group: Option<GroupBy>,
    window: Window,
    groups: &mut Groups,
) -> Result<(), QueryError> {
    let sql = format!(
        "SELECT {key}, sum(flows), sum(live), sum(up), sum(down), sum(uncertain_up), sum(uncertain_down)
         FROM ({items}) WHERE at_ns BETWEEN ?1 AND ?2
           AND (?3 IS NULL OR user = ?3) AND (?4 IS NULL OR host = ?4) AND (?5 IS NULL OR class = ?5)
         GROUP BY 1",
        key = key(group, "at_ns")
    );
    let mut select = connection.prepare(&sql)?;
    let class = filter.class.map(Class::as_str);
    let parameters = params![window.since_ns, window.last_ns, filter.user, filter.host, class];
    let mut rows = select.query(parameters)?;
    while let Some(row) = rows.next()? {
        groups.add(row)?;
    }
    Ok(())
}
