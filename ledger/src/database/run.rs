//! The runs of a gateway: when each began, and whether it ended in order.
//!
//! Guarantees: of a run with an end everything before it is applied.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};

use super::checksum;
use crate::entry::TableFinding;

/// The number of an entry, and its moment in nanoseconds.
type Instant = (i64, i64);

/// A row of `run`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Run {
    pub(crate) epoch: u32,
    pub(crate) began: Instant,
    /// Zeros without an end.
    pub(crate) ended: Instant,
    /// The number that the run drew; 0: not known.
    pub(crate) run: u128,
    /// What it found of the live table of the run before.
    pub(crate) table: TableFinding,
}

/// Stores a run.
pub(super) const PUT: &str = "INSERT OR REPLACE INTO run VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

impl Run {
    /// The last run of `gateway`.
    pub(crate) fn last(connection: &Connection, gateway: i64) -> rusqlite::Result<Option<Run>> {
        let last = "SELECT * FROM run WHERE gateway = ?1 ORDER BY epoch DESC LIMIT 1";
        connection.prepare_cached(last)?.query_row([gateway], Run::read).optional()
    }

    /// Whether entry `lsn` of `gateway` is the end of a run.
    pub(crate) fn ended_at(connection: &Connection, gateway: i64, lsn: i64) -> rusqlite::Result<bool> {
        let ended = "SELECT * FROM run WHERE gateway = ?1 AND ended_lsn = ?2 AND ended_lsn > 0";
        let run = connection.prepare_cached(ended)?.query_row([gateway, lsn], Run::read).optional()?;
        Ok(run.is_some())
    }

    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Run> {
        checksum::check(row, "run")?;
        Ok(Run {
            epoch: row.get("epoch")?,
            began: (row.get("began_lsn")?, row.get("began_ns")?),
            ended: (row.get("ended_lsn")?, row.get("ended_ns")?),
            run: u128::from_be_bytes(row.get("run")?),
            table: TableFinding::from_number(row.get("live_table")?).unwrap_or(TableFinding::None),
        })
    }

    pub(crate) fn write(&self, connection: &Connection, gateway: i64) -> rusqlite::Result<()> {
        let Run { epoch, began, ended, run, table } = *self;
        let [gateway, epoch, began_lsn, began_ns, ended_lsn, ended_ns] =
            [gateway, epoch.into(), began.0, began.1, ended.0, ended.1].map(ValueRef::Integer);
        let (run, table) = (run.to_be_bytes(), ValueRef::Integer(table as i64));
        let values = [gateway, epoch, began_lsn, began_ns, ended_lsn, ended_ns, ValueRef::Blob(&run), table];
        checksum::put(connection, PUT, &values)
    }
}

/// Stores the end of run `epoch`.
pub(crate) fn end(connection: &Connection, gateway: i64, epoch: u32, ended: Instant) -> rusqlite::Result<()> {
    match Run::last(connection, gateway)?.filter(|run| run.epoch == epoch) {
        Some(run) => Run { ended, ..run }.write(connection, gateway),
        // The run began under an earlier version, which stored no runs.
        None => {
            let run = Run { epoch, began: (0, 0), ended, run: 0, table: TableFinding::None };
            run.write(connection, gateway)
        }
    }
}
