//! Rebuilds `ledger.db` from the months, where it is missing or older than they are and the journal no
//! longer has the entries between.
//!
//! Guarantees: afterwards each sum is that of the flows and parts in the months up to the requested number,
//! and of the open flows. No byte counts twice when later entries of a flow come.
//! Not handled here: bytes that no month has, which open flows had moved in their last quarter-hour.
//!
//! A flow of which only parts are known gets a row of `live` with the sum of its parts. Its next entry
//! completes the row; without one it ends as `lost`.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Row, TransactionBehavior};

use crate::database::checksum;
use crate::database::columns::{CounterColumns, FlowColumns};
use crate::database::details::{DetailKind, DetailTables};
use crate::database::live::{self, LiveFlows};
use crate::database::month::{Month, QUARTER_NS};
use crate::database::month_file::{self, Origin};
use crate::database::registry::Registry;
use crate::database::rollups::{Rollups, SumKey};
use crate::database::sums::Sums;
use crate::database::watermarks::{Source, put_month};
use crate::sink::SinkError;
use crate::sqlite_usage;

/// Brings the database of `connection` to entry `to_lsn` of `gateway`, if it is behind, from the months in
/// `directory`.
///
/// # Errors
/// A month cannot be read, or keeps some of its flows as sums only, which cannot be separated.
pub(crate) fn rebuild(
    connection: &mut Connection,
    directory: &Path,
    gateway: i64,
    to_lsn: i64,
) -> Result<(), SinkError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let source = Source::read(&transaction, gateway)?;
    let applied_lsn = source.map_or(0, |source| source.applied_lsn);
    if to_lsn <= applied_lsn {
        return Ok(());
    }
    let months = Month::files(directory).map_err(|cause| SinkError::Fatal(cause.to_string()))?;
    let mut files = Vec::new();
    for month in months {
        let Some(file) = sqlite_usage::open_month(directory, month)? else { continue };
        let applied = month_file::applied(&file, gateway)?;
        if applied > applied_lsn {
            check_separable(&file, month, (applied_lsn, to_lsn), applied)?;
            check_month(&file, month)?;
            put_month(&transaction, month, gateway, applied.min(to_lsn), false)?;
            files.push(file);
        }
    }
    let registry = Arc::new(learn_numbers(&transaction, &files)?);
    files.iter().try_for_each(|file| registry.install(file))?;
    let mut rebuild = Rebuild::new(&transaction, gateway, (applied_lsn, to_lsn))?;
    files.iter().try_for_each(|file| rebuild.add_parts(file))?;
    files.iter().try_for_each(|file| rebuild.add_flows(file))?;
    rebuild.finish(source.map_or(0, |source| source.epoch))?;
    transaction.commit()?;
    Ok(())
}

/// Refuses a month whose sums of single flows would count twice.
fn check_separable(
    file: &Connection,
    month: Month,
    (from, to): (i64, i64),
    applied: i64,
) -> Result<(), SinkError> {
    if month_file::has_aggregates(file)? && (from > 0 || applied > to) {
        let text = format!("{month} keeps some flows as sums only: ledger.db cannot be rebuilt from it");
        return Err(SinkError::Fatal(text));
    }
    Ok(())
}

/// Refuses a file with flows of another month, such as a copy under another name, which would count twice.
fn check_month(file: &Connection, month: Month) -> Result<(), SinkError> {
    for table in DetailTables::read(file)?.of(DetailKind::Flow) {
        let others = format!("SELECT count(*) FROM {} WHERE closed_ns NOT BETWEEN ?1 AND ?2", table.name);
        let others: i64 =
            file.query_row(&others, [month.beginning_ns(), month.last_ns()], |row| row.get(0))?;
        if others > 0 {
            let name = month.file_name();
            let text = format!("{name} has flows of another month: move it out of the directory");
            return Err(SinkError::Fatal(text));
        }
    }
    Ok(())
}

/// The numbers that `ledger.db` has, and those that only the months know. No row of `files` is damaged.
fn learn_numbers(connection: &Connection, files: &[Connection]) -> rusqlite::Result<Registry> {
    let mut registry = Registry::read(connection)?;
    for file in files {
        for table in DetailTables::read(file)?.all() {
            let mut select = file.prepare(&format!("SELECT * FROM {}", table.name))?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                checksum::check(row, table.name)?;
            }
        }
    }
    registry.learn(connection, files)?;
    Ok(registry)
}

/// The state of a rebuild.
struct Rebuild<'a> {
    connection: &'a Connection,
    gateway: i64,
    /// The last entry in the database, and the last one that it will have.
    lsns: (i64, i64),
    /// Open flows in the database whose end is not found yet.
    live: HashMap<u128, LiveRow>,
    /// The parts of flows whose end is not found yet.
    parts: HashMap<u128, UnfinishedFlow>,
    rollups: Rollups<'static>,
    epoch: i64,
}

/// An open flow in the database.
struct LiveRow {
    key: SumKey<'static>,
    counters: CounterColumns,
    /// Whether its last quarter-hour was subtracted from the sums, because a month's row has it already.
    is_subtracted: bool,
}

/// A flow whose end is not found yet, and the sums of its parts.
struct UnfinishedFlow {
    key: SumKey<'static>,
    user: String,
    host: String,
    quarter: i64,
    up: i64,
    down: i64,
}

impl<'a> Rebuild<'a> {
    fn new(connection: &'a Connection, gateway: i64, lsns: (i64, i64)) -> Result<Self, SinkError> {
        let mut live = HashMap::new();
        live::each_of_epochs::<rusqlite::Error>(
            connection,
            gateway,
            i64::MAX,
            EVER,
            |flow_columns, counters| {
                let (key, counters) = (flow_columns.sum_key(), *counters);
                let known = LiveRow { key, counters, is_subtracted: false };
                live.insert(u128::from_be_bytes(flow_columns.id), known);
                Ok(())
            },
        )?;
        let (parts, rollups) = (HashMap::new(), Rollups::default());
        Ok(Self { connection, gateway, lsns, live, parts, rollups, epoch: 0 })
    }

    /// Calls `each` with the rows of a kind in a month's file that are to be added.
    fn each(
        &self,
        file: &Connection,
        kind: DetailKind,
        mut each: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        for table in DetailTables::read(file)?.of(kind) {
            let condition = match kind {
                DetailKind::Aggregate => "?1 + ?2 + ?3 NOT NULL",
                _ => "gateway = ?1 AND lsn > ?2 AND lsn <= ?3",
            };
            let mut select = file.prepare(&table.select(condition))?;
            let mut rows = select.query([self.gateway, self.lsns.0, self.lsns.1])?;
            while let Some(row) = rows.next()? {
                each(row)?;
            }
        }
        Ok(())
    }

    fn add_parts(&mut self, file: &Connection) -> Result<(), SinkError> {
        let mut found = Vec::new();
        self.each(file, DetailKind::Part, |row| {
            let id: [u8; 16] = row.get("id")?;
            let (user, host) = (row.get("user")?, row.get("host")?);
            let (quarter, up, down) = (row.get("quarter")?, row.get("up")?, row.get("down")?);
            let part = UnfinishedFlow { key: sum_key(row)?, user, host, quarter, up, down };
            found.push((u128::from_be_bytes(id), part));
            Ok(())
        })?;
        for (id, part) in found {
            self.subtract_live(id);
            let sums = Sums { up: part.up, down: part.down, ..Sums::default() };
            self.rollups.add(part.quarter, part.key.clone(), &sums);
            match self.parts.get_mut(&id) {
                Some(parts) => {
                    parts.quarter = parts.quarter.max(part.quarter);
                    (parts.up, parts.down) = (parts.up + part.up, parts.down + part.down);
                }
                None => _ = self.parts.insert(id, part),
            }
        }
        Ok(())
    }

    fn add_flows(&mut self, file: &Connection) -> Result<(), SinkError> {
        // The ids of flows that the database has as open, and of those with parts: few. All other rows are
        // added at once.
        let (mut ended, mut rollups) = (Vec::new(), Rollups::default());
        self.each(file, DetailKind::Flow, |row| {
            rollups.add(row.get("quarter")?, sum_key(row)?, &Sums::read(row)?);
            let id = u128::from_be_bytes(row.get("id")?);
            if self.live.contains_key(&id) || self.parts.contains_key(&id) {
                ended.push(id);
            }
            Ok(())
        })?;
        rollups.write(self.connection)?;
        self.epoch = self.epoch.max(self.last_epoch(file)?);
        for id in ended {
            self.subtract_live(id);
            self.parts.remove(&id);
            self.live.remove(&id);
            self.connection.execute("DELETE FROM live WHERE id = ?1", [id.to_be_bytes()])?;
        }
        let mut aggregates = Rollups::default();
        self.each(file, DetailKind::Aggregate, |row| {
            aggregates.add(row.get("quarter")?, sum_key(row)?, &Sums::read(row)?);
            Ok(())
        })?;
        Ok(aggregates.write(self.connection)?)
    }

    /// The last run that wrote a flow that is to be added.
    fn last_epoch(&self, file: &Connection) -> rusqlite::Result<i64> {
        let mut last = 0;
        for table in DetailTables::read(file)?.of(DetailKind::Flow) {
            let sql = format!(
                "SELECT ifnull(max(epoch), 0) FROM {} WHERE gateway = ?1 AND lsn > ?2 AND lsn <= ?3",
                table.name
            );
            let found: i64 =
                file.query_row(&sql, [self.gateway, self.lsns.0, self.lsns.1], |row| row.get(0))?;
            last = found.max(last);
        }
        Ok(last)
    }

    /// Subtracts the bytes of a flow's last quarter-hour from the sums: a month's row has those and more.
    fn subtract_live(&mut self, id: u128) {
        let Some(known) = self.live.get_mut(&id).filter(|known| !known.is_subtracted) else { return };
        known.is_subtracted = true;
        let (up, down) = known.counters.in_last_quarter();
        let sums = Sums { up: -up, down: -down, ..Sums::default() };
        self.rollups.add(known.counters.quarter, known.key.clone(), &sums);
    }

    /// Writes the sums, the open flows as far as their parts are known, and the watermark.
    fn finish(mut self, epoch: i64) -> Result<(), SinkError> {
        let epoch = epoch.max(self.epoch);
        self.rollups.write(self.connection)?;
        let origin = Origin { gateway: self.gateway, epoch };
        let mut flows = LiveFlows::read(self.connection, self.gateway)?;
        let parts: HashSet<u128> = self.parts.keys().copied().collect();
        for id in parts {
            let part = &self.parts[&id];
            let known = self.live.get(&id).map(|known| known.counters);
            flows.put(self.connection, origin, &part.flow_columns(id), &part.counters(known))?;
        }
        let (applied_lsn, durable_lsn) = (self.lsns.1, self.lsns.1);
        Ok(Source { gateway: self.gateway, epoch, applied_lsn, durable_lsn }.write(self.connection)?)
    }
}

impl UnfinishedFlow {
    /// The identity of a flow, as far as its parts have it.
    fn flow_columns(&self, id: u128) -> FlowColumns<'_> {
        FlowColumns {
            id: id.to_be_bytes(),
            opened_ns: self.quarter * QUARTER_NS,
            account: self.key.account,
            policy: 0,
            set: self.key.set,
            user: &self.user,
            host: &self.host,
            port: 0,
            address: None,
            client: "".into(),
            class: &self.key.class,
            protocol: "",
            rule: "",
            cut: true,
        }
    }

    /// The counters of the flow at the end of the quarter-hour of its last part.
    fn counters(&self, known: Option<CounterColumns>) -> CounterColumns {
        let before = known.map_or((0, 0), |known| (known.up_before, known.down_before));
        let (up, down) = (before.0 + self.up, before.1 + self.down);
        CounterColumns {
            at_ns: (self.quarter + 1) * QUARTER_NS,
            quarter: self.quarter + 1,
            requests: 0,
            client_rx: known.map_or(up, |known| known.client_rx.max(up)),
            up,
            upstream_rx: known.map_or(down, |known| known.upstream_rx.max(down)),
            down,
            uncertain_up: 0,
            uncertain_down: 0,
            up_before: up,
            down_before: down,
        }
    }
}

/// The key of a row's sums.
fn sum_key(row: &Row<'_>) -> rusqlite::Result<SumKey<'static>> {
    let class = row.get::<_, String>("class")?.into();
    Ok(SumKey { account: row.get("account")?, class, set: row.get("set_number")? })
}

const EVER: (i64, i64) = (0, i64::MAX);
