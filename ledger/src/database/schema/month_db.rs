//! The migrations of a month's file.
//!
//! A released migration is never edited, its comments included: databases have the checksum of its text.

use super::{LOG_NUMBERS, Migration};

/// The migrations of a month's file, in order.
pub(crate) const MONTH: &[Migration] = &[
    Migration { sql: DETAILS, then: None, is_read: true },
    Migration { sql: LOG_NUMBERS, then: None, is_read: false },
];

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
