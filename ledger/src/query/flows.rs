//! Flows one by one.
//!
//! Promises: flows that go on first, then those that are over, the last recorded first. Leaves to others:
//! sums; a flow's bytes here are all that it moved, in whichever hours.

use rusqlite::{Connection, Row as SqlRow, params};
use sys::clock::WallNanos;

use super::{Filter, QueryError, Usage, Window};
use crate::record::Class;
use crate::sink::checksum;

/// One flow.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FlowRow {
    /// Unique for ever.
    pub id: u128,
    /// When its connection was accepted.
    pub opened: WallNanos,
    /// When it closed, or was last counted if it goes on.
    pub closed: WallNanos,
    /// Whether it goes on.
    pub live: bool,
    /// The user's name.
    pub user: String,
    /// The host as requested.
    pub host: String,
    /// The port as requested.
    pub port: u16,
    /// The address that was dialled, if it came to that.
    pub address: Option<String>,
    /// The client's end of its connection.
    pub client: String,
    /// `external` or `internal`.
    pub class: String,
    /// How the client asked.
    pub protocol: String,
    /// The rule that decided.
    pub rule: String,
    /// Why it ended; empty while it goes on.
    pub reason: String,
    /// Bytes toward the upstream.
    pub up: u64,
    /// Bytes toward the client.
    pub down: u64,
    /// Bytes toward the upstream of which is not known whether they were sent; not in `up`.
    pub uncertain_up: u64,
    /// Bytes toward the client of which is not known whether they were sent; not in `down`.
    pub uncertain_down: u64,
}

impl Usage {
    /// At most `limit` flows that `filter` admits: those that closed, or were last counted, in its span. What
    /// a month had beyond the number of rows that it may have, and what is too old, was only summed up.
    pub fn flows(&self, filter: &Filter, limit: usize) -> Result<Vec<FlowRow>, QueryError> {
        let window = filter.window();
        let mut flows = Vec::new();
        self.list(&self.connection, LIVE, filter, window, limit, &mut flows)?;
        let closed = format!("{CLOSED} WHERE {} AND", self.is_visible());
        for (month, _) in self.months()?.into_iter().rev() {
            let within = month.last_ns() >= window.since_ns && month.beginning_ns() <= window.last_ns;
            if flows.len() < limit
                && within
                && let Some(file) = self.month(month)?
            {
                self.list(&file, &closed, filter, window, limit, &mut flows)?;
            }
        }
        Ok(flows)
    }

    /// Adds at most as many flows as `limit` leaves, of those that `items` selects.
    fn list(
        &self,
        connection: &Connection,
        items: &str,
        filter: &Filter,
        window: Window,
        limit: usize,
        flows: &mut Vec<FlowRow>,
    ) -> Result<(), QueryError> {
        let sql = format!(
            "{items} at_ns BETWEEN ?1 AND ?2
               AND (?3 IS NULL OR user = ?3) AND (?4 IS NULL OR host = ?4) AND (?5 IS NULL OR class = ?5)
             ORDER BY recorded DESC LIMIT ?6"
        );
        let remaining = i64::try_from(limit.saturating_sub(flows.len())).unwrap_or(i64::MAX);
        let class = filter.class.map(Class::as_str);
        let mut select = connection.prepare(&sql)?;
        let parameters = params![window.since_ns, window.last_ns, filter.user, filter.host, class, remaining];
        let mut rows = select.query(parameters)?;
        while let Some(row) = rows.next()? {
            if self.row_checks.admits(checksum::is_intact(row)?) {
                flows.push(flow(row)?);
            }
        }
        Ok(())
    }
}

const LIVE: &str = "SELECT *, counted_ns AS at_ns, upstream_tx AS up, client_tx AS down, '' AS reason,
     TRUE AS live, opened_ns AS recorded FROM live WHERE";
const CLOSED: &str = "SELECT *, closed_ns AS at_ns, FALSE AS live, rowid AS recorded FROM flow";

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
