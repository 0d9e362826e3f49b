//! The migrations of a month's file.
//!
//! A released migration is never edited, its comments included: databases have the checksum of its text.

use std::path::Path;

use rusqlite::Connection;

use super::{LOG_NUMBERS, Migration, SchemaError, sqlite};

/// The migrations of a month's file, in order.
pub(crate) const MONTH: &[Migration] = &[
    Migration { sql: DETAILS, then: None, is_read: true },
    Migration { sql: LOG_NUMBERS, then: None, is_read: false },
    Migration { sql: QUARTERS, then: Some(drop_empty), is_read: false },
    Migration { sql: RANGES_AND_HOSTS, then: None, is_read: false },
];

/// Removes tables of version 2 that have no rows: all of them in a new file.
fn drop_empty(file: &Connection, path: &Path) -> Result<(), SchemaError> {
    for table in HOURLY {
        let count = format!("SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1)");
        let dropped = match file.query_row(&count, [], |row| row.get::<_, i64>(0)) {
            Ok(0) => file.execute_batch(&format!("DROP TABLE {table}")),
            counted => counted.map(drop),
        };
        dropped.map_err(|cause| sqlite(path, cause))?;
    }
    Ok(())
}

/// The last version with those tables alone.
pub(crate) const HOURLY_VERSION: usize = 2;

/// The tables of version 2, which stay where they have rows.
pub(crate) const HOURLY: [&str; 3] = ["flow_2", "part_2", "aggregate_2"];

/// `flow` and `part` have no index: one costs two thirds of the inserts.
const DETAILS: &str = "CREATE TABLE source (
         gateway     INTEGER PRIMARY KEY,
         applied_lsn INTEGER NOT NULL,
         crc         INTEGER NOT NULL
     ) STRICT;
     -- The flows that closed in this month. `up_before` and `down_before` were counted in earlier hours.
     CREATE TABLE flow (
         id             BLOB    NOT NULL,
         opened_ns      INTEGER NOT NULL,
         user           TEXT    NOT NULL,
         host           TEXT    NOT NULL,
         port           INTEGER NOT NULL,
         address        TEXT,
         client         TEXT    NOT NULL,
         class          TEXT    NOT NULL,
         protocol       TEXT    NOT NULL,
         rule           TEXT    NOT NULL,
         cut            INTEGER NOT NULL,
         closed_ns      INTEGER NOT NULL,
         client_rx      INTEGER NOT NULL,
         upstream_tx    INTEGER NOT NULL,
         upstream_rx    INTEGER NOT NULL,
         client_tx      INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         up_before      INTEGER NOT NULL,
         down_before    INTEGER NOT NULL,
         reason         TEXT    NOT NULL,
         gateway        INTEGER NOT NULL,
         epoch          INTEGER NOT NULL,
         lsn            INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         up             INTEGER NOT NULL GENERATED ALWAYS AS (upstream_tx) VIRTUAL,
         down           INTEGER NOT NULL GENERATED ALWAYS AS (client_tx) VIRTUAL
     ) STRICT;
     -- What flows that went on had moved in an hour of this month.
     CREATE TABLE part (
         id      BLOB    NOT NULL,
         hour    INTEGER NOT NULL,
         user    TEXT    NOT NULL,
         host    TEXT    NOT NULL,
         class   TEXT    NOT NULL,
         up      INTEGER NOT NULL,
         down    INTEGER NOT NULL,
         gateway INTEGER NOT NULL,
         epoch   INTEGER NOT NULL,
         lsn     INTEGER NOT NULL,
         crc     INTEGER NOT NULL
     ) STRICT;
     -- Flows and parts beyond the number of rows that a file may have.
     CREATE TABLE aggregate (
         hour           INTEGER NOT NULL,
         user           TEXT    NOT NULL,
         class          TEXT    NOT NULL,
         host           TEXT    NOT NULL,
         flows          INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (hour, user, class, host)
     ) STRICT, WITHOUT ROWID;";

const QUARTERS: &str = "ALTER TABLE flow RENAME TO flow_2;
     ALTER TABLE part RENAME TO part_2;
     ALTER TABLE aggregate RENAME TO aggregate_2;
     -- The flows that closed in this month; `quarter`, counted from 1970, is that of the last count.
     -- `up_before` and `down_before` were counted before it.
     CREATE TABLE flow (
         id             BLOB    NOT NULL,
         opened_ns      INTEGER NOT NULL,
         account        INTEGER NOT NULL,
         policy         INTEGER NOT NULL,
         set_number     INTEGER NOT NULL,
         user           TEXT    NOT NULL,
         host           TEXT    NOT NULL,
         port           INTEGER NOT NULL,
         address        TEXT,
         client         TEXT    NOT NULL,
         class          TEXT    NOT NULL,
         protocol       TEXT    NOT NULL,
         rule           TEXT    NOT NULL,
         cut            INTEGER NOT NULL,
         closed_ns      INTEGER NOT NULL,
         quarter        INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         client_rx      INTEGER NOT NULL,
         upstream_tx    INTEGER NOT NULL,
         upstream_rx    INTEGER NOT NULL,
         client_tx      INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         up_before      INTEGER NOT NULL,
         down_before    INTEGER NOT NULL,
         reason         TEXT    NOT NULL,
         gateway        INTEGER NOT NULL,
         epoch          INTEGER NOT NULL,
         lsn            INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         up             INTEGER NOT NULL GENERATED ALWAYS AS (upstream_tx) VIRTUAL,
         down           INTEGER NOT NULL GENERATED ALWAYS AS (client_tx) VIRTUAL
     ) STRICT;
     -- What flows that went on had moved in a quarter-hour of this month.
     CREATE TABLE part (
         id         BLOB    NOT NULL,
         quarter    INTEGER NOT NULL,
         account    INTEGER NOT NULL,
         set_number INTEGER NOT NULL,
         user       TEXT    NOT NULL,
         host       TEXT    NOT NULL,
         class      TEXT    NOT NULL,
         up         INTEGER NOT NULL,
         down       INTEGER NOT NULL,
         gateway    INTEGER NOT NULL,
         epoch      INTEGER NOT NULL,
         lsn        INTEGER NOT NULL,
         crc        INTEGER NOT NULL
     ) STRICT;
     -- Flows and parts beyond the number of rows that a file may have.
     CREATE TABLE aggregate (
         quarter        INTEGER NOT NULL,
         account        INTEGER NOT NULL,
         user           TEXT    NOT NULL,
         class          TEXT    NOT NULL,
         set_number     INTEGER NOT NULL,
         host           TEXT    NOT NULL,
         flows          INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (quarter, account, user, class, set_number, host)
     ) STRICT, WITHOUT ROWID;";

/// The rows of a file that is migrated have no range, and are summed up by host like new ones.
const RANGES_AND_HOSTS: &str =
    "-- The first and the last row with a flow, and with a part, of a quarter-hour; rows of others may lie
     -- between. None if the last is before the first.
     CREATE TABLE row_range (
         quarter    INTEGER PRIMARY KEY,
         flow_first INTEGER NOT NULL,
         flow_last  INTEGER NOT NULL,
         part_first INTEGER NOT NULL,
         part_last  INTEGER NOT NULL,
         crc        INTEGER NOT NULL
     ) STRICT;
     -- The names of the hosts in sums.
     CREATE TABLE host (
         number INTEGER PRIMARY KEY,
         name   TEXT    NOT NULL UNIQUE,
         crc    INTEGER NOT NULL
     ) STRICT;
     -- The last flow and the last part in the sums by host.
     CREATE TABLE host_source (
         id        INTEGER PRIMARY KEY,
         flow_last INTEGER NOT NULL,
         part_last INTEGER NOT NULL,
         crc       INTEGER NOT NULL
     ) STRICT;
     -- Sums of the flows and parts of a day.
     CREATE TABLE host_day (
         day            INTEGER NOT NULL,
         account        INTEGER NOT NULL,
         host           INTEGER NOT NULL,
         class          TEXT    NOT NULL,
         set_number     INTEGER NOT NULL,
         flows          INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (day, account, host, class, set_number)
     ) STRICT, WITHOUT ROWID;
     -- Packed values: sums by host, class and set of a day that is over, and of the month once it is over.
     -- No row if a sum changed since, or none was made yet.
     CREATE TABLE packed_host_day (
         day  INTEGER PRIMARY KEY,
         sums BLOB    NOT NULL,
         crc  INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE packed_host_month (
         month INTEGER PRIMARY KEY,
         sums  BLOB    NOT NULL,
         crc   INTEGER NOT NULL
     ) STRICT;";
