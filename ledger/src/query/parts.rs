//! Sums by port and protocol, which the parts of a flow do not have.
//!
//! Guarantees: what a flow moved before its last hour counts under the port and protocol of its row,
//! whichever month has that row. Memory is bounded by the number of flows that lasted over the end of a
//! quarter-hour.

use std::collections::HashMap;

use rusqlite::{Connection, Row as SqlRow};

use super::{Filter, GroupBy, Groups, QueryError, Usage, Window, condition};
use crate::database::details::DetailKind;
use crate::database::month::Month;

/// A flow's id as the database stores it.
type Id = [u8; 16];

/// A port and a protocol, as texts.
type PortProtocol = (String, String);

/// The port and protocol of each flow with parts.
#[derive(Default)]
pub(super) struct PortProtocols(HashMap<Id, PortProtocol>);

impl Usage {
    /// Reads the port and protocol of the flows with parts in `window`, which begins in `first`.
    pub(super) fn port_protocols(
        &self,
        filter: &Filter,
        window: Window,
        first: Month,
    ) -> Result<PortProtocols, QueryError> {
        let mut port_protocols = PortProtocols::default();
        let months = self.months()?;
        for (month, _) in months.range(first..) {
            let Some(file) = self.month(*month)? else { continue };
            if month.beginning_ns() <= window.last_ns {
                filter.select(&file, &self.parts(&file, "")?, (&self.registry, window), |row| {
                    port_protocols.0.entry(row.get(0)?).or_default();
                    Ok(())
                })?;
            }
            let flows = self.details(&file, |kind| kind == DetailKind::Flow)?;
            port_protocols.learn(&file, &format!("SELECT id, port, protocol FROM ({flows})"))?;
        }
        port_protocols.learn(&self.connection, "SELECT id, port, protocol FROM live")?;
        Ok(port_protocols)
    }

    /// Adds the parts in a month's file.
    pub(super) fn add_parts(
        &self,
        file: &Connection,
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        port_protocols: &PortProtocols,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let columns: String =
            keys.iter().map(|key| format!(", {}", self.expression(*key, "at_ns"))).collect();
        filter.select(file, &self.parts(file, &columns)?, (&self.registry, window), |row| {
            let unknown = PortProtocol::default();
            let (port, protocol) = port_protocols.0.get(&row.get::<_, Id>(0)?).unwrap_or(&unknown);
            let key = |(index, key): (usize, &GroupBy)| match key {
                GroupBy::Port => Ok(port.clone()),
                GroupBy::Protocol => Ok(protocol.clone()),
                key => groups.key_text(*key, row.get_ref(index + 3)?),
            };
            let keys = keys.iter().enumerate().map(key).collect::<rusqlite::Result<Vec<String>>>()?;
            groups.sum(keys, [0, 0, 0, row.get(1)?, row.get(2)?, 0, 0])
        })
    }

    fn parts(&self, file: &Connection, columns: &str) -> Result<String, QueryError> {
        let parts = self.details(file, |kind| kind == DetailKind::Part)?;
        Ok(format!("SELECT id, up, down {columns} FROM ({parts}) WHERE {}", condition("at_ns")))
    }
}

impl PortProtocols {
    /// Stores port and protocol from the rows of `select`, of flows that have parts.
    fn learn(&mut self, from: &Connection, select: &str) -> Result<(), QueryError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut select = from.prepare(select)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(entry) = self.0.get_mut(&row.get::<_, Id>(0)?) {
                *entry = port_protocol(row)?;
            }
        }
        Ok(())
    }
}

fn port_protocol(row: &SqlRow<'_>) -> rusqlite::Result<PortProtocol> {
    Ok((row.get::<_, i64>(1)?.to_string(), row.get(2)?))
}
