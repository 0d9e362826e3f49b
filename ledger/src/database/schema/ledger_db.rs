//! The migrations of `ledger.db`.
//!
//! A released migration is never edited, its comments included: databases have the checksum of its text.

use super::{LOG_NUMBERS, Migration};
use crate::database::{derived, version_4};

/// The migrations of `ledger.db`, in order.
pub(crate) const LEDGER: &[Migration] = &[
    Migration { sql: FLOWS_IN_ONE_FILE, then: None, is_read: true },
    // What it left in `flow_1` is moved by the last one, which knows the present tables.
    Migration { sql: FLOWS_BY_MONTH, then: None, is_read: true },
    Migration { sql: RUNS_AND_CONSENTS, then: None, is_read: true },
    Migration { sql: LOG_NUMBERS, then: None, is_read: false },
    Migration { sql: ACCOUNTS_AND_QUARTERS, then: Some(version_4::move_sums), is_read: true },
    Migration { sql: EDGES, then: None, is_read: false },
    // Readers of a file without these tables add up the rows of which they are made.
    Migration { sql: DERIVED_SUMS, then: Some(derived::fill_totals), is_read: false },
    // Without it no account has a team.
    Migration { sql: ACCOUNT_TEAMS, then: None, is_read: false },
    // Without them there are no grants and notices.
    Migration { sql: QUOTAS, then: None, is_read: false },
];

const FLOWS_IN_ONE_FILE: &str =
    // `source` has one row for each run of the gateway: an epoch, and the last record. `sealed_ns` is null if
    // the run did not end in order. `flow` has no index: one costs two thirds of the inserts.
    "CREATE TABLE source (
         epoch       INTEGER PRIMARY KEY,
         started_ns  INTEGER NOT NULL,
         sealed_ns   INTEGER,
         applied_lsn INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE flow (
         id          BLOB    NOT NULL,
         opened_ns   INTEGER NOT NULL,
         closed_ns   INTEGER NOT NULL,
         user        TEXT    NOT NULL,
         host        TEXT    NOT NULL,
         port        INTEGER NOT NULL,
         address     TEXT,
         client      TEXT    NOT NULL,
         class       TEXT    NOT NULL,
         protocol    TEXT    NOT NULL,
         rule        TEXT    NOT NULL,
         reason      TEXT    NOT NULL,
         cut         INTEGER NOT NULL,
         client_rx   INTEGER NOT NULL,
         upstream_tx INTEGER NOT NULL,
         upstream_rx INTEGER NOT NULL,
         client_tx   INTEGER NOT NULL,
         up          INTEGER NOT NULL GENERATED ALWAYS AS (upstream_tx) VIRTUAL,
         down        INTEGER NOT NULL GENERATED ALWAYS AS (client_tx) VIRTUAL
     ) STRICT;";

/// In each table, `crc` is the checksum of the columns before it (`checksum`).
const FLOWS_BY_MONTH: &str = "ALTER TABLE flow RENAME TO flow_1;
     ALTER TABLE source RENAME TO source_1;
     -- One row per gateway: its last run, and how far its entries have come here, and on stable storage.
     CREATE TABLE source (
         gateway     INTEGER PRIMARY KEY,
         epoch       INTEGER NOT NULL,
         applied_lsn INTEGER NOT NULL,
         durable_lsn INTEGER NOT NULL,
         crc         INTEGER NOT NULL
     ) STRICT;
     -- How far the file of each month has come; `dropped` if it was removed, or lacks what had been in it.
     CREATE TABLE month (
         month       INTEGER NOT NULL,
         gateway     INTEGER NOT NULL,
         applied_lsn INTEGER NOT NULL,
         dropped     INTEGER NOT NULL,
         crc         INTEGER NOT NULL,
         PRIMARY KEY (month, gateway)
     ) STRICT, WITHOUT ROWID;
     -- The flows that go on, as they were last counted.
     CREATE TABLE live (
         id             BLOB    PRIMARY KEY,
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
         counted_ns     INTEGER NOT NULL,
         client_rx      INTEGER NOT NULL,
         upstream_tx    INTEGER NOT NULL,
         upstream_rx    INTEGER NOT NULL,
         client_tx      INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         up_before      INTEGER NOT NULL,
         down_before    INTEGER NOT NULL,
         gateway        INTEGER NOT NULL,
         epoch          INTEGER NOT NULL,
         crc            INTEGER NOT NULL
     ) STRICT, WITHOUT ROWID;
     CREATE TABLE rollup_hour (
         hour           INTEGER NOT NULL,
         user           TEXT    NOT NULL,
         class          TEXT    NOT NULL,
         flows          INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (hour, user, class)
     ) STRICT, WITHOUT ROWID;
     CREATE TABLE rollup_day (
         day            INTEGER NOT NULL,
         user           TEXT    NOT NULL,
         class          TEXT    NOT NULL,
         flows          INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (day, user, class)
     ) STRICT, WITHOUT ROWID;
     -- Where the journal had lost what nobody had been promised.
     CREATE TABLE gap (
         gateway   INTEGER NOT NULL,
         lsn       INTEGER NOT NULL,
         epoch     INTEGER NOT NULL,
         found_ns  INTEGER NOT NULL,
         first_lsn INTEGER NOT NULL,
         crc       INTEGER NOT NULL,
         PRIMARY KEY (gateway, lsn)
     ) STRICT, WITHOUT ROWID;";

const RUNS_AND_CONSENTS: &str =
    "-- The runs of a gateway: `ended_lsn` and `ended_ns` are 0 unless it ended in order.
     CREATE TABLE run (
         gateway   INTEGER NOT NULL,
         epoch     INTEGER NOT NULL,
         began_lsn INTEGER NOT NULL,
         began_ns  INTEGER NOT NULL,
         ended_lsn INTEGER NOT NULL,
         ended_ns  INTEGER NOT NULL,
         crc       INTEGER NOT NULL,
         PRIMARY KEY (gateway, epoch)
     ) STRICT, WITHOUT ROWID;
     -- What is missing, and who goes on without it. Appended to, never changed.
     CREATE TABLE consent (
         gateway   INTEGER NOT NULL,
         lsn       INTEGER NOT NULL,
         epoch     INTEGER NOT NULL,
         given_ns  INTEGER NOT NULL,
         author    TEXT    NOT NULL,
         what      TEXT    NOT NULL,
         first_lsn INTEGER NOT NULL,
         last_lsn  INTEGER NOT NULL,
         crc       INTEGER NOT NULL,
         PRIMARY KEY (gateway, lsn)
     ) STRICT, WITHOUT ROWID;
     -- In a backup that no gateway has written to yet: when it was made, and as of which entry.
     CREATE TABLE backup (
         gateway     INTEGER PRIMARY KEY,
         applied_lsn INTEGER NOT NULL,
         made_ns     INTEGER NOT NULL,
         crc         INTEGER NOT NULL
     ) STRICT;";

const ACCOUNTS_AND_QUARTERS: &str = "ALTER TABLE live RENAME TO live_4;
     ALTER TABLE run RENAME TO run_4;
     ALTER TABLE rollup_day RENAME TO rollup_day_4;
     -- The account of each name that a user has had.
     CREATE TABLE account (
         name     TEXT    PRIMARY KEY,
         account  INTEGER NOT NULL,
         named_ns INTEGER NOT NULL,
         crc      INTEGER NOT NULL
     ) STRICT, WITHOUT ROWID;
     -- The named sets of the configuration; the name is empty where only rows tell the number.
     CREATE TABLE named_set (
         number INTEGER PRIMARY KEY,
         name   TEXT    NOT NULL,
         crc    INTEGER NOT NULL
     ) STRICT;
     -- The versions of the policy: a hash of all rules, zeros where only rows tell the number.
     CREATE TABLE policy (
         version  INTEGER PRIMARY KEY,
         hash     BLOB    NOT NULL,
         since_ns INTEGER NOT NULL,
         crc      INTEGER NOT NULL
     ) STRICT;
     -- The last entry of each gateway that an earlier version summed up, by hour.
     CREATE TABLE hourly (
         gateway     INTEGER PRIMARY KEY,
         applied_lsn INTEGER NOT NULL,
         crc         INTEGER NOT NULL
     ) STRICT;
     -- The open flows, as they were last counted: in `quarter`, counted from 1970.
     CREATE TABLE live (
         id             BLOB    PRIMARY KEY,
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
         counted_ns     INTEGER NOT NULL,
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
         gateway        INTEGER NOT NULL,
         epoch          INTEGER NOT NULL,
         crc            INTEGER NOT NULL
     ) STRICT, WITHOUT ROWID;
     -- Sums of a quarter-hour, a UTC day (both counted from 1970) and a UTC month (202601).
     CREATE TABLE rollup_quarter (
         quarter        INTEGER NOT NULL,
         account        INTEGER NOT NULL,
         class          TEXT    NOT NULL,
         set_number     INTEGER NOT NULL,
         flows          INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (quarter, account, class, set_number)
     ) STRICT, WITHOUT ROWID;
     CREATE TABLE rollup_day (
         day            INTEGER NOT NULL,
         account        INTEGER NOT NULL,
         class          TEXT    NOT NULL,
         set_number     INTEGER NOT NULL,
         flows          INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (day, account, class, set_number)
     ) STRICT, WITHOUT ROWID;
     CREATE TABLE rollup_month (
         month          INTEGER NOT NULL,
         account        INTEGER NOT NULL,
         class          TEXT    NOT NULL,
         set_number     INTEGER NOT NULL,
         flows          INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (month, account, class, set_number)
     ) STRICT, WITHOUT ROWID;
     -- Sums of all accounts.
     CREATE TABLE total_quarter (
         quarter        INTEGER NOT NULL,
         class          TEXT    NOT NULL,
         set_number     INTEGER NOT NULL,
         flows          INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (quarter, class, set_number)
     ) STRICT, WITHOUT ROWID;
     -- The runs of a gateway: `ended_lsn` and `ended_ns` are 0 unless it ended in order; `run` is the number
     -- that it drew, zeros if that is not known; `live_table` what it found of the run before: 0 none was
     -- expected, 1 found, 2 missing.
     CREATE TABLE run (
         gateway    INTEGER NOT NULL,
         epoch      INTEGER NOT NULL,
         began_lsn  INTEGER NOT NULL,
         began_ns   INTEGER NOT NULL,
         ended_lsn  INTEGER NOT NULL,
         ended_ns   INTEGER NOT NULL,
         run        BLOB    NOT NULL,
         live_table INTEGER NOT NULL,
         crc        INTEGER NOT NULL,
         PRIMARY KEY (gateway, epoch)
     ) STRICT, WITHOUT ROWID;";

const EDGES: &str =
    "-- The last edge of a gateway: all that it counted before `edge_ns` has a number before `lsn`.
     CREATE TABLE edge (
         gateway INTEGER PRIMARY KEY,
         edge_ns INTEGER NOT NULL,
         lsn     INTEGER NOT NULL,
         crc     INTEGER NOT NULL
     ) STRICT;";

/// Sums that are made of `rollup_quarter`, `rollup_day` and `total_quarter`, and can be made again.
const DERIVED_SUMS: &str = "-- Sums of all accounts by day and by month.
     CREATE TABLE total_day (
         day            INTEGER NOT NULL,
         class          TEXT    NOT NULL,
         set_number     INTEGER NOT NULL,
         flows          INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (day, class, set_number)
     ) STRICT, WITHOUT ROWID;
     CREATE TABLE total_month (
         month          INTEGER NOT NULL,
         class          TEXT    NOT NULL,
         set_number     INTEGER NOT NULL,
         flows          INTEGER NOT NULL,
         requests       INTEGER NOT NULL,
         up             INTEGER NOT NULL,
         down           INTEGER NOT NULL,
         uncertain_up   INTEGER NOT NULL,
         uncertain_down INTEGER NOT NULL,
         crc            INTEGER NOT NULL,
         PRIMARY KEY (month, class, set_number)
     ) STRICT, WITHOUT ROWID;
     -- Packed values of days and months that are over, without class and set: of each quarter-hour of a day,
     -- and of each account. No row if a sum changed since, or none was made yet.
     CREATE TABLE packed_quarter (
         day  INTEGER PRIMARY KEY,
         sums BLOB    NOT NULL,
         crc  INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE packed_day (
         day  INTEGER PRIMARY KEY,
         sums BLOB    NOT NULL,
         crc  INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE packed_month (
         month INTEGER PRIMARY KEY,
         sums  BLOB    NOT NULL,
         crc   INTEGER NOT NULL
     ) STRICT;";

const ACCOUNT_TEAMS: &str =
    "-- The team that an account was last numbered with, and since when; empty if it left its team.
     CREATE TABLE account_team (
         account  INTEGER PRIMARY KEY,
         team     TEXT    NOT NULL,
         since_ns INTEGER NOT NULL,
         crc      INTEGER NOT NULL
     ) STRICT;";

const QUOTAS: &str =
    "-- Credit that operators added to quotas. `account` is 0 for a team's, and `team` empty for a user's.
     -- Appended to, never changed.
     CREATE TABLE quota_grant (
         id       BLOB    PRIMARY KEY,
         given_ns INTEGER NOT NULL,
         account  INTEGER NOT NULL,
         team     TEXT    NOT NULL,
         quota    TEXT    NOT NULL,
         bytes    INTEGER NOT NULL,
         from_ns  INTEGER NOT NULL,
         until_ns INTEGER NOT NULL,
         author   TEXT    NOT NULL,
         reason   TEXT    NOT NULL,
         crc      INTEGER NOT NULL
     ) STRICT, WITHOUT ROWID;
     -- Thresholds that were reached, each once in the period that began at `period_ns`. Appended to, never
     -- changed.
     CREATE TABLE quota_notice (
         account     INTEGER NOT NULL,
         team        TEXT    NOT NULL,
         quota       TEXT    NOT NULL,
         period_ns   INTEGER NOT NULL,
         percent     INTEGER NOT NULL,
         reached_ns  INTEGER NOT NULL,
         used        INTEGER NOT NULL,
         limit_bytes INTEGER NOT NULL,
         crc         INTEGER NOT NULL,
         PRIMARY KEY (account, team, quota, period_ns, percent)
     ) STRICT, WITHOUT ROWID;";

#[cfg(test)]
mod tests {
    use super::super::checksum;
    use super::super::month_db::MONTH;
    use super::*;

    const LEDGER_CHECKSUMS: [i64; 9] = [
        6_035_242_367_202_163_837,
        -6_065_716_787_101_684_972,
        5_562_998_778_958_194_722,
        -7_647_914_596_258_933_032,
        -1_246_322_995_010_044_055,
        -6_541_539_831_247_210_067,
        5_407_896_712_318_365_786,
        -8_425_735_331_269_682_322,
        6_602_522_242_329_211_763,
    ];
    const MONTH_CHECKSUMS: [i64; 4] = [
        -53_519_211_055_902_306,
        -7_647_914_596_258_933_032,
        6_945_023_444_350_570_180,
        7_580_879_642_824_743_908,
    ];

    /// The checksums of released migrations are stored in existing databases.
    #[test]
    fn released_migrations_are_unchanged() {
        let checksums = |list: &[Migration]| list.iter().map(|step| checksum(step.sql)).collect::<Vec<_>>();
        assert_eq!(checksums(LEDGER), LEDGER_CHECKSUMS);
        assert_eq!(checksums(MONTH), MONTH_CHECKSUMS);
    }
}
