//! The sums by day, account and host in a month's file.
//!
//! Guarantees: they are the sums of the file's own flows and parts up to a row number that moves in the same
//! transaction. So they can be made again at any time, and a reader adds the rows beyond it.
//! Not handled here: rows of an earlier version, and `aggregate`, which is read as it is.
//!
//! Each flow has another host: were its sums changed with each batch, a page would be written for each flow.
//! So rows are summed up many at a time, in the order of the keys, and by day, so that the changed pages are
//! those of one day.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, Statement, TransactionBehavior};

use super::checksum;
use super::columns::FlowColumns;
use super::details::DetailKind;
use super::number_hasher::NumberMap;
use super::packed_hosts;
use super::sums::{DAY_QUARTERS, HOST_DAY, Sums};
use crate::limits::HOST_SUM_ROWS_MAX;

/// A key of sums: day, account, the indices of the host and the class, and set.
type Key = (i64, i64, i64, i64, i64);

/// The last rows of flows and parts that are summed up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SummedTo {
    pub(crate) flow: i64,
    pub(crate) part: i64,
}

impl SummedTo {
    /// Reads the numbers from a month's file; zeros if nothing is summed up.
    ///
    /// # Errors
    /// SQLite's, or the row is damaged.
    pub(crate) fn read(file: &Connection) -> rusqlite::Result<SummedTo> {
        let mut select = file.prepare_cached("SELECT * FROM host_source")?;
        let summed = select.query_row([], |row| {
            checksum::check(row, "host_source")?;
            Ok(SummedTo { flow: row.get("flow_last")?, part: row.get("part_last")? })
        });
        Ok(summed.optional()?.unwrap_or_default())
    }

    /// The last number of a kind's rows.
    pub(crate) fn of(self, kind: DetailKind) -> i64 {
        match kind {
            DetailKind::Flow => self.flow,
            DetailKind::Part => self.part,
            DetailKind::Aggregate => 0,
        }
    }

    fn put(self, file: &Connection) -> rusqlite::Result<()> {
        let values = [0, self.flow, self.part].map(ValueRef::Integer);
        checksum::put(file, "INSERT OR REPLACE INTO host_source VALUES (?1, ?2, ?3, ?4)", &values)
    }

    /// The last rows of a file.
    fn last(file: &Connection) -> rusqlite::Result<SummedTo> {
        let last =
            "SELECT ifnull((SELECT max(rowid) FROM flow), 0), ifnull((SELECT max(rowid) FROM part), 0)";
        file.prepare_cached(last)?.query_row([], |row| Ok(SummedTo { flow: row.get(0)?, part: row.get(1)? }))
    }
}

/// Sums up the next rows of a month's file, at most [`HOST_SUM_ROWS_MAX`] of a kind, if at least `rows_min`
/// wait. Nothing behind a damaged row is summed up: readers find and report it. Where the sums are damaged,
/// they are discarded, and made again from then on. Returns whether a sum changed.
pub(crate) fn sum_up(
    file: &mut Connection,
    appended: &mut Option<Appended>,
    rows_min: i64,
) -> rusqlite::Result<bool> {
    match add_waiting(file, appended, rows_min) {
        Err(error) if checksum::is_damage(&error) => match discard(file) {
            // No entry depends on them, and `verify` names the damage.
            Err(error) if checksum::is_damage(&error) => Ok(false),
            discarded => discarded.map(|()| true),
        },
        added => added,
    }
}

fn add_waiting(
    file: &mut Connection,
    appended: &mut Option<Appended>,
    rows_min: i64,
) -> rusqlite::Result<bool> {
    let (from, last) = (SummedTo::read(file)?, SummedTo::last(file)?);
    if (last.flow - from.flow) + (last.part - from.part) < rows_min.max(1) {
        return Ok(false);
    }
    let transaction = file.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (new, to) = match appended.take().filter(|appended| (appended.from, appended.to) == (from, last)) {
        Some(appended) => (appended.sums, last),
        None => {
            let mut new = NewSums::default();
            let flow = new.add_rows(&transaction, DetailKind::Flow, from.flow)?;
            let part = new.add_rows(&transaction, DetailKind::Part, from.part)?;
            (new, SummedTo { flow, part })
        }
    };
    if to != from {
        new.write(&transaction)?;
        to.put(&transaction)?;
        transaction.commit()?;
    }
    *appended = (to == last).then(|| Appended::behind(to));
    Ok(to != from)
}

/// Discards the sums if they include rows of `gateway`'s entries beyond `lsn`, which are about to be deleted,
/// or do not say which rows they include.
pub(crate) fn discard_beyond(file: &Connection, gateway: i64, lsn: i64) -> rusqlite::Result<()> {
    let summed = match SummedTo::read(file) {
        Err(error) if checksum::is_damage(&error) => return discard(file),
        summed => summed?,
    };
    for (table, last) in [("flow", summed.flow), ("part", summed.part)] {
        let includes =
            format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE gateway = ?1 AND lsn > ?2 AND rowid <= ?3)");
        if file.query_row(&includes, [gateway, lsn, last], |row| row.get(0))? {
            return discard(file);
        }
    }
    Ok(())
}

fn discard(file: &Connection) -> rusqlite::Result<()> {
    let tables = ["host_day", "host", "host_source"].into_iter().chain(packed_hosts::TABLES);
    let delete: String = tables.map(|table| format!("DELETE FROM {table};")).collect();
    // One step, unless a transaction surrounds it.
    match file.is_autocommit() {
        true => file.execute_batch(&format!("BEGIN IMMEDIATE; {delete} COMMIT")).inspect_err(|_| {
            let _ = file.execute_batch("ROLLBACK");
        }),
        false => file.execute_batch(&delete),
    }
}

/// The rows that this process has appended to a file and not summed up yet: their sums, so that it need not
/// read them again, which takes as long as appending them.
pub(crate) struct Appended {
    from: SummedTo,
    to: SummedTo,
    sums: NewSums,
}

impl Appended {
    /// Those of a file that is about to be written; `None` if rows of others wait.
    pub(crate) fn begin(file: &Connection) -> Option<Appended> {
        let (from, last) = (SummedTo::read(file).ok()?, SummedTo::last(file).ok()?);
        (from == last).then(|| Appended::behind(last))
    }

    fn behind(row: SummedTo) -> Appended {
        Appended { from: row, to: row, sums: NewSums::default() }
    }

    /// Adds row `number` of a kind, which `flow` and `quarter` tell of. `None` from then on if it does not
    /// follow the row before, or there are too many: then the rows are read.
    pub(crate) fn add(
        mut self,
        (kind, number): (DetailKind, i64),
        quarter: i64,
        flow: &FlowColumns<'_>,
        sums: &Sums,
    ) -> Option<Appended> {
        let SummedTo { flow: flows, part: parts } = &mut self.to;
        let last = if kind == DetailKind::Part { parts } else { flows };
        if *last + 1 != number || self.sums.days.len() >= APPENDED_SUMS_MAX {
            return None;
        }
        *last = number;
        let day = quarter / DAY_QUARTERS;
        self.sums.add((day, flow.account, flow.set), (flow.host, flow.class), sums);
        Some(self)
    }
}

/// Sums that are to be added to the tables.
#[derive(Default)]
struct NewSums {
    days: NumberMap<Key, Sums>,
    /// The indices of the hosts that were met.
    hosts: HashMap<String, i64>,
    /// The classes that were met.
    classes: Vec<String>,
}

impl NewSums {
    fn add(&mut self, (day, account, set): (i64, i64, i64), (host, class): (&str, &str), sums: &Sums) {
        let host = match self.hosts.get(host) {
            Some(index) => *index,
            None => {
                let index = self.hosts.len() as i64;
                self.hosts.insert(host.to_owned(), index);
                index
            }
        };
        let class = self.class(class);
        self.days.entry((day, account, host, class, set)).or_default().add(sums);
    }

    fn class(&mut self, class: &str) -> i64 {
        let index = self.classes.iter().position(|known| known == class).unwrap_or(self.classes.len());
        if index == self.classes.len() {
            self.classes.push(class.to_owned());
        }
        index as i64
    }

    /// Adds the rows behind number `from`, up to a damaged one; returns the number of the last.
    fn add_rows(&mut self, file: &Connection, kind: DetailKind, from: i64) -> rusqlite::Result<i64> {
        let table = if kind == DetailKind::Flow { "flow" } else { "part" };
        let sql = format!("SELECT *, rowid AS number FROM {table} WHERE rowid > ?1 ORDER BY rowid LIMIT ?2");
        let mut select = file.prepare_cached(&sql)?;
        let columns = Columns::of(&select, kind)?;
        let mut rows = select.query([from, HOST_SUM_ROWS_MAX])?;
        let mut last = from;
        while let Some(row) = rows.next()? {
            if !checksum::is_intact(row)? {
                break;
            }
            let texts = (row.get_ref(columns.host)?.as_str()?, row.get_ref(columns.class)?.as_str()?);
            let day = row.get::<_, i64>(columns.quarter)? / DAY_QUARTERS;
            self.add((day, row.get(columns.account)?, row.get(columns.set)?), texts, &columns.sums(row)?);
            last = row.get(columns.number)?;
        }
        Ok(last)
    }

    /// Adds the sums to the tables, in the order of the keys.
    fn write(&self, file: &Connection) -> rusqlite::Result<()> {
        let mut numbers = vec![0; self.hosts.len()];
        for (name, index) in &self.hosts {
            numbers[*index as usize] = number(file, name)?;
        }
        let key = |(day, account, host, class, set): &Key| {
            (*day, *account, numbers[*host as usize], &self.classes[*class as usize], *set)
        };
        let in_order: BTreeMap<_, _> = self.days.iter().map(|(of, sums)| (key(of), sums)).collect();
        for ((day, account, host, class, set), sums) in &in_order {
            let [day, account, host, set] = [*day, *account, *host, *set].map(ValueRef::Integer);
            HOST_DAY.add(file, &[day, account, host, ValueRef::Text(class.as_bytes()), set], sums)?;
        }
        let days: BTreeSet<i64> = self.days.keys().map(|(day, ..)| *day).collect();
        packed_hosts::discard(file, days)
    }
}

/// The number of a host, which gets one if it has none.
fn number(file: &Connection, name: &str) -> rusqlite::Result<i64> {
    let mut select = file.prepare_cached("SELECT * FROM host WHERE name = ?1")?;
    let known = select.query_row([name], |row| {
        checksum::check(row, "host")?;
        row.get("number")
    });
    if let Some(number) = known.optional()? {
        return Ok(number);
    }
    let next = "SELECT ifnull(max(number), 0) + 1 FROM host";
    let next: i64 = file.prepare_cached(next)?.query_row([], |row| row.get(0))?;
    let values = [ValueRef::Integer(next), ValueRef::Text(name.as_bytes())];
    checksum::put(file, "INSERT INTO host VALUES (?1, ?2, ?3)", &values)?;
    Ok(next)
}

/// More sums than checkpoints leave waiting: some 20 MB.
const APPENDED_SUMS_MAX: usize = 2 * HOST_SUM_ROWS_MAX as usize;

/// The positions of columns, which are sought once and not for each row.
struct Columns {
    number: usize,
    quarter: usize,
    account: usize,
    host: usize,
    class: usize,
    set: usize,
    /// The columns of a flow's sums: requests, both directions and what was counted before, uncertain bytes.
    /// Of a part the last two directions.
    sums: Vec<usize>,
    kind: DetailKind,
}

impl Columns {
    fn of(select: &Statement<'_>, kind: DetailKind) -> rusqlite::Result<Columns> {
        let names: &[&str] = match kind {
            DetailKind::Flow => &[
                "requests",
                "upstream_tx",
                "up_before",
                "client_tx",
                "down_before",
                "uncertain_up",
                "uncertain_down",
            ],
            _ => &["up", "down"],
        };
        Ok(Columns {
            number: select.column_index("number")?,
            quarter: select.column_index("quarter")?,
            account: select.column_index("account")?,
            host: select.column_index("host")?,
            class: select.column_index("class")?,
            set: select.column_index("set_number")?,
            sums: names.iter().map(|name| select.column_index(name)).collect::<rusqlite::Result<_>>()?,
            kind,
        })
    }

    fn sums(&self, row: &Row<'_>) -> rusqlite::Result<Sums> {
        let count = |index: usize| row.get::<_, i64>(self.sums[index]);
        if self.kind == DetailKind::Part {
            return Ok(Sums { up: count(0)?, down: count(1)?, ..Sums::default() });
        }
        Ok(Sums {
            flows: 1,
            requests: count(0)?,
            up: count(1)? - count(2)?,
            down: count(3)? - count(4)?,
            uncertain_up: count(5)?,
            uncertain_down: count(6)?,
        })
    }
}
