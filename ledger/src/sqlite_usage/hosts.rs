//! Sums by host over whole days, from the sums that a month's file has of its flows.
//!
//! Packed values take the place of the sums of a day, or of the month, that is over, unless accounts matter.
//!
//! Guarantees: the same sums as from details. Where `ledger.db` lacks an entry whose flow is summed up, none
//! of the file's sums are used.
//!
//! ```text
//!   flows, parts | the first day's rest | whole days: sums, and rows not summed up yet | the last day's part
//! ```

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params_from_iter};

use super::groups::{Item, Text, closed, closed_columns};
use super::{Groups, QueryError, SqliteUsage};
use crate::database::checksum::{self, Checker};
use crate::database::details::DetailTables;
use crate::database::host_sums::SummedTo;
use crate::database::month::{DAY_NS, Month};
use crate::database::packed;
use crate::database::packed_hosts::{self, PackedHosts};
use crate::limits::MERGED_VALUES_MAX;
use crate::query::window::Window;
use crate::query::{Filter, GroupBy};

/// In so many days most hosts of a month have a flow: their names are read all at once.
const EVERY_NAME_DAYS_MIN: i64 = 7;

/// The part of a month of which a file's sums by host were used.
#[derive(Clone, Copy)]
pub(super) struct SummedDays {
    pub(super) days: Window,
    pub(super) to: SummedTo,
}

impl SqliteUsage {
    /// Adds the sums by host of the whole days of `window` in the file of `month`, packed ones to `packed`;
    /// `None` if it has none, or the question needs none.
    pub(super) fn add_host_sums(
        &self,
        (month, file, tables): (Month, &Connection, &DetailTables),
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        (packed, groups): (&mut PackedValues, &mut Groups<'_>),
    ) -> Result<Option<SummedDays>, QueryError> {
        let is_finer = |key: &GroupBy| {
            matches!(key, GroupBy::Port | GroupBy::Protocol | GroupBy::Quarter | GroupBy::Hour)
                || (key.is_time() && !self.zone.is_utc())
        };
        let is_by_host = filter.host.is_some() || keys.contains(&GroupBy::Host);
        let days = window.within(month).whole_days().filter(|_| is_by_host && !keys.iter().any(is_finer));
        let Some(days) = days else { return Ok(None) };
        let Some(to) = self.summed_to(file, tables)? else { return Ok(None) };
        let summed = SummedDays { days, to };
        let is_of_account = |key: &GroupBy| matches!(key, GroupBy::User | GroupBy::Team);
        if filter.is_of_account() || keys.iter().any(is_of_account) {
            self.add_host_rows(file, days, filter, groups)?;
            return Ok(Some(summed));
        }
        let is_whole_month = days == Window::of(month) && !keys.contains(&GroupBy::Day);
        if is_whole_month && let Some(value) = PackedHosts::Month.read(file, month.number())? {
            packed.push(month.beginning_ns(), value);
            return Ok(Some(summed));
        }
        for day in days.since_ns / DAY_NS..=days.last_ns / DAY_NS {
            match PackedHosts::Day.read(file, day)? {
                Some(value) => packed.push(day.saturating_mul(DAY_NS), value),
                None => self.add_host_rows(file, Window::of_day(day), filter, groups)?,
            }
        }
        if packed.values.len() >= MERGED_VALUES_MAX {
            self.add_packed_hosts(packed, filter, groups)?;
        }
        Ok(Some(summed))
    }

    /// Adds packed values, of which none is left.
    pub(super) fn add_packed_hosts(
        &self,
        packed: &mut PackedValues,
        filter: &Filter,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let admission = filter.admission(&self.registry, Window::EVER).of_any_host();
        let wanted = filter.host.as_deref().map(|name| (packed::hash(name), name));
        let PackedValues { starts_ns, values } = std::mem::take(packed);
        // The name of the entry before, and its number.
        let mut last = ("", groups.intern(""));
        let is_whole = packed_hosts::merge(&values, |index, entry| {
            if wanted.is_some_and(|wanted| wanted != (entry.hash, entry.name)) {
                return Ok(());
            }
            if last.0 != entry.name {
                last = (entry.name, groups.intern(entry.name));
            }
            let item = Item {
                host: Text::Interned(last.1),
                class: entry.class.as_str(),
                set: entry.set,
                sums: closed(&entry.sums),
                ..Item::at(starts_ns[index])
            };
            if admission.admits(&item) { groups.add(&item) } else { Ok(()) }
        })?;
        self.row_checks.admits(is_whole);
        Ok(())
    }

    /// Adds the rows of `days`.
    fn add_host_rows(
        &self,
        file: &Connection,
        days: Window,
        filter: &Filter,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let is_long = (days.last_ns - days.since_ns) / DAY_NS >= EVERY_NAME_DAYS_MIN;
        let mut hosts = Hosts::new(self, file, is_long && filter.host.is_none() && !filter.is_of_account());
        let host = match &filter.host {
            Some(name) => match hosts.find(name)? {
                Some(host) => Some(host),
                // It has no sums.
                None => return Ok(()),
            },
            None => None,
        };
        let source = HostRows::of_days(days, filter.account(&self.registry), host);
        self.add_hosts(&source, filter, &mut hosts, groups)
    }

    /// Adds the rows of `source`.
    fn add_hosts(
        &self,
        source: &HostRows,
        filter: &Filter,
        hosts: &mut Hosts<'_>,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let admission = filter.admission(&self.registry, Window::EVER).of_any_host();
        let mut select = hosts.file.prepare_cached(&source.sql)?;
        // Day, account, host, class, set, six sums, and the checksum.
        let mut checker = Checker::new(0, 11);
        for parameters in &source.parameters {
            let mut rows = select.query(params_from_iter(parameters))?;
            while let Some(row) = rows.next()? {
                if !self.row_checks.admits(checker.is_intact(row)?) {
                    continue;
                }
                let [day, account, host, _, set, ..] = *checker.integers() else { continue };
                let Some(interned) = hosts.interned(host, groups)? else { continue };
                let item = Item {
                    account,
                    host: Text::Interned(interned),
                    class: row.get_ref(3)?.as_str().map_err(rusqlite::Error::from)?,
                    set,
                    sums: closed_columns(&checker.integers()[5..]),
                    ..Item::at(day.saturating_mul(DAY_NS))
                };
                if admission.admits(&item) {
                    groups.add(&item)?;
                }
            }
        }
        Ok(())
    }

    /// Up to which rows the sums are; `None` if they have a row that is not visible, or are of no use.
    fn summed_to(&self, file: &Connection, tables: &DetailTables) -> Result<Option<SummedTo>, QueryError> {
        if !tables.have_sums() {
            return Ok(None);
        }
        let Ok(to) = SummedTo::read(file) else {
            self.row_checks.admits(false);
            return Ok(None);
        };
        // The numbers of entries ascend with those of rows.
        for (table, last) in [("flow", to.flow), ("part", to.part)] {
            let is_visible =
                format!("SELECT count(*) FROM {table} WHERE rowid = ?1 AND {}", self.is_visible());
            if last > 0 && file.query_row(&is_visible, [last], |row| row.get::<_, i64>(0))? == 0 {
                return Ok(None);
            }
        }
        Ok((to != SummedTo::default()).then_some(to))
    }
}

/// Packed values of sums by host, which are merged together.
#[derive(Default)]
pub(super) struct PackedValues {
    /// The moment at which the day or the month of each value begins.
    starts_ns: Vec<i64>,
    values: Vec<Vec<u8>>,
}

impl PackedValues {
    fn push(&mut self, start_ns: i64, value: Vec<u8>) {
        self.starts_ns.push(start_ns);
        self.values.push(value);
    }
}

/// Rows of `host_day`: a statement, and the parameters of each of its runs.
struct HostRows {
    sql: String,
    parameters: Vec<Vec<i64>>,
}

impl HostRows {
    /// Those of one account are found by key, day by day.
    fn of_days(days: Window, account: Option<i64>, host: Option<i64>) -> HostRows {
        let (first, last) = (days.since_ns / DAY_NS, days.last_ns / DAY_NS);
        let (condition, parameters): (_, Vec<Vec<i64>>) = match account {
            Some(account) => {
                ("day = ?1 AND account = ?2", (first..=last).map(|day| vec![day, account]).collect())
            }
            None => ("day BETWEEN ?1 AND ?2", vec![vec![first, last]]),
        };
        let of_host = if host.is_some() { "AND host = ?3" } else { "" };
        let with_host = |parameters: Vec<i64>| parameters.into_iter().chain(host).collect();
        HostRows {
            sql: format!("SELECT * FROM host_day WHERE {condition} {of_host}"),
            parameters: parameters.into_iter().map(with_host).collect(),
        }
    }
}

/// The hosts in the sums of a file.
struct Hosts<'a> {
    usage: &'a SqliteUsage,
    file: &'a Connection,
    /// By number, that of the host's name in [`Groups`]. The numbers of a file begin with 1 and have no gaps.
    interned: Vec<Option<i64>>,
    /// Whether all names are needed.
    is_every: bool,
}

impl<'a> Hosts<'a> {
    fn new(usage: &'a SqliteUsage, file: &'a Connection, is_every: bool) -> Self {
        Self { usage, file, interned: Vec::new(), is_every }
    }

    /// The number of a name in the file.
    fn find(&self, name: &str) -> Result<Option<i64>, QueryError> {
        let mut select = self.file.prepare("SELECT * FROM host WHERE name = ?1")?;
        let found = select.query_row([name], |row| Ok((checksum::is_intact(row)?, row.get("number")?)));
        let found = found.optional()?.filter(|(is_intact, _)| self.usage.row_checks.admits(*is_intact));
        Ok(found.map(|(_, number)| number))
    }

    /// The number in `groups` of the host with number `host`; none if its row is damaged or missing.
    fn interned(&mut self, host: i64, groups: &mut Groups<'_>) -> Result<Option<i64>, QueryError> {
        let known = |interned: &[Option<i64>]| *usize::try_from(host).ok().and_then(|at| interned.get(at))?;
        if let Some(known) = known(&self.interned) {
            return Ok(Some(known));
        }
        match std::mem::take(&mut self.is_every) {
            true => self.read("SELECT * FROM host WHERE number >= ?1", 0, groups)?,
            false => self.read("SELECT * FROM host WHERE number = ?1", host, groups)?,
        }
        let known = known(&self.interned);
        self.usage.row_checks.admits(known.is_some());
        Ok(known)
    }

    fn read(&mut self, sql: &str, number: i64, groups: &mut Groups<'_>) -> Result<(), QueryError> {
        let mut select = self.file.prepare_cached(sql)?;
        let mut checker = Checker::new(0, 2);
        let mut rows = select.query([number])?;
        while let Some(row) = rows.next()? {
            match name(row, &mut checker)? {
                Some(name) => self.note(checker.integers()[0], groups.intern(name)),
                None => _ = self.usage.row_checks.admits(false),
            }
        }
        Ok(())
    }

    fn note(&mut self, host: i64, interned: i64) {
        let Some(index) = usize::try_from(host).ok().filter(|index| *index <= HOSTS_MAX) else { return };
        if self.interned.len() <= index {
            self.interned.resize(index + 1, None);
        }
        self.interned[index] = Some(interned);
    }
}

/// More than the rows of a month (`[ledger]`), and so than its hosts.
const HOSTS_MAX: usize = 1 << 27;

/// The name in a row of `host`, if that is intact.
fn name<'a>(row: &'a SqlRow<'_>, checker: &mut Checker) -> rusqlite::Result<Option<&'a str>> {
    match checker.is_intact(row)? {
        true => Ok(Some(row.get_ref(1)?.as_str()?)),
        false => Ok(None),
    }
}
