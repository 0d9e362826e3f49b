//! Lists flows one by one.

use rusqlite::{Connection, Row as SqlRow, params};
use sys::clock::WallNanos;

use super::{QueryError, SqliteUsage};
use crate::database::checksum;
use crate::database::details::{DetailKind, DetailTables};
use crate::query::window::Window;
use crate::query::{Filter, FlowRow};
use crate::record::Class;

impl SqliteUsage {
    /// At most `limit` flows that `filter` admits. Flows beyond a month's row limit, and those of dropped
    /// months, are kept as sums only and not listed.
    pub(super) fn list_flows(&self, filter: &Filter, limit: usize) -> Result<Vec<FlowRow>, QueryError> {
        let window = filter.window();
        let mut flows = Vec::new();
        let live = "SELECT *, counted_ns AS at_ns, upstream_tx AS up, client_tx AS down, '' AS reason,
             TRUE AS live, opened_ns AS recorded FROM live WHERE";
        self.list(&self.connection, (live, "account", "set_number"), filter, window, limit, &mut flows)?;
        for (month, _) in self.months()?.into_iter().rev() {
            let within = month.last_ns() >= window.since_ns && month.beginning_ns() <= window.last_ns;
            if flows.len() < limit
                && within
                && let Some(file) = self.month(month)?
            {
                for table in DetailTables::read(&file)?.of(DetailKind::Flow) {
                    let (name, visible) = (table.name, self.is_visible());
                    let closed = format!(
                        "SELECT *, closed_ns AS at_ns, FALSE AS live, rowid AS recorded FROM {name}
                         WHERE {visible} AND"
                    );
                    let (account, set) = match table.is_hourly {
                        true => ("account_of(user)", "0"),
                        false => ("account", "set_number"),
                    };
                    self.list(&file, (&closed, account, set), filter, window, limit, &mut flows)?;
                }
            }
        }
        Ok(flows)
    }

    /// Appends flows that `items` selects, up to `limit` in all.
    fn list(
        &self,
        connection: &Connection,
        (items, account, set): (&str, &str, &str),
        filter: &Filter,
        window: Window,
        limit: usize,
        flows: &mut Vec<FlowRow>,
    ) -> Result<(), QueryError> {
        let is_member = match filter.members(&self.registry) {
            Some(members) => {
                let members: Vec<String> = members.iter().map(ToString::to_string).collect();
                format!("{account} IN ({})", members.join(", "))
            }
            None => "TRUE".to_owned(),
        };
        let sql = format!(
            "{items} at_ns BETWEEN ?1 AND ?2
               AND (?3 IS NULL OR {account} = ?3) AND (?4 IS NULL OR host = ?4) AND (?5 IS NULL OR class = ?5)
               AND (?6 IS NULL OR {set} = ?6) AND {is_member}
             ORDER BY recorded DESC LIMIT ?7"
        );
        let remaining = i64::try_from(limit.saturating_sub(flows.len())).unwrap_or(i64::MAX);
        let class = filter.class.map(Class::as_str);
        let mut select = connection.prepare(&sql)?;
        let account = filter.account(&self.registry);
        let (span, set) = ((window.since_ns, window.last_ns), filter.set(&self.registry));
        let parameters = params![span.0, span.1, account, filter.host, class, set, remaining];
        let mut rows = select.query(parameters)?;
        let accounts = &self.registry.accounts;
        while let Some(row) = rows.next()? {
            if self.row_checks.admits(checksum::is_intact(row)?) {
                let mut flow = flow(row)?;
                // A version without accounts had names only.
                let account = row.get::<_, i64>("account").ok().or_else(|| accounts.find(&flow.user));
                flow.user = account.map_or(flow.user, |account| accounts.name(account));
                flows.push(flow);
            }
        }
        Ok(())
    }
}

fn flow(row: &SqlRow<'_>) -> rusqlite::Result<FlowRow> {
    let count = |name| row.get::<_, i64>(name).map(|count| u64::try_from(count).unwrap_or(0));
    Ok(FlowRow {
        id: u128::from_be_bytes(row.get("id")?),
        opened: WallNanos(count("opened_ns")?),
        closed: WallNanos(count("at_ns")?),
        live: row.get("live")?,
        user: row.get("user")?,
        host: row.get("host")?,
        port: row.get("port")?,
        address: row.get("address")?,
        client: row.get("client")?,
        class: row.get("class")?,
        protocol: row.get("protocol")?,
        rule: row.get("rule")?,
        reason: row.get("reason")?,
        up: count("up")?,
        down: count("down")?,
        uncertain_up: count("uncertain_up")?,
        uncertain_down: count("uncertain_down")?,
    })
}
