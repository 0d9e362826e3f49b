//! Sums by port and protocol, which the parts of a flow do not have.
//!
//! Guarantees: what a flow moved before its last hour counts under the port and protocol of its row,
//! whichever month has that row. Memory is bounded by the number of flows that lasted over the end of a
//! quarter-hour.

use std::collections::HashMap;

use rusqlite::Row as SqlRow;

use super::details::MonthDetails;
use super::groups::{Item, Text};
use super::{Groups, QueryError, SqliteUsage, each};
use crate::database::details::{self, DetailKind};
use crate::database::host_sums::SummedTo;
use crate::database::month::Month;
use crate::query::Filter;
use crate::query::window::Window;

/// A flow's id as the database stores it.
type Id = [u8; 16];

/// A port, if it is known, and a protocol.
type PortProtocol = (Option<i64>, String);

/// The port and protocol of each flow with parts.
#[derive(Default)]
pub(super) struct PortProtocols(HashMap<Id, PortProtocol>);

impl SqliteUsage {
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
            let Some(details) = self.month_details(*month)? else { continue };
            if month.beginning_ns() <= window.last_ns {
                self.each_part(&details, filter, window, |id, _| {
                    port_protocols.0.entry(id).or_default();
                    Ok(())
                })?;
            }
            if port_protocols.0.is_empty() {
                continue;
            }
            let all = (Window::EVER, SummedTo::default());
            self.each_detail(
                &details,
                all,
                |kind| kind == DetailKind::Flow,
                |_, row| {
                    let (port, protocol) = (row.get(details::PORT)?, row.get_ref(details::PROTOCOL)?);
                    let protocol = protocol.as_str().map_err(rusqlite::Error::from)?;
                    port_protocols.learn(row.get(details::ID)?, port, protocol);
                    Ok(())
                },
            )?;
        }
        each(&self.connection, "SELECT id, port, protocol FROM live", |row| {
            port_protocols.learn(row.get(0)?, row.get(1)?, row.get_ref(2)?.as_str()?);
            Ok(())
        })?;
        Ok(port_protocols)
    }

    /// Adds the parts in a month's file.
    pub(super) fn add_parts(
        &self,
        details: &MonthDetails,
        filter: &Filter,
        window: Window,
        port_protocols: &PortProtocols,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let unknown = PortProtocol::default();
        self.each_part(details, filter, window, |id, item| {
            let (port, protocol) = port_protocols.0.get(&id).unwrap_or(&unknown);
            let port = port.map_or(Text::Plain(""), Text::Number);
            groups.add(&Item { port, protocol, ..*item })
        })
    }

    fn each_part(
        &self,
        details: &MonthDetails,
        filter: &Filter,
        window: Window,
        mut each: impl FnMut(Id, &Item<'_>) -> Result<(), QueryError>,
    ) -> Result<(), QueryError> {
        let admission = filter.admission(&self.registry, window);
        let is_part = |kind| kind == DetailKind::Part;
        self.each_detail(details, (window, SummedTo::default()), is_part, |item, row| {
            if admission.admits(item) { each(id(row)?, item) } else { Ok(()) }
        })
    }
}

impl PortProtocols {
    /// Stores the port and protocol of a flow, if it has parts.
    fn learn(&mut self, id: Id, port: i64, protocol: &str) {
        if let Some(entry) = self.0.get_mut(&id) {
            *entry = (Some(port), protocol.to_owned());
        }
    }
}

fn id(row: &SqlRow<'_>) -> rusqlite::Result<Id> {
    row.get(details::ID)
}
