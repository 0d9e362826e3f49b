//! The table of open flows with their last counts, from which the change of the next count is computed.
//!
//! Guarantees: nothing is computed from a damaged row. A flow that ends before its first interim, as most
//! requests do, costs no query.

use std::collections::HashSet;

use rusqlite::{Connection, params};

use super::checksum;
use super::columns::{CounterColumns, FlowColumns};
use super::month_file::Origin;

const FIND: &str = "SELECT * FROM live WHERE id = ?1";
pub(super) const PUT: &str =
    "INSERT OR REPLACE INTO live VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
     ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28)";
const REMOVE: &str = "DELETE FROM live WHERE id = ?1";
const IDS: &str = "SELECT id FROM live WHERE gateway = ?1";
const OF_EPOCHS: &str = "SELECT * FROM live
     WHERE gateway = ?1 AND epoch <= ?2 AND counted_ns BETWEEN ?3 AND ?4";
const REMOVE_EPOCHS: &str = "DELETE FROM live WHERE gateway = ?1 AND epoch <= ?2";

/// The flows of `gateway` that have a row.
fn ids(connection: &Connection, gateway: i64) -> rusqlite::Result<HashSet<u128>> {
    let mut select = connection.prepare(IDS)?;
    let ids = select.query_map([gateway], |row| row.get(0).map(u128::from_be_bytes))?;
    ids.collect()
}

/// The ids of the gateway's rows; the only writer owns it.
pub(crate) struct LiveFlows {
    /// Every flow with a row is here, also after a rolled-back transaction, which may leave too many ids and
    /// never too few.
    ids: HashSet<u128>,
    /// Flows whose rows this transaction has removed.
    ended: HashSet<u128>,
}

impl LiveFlows {
    /// Reads which flows have a row.
    pub(crate) fn read(connection: &Connection, gateway: i64) -> rusqlite::Result<Self> {
        Ok(Self { ids: ids(connection, gateway)?, ended: HashSet::new() })
    }

    /// Begins a transaction. The one before it removed nothing, unless it was [`Self::committed`].
    pub(crate) fn begin(&mut self) {
        self.ended.clear();
    }

    /// The transaction was committed.
    pub(crate) fn committed(&mut self) {
        for id in self.ended.drain() {
            self.ids.remove(&id);
        }
    }

    /// The flows with a row, and perhaps some that have ended.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> &HashSet<u128> {
        &self.ids
    }

    /// The account and the last counts of a flow; `None` if it has ended or is unknown.
    pub(crate) fn find(
        &self,
        connection: &Connection,
        id: u128,
    ) -> rusqlite::Result<Option<(i64, CounterColumns)>> {
        if !self.ids.contains(&id) {
            return Ok(None);
        }
        let mut select = connection.prepare_cached(FIND)?;
        let mut rows = select.query([id.to_be_bytes()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        checksum::check(row, "live")?;
        Ok(Some((row.get("account")?, CounterColumns::read(row, "counted_ns")?)))
    }

    /// Stores the counts of an open flow.
    pub(crate) fn put(
        &mut self,
        connection: &Connection,
        origin: Origin,
        flow_columns: &FlowColumns<'_>,
        counters: &CounterColumns,
    ) -> rusqlite::Result<()> {
        let id = u128::from_be_bytes(flow_columns.id);
        self.ids.insert(id);
        self.ended.remove(&id);
        let values = flow_columns.values().into_iter().chain(counters.values()).chain(origin.values());
        checksum::run(&mut *connection.prepare_cached(PUT)?, values)
    }

    /// Removes an ended flow.
    pub(crate) fn remove(&mut self, connection: &Connection, id: u128) -> rusqlite::Result<()> {
        self.ended.insert(id);
        connection.prepare_cached(REMOVE)?.execute([id.to_be_bytes()])?;
        Ok(())
    }

    /// Removes all flows of the gateway's runs up to `epoch`.
    pub(crate) fn remove_epochs(
        &mut self,
        connection: &Connection,
        gateway: i64,
        epoch: i64,
    ) -> rusqlite::Result<()> {
        connection.prepare_cached(REMOVE_EPOCHS)?.execute([gateway, epoch])?;
        let remaining = ids(connection, gateway)?;
        self.ended.extend(self.ids.difference(&remaining));
        Ok(())
    }
}

/// Calls `each` with the open flows of the gateway's runs up to `epoch` whose last count is in the span, both
/// ends included.
pub(crate) fn each_of_epochs<E: From<rusqlite::Error>>(
    connection: &Connection,
    gateway: i64,
    epoch: i64,
    span_ns: (i64, i64),
    mut each: impl FnMut(&FlowColumns<'_>, &CounterColumns) -> Result<(), E>,
) -> Result<(), E> {
    let mut select = connection.prepare_cached(OF_EPOCHS)?;
    let mut rows = select.query(params![gateway, epoch, span_ns.0, span_ns.1])?;
    while let Some(row) = rows.next()? {
        checksum::check(row, "live")?;
        each(&FlowColumns::read(row)?, &CounterColumns::read(row, "counted_ns")?)?;
    }
    Ok(())
}
