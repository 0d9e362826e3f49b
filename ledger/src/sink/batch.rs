//! What a batch of entries means: rows of details, differences for the rollups, and flows that go on.
//!
//! Promises: bytes belong to the UTC hour in which they were counted, so that for each hour the rollup is the
//! sum of the flows that closed in it (without what they had before), of the parts of it, and of the flows
//! that were last counted in it and go on; what is made of an entry depends on the entries before it and not
//! on how they were cut into batches. Leaves to others: which entries are new, and the commits.
//!
//! ```text
//!    entry --+-- live (last count) --> difference --> rollups
//!            |                    '--> the hour moved: part of the hour before --.
//!            '-- over: flow ----------------------------------------------------+--> file of its month
//! ```

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::columns::{CounterColumns, FlowColumns};
use super::live::{self, LiveFlows};
use super::month::{HOUR_NS, Month};
use super::month_file::{Appender, MonthFiles, Stamp};
use super::schema::integer;
use super::sums::{Rollups, Sums};
use super::{SinkError, checksum, run};
use crate::consent::Consent;
use crate::entry::Entry;
use crate::record::{CloseReason, Flow, Record};

/// The state of a transaction on `ledger.db`.
pub(crate) struct BatchAggregator<'a> {
    connection: &'a Connection,
    live: &'a mut LiveFlows,
    months: &'a mut MonthFiles,
    stamp: Stamp,
    rollups: Rollups<'a>,
    /// Rows that their files do not have yet.
    details: BTreeMap<Month, Vec<Detail<'a>>>,
    /// How far each month that was touched has come.
    touched: BTreeMap<Month, i64>,
}

/// A row to be.
struct Detail<'a> {
    lsn: i64,
    record: &'a Record,
    row: Row,
}

enum Row {
    Flow(CounterColumns),
    Part { hour: i64, bytes: (i64, i64) },
}

impl<'a> BatchAggregator<'a> {
    pub(crate) fn new(
        connection: &'a Connection,
        live: &'a mut LiveFlows,
        months: &'a mut MonthFiles,
        stamp: Stamp,
    ) -> Self {
        live.begin();
        let (details, touched) = (BTreeMap::new(), BTreeMap::new());
        Self { connection, live, months, stamp, rollups: Rollups::default(), details, touched }
    }

    /// Takes the entry with the number `lsn`, the next one.
    pub(crate) fn add(&mut self, lsn: i64, entry: &'a Entry) -> Result<(), SinkError> {
        match entry {
            Entry::Interim(record) => Ok(self.count(lsn, record)?),
            Entry::Final(record) => Ok(self.close(lsn, record)?),
            Entry::RunBegan { epoch, at } => {
                self.write_details(lsn - 1)?;
                self.lose(lsn, i64::from(*epoch))?;
                let run = run::Run { epoch: *epoch, began: (lsn, integer(at.0)), ended: (0, 0) };
                Ok(run.write(self.connection, self.stamp.gateway)?)
            }
            Entry::RunEnded { epoch, at } => {
                Ok(run::end(self.connection, self.stamp.gateway, *epoch, (lsn, integer(at.0)))?)
            }
            Entry::Accepted(consent) => Ok(self.accept(lsn, consent)?),
            Entry::Gap { epoch, at, first_lsn } => {
                let found = [integer(at.0), integer(*first_lsn)];
                let values = [self.stamp.gateway, lsn, i64::from(*epoch), found[0], found[1]];
                let insert = "INSERT INTO gap VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
                Ok(checksum::put(self.connection, insert, &values.map(ValueRef::Integer))?)
            }
        }
    }

    fn accept(&self, lsn: i64, consent: &Consent) -> rusqlite::Result<()> {
        let values = [
            ValueRef::Integer(self.stamp.gateway),
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

    /// Writes everything, the last entry of which has the number `last_lsn`, and tells how far each month
    /// that was touched has come. The months' commits are done then.
    pub(crate) fn finish(mut self, last_lsn: i64) -> Result<BTreeMap<Month, i64>, SinkError> {
        self.write_details(last_lsn)?;
        self.rollups.write(self.connection)?;
        Ok(self.touched)
    }

    fn count(&mut self, lsn: i64, record: &'a Record) -> rusqlite::Result<()> {
        let flow = record.flow();
        let counted = CounterColumns::of(&flow);
        let known = self.live.find(self.connection, flow.id)?;
        if known.is_some_and(|known| !counted.exceeds(&known)) {
            return Ok(());
        }
        let next = self.advance(lsn, record, &flow, known, 0);
        self.live.put(self.connection, self.stamp, &FlowColumns::of(&flow, record.identity().is_cut()), &next)
    }

    fn close(&mut self, lsn: i64, record: &'a Record) -> rusqlite::Result<()> {
        let flow = record.flow();
        let known = self.live.find(self.connection, flow.id)?;
        let next = self.advance(lsn, record, &flow, known, 1);
        if known.is_some() {
            self.live.remove(self.connection, flow.id)?;
        }
        self.detail(Month::of(next.at_ns), Detail { lsn, record, row: Row::Flow(next) });
        Ok(())
    }

    /// What `flow`, that of `record`, has come to: adds the difference from what is `known` to the rollup,
    /// and a part for the hour that the flow leaves.
    fn advance(
        &mut self,
        lsn: i64,
        record: &'a Record,
        flow: &Flow<'a>,
        known: Option<CounterColumns>,
        flows: i64,
    ) -> CounterColumns {
        let counted = CounterColumns::of(flow);
        let next = known.map_or(counted, |known| counted.after(&known));
        if let Some(known) = known
            && next.hour() > known.hour()
            && known.rest() != (0, 0)
        {
            let row = Row::Part { hour: known.hour(), bytes: known.rest() };
            self.detail(Month::of(known.at_ns), Detail { lsn, record, row });
        }
        let (up, down) = known.map_or((0, 0), |known| (known.up, known.down));
        let mut sums = Sums { flows, up: next.up - up, down: next.down - down, ..Sums::default() };
        // What is uncertain of a flow that goes on will be known later; it counts when the flow is over.
        if flows > 0 {
            (sums.uncertain_up, sums.uncertain_down) = (next.uncertain_up, next.uncertain_down);
        }
        self.rollups.add(next.hour(), flow.user, flow.class.as_str(), &sums);
        next
    }

    fn detail(&mut self, month: Month, detail: Detail<'a>) {
        self.details.entry(month).or_default().push(detail);
    }

    fn write_details(&mut self, last_lsn: i64) -> Result<(), SinkError> {
        for (month, details) in std::mem::take(&mut self.details) {
            self.months.append(month, self.stamp, last_lsn, |file| {
                details.iter().try_for_each(|detail| detail.write(file)).map_err(SinkError::from)
            })?;
            self.touched.insert(month, last_lsn);
        }
        Ok(())
    }

    /// Every flow of the runs up to `epoch` that goes on is over, when and as it was last counted. They are
    /// read anew for each month, since they may be more than memory should hold.
    fn lose(&mut self, lsn: i64, epoch: i64) -> Result<(), SinkError> {
        let Self { connection, stamp, rollups, .. } = self;
        let mut months = BTreeSet::new();
        live::each_of_epochs::<rusqlite::Error>(connection, stamp.gateway, epoch, EVER, |begun, counted| {
            months.insert(Month::of(counted.at_ns));
            let CounterColumns { uncertain_up, uncertain_down, .. } = *counted;
            let sums = Sums { flows: 1, uncertain_up, uncertain_down, ..Sums::default() };
            rollups.add(counted.at_ns / HOUR_NS, begun.user.to_owned(), begun.class.to_owned(), &sums);
            Ok(())
        })?;
        for month in months {
            let span = (month.beginning_ns(), month.last_ns());
            let reason = CloseReason::Lost.as_str();
            self.months.append(month, self.stamp, lsn, |file| {
                let gateway = self.stamp.gateway;
                live::each_of_epochs(self.connection, gateway, epoch, span, |begun, counted| {
                    Ok(file.flow(lsn, begun, counted, reason)?)
                })
            })?;
            self.touched.insert(month, lsn);
        }
        Ok(self.live.remove_epochs(self.connection, self.stamp.gateway, epoch)?)
    }
}

const EVER: (i64, i64) = (0, i64::MAX);

impl Detail<'_> {
    fn write(&self, file: &mut Appender<'_>) -> rusqlite::Result<()> {
        let flow = self.record.flow();
        let begun = FlowColumns::of(&flow, self.record.identity().is_cut());
        match &self.row {
            Row::Flow(counted) => file.flow(self.lsn, &begun, counted, flow.reason.as_str()),
            Row::Part { hour, bytes } => file.part(self.lsn, &begun, *hour, *bytes),
        }
    }
}
