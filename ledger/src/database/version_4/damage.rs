//! Damaged rows of sums in a `ledger.db` of version 4, and what else has their sums.
//!
//! Guarantees: changes nothing. Sums that a row of `rollup_day` has are not lost with a row of `rollup_hour`.
//!
//! A day has the sums of its hours. So the sums of a damaged hour are those of its day, without those of the
//! day's other hours. What no hour and no day has is lost. The other way round nothing is: days are summed up
//! again from their hours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row};

use super::super::checksum;
use super::super::month::{HOUR_NS, Month};
use super::super::sums::Sums;
use crate::limits::READER_BUSY_MAX;

/// The columns that [`each_hour`] selects; they are read by number, since there may be millions of rows.
pub(super) const HOUR: usize = 0;
pub(super) const USER: usize = 1;
pub(super) const CLASS: usize = 2;
const CRC: usize = 8;

/// Hours of a day.
const DAY_HOURS: i64 = 24;

/// Rows that are named one by one; further ones are counted.
const NAMED_MAX: usize = 16;

/// An hour or a day, a user's name and a class.
type Key = (i64, String, String);

/// The sums by hour of a database, as far as they are damaged.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// Sums by hour whose rows are damaged, from the rows of their days.
    pub(super) restored: BTreeMap<Key, Sums>,
    /// Damaged rows whose sums no day has, with the sums that they claim.
    lost: Vec<(Key, Sums)>,
    /// Sums of days whose hour is not known; they are among the restored ones, in the day's last hour.
    without_hour: Vec<(Key, Sums)>,
    /// The users of all intact and restored rows.
    pub(super) users: BTreeSet<String>,
}

/// Reads the damage of the database at `path`, which is of an earlier version and has no writer.
///
/// # Errors
/// It cannot be read. Where the cause is damage, the migration would not take the database.
pub(crate) fn inspect(path: &Path) -> rusqlite::Result<Damage> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(READER_BUSY_MAX)?;
    connection.execute_batch("BEGIN")?;
    let exists = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    let exists = |name: &str| connection.query_row(exists, [name], |row| row.get::<_, bool>(0));
    for table in ["live", "run"] {
        if exists(table)? {
            checksum::check_all(&connection, table)?;
        }
    }
    match exists("rollup_hour")? {
        true => Damage::read(&connection, "rollup_day"),
        false => Ok(Damage::default()),
    }
}

/// Whether an error says that a database is damaged.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    code.is_some_and(|code| matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

impl Damage {
    /// Reads the rows of `rollup_hour`, and where one is damaged those of `rollup_day`, which has the name
    /// `days`.
    pub(super) fn read(connection: &Connection, days: &str) -> rusqlite::Result<Damage> {
        let mut damage = Damage::default();
        let mut damaged: BTreeMap<Key, Vec<(Key, Sums)>> = BTreeMap::new();
        each_hour(connection, |row, is_intact| {
            if is_intact {
                let user = row.get_ref(USER)?.as_str()?;
                if !damage.users.contains(user) {
                    damage.users.insert(user.to_owned());
                }
                return Ok(());
            }
            let (key, sums) = claims(row);
            damaged.entry(day_of(&key)).or_default().push((key, sums));
            Ok(())
        })?;
        if !damaged.is_empty() {
            damage.restore(connection, days, damaged)?;
        }
        Ok(damage)
    }

    fn restore(
        &mut self,
        connection: &Connection,
        days: &str,
        mut damaged: BTreeMap<Key, Vec<(Key, Sums)>>,
    ) -> rusqlite::Result<()> {
        let mut of_hours: BTreeMap<Key, Sums> = BTreeMap::new();
        each_hour(connection, |row, is_intact| {
            if is_intact {
                let key = (row.get(HOUR)?, row.get(USER)?, row.get(CLASS)?);
                of_hours.entry(day_of(&key)).or_default().add(&hour_sums(row)?);
            }
            Ok(())
        })?;
        let mut select = connection.prepare(&format!("SELECT *, 0 AS requests FROM {days}"))?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            if !checksum::is_intact(row)? {
                continue;
            }
            let key: Key = (row.get("day")?, row.get("user")?, row.get("class")?);
            let hours = of_hours.remove(&key).unwrap_or_default();
            let Some(missing) = Sums::read(row)?.without(&hours) else { continue };
            let rows = damaged.remove(&key);
            if missing == Sums::default() {
                // The rows counted nothing, or claim another day, user or class than their own.
                continue;
            }
            let (day, user, class) = key;
            let last = rows.iter().flatten().map(|((hour, ..), _)| *hour).max();
            let key = (last.unwrap_or(day * DAY_HOURS + DAY_HOURS - 1), user, class);
            if last.is_none() {
                self.without_hour.push((key.clone(), missing));
            }
            self.users.insert(key.1.clone());
            self.restored.entry(key).or_default().add(&missing);
        }
        self.lost = damaged.into_values().flatten().collect();
        Ok(())
    }

    /// What was done about damaged rows without a loss.
    pub(crate) fn note(&self) -> Option<String> {
        let restored = self.restored.len() - self.without_hour.len();
        let text = || {
            format!("ledger.db had damaged sums of hours: those of {restored} were restored from their days")
        };
        (restored > 0).then(text)
    }

    /// What a migration loses, each in a sentence about `ledger.db`.
    pub(crate) fn losses(&self) -> Vec<String> {
        let lost = self.lost.iter().map(|(key, sums)| {
            format!(
                "sums of an hour are damaged, and no day has them: they are left out ({})",
                shown(key, sums)
            )
        });
        let without_hour = self.without_hour.iter().map(|(key, sums)| {
            format!(
                "the hour of sums is damaged: they count in the last one of their day ({})",
                shown(key, sums)
            )
        });
        let mut losses: Vec<String> = lost.chain(without_hour).collect();
        if losses.len() > NAMED_MAX {
            let further = losses.len() - NAMED_MAX;
            losses.truncate(NAMED_MAX);
            losses
                .push(format!("sums of {further} further hours are damaged, and left out or moved likewise"));
        }
        losses
    }

    /// The months whose sums differ from their details by what is lost.
    pub(super) fn months(&self) -> BTreeSet<Month> {
        let hours = self.lost.iter().chain(&self.without_hour).map(|((hour, ..), _)| *hour);
        hours.map(|hour| Month::containing(hour.saturating_mul(HOUR_NS))).collect()
    }
}

/// Calls `each` with the rows of `rollup_hour`, in their order, and whether each is intact.
pub(super) fn each_hour(
    connection: &Connection,
    mut each: impl FnMut(&Row<'_>, bool) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut select = connection.prepare(
        "SELECT hour, user, class, flows, up, down, uncertain_up, uncertain_down, crc FROM rollup_hour
         ORDER BY hour, user, class",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        each(row, checksum::is_intact_before(row, CRC)?)?;
    }
    Ok(())
}

/// The sums of a row of `rollup_hour`.
pub(super) fn hour_sums(row: &Row<'_>) -> rusqlite::Result<Sums> {
    Ok(Sums {
        flows: row.get(3)?,
        requests: 0,
        up: row.get(4)?,
        down: row.get(5)?,
        uncertain_up: row.get(6)?,
        uncertain_down: row.get(7)?,
    })
}

fn day_of((hour, user, class): &Key) -> Key {
    (hour.div_euclid(DAY_HOURS), user.clone(), class.clone())
}

/// The key and the sums of a damaged row, as far as they can be read.
fn claims(row: &Row<'_>) -> (Key, Sums) {
    let text = |column: usize| match row.get_ref(column).map(|value| value.as_bytes()) {
        Ok(Ok(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    ((row.get(HOUR).unwrap_or(0), text(USER), text(CLASS)), hour_sums(row).unwrap_or_default())
}

fn shown((hour, user, class): &Key, sums: &Sums) -> String {
    let moment = Timestamp::from_second(hour.saturating_mul(HOUR_NS / 1_000_000_000)).unwrap_or_default();
    let Sums { flows, up, down, .. } = sums;
    format!("{moment} of {user}, {class}: {flows} flows, {up} bytes up, {down} down")
}
