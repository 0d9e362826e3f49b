//! Sums over any span, from the details of its months and from open flows.
//!
//! Guarantees: of a file that is ahead of `ledger.db`, which commits later, only rows that `ledger.db` has
//! are read.

use std::cell::OnceCell;

use rusqlite::{Connection, Row as SqlRow};

use super::groups::{Item, Text};
use super::hosts::{PackedValues, SummedDays};
use super::{Admission, Groups, QueryError, SqliteUsage};
use crate::database::checksum::Checker;
use crate::database::details::{self, DetailKind, DetailTable, DetailTables};
use crate::database::host_sums::SummedTo;
use crate::database::month::{Month, QUARTER_NS};
use crate::database::row_ranges::RowRanges;
use crate::query::window::Window;
use crate::query::{Filter, GroupBy};

/// A month's file with what is known of its rows.
pub(super) struct MonthDetails {
    file: Connection,
    tables: DetailTables,
    /// Read when they are needed.
    ranges: OnceCell<RowRanges>,
}

impl MonthDetails {
    /// Whether it has sums of several flows, which have no number of an entry by which later ones could be
    /// left out. Those of an earlier version do not change any more.
    fn has_aggregates(&self) -> rusqlite::Result<bool> {
        let table = self.tables.of(DetailKind::Aggregate).find(|table| !table.is_hourly);
        table.map_or(Ok(false), |table| Ok(!table.is_empty(&self.file)?))
    }
}

impl SqliteUsage {
    /// Adds the details in `window`; returns the months whose details are missing, wholly or in part.
    pub(super) fn add_details(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        groups: &mut Groups<'_>,
    ) -> Result<Vec<Month>, QueryError> {
        let mut missing = Vec::new();
        let mut months = self.months()?;
        months
            .retain(|month, _| month.last_ns() >= window.since_ns && month.beginning_ns() <= window.last_ns);
        let needs_ports = keys.iter().any(|key| matches!(key, GroupBy::Port | GroupBy::Protocol));
        let port_protocols = match months.keys().next() {
            Some(first) if needs_ports => Some(self.port_protocols(filter, window, *first)?),
            _ => None,
        };
        let mut packed = PackedValues::default();
        for (month, dropped) in months {
            let details = self.month_details(month)?;
            if dropped || details.is_none() {
                missing.push(month);
            }
            let Some(details) = details else { continue };
            if self.is_ahead(&details.file)? && details.has_aggregates()? {
                self.months_ahead.borrow_mut().insert(month);
            }
            let file = (month, &details.file, &details.tables);
            let summed = self.add_host_sums(file, filter, keys, window, (&mut packed, groups))?;
            let is_wanted = |kind| port_protocols.is_none() || kind != DetailKind::Part;
            for (part, beyond) in parts_of(window, summed) {
                let admission = filter.admission(&self.registry, part);
                self.each_detail(&details, (part, beyond), is_wanted, |item, _| {
                    if admission.admits(item) { groups.add(item) } else { Ok(()) }
                })?;
            }
            if let Some(port_protocols) = &port_protocols {
                self.add_parts(&details, filter, window, port_protocols, groups)?;
            }
        }
        self.add_packed_hosts(&mut packed, filter, groups)?;
        let admission = filter.admission(&self.registry, window);
        self.each_open(&admission, |item| groups.add(item))?;
        Ok(missing)
    }

    /// The details of a month; `None` if it has no file.
    pub(super) fn month_details(&self, month: Month) -> Result<Option<MonthDetails>, QueryError> {
        let Some(file) = self.month(month)? else { return Ok(None) };
        let tables = DetailTables::read(&file)?;
        Ok(Some(MonthDetails { file, tables, ranges: OnceCell::new() }))
    }

    fn ranges<'d>(&self, details: &'d MonthDetails) -> &'d RowRanges {
        details.ranges.get_or_init(|| {
            // Without ranges all rows are read, and the damage is reported.
            RowRanges::read(&details.file, &details.tables).unwrap_or_else(|_| {
                self.row_checks.admits(false);
                RowRanges::default()
            })
        })
    }

    /// Calls `each` with the visible rows of a month's file, of the kinds that `is_wanted` admits. All rows
    /// of `window` are among them but those up to `beyond`, and as few others as is known without reading
    /// them.
    pub(super) fn each_detail(
        &self,
        details: &MonthDetails,
        (window, beyond): (Window, SummedTo),
        is_wanted: impl Fn(DetailKind) -> bool,
        mut each: impl FnMut(&Item<'_>, &SqlRow<'_>) -> Result<(), QueryError>,
    ) -> Result<(), QueryError> {
        for table in details.tables.all().filter(|table| is_wanted(table.kind)) {
            let number = if table.is_hourly { 0 } else { beyond.of(table.kind) };
            if table.kind != DetailKind::Aggregate && !table.has_rows_behind(&details.file, number)? {
                continue;
            }
            let lies_near = lies_near(self.ranges(details), table, window, beyond);
            let condition = match table.kind {
                DetailKind::Aggregate => lies_near,
                // A damaged row may have no number.
                _ => format!("{lies_near} AND ({}) IS NOT FALSE", self.is_visible()),
            };
            self.each_item(&details.file, &table.select_with_row(&condition), &mut each)?;
        }
        Ok(())
    }

    /// Calls `each` with the open flows that are admitted.
    pub(super) fn each_open(
        &self,
        admission: &Admission<'_>,
        mut each: impl FnMut(&Item<'_>) -> Result<(), QueryError>,
    ) -> Result<(), QueryError> {
        self.each_item(&self.connection, &details::select_live_with_row(), |item, _| {
            if admission.admits(item) { each(item) } else { Ok(()) }
        })
    }

    /// Calls `each` with the intact rows of `sql`, which has the columns of details and then the row's own.
    fn each_item(
        &self,
        connection: &Connection,
        sql: &str,
        mut each: impl FnMut(&Item<'_>, &SqlRow<'_>) -> Result<(), QueryError>,
    ) -> Result<(), QueryError> {
        let mut select = connection.prepare(sql)?;
        let mut checker = Checker::new(details::COLUMNS, select.column_index("crc")?);
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            if self.row_checks.admits(checker.is_intact(row)?) {
                each(&item(row)?, row)?;
            }
        }
        Ok(())
    }
}

/// The fields of a row with the columns of details.
fn item<'a>(row: &'a SqlRow<'_>) -> rusqlite::Result<Item<'a>> {
    let text = |column| -> rusqlite::Result<&'a str> { Ok(row.get_ref(column)?.as_str()?) };
    let port = row.get_ref(details::PORT)?;
    let mut item = Item {
        account: row.get_ref(details::ACCOUNT)?.as_i64_or_null()?.unwrap_or(0),
        host: Text::Plain(text(details::HOST)?),
        port: port.as_i64().map_or(Text::Plain(""), Text::Number),
        protocol: text(details::PROTOCOL)?,
        class: text(details::CLASS)?,
        set: row.get(details::SET)?,
        ..Item::at(row.get(details::AT_NS)?)
    };
    for (sum, column) in item.sums.iter_mut().zip(details::SUMS..) {
        *sum = row.get(column)?;
    }
    Ok(item)
}

/// The condition on the keys of `table` that every row of `window` meets, and few others do.
fn lies_near(ranges: &RowRanges, table: DetailTable, window: Window, beyond: SummedTo) -> String {
    let (first, last) = (window.since_ns / QUARTER_NS, window.last_ns / QUARTER_NS);
    match table.kind {
        _ if table.is_hourly => "TRUE".to_owned(),
        DetailKind::Aggregate => format!("quarter BETWEEN {first} AND {last}"),
        kind => {
            let range = ranges.of(kind, (first, last));
            format!("rowid BETWEEN {} AND {}", range.0.max(beyond.of(kind) + 1), range.1)
        }
    }
}

/// The parts of `window` of which details are to be read, each from the row behind its number on.
fn parts_of(window: Window, summed: Option<SummedDays>) -> Vec<(Window, SummedTo)> {
    let Some(SummedDays { days, to }) = summed else { return vec![(window, SummedTo::default())] };
    let edges = window.without(days).map(|edge| (edge, SummedTo::default()));
    edges.chain([(days, to)]).collect()
}
