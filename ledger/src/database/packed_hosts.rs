//! The sums by host of days that are over, and of a month that is over: as packed values in a month's file.
//!
//! Guarantees: they can be made again. A change of the sums of a day discards its value and that of the month
//! in the same transaction, and a value is not made of a damaged row.
//!
//! Entries are in the order of a hash of their names, and of the names where that is equal. So many values
//! are merged without a search for each entry, which would miss the processor's caches.
//!
//! ```text
//!   host_day (by account) --day is over--> packed_host_day --month is over--> packed_host_month
//! ```

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior};

use super::checksum;
use super::month::{DAY_NS, Month};
use super::packed::{self, HostEntries, HostSums};
use super::sums::Sums;
use crate::limits::{PACKED_HOSTS_MAX, PACKED_ROWS_MAX};
use crate::record::Class;

/// A table of packed values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PackedHosts {
    /// By day, counted from 1970.
    Day,
    /// By the number of the month.
    Month,
}

impl PackedHosts {
    /// The table.
    pub(crate) const fn table(self) -> &'static str {
        match self {
            PackedHosts::Day => "packed_host_day",
            PackedHosts::Month => "packed_host_month",
        }
    }

    /// The value of `unit`, a day or a month; none if there is none, or it is damaged.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn read(self, file: &Connection, unit: i64) -> rusqlite::Result<Option<Vec<u8>>> {
        let mut select = file.prepare_cached(&format!("SELECT * FROM {} WHERE rowid = ?1", self.table()))?;
        let mut rows = select.query([unit])?;
        match rows.next()? {
            Some(row) if checksum::is_intact(row)? => row.get("sums").map(Some),
            _ => Ok(None),
        }
    }

    /// Stores a value, unless its sums could not be packed; returns whether they could.
    fn put(self, file: &Connection, unit: i64, value: Option<Vec<u8>>) -> rusqlite::Result<bool> {
        if let Some(value) = &value {
            let put = format!("INSERT OR REPLACE INTO {} VALUES (?1, ?2, ?3)", self.table());
            checksum::put(file, &put, &[ValueRef::Integer(unit), ValueRef::Blob(value)])?;
        }
        Ok(value.is_some())
    }
}

/// The tables.
pub(crate) const TABLES: [&str; 2] = [PackedHosts::Day.table(), PackedHosts::Month.table()];

/// Calls `each` with every entry of `values`, in the order of hashes and names, and with the index of its
/// value. Returns whether all could be read.
///
/// # Errors
/// The first one of `each`.
pub(crate) fn merge<'v, E>(
    values: &'v [Vec<u8>],
    mut each: impl FnMut(usize, &HostSums<'v>) -> Result<(), E>,
) -> Result<bool, E> {
    let mut heads = Vec::new();
    let mut is_whole = true;
    for (index, value) in values.iter().enumerate() {
        let mut entries = HostEntries::new(value);
        match entries.next() {
            Some(head) => heads.push((head, index, entries)),
            None => is_whole &= entries.is_at_end(),
        }
    }
    // So few values that a heap would be slower.
    while let Some(least) = heads.iter().map(|(head, ..)| (head.hash, head.name)).min() {
        let mut at = 0;
        while let Some((head, index, entries)) = heads.get_mut(at) {
            if (head.hash, head.name) > least {
                at += 1;
                continue;
            }
            each(*index, head)?;
            match entries.next() {
                Some(next) => *head = next,
                None => {
                    is_whole &= entries.is_at_end();
                    heads.swap_remove(at);
                }
            }
        }
    }
    Ok(is_whole)
}

/// Discards the values of `days`, whose sums change, and so that of the month.
pub(super) fn discard(file: &Connection, days: impl IntoIterator<Item = i64>) -> rusqlite::Result<()> {
    let mut delete = file.prepare_cached("DELETE FROM packed_host_day WHERE day = ?1")?;
    for day in days {
        delete.execute([day])?;
    }
    file.prepare_cached("DELETE FROM packed_host_month")?.execute([]).map(drop)
}

/// Deletes damaged values, which are made again.
pub(super) fn delete_damaged(file: &Connection) -> rusqlite::Result<()> {
    match packed::delete_damaged(file, &TABLES) {
        // `verify` names the damage.
        Err(error) if checksum::is_damage(&error) => Ok(()),
        deleted => deleted,
    }
}

/// Makes values of the days of `month` before `now_ns`, and of the month itself once it is over, where they
/// are missing. Returns whether all are made that can be: once it has read [`PACKED_ROWS_MAX`] rows, it
/// leaves the other days to the next call. Days that cannot be packed come to `unpackable`, and are not read
/// again.
pub(crate) fn pack(
    file: &mut Connection,
    month: Month,
    now_ns: i64,
    unpackable: &mut BTreeSet<i64>,
) -> rusqlite::Result<bool> {
    let transaction = file.transaction_with_behavior(TransactionBehavior::Immediate)?;
    match pack_days(&transaction, month, now_ns, unpackable) {
        Ok(is_done) => transaction.commit().map(|()| is_done),
        // No entry depends on them, and `verify` names the damage.
        Err(error) if checksum::is_damage(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

fn pack_days(
    file: &Connection,
    month: Month,
    now_ns: i64,
    unpackable: &mut BTreeSet<i64>,
) -> rusqlite::Result<bool> {
    let (first, last) = (month.beginning_ns() / DAY_NS, month.last_ns() / DAY_NS);
    let mut rows = 0;
    for day in first..=last.min(now_ns / DAY_NS - 1) {
        if unpackable.contains(&day) {
            continue;
        }
        if rows >= PACKED_ROWS_MAX {
            return Ok(false);
        }
        let (read, is_packed) = pack_day(file, day)?;
        rows += read;
        if !is_packed {
            unpackable.insert(day);
        }
    }
    let is_whole = last < now_ns / DAY_NS && unpackable.is_empty();
    if is_whole && !exists(file, "SELECT 1 FROM packed_host_month WHERE month = ?1", month.number())? {
        pack_month(file, month)?;
    }
    Ok(true)
}

/// Makes the value of a day, if it has sums and no value. Returns the number of rows that it read, and
/// whether the day has no other sums than those of its value.
fn pack_day(file: &Connection, day: i64) -> rusqlite::Result<(i64, bool)> {
    if exists(file, "SELECT 1 FROM packed_host_day WHERE day = ?1", day)? {
        return Ok((0, true));
    }
    let (mut sums, mut count) = (BTreeMap::<(i64, Class, i64), Sums>::new(), 0);
    let mut select = file.prepare_cached("SELECT * FROM host_day WHERE day = ?1")?;
    let mut rows = select.query([day])?;
    while let Some(row) = rows.next()? {
        count += 1;
        // First whether it is intact: a damaged row may have anything.
        let key = if checksum::is_intact(row)? { key(row)? } else { None };
        let Some(key) = key.filter(|_| sums.len() < PACKED_HOSTS_MAX) else { return Ok((count, false)) };
        sums.entry(key).or_default().add(&Sums::read(row)?);
    }
    if sums.is_empty() {
        return Ok((0, true));
    }
    let mut all = Vec::with_capacity(sums.len());
    for ((host, class, set), sums) in sums {
        // The next one of the same host has the same name.
        let Some(name) = name(file, host)? else { return Ok((count, false)) };
        all.push((packed::hash(&name), name, class, set, sums));
    }
    all.sort_unstable_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
    let entries = all.iter().map(|(hash, name, class, set, sums)| HostSums {
        hash: *hash,
        name,
        class: *class,
        set: *set,
        sums: *sums,
    });
    Ok((count, PackedHosts::Day.put(file, day, packed::pack_hosts(entries))?))
}

/// Makes the value of the month of those of its days, which all have one.
fn pack_month(file: &Connection, month: Month) -> rusqlite::Result<()> {
    let mut days = Vec::new();
    for day in month.beginning_ns() / DAY_NS..=month.last_ns() / DAY_NS {
        days.extend(PackedHosts::Day.read(file, day)?);
    }
    let mut all: Vec<HostSums<'_>> = Vec::new();
    let merged = merge(&days, |_, entry| {
        let is_full = all.len() >= PACKED_HOSTS_MAX;
        // Not all with the hash: a client can choose many names with one.
        let is_same_host = |known: &&mut HostSums<'_>| (known.hash, known.name) == (entry.hash, entry.name);
        let mut same_host = all.iter_mut().rev().take_while(is_same_host);
        match same_host.find(|known| (known.class, known.set) == (entry.class, entry.set)) {
            Some(known) => known.sums.add(&entry.sums),
            None if is_full => return Err(()),
            None => all.push(*entry),
        }
        Ok(())
    });
    if merged == Ok(true) && !all.is_empty() {
        PackedHosts::Month.put(file, month.number(), packed::pack_hosts(all))?;
    }
    Ok(())
}

/// The class and the set of a row of `host_day` behind the number of its host; none if it has no known class.
fn key(row: &Row<'_>) -> rusqlite::Result<Option<(i64, Class, i64)>> {
    let class = row.get_ref("class")?;
    let class = [Class::External, Class::Internal].into_iter().find(|one| class.as_str() == Ok(one.as_str()));
    let (host, set) = (row.get("host")?, row.get("set_number")?);
    Ok(class.map(|class| (host, class, set)))
}

/// The name of a host; none if its row is damaged or missing.
fn name(file: &Connection, host: i64) -> rusqlite::Result<Option<String>> {
    let mut select = file.prepare_cached("SELECT * FROM host WHERE number = ?1")?;
    let mut rows = select.query([host])?;
    match rows.next()? {
        Some(row) if checksum::is_intact(row)? => row.get("name").map(Some),
        _ => Ok(None),
    }
}

fn exists(file: &Connection, sql: &str, unit: i64) -> rusqlite::Result<bool> {
    Ok(file.prepare_cached(sql)?.query_row([unit], |_| Ok(())).optional()?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client can choose many names with one hash: each is found beside its own entries alone.
    #[test]
    fn entries_of_one_hash_are_merged_by_name() {
        let names = ["8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"];
        let entry = |name, up| HostSums {
            hash: packed::hash(name),
            name,
            class: Class::External,
            set: 0,
            sums: Sums { up, ..Sums::default() },
        };
        let value = |up| packed::pack_hosts(names.map(|name| entry(name, up))).unwrap();
        let values = [value(1), value(2), value(3)];
        let mut merged = Vec::new();
        let each = |index, entry: &HostSums<'_>| {
            merged.push((entry.name.to_owned(), entry.sums.up, index));
            Ok::<_, ()>(())
        };
        assert_eq!(merge(&values, each), Ok(true));
        let found: Vec<&str> = merged.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(found, [[names[0]; 3], [names[1]; 3]].concat());
        assert!(merged.iter().all(|(_, up, index)| *up == *index as i64 + 1));
    }
}
