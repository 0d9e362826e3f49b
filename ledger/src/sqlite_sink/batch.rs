//! Translates a batch of entries into rows of details, changes of the rollups, and open flows.
//!
//! Guarantees: bytes belong to the quarter-hour in which they were counted. So for each the rollup is the
//! sum of three: the flows that closed in it (without their earlier bytes), its parts, and the open flows
//! that were last counted in it. The result depends on the order of the entries and not on how they are cut
//! into batches.
//!
//! ```text
//!    entry --+-- open: live (last count) --> change --> rollups
//!            |                         '--> a new quarter: part of the one before --.
//!            '-- closed: flow -----------------------------------------------------+--> file of its month
//! ```

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::consent::Consent;
use crate::database::columns::{CounterColumns, FlowColumns};
use crate::database::live::{self, LiveFlows};
use crate::database::month::{HOUR_NS, Month, last_quarter};
use crate::database::month_file::{Appender, MonthFiles, Origin};
use crate::database::quotas;
use crate::database::registry::Registry;
use crate::database::rollups::{Rollups, SumKey};
use crate::database::schema::integer;
use crate::database::sums::Sums;
use crate::database::{checksum, run};
use crate::entry::Entry;
use crate::record::{CloseReason, Flow, Record};
use crate::sink::SinkError;

/// The state of a transaction on `ledger.db`.
pub(crate) struct BatchAggregator<'a> {
    connection: &'a Connection,
    registry: &'a Registry,
    live: &'a mut LiveFlows,
    months: &'a mut MonthFiles,
    origin: Origin,
    /// Entries up to this one belong to the last quarter-hour of their hour.
    hourly_to: i64,
    rollups: Rollups<'a>,
    /// Rows that are not written to their files yet.
    details: BTreeMap<Month, Vec<Detail<'a>>>,
    /// The last entry in each month that was written.
    last_lsns: BTreeMap<Month, i64>,
}

/// The flow of an entry, unpacked once.
#[derive(Clone)]
struct EntryFlow<'a> {
    lsn: i64,
    flow: Flow<'a>,
    /// Whether a text of the flow was cut.
    cut: bool,
    account: i64,
}

/// A row to be written.
struct Detail<'a> {
    entry: EntryFlow<'a>,
    row: Row,
}

enum Row {
    Flow(CounterColumns),
    Part { quarter: i64, bytes: (i64, i64) },
}

impl<'a> BatchAggregator<'a> {
    pub(crate) fn new(
        connection: &'a Connection,
        registry: &'a Registry,
        live: &'a mut LiveFlows,
        months: &'a mut MonthFiles,
        origin: Origin,
    ) -> Self {
        live.begin();
        let (details, last_lsns) = (BTreeMap::new(), BTreeMap::new());
        let rollups = Rollups::default();
        let hourly_to = 0;
        Self { connection, registry, live, months, origin, hourly_to, rollups, details, last_lsns }
    }

    /// The same, for entries of which an earlier version had counted those up to `hourly_to`.
    pub(crate) fn with_hourly(self, hourly_to: i64) -> Self {
        Self { hourly_to, ..self }
    }

    /// Adds the entry with the number `lsn`, the next one.
    pub(crate) fn add(&mut self, lsn: i64, entry: &'a Entry) -> Result<(), SinkError> {
        match entry {
            Entry::Interim(record) => Ok(self.count(self.unpack(lsn, record))?),
            Entry::Final(record) => Ok(self.close(self.unpack(lsn, record))?),
            Entry::RunBegan { epoch, at, run, table } => {
                self.write_details(lsn - 1)?;
                self.end_lost(lsn, i64::from(*epoch))?;
                let (epoch, began, ended) = (*epoch, (lsn, integer(at.0)), (0, 0));
                let run = run::Run { epoch, began, ended, run: *run, table: *table };
                Ok(run.write(self.connection, self.origin.gateway)?)
            }
            Entry::RunEnded { epoch, at } => {
                Ok(run::end(self.connection, self.origin.gateway, *epoch, (lsn, integer(at.0)))?)
            }
            Entry::Edge { at, .. } => {
                let values = [self.origin.gateway, integer(at.0), lsn].map(ValueRef::Integer);
                let put = "INSERT OR REPLACE INTO edge VALUES (?1, ?2, ?3, ?4)";
                Ok(checksum::put(self.connection, put, &values)?)
            }
            Entry::Accepted(consent) => Ok(self.accept(lsn, consent)?),
            Entry::Granted(grant) => Ok(quotas::put_grant(self.connection, &grant.grant())?),
            Entry::Noticed(notice) => Ok(quotas::put_notice(self.connection, &notice.notice())?),
            Entry::Skipped(_) => Ok(()),
            Entry::Gap { epoch, at, first_lsn } => {
                let found = [integer(at.0), integer(*first_lsn)];
                let values = [self.origin.gateway, lsn, i64::from(*epoch), found[0], found[1]];
                let insert = "INSERT INTO gap VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
                Ok(checksum::put(self.connection, insert, &values.map(ValueRef::Integer))?)
            }
        }
    }

    fn accept(&self, lsn: i64, consent: &Consent) -> rusqlite::Result<()> {
        let values = [
            ValueRef::Integer(self.origin.gateway),
            ValueRef::Integer(lsn),
            ValueRef::Integer(consent.epoch.into()),
            ValueRef::Integer(integer(consent.at.0)),
            ValueRef::Text(consent.author().as_bytes()),
            ValueRef::Text(consent.what().as_bytes()),
            ValueRef::Integer(integer(consent.first_lsn)),
            ValueRef::Integer(integer(consent.last_lsn)),
        ];
        let insert = "INSERT INTO consent VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        checksum::put(self.connection, insert, &values)
    }

    /// Writes everything; the last entry has the number `last_lsn`. Returns the last entry in each written
    /// month. The months are committed then.
    pub(crate) fn finish(mut self, last_lsn: i64) -> Result<BTreeMap<Month, i64>, SinkError> {
        self.write_details(last_lsn)?;
        self.rollups.write(self.connection)?;
        Ok(self.last_lsns)
    }

    fn unpack(&self, lsn: i64, record: &'a Record) -> EntryFlow<'a> {
        let flow = record.flow();
        let account = self.registry.account(flow.account, flow.user);
        EntryFlow { lsn, flow, cut: record.identity().is_cut(), account }
    }

    /// The last counts of the entry's flow, if it was open before. It stays with its account then: its user
    /// may have another name by now, and another user the name.
    fn earlier(&self, entry: &mut EntryFlow<'a>) -> rusqlite::Result<Option<CounterColumns>> {
        let Some((account, counters)) = self.live.find(self.connection, entry.flow.id)? else {
            return Ok(None);
        };
        entry.account = account;
        Ok(Some(counters))
    }

    fn count(&mut self, mut entry: EntryFlow<'a>) -> rusqlite::Result<()> {
        let counters = self.counters(&entry);
        let earlier = self.earlier(&mut entry)?;
        if earlier.is_some_and(|earlier| !counters.exceeds(&earlier)) {
            return Ok(());
        }
        let next = self.advance(&entry, earlier, 0);
        self.live.put(self.connection, self.origin, &entry.columns(), &next)
    }

    fn close(&mut self, mut entry: EntryFlow<'a>) -> rusqlite::Result<()> {
        let earlier = self.earlier(&mut entry)?;
        let next = self.advance(&entry, earlier, 1);
        if earlier.is_some() {
            self.live.remove(self.connection, entry.flow.id)?;
        }
        self.detail(Month::containing(next.at_ns), Detail { entry, row: Row::Flow(next) });
        Ok(())
    }

    /// The new counts of the entry's flow. Adds the change since `earlier` to the rollup, and a part for the
    /// quarter-hour that the flow leaves.
    fn advance(
        &mut self,
        entry: &EntryFlow<'a>,
        earlier: Option<CounterColumns>,
        flows: i64,
    ) -> CounterColumns {
        let counters = self.counters(entry);
        let next = earlier.map_or(counters, |earlier| counters.merged_with(&earlier));
        if let Some(earlier) = earlier
            && next.quarter > earlier.quarter
            && earlier.in_last_quarter() != (0, 0)
        {
            let row = Row::Part { quarter: earlier.quarter, bytes: earlier.in_last_quarter() };
            self.detail(Month::containing(earlier.at_ns), Detail { entry: entry.clone(), row });
        }
        let (up, down) = earlier.map_or((0, 0), |earlier| (earlier.up, earlier.down));
        let mut sums = Sums { flows, up: next.up - up, down: next.down - down, ..Sums::default() };
        // An open flow's requests and uncertain bytes are not final; they count when it ends.
        if flows > 0 {
            (sums.uncertain_up, sums.uncertain_down) = (next.uncertain_up, next.uncertain_down);
            sums.requests = next.requests;
        }
        let EntryFlow { flow, account, .. } = entry;
        let key = SumKey { account: *account, class: flow.class.as_str().into(), set: flow.set.into() };
        self.rollups.add(next.quarter, key, &sums);
        next
    }

    fn counters(&self, entry: &EntryFlow<'_>) -> CounterColumns {
        let counters = CounterColumns::from_flow(&entry.flow);
        match entry.lsn <= self.hourly_to {
            true => CounterColumns { quarter: last_quarter(counters.at_ns / HOUR_NS), ..counters },
            false => counters,
        }
    }

    fn detail(&mut self, month: Month, detail: Detail<'a>) {
        self.details.entry(month).or_default().push(detail);
    }

    fn write_details(&mut self, last_lsn: i64) -> Result<(), SinkError> {
        for (month, details) in std::mem::take(&mut self.details) {
            self.months.append(month, self.origin, last_lsn, |file| {
                details.iter().try_for_each(|detail| detail.write(file)).map_err(SinkError::from)
            })?;
            self.last_lsns.insert(month, last_lsn);
        }
        Ok(())
    }

    /// Every open flow of the runs up to `epoch` has ended, as of its last count. The flows are read again
    /// for each month, since they may be too many for memory.
    fn end_lost(&mut self, lsn: i64, epoch: i64) -> Result<(), SinkError> {
        let Self { connection, origin, rollups, .. } = self;
        let mut months = BTreeSet::new();
        live::each_of_epochs::<rusqlite::Error>(
            connection,
            origin.gateway,
            epoch,
            EVER,
            |flow_columns, counters| {
                months.insert(Month::containing(counters.at_ns));
                let sums = Sums { up: 0, down: 0, ..counters.sums_at_end() };
                rollups.add(counters.quarter, flow_columns.sum_key(), &sums);
                Ok(())
            },
        )?;
        for month in months {
            let span = (month.beginning_ns(), month.last_ns());
            let reason = CloseReason::Lost.as_str();
            self.months.append(month, self.origin, lsn, |file| {
                let gateway = self.origin.gateway;
                live::each_of_epochs(self.connection, gateway, epoch, span, |flow_columns, counters| {
                    Ok(file.flow(lsn, flow_columns, counters, reason)?)
                })
            })?;
            self.last_lsns.insert(month, lsn);
        }
        Ok(self.live.remove_epochs(self.connection, self.origin.gateway, epoch)?)
    }
}

const EVER: (i64, i64) = (0, i64::MAX);

impl<'a> EntryFlow<'a> {
    fn columns(&self) -> FlowColumns<'a> {
        FlowColumns::from_flow(&self.flow, self.cut, self.account)
    }
}

impl Detail<'_> {
    fn write(&self, file: &mut Appender<'_>) -> rusqlite::Result<()> {
        let EntryFlow { lsn, flow, .. } = &self.entry;
        let flow_columns = self.entry.columns();
        match &self.row {
            Row::Flow(counters) => file.flow(*lsn, &flow_columns, counters, flow.reason.as_str()),
            Row::Part { quarter, bytes } => file.part(*lsn, &flow_columns, *quarter, *bytes),
        }
    }
}
