//! Single cases: borders of hours and months, the row limit, retention, files of schema version 1.

use std::fs;

use super::*;
use crate::database::month::HOUR_NS;
use crate::database::schema::month_db::{HOURLY_VERSION, MONTH};
use crate::verify::{Problem, verify};

pub(super) const HOUR: u64 = HOUR_NS as u64;
/// 2026-02-01T00:00:00Z.
pub(super) const FEBRUARY: u64 = 1_769_904_000_000_000_000;

/// A flow's record: id, moment, and bytes toward the upstream.
fn record(id: u128, at: u64, up: u64) -> Record {
    let legs = Legs { upstream_tx: up, ..Legs::default() };
    let uncertain = Uncertain { up: 0, down: 0 };
    Record::new(&Flow { id, opened: WallNanos(at), closed: WallNanos(at), legs, uncertain, ..FLOW })
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Details of all months, one row for each line: file, table, hour and bytes.
fn details(store: &Store) -> Vec<String> {
    let mut lines = Vec::new();
    for month in Month::files(store.directory.path()).unwrap() {
        let connection = Connection::open(month.path(store.directory.path())).unwrap();
        for (table, columns) in [
            ("flow", "quarter / 4, up - up_before"),
            ("part", "quarter / 4, up"),
            ("aggregate", "quarter / 4, up || ' in ' || flows"),
        ] {
            let mut select = connection.prepare(&format!("SELECT {columns} FROM {table}")).unwrap();
            let rows =
                select.query_map([], |row| Ok((row.get(0)?, row.get::<_, rusqlite::types::Value>(1)?)));
            for row in rows.unwrap() {
                let (hour, up): (i64, _) = row.unwrap();
                let hour = hour - (FEBRUARY / HOUR) as i64;
                let up = match up {
                    rusqlite::types::Value::Text(text) => text,
                    other => format!("{other:?}").replace("Integer(", "").replace(')', ""),
                };
                lines.push(format!("{month} {table} {hour}: {up}"));
            }
        }
    }
    lines
}

#[track_caller]
fn check_clean(store: &Store) {
    let report = verify(store.directory.path()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

#[test]
fn last_edge_has_a_row_and_no_sum() {
    let mut store = Store::new();
    let edge = |at| Entry::Edge { epoch: 1, at: WallNanos(at) };
    let interim = |at, up| Entry::Interim(record(1, at, up));
    let row = |store: &Store| -> Option<(i64, i64, i64)> {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        store.ledger().query_row("SELECT gateway, edge_ns, lsn FROM edge", [], read).ok()
    };
    assert_eq!(row(&store), None);
    let entries = [interim(FEBRUARY - 1, 5), edge(FEBRUARY), interim(FEBRUARY + HOUR, 7)];
    store.sink.apply(1, 1, &entries).unwrap();
    assert_eq!(row(&store), Some((1, FEBRUARY as i64, 2)));
    // The clock went back.
    store.sink.apply(1, 4, &[edge(FEBRUARY - HOUR)]).unwrap();
    assert_eq!(row(&store), Some((1, (FEBRUARY - HOUR) as i64, 4)));
    assert_eq!(details(&store), ["2026-01 part -1: 5"]);
    check_clean(&store);
}

/// As earlier programs left it. A query needs no migration.
#[test]
fn ledger_of_schema_5_gets_edges() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let mut connection = Connection::open(&path).unwrap();
    schema::migrate(&mut connection, &path, &LEDGER[..5]).unwrap();
    drop(connection);
    SqliteUsage::open(directory.path()).unwrap();
    let sink = SqliteSink::open(directory.path(), 1, SinkSettings::default()).unwrap();
    let mut store = Store { sink, directory };
    store.sink.apply(1, 1, &[Entry::Edge { epoch: 1, at: WallNanos(FEBRUARY) }]).unwrap();
    let edges = store.ledger().query_row("SELECT count(*) FROM edge", [], |row| row.get::<_, i64>(0));
    assert_eq!(edges.unwrap(), 1);
    check_clean(&store);
}

#[test]
fn bytes_belong_to_the_hour_of_their_count() {
    #[track_caller]
    fn check(entries: &[Entry], expected: &[&str]) {
        let mut store = Store::new();
        store.sink.apply(1, 1, entries).unwrap();
        assert_eq!(details(&store), expected);
        check_clean(&store);
    }
    let interim = |at, up| Entry::Interim(record(1, at, up));
    let end = |at, up| Entry::Final(record(1, at, up));
    let (late, early) = (FEBRUARY - 1, FEBRUARY);
    // Within one hour, the flow's row has all bytes.
    check(&[interim(late, 5), end(late, 7)], &["2026-01 flow -1: 7"]);
    // Over the border of a month: each has its own row.
    check(&[interim(late, 5), end(early, 7)], &["2026-01 part -1: 5", "2026-02 flow 0: 2"]);
    // Hours without bytes have no part.
    check(
        &[interim(late, 5), interim(early + 5 * HOUR, 5), end(early + 9 * HOUR, 5)],
        &["2026-01 part -1: 5", "2026-02 flow 9: 0"],
    );
    check(&[interim(late, 0), end(early, 7)], &["2026-02 flow 0: 7"]);
    // The clock steps back over the border: the flow stays in its hour.
    check(&[interim(early, 5), interim(late, 6), end(late, 9)], &["2026-02 flow 0: 9"]);
    // A new flow that the clock puts into January is written there, though February has begun.
    check(&[end(early, 1), Entry::Final(record(2, late, 2))], &["2026-01 flow -1: 2", "2026-02 flow 0: 1"]);
    // A final with lower counts than an interim: the higher counts stay.
    check(&[interim(late, 5), end(late, 3)], &["2026-01 flow -1: 5"]);
    // A run that has ended ends its flows, as of their last count.
    check(&[interim(late, 5), began(1, WallNanos(early + HOUR))], &["2026-01 flow -1: 5"]);
}

#[test]
fn run_began_ends_flows_of_earlier_runs_only() {
    let mut store = Store::new();
    let ended = |epoch| began(epoch, WallNanos(FEBRUARY));
    for (epoch, lsn) in [(1, 1), (2, 2), (3, 3)] {
        let flow = Entry::Interim(record(lsn.into(), FEBRUARY, 1 << lsn));
        store.sink.apply(epoch, lsn, &[flow]).unwrap();
    }
    store.sink.apply(3, 4, &[ended(2)]).unwrap();
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    let flows = usage.flows(&Filter::default(), 10).unwrap();
    let shown: Vec<_> =
        flows.iter().map(|flow| (flow.id, flow.reason.as_str(), flow.live, flow.up)).collect();
    assert_eq!(shown, [(3, "", true, 8), (2, "lost", false, 4), (1, "lost", false, 2)]);
    assert_eq!(usage.flows(&Filter::default(), 2).unwrap(), flows[..2]);
    check_clean(&store);
}

#[test]
fn gap_entry_is_stored_once() {
    let mut store = Store::new();
    let gap = Entry::Gap { epoch: 1, at: WallNanos(77), first_lsn: 5 };
    store.sink.apply(2, 9, &[gap]).unwrap();
    store.sink.apply(2, 9, &[gap]).unwrap();
    let sql = "SELECT gateway, lsn, epoch, found_ns, first_lsn FROM gap";
    let row: [i64; 5] = store
        .ledger()
        .query_row(sql, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]))
        .unwrap();
    assert_eq!(row, [1, 9, 1, 77, 5]);
    check_clean(&store);
}

#[test]
fn rows_beyond_the_cap_become_exact_sums() {
    let mut store = Store::with(SinkSettings { rows_per_month_max: 3, ..SinkSettings::default() });
    let entries: Vec<Entry> = [
        Entry::Final(record(1, FEBRUARY, 1)),
        Entry::Interim(record(2, FEBRUARY, 2)),
        Entry::Final(record(2, FEBRUARY + HOUR, 6)),
        Entry::Final(record(3, FEBRUARY + HOUR, 8)),
        Entry::Interim(record(4, FEBRUARY, 16)),
        Entry::Final(record(4, FEBRUARY + HOUR, 48)),
        Entry::Final(record(5, FEBRUARY - 1, 64)),
    ]
    .to_vec();
    for (entry, lsn) in entries.iter().zip(1..) {
        store.sink.apply(1, lsn, std::slice::from_ref(entry)).unwrap();
        store.sink.apply(1, 1, &entries[..lsn as usize]).unwrap();
    }
    let expected = [
        "2026-01 flow -1: 64",
        "2026-02 flow 0: 1",
        "2026-02 flow 1: 4",
        "2026-02 part 0: 2",
        "2026-02 aggregate 0: 16 in 0",
        "2026-02 aggregate 1: 40 in 2",
    ];
    assert_eq!(details(&store), expected);
    assert_eq!(store.totals(), (5, 127, 0, 7));
    check_clean(&store);
}

#[test]
fn sums_beyond_the_cap_may_end_at_the_last_moment() {
    let mut store = Store::with(SinkSettings { rows_per_month_max: 1, ..SinkSettings::default() });
    let ends: Vec<Entry> = (0..3).map(|id| Entry::Final(record(id, u64::MAX, 1 << id))).collect();
    store.sink.apply(1, 1, &ends).unwrap();
    let usage = store.usage();
    for filter in [Filter::default(), Filter { since: Some(WallNanos(u64::MAX)), ..Filter::default() }] {
        let rows = usage.rows(&filter, &[GroupBy::Host]).unwrap().rows;
        assert_eq!((rows[0].flows, rows[0].up), (3, 7));
    }
    check_clean(&store);
}

/// Sums of several flows have no number of an entry, by which a reader leaves out later ones.
#[test]
fn month_with_later_sums_is_told() {
    for rows_per_month_max in [1, 9] {
        let mut store = Store::with(SinkSettings { rows_per_month_max, ..SinkSettings::default() });
        let entries: Vec<Entry> = (0..4).map(|id| Entry::Final(record(id, FEBRUARY, 1 << id))).collect();
        store.sink.apply(1, 1, &entries[..3]).unwrap();
        let later = |usage: &SqliteUsage, filter: &Filter, key| {
            usage.rows(filter, &[key]).unwrap();
            usage.completeness().months_ahead
        };
        let (all, ragged) = (Filter::default(), Filter { since: Some(WallNanos(1)), ..Filter::default() });
        let usage = store.usage();
        assert_eq!(later(&usage, &all, GroupBy::Host), [""; 0]);
        // As a process leaves it that dies here: `ledger.db` lacks what the month has.
        drop(store.sink.stage(1, 4, &entries[3..]).unwrap());
        let due = if rows_per_month_max == 1 { vec!["2026-02"] } else { vec![] };
        for usage in [usage, store.usage()] {
            assert_eq!(later(&usage, &all, GroupBy::Class), [""; 0], "whole quarter-hours need no details");
            assert_eq!(later(&usage, &all, GroupBy::Host), due);
            assert_eq!(later(&usage, &all, GroupBy::Class), due, "an answer before had them");
        }
        assert_eq!(later(&store.usage(), &ragged, GroupBy::Class), [""; 0], "nothing is in its ends");
        store.sink.apply(1, 4, &entries[3..]).unwrap();
        assert_eq!(later(&store.usage(), &all, GroupBy::Host), [""; 0]);
    }
}

/// The rows that an earlier version wrote did not count, so that the month could have twice as many.
#[test]
fn rows_of_an_earlier_version_count_for_the_cap() {
    let mut store = Store::with(SinkSettings { rows_per_month_max: 4, ..SinkSettings::default() });
    let path = store.directory.path().join("usage-202602.db");
    fs::write(&path, "").unwrap();
    let mut earlier = Connection::open(&path).unwrap();
    schema::migrate(&mut earlier, &path, &MONTH[..HOURLY_VERSION]).unwrap();
    let insert = "INSERT INTO part VALUES (x'00', 0, 'ci', 'example.com', 'internal', 0, 0, 7, 1, ?1, 0)";
    (1..=3).for_each(|lsn| _ = earlier.execute(insert, [lsn]).unwrap());
    drop(earlier);
    for lsn in 1..=3 {
        store.sink.apply(1, lsn, &[Entry::Final(record(lsn.into(), FEBRUARY, lsn))]).unwrap();
    }
    assert_eq!(details(&store), ["2026-02 flow 0: 1", "2026-02 aggregate 0: 5 in 2"]);
}

#[test]
fn retention_keeps_newest_months_and_all_sums() {
    let mut store = Store::with(SinkSettings { detail_months: 2, ..SinkSettings::default() });
    let month = 31 * 24 * HOUR;
    for n in 0..4_u64 {
        store.sink.apply(1, n + 1, &[Entry::Final(record(n.into(), FEBRUARY + n * month, 1 << n))]).unwrap();
        assert_eq!(store.sink.checkpoint(), Ok(n + 1));
    }
    store.sink.seal().unwrap();
    let months = |name: &String| name.starts_with("usage");
    let kept: Vec<String> = names(store.directory.path()).into_iter().filter(months).collect();
    assert_eq!(kept, ["usage-202604.db", "usage-202605.db"]);
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    assert_eq!(usage.total(&Filter::default()).unwrap().up, 15);
    let by_host = usage.rows(&Filter::default(), &[GroupBy::Host]).unwrap();
    assert_eq!((by_host.rows[0].up, by_host.missing), (12, vec!["2026-02".to_owned(), "2026-03".to_owned()]));
    let recent = Filter { since: Some(WallNanos(FEBRUARY + 2 * month)), ..Filter::default() };
    assert!(usage.rows(&recent, &[GroupBy::Host]).unwrap().missing.is_empty());
    let by_user = usage.rows(&Filter::default(), &[GroupBy::User]).unwrap();
    assert_eq!((by_user.rows[0].up, by_user.missing.len()), (15, 0));
    check_clean(&store);
    drop(usage);
    // A clock that jumps costs one month for each that never was.
    let far = FEBRUARY + 900 * month;
    store.sink.apply(1, 5, &[Entry::Final(record(5, far, 16)), Entry::Final(record(6, far, 32))]).unwrap();
    store.sink.checkpoint().unwrap();
    store.sink.checkpoint().unwrap();
    assert_eq!(Month::files(store.directory.path()).unwrap().len(), 2);
    // A late row for a dropped month is kept until the next month; the month stays marked as incomplete.
    store.sink.apply(1, 7, &[Entry::Final(record(7, FEBRUARY, 64))]).unwrap();
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    let february = Filter { until: Some(WallNanos(FEBRUARY + month / 2)), ..Filter::default() };
    let by_host = usage.rows(&february, &[GroupBy::Host]).unwrap();
    assert_eq!((by_host.rows[0].up, by_host.missing), (64, vec!["2026-02".to_owned()]));
    assert_eq!(usage.total(&february).unwrap().up, 65);
    check_clean(&store);
}

#[test]
fn month_ahead_of_totals_is_not_removed() {
    let mut store = Store::with(SinkSettings { detail_months: 1, ..SinkSettings::default() });
    store.sink.apply(1, 1, &[Entry::Final(record(1, FEBRUARY + HOUR, 1))]).unwrap();
    // January's rows are committed, and their sums are not.
    drop(store.sink.stage(1, 2, &[Entry::Final(record(2, FEBRUARY - 1, 2))]).unwrap());
    store.sink.checkpoint().unwrap();
    assert_eq!(Month::files(store.directory.path()).unwrap().len(), 2);
}

#[test]
fn batch_of_many_months_bounds_open_files() {
    let mut store = Store::new();
    let entries: Vec<Entry> =
        (0..40).map(|n| Entry::Final(record(n.into(), FEBRUARY + n % 10 * 31 * 24 * HOUR, 1 << n))).collect();
    store.sink.apply(1, 1, &entries).unwrap();
    let mut open = 0;
    store.sink.months.each_open(|_| open += 1);
    assert_eq!(open, crate::limits::MONTHS_OPEN_MAX);
    assert_eq!(store.totals(), (40, (1 << 40) - 1, 0, 40));
    check_clean(&store);
}

/// A locked month fails the batch, which earlier months already have.
#[test]
fn batch_failing_between_months_is_resent() {
    let mut store = Store::new();
    store.sink.apply(1, 1, &[Entry::Final(record(1, FEBRUARY, 1))]).unwrap();
    let february = Connection::open(store.directory.path().join("usage-202602.db")).unwrap();
    february.execute_batch("BEGIN IMMEDIATE").unwrap();
    let batch = [Entry::Final(record(2, FEBRUARY - 1, 2)), Entry::Final(record(3, FEBRUARY, 4))];
    assert!(matches!(store.sink.apply(1, 2, &batch), Err(SinkError::Retryable(_))));
    assert_eq!(store.totals(), (1, 1, 0, 1));
    february.execute_batch("ROLLBACK").unwrap();
    store.sink.apply(1, 2, &batch).unwrap();
    assert_eq!(store.totals(), (3, 7, 0, 3));
    check_clean(&store);
}

/// The row of an open flow is its state, whatever happened to the transactions that changed it.
#[test]
fn live_flow_survives_rolled_back_batches() {
    let mut store = Store::new();
    let interim = |id, up| Entry::Interim(record(id, FEBRUARY, up));
    let final_of = |id, up| Entry::Final(record(id, FEBRUARY, up));
    store.sink.apply(1, 1, &[interim(1, 1), interim(2, 16)]).unwrap();
    drop(store.sink.stage(1, 3, &[interim(2, 48), final_of(1, 3), interim(3, 64)]).unwrap());
    store.sink.apply(1, 3, &[interim(2, 48)]).unwrap();
    store.sink.apply(1, 4, &[final_of(1, 3), interim(3, 64)]).unwrap();
    // No journal has an interim behind its final. If one came, the flow would begin again, and be open.
    store.sink.apply(1, 6, &[final_of(3, 64), interim(3, 192)]).unwrap();
    store.sink.apply(1, 8, &[final_of(3, 192), final_of(2, 48)]).unwrap();
    assert_eq!(store.sink.live.ids().len(), 0, "no ended flow stays in the live set");
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    assert_eq!(usage.total(&Filter::default()).unwrap().up, 3 + 48 + 192 + 64);
}

#[test]
fn lost_flows_leave_the_live_set() {
    let mut store = Store::new();
    let interims: Vec<Entry> = (1..=9).map(|id| Entry::Interim(record(id, FEBRUARY, 1))).collect();
    store.sink.apply(1, 1, &interims).unwrap();
    assert_eq!(store.sink.live.ids().len(), 9);
    store.reopen();
    assert_eq!(store.sink.live.ids().len(), 9);
    let began = began(2, WallNanos(FEBRUARY));
    store.sink.apply(2, 10, &[began]).unwrap();
    assert_eq!(store.sink.live.ids().len(), 0);
    check_clean(&store);
}

const VERSION_1: &str = include_str!("version_1.sql");

/// A directory in the state of schema version 1: two runs, two months.
fn version_1() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    Connection::open(directory.path().join("ledger.db")).unwrap().execute_batch(VERSION_1).unwrap();
    directory
}

#[test]
fn version_1_flows_are_migrated_without_loss() {
    let check = |directory: &TempDir| {
        let mut sink = SqliteSink::open(directory.path(), 1, SinkSettings::default()).unwrap();
        assert_eq!(sink.applied_lsn(), Ok(None));
        let usage = SqliteUsage::open(directory.path()).unwrap();
        let hosts = usage.rows(&Filter::default(), &[GroupBy::Host]).unwrap().rows;
        let hosts: Vec<_> =
            hosts.iter().map(|row| (row.keys[0].as_str(), row.flows, row.up, row.down)).collect();
        assert_eq!(hosts, [("github.com", 2, 3, 30), ("db.corp", 1, 4, 20)]);
        let days = usage.rows(&Filter::default(), &[GroupBy::Day]).unwrap().rows;
        let days: Vec<_> = days.iter().map(|row| (row.keys[0].as_str(), row.flows, row.up)).collect();
        assert_eq!(days, [("2026-01-31", 2, 3), ("2026-02-01", 1, 4)]);
        let flows = usage.flows(&Filter::default(), 9).unwrap();
        assert_eq!(flows[0].address.as_deref(), Some("10.20.0.7"));
        let report = verify(directory.path()).unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        assert_eq!(report.flows, 3);
        sink.apply(1, 1, &[Entry::Final(record(9, FEBRUARY, 1))]).unwrap();
    };
    let directory = version_1();
    assert!(SqliteUsage::open(directory.path()).unwrap_err().to_string().contains("tollgate serve"));
    check(&directory);
    let reopened = SqliteSink::open(directory.path(), 1, SinkSettings::default()).unwrap().applied_lsn();
    assert_eq!(reopened, Ok(Some(1)));
    // Interrupted after the months were written, and then written by a program of version 1.
    let interrupted = version_1();
    let path = interrupted.path().join("ledger.db");
    let copy = interrupted.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    let last = "DELETE FROM flow WHERE rowid = 3";
    Connection::open(&path).unwrap().execute_batch(last).unwrap();
    drop(SqliteSink::open(interrupted.path(), 1, SinkSettings::default()).unwrap());
    fs::rename(&copy, &path).unwrap();
    check(&interrupted);
}

#[test]
fn verify_finds_missing_doubled_and_changed_rows() {
    type Expected = fn(&Problem) -> bool;
    const OTHER: &str = "DELETE FROM flow WHERE rowid = 2";
    let cases: [(&str, &str, Expected); 14] = [
        ("usage-202602.db", OTHER, |problem| matches!(problem, Problem::Sum { table: "rollup_quarter", .. })),
        ("usage-202601.db", "DELETE FROM part", |problem| matches!(problem, Problem::Parts { .. })),
        ("usage-202602.db", "UPDATE flow SET host = 'x'", |problem| matches!(problem, Problem::Row { .. })),
        ("usage-202602.db", DOUBLE, |problem| matches!(problem, Problem::Duplicate { flow: 1 })),
        ("usage-202602.db", "DELETE FROM source", |problem| matches!(problem, Problem::Watermark { .. })),
        ("usage-202602.db", "DROP TABLE part", |problem| matches!(problem, Problem::Damaged { .. })),
        ("ledger.db", "DELETE FROM rollup_quarter", |problem| matches!(problem, Problem::Sum { .. })),
        ("ledger.db", "DELETE FROM rollup_day", |problem| {
            matches!(problem, Problem::Sum { table: "rollup_day", .. })
        }),
        ("ledger.db", "DELETE FROM total_month", |problem| {
            matches!(problem, Problem::Sum { table: "total_month", .. })
        }),
        ("usage-202602.db", LAST_RANGE, |problem| matches!(problem, Problem::Damaged { .. })),
        ("ledger.db", "UPDATE packed_day SET sums = x'00'", |problem| matches!(problem, Problem::Row { .. })),
        ("usage-202602.db", "DELETE FROM host_day", |problem| matches!(problem, Problem::Damaged { .. })),
        ("usage-202602.db", "UPDATE packed_host_day SET sums = x'00'", |problem| {
            matches!(problem, Problem::Row { .. })
        }),
        ("ledger.db", "DELETE FROM live", |problem| matches!(problem, Problem::Sum { .. })),
    ];
    for (file, damage, expected) in cases {
        let store = small();
        check_clean(&store);
        Connection::open(store.directory.path().join(file)).unwrap().execute_batch(damage).unwrap();
        let problems = verify(store.directory.path()).unwrap().problems;
        assert!(problems.iter().any(expected), "{damage}: {problems:#?}");
    }
    let store = small();
    fs::remove_file(store.directory.path().join("usage-202601.db")).unwrap();
    let problems = verify(store.directory.path()).unwrap().problems;
    assert!(problems.iter().any(|problem| matches!(problem, Problem::Missing { .. })), "{problems:#?}");
}

/// Rows before all ranges belong to an earlier version, and any question reads them.
const LAST_RANGE: &str = "DELETE FROM row_range WHERE quarter = (SELECT max(quarter) FROM row_range)";

const DOUBLE: &str =
    "CREATE TEMP TABLE again AS SELECT id, opened_ns, account, policy, set_number, user, host, port, address,
     client, class, protocol, rule, cut, closed_ns, quarter, requests, client_rx, upstream_tx, upstream_rx,
     client_tx, uncertain_up, uncertain_down, up_before, down_before, reason, gateway, epoch, lsn, crc
     FROM flow WHERE rowid = 1;
     INSERT INTO flow SELECT * FROM again;";

/// A sealed store with one row of each kind.
pub(crate) fn small() -> Store {
    let mut store = Store::with(SinkSettings { rows_per_month_max: 4, ..SinkSettings::default() });
    let entries = [
        Entry::Interim(record(1, FEBRUARY - 1, 3)),
        Entry::Final(record(1, FEBRUARY, 5)),
        Entry::Final(record(2, FEBRUARY, 11)),
        Entry::Interim(record(3, FEBRUARY + HOUR, 17)),
        Entry::Gap { epoch: 1, at: WallNanos(FEBRUARY), first_lsn: 5 },
        Entry::Final(record(4, FEBRUARY + 25 * HOUR, 1 << 33)),
    ];
    store.sink.apply(1, 1, &entries).unwrap();
    store.sink.seal().unwrap();
    store
}

/// The entries behind those of [`small`]: an open flow, its end, and flows beyond the row limit.
pub(crate) fn later() -> Vec<Entry> {
    vec![
        Entry::Interim(record(3, FEBRUARY + 2 * HOUR, 19)),
        Entry::Final(record(5, FEBRUARY + HOUR, 23)),
        Entry::Final(record(3, FEBRUARY + 3 * HOUR, 29)),
        Entry::Interim(record(6, FEBRUARY + 26 * HOUR, 31)),
    ]
}

/// Flows, half of which stay open for some hours; every six entries within some hours.
pub(crate) fn mixed(count: u64) -> Vec<Entry> {
    let day = 24 * HOUR;
    let entry = |n: u64| {
        let at = FEBRUARY - 10 * day + n / 6 * 8 * day + n % 6 * HOUR;
        match n % 6 {
            0 | 1 => Entry::Interim(record((n / 6).into(), at, 1 + n)),
            2 => Entry::Final(record((n / 6).into(), at, 5 + n)),
            _ => Entry::Final(record(u128::from(n) << 64, at, n)),
        }
    };
    (0..count).map(entry).collect()
}

/// Some hundred thousand finals of short flows in batches of the applier's size, over users and hosts.
#[test]
#[ignore = "prints a rate, which is meaningful in release builds only"]
fn rate_of_finals() {
    const BATCHES: u64 = 50;
    const BATCH: u64 = 8192;
    let mut store = Store::new();
    let users: Vec<String> = (0..100).map(|n| format!("user-{n}")).collect();
    let hosts: Vec<String> = (0..1_000).map(|n| format!("host-{n}.example.com")).collect();
    let batch = |number: u64| -> Vec<Entry> {
        let flow = |n: u64| Flow {
            id: u128::from(number * BATCH + n) << 40,
            user: &users[(n * 7 % 100) as usize],
            host: &hosts[(n * 13 % 1_000) as usize],
            address: Some("192.0.2.1".parse().unwrap()),
            closed: WallNanos(FEBRUARY + number * 1_000_000_000 + n),
            legs: Legs { client_rx: n, upstream_tx: n * 100, upstream_rx: n * 7, client_tx: n * 1_000 },
            ..FLOW
        };
        (0..BATCH).map(|n| last(&flow(n))).collect()
    };
    let batches: Vec<Vec<Entry>> = (0..BATCHES).map(batch).collect();
    let began = sys::clock::monotonic();
    for (batch, first) in batches.iter().zip((1..).step_by(BATCH as usize)) {
        store.sink.apply(1, first, batch).unwrap();
        store.sink.checkpoint().unwrap();
    }
    let seconds = sys::clock::monotonic().since(began).as_secs_f64();
    println!("{:.0} finals a second", (BATCHES * BATCH) as f64 / seconds);
}

#[test]
fn groups_are_ordered_key_by_key() {
    let mut store = Store::new();
    let flow = |id, user, host, down| {
        let legs = Legs { client_tx: down, ..Legs::default() };
        last(&Flow { id, user, host, legs, ..FLOW })
    };
    let flows = [
        flow(1, "ann", "small", 1),
        flow(2, "ci", "large", 60),
        flow(3, "ann", "large", 50),
        flow(4, "ci", "small", 2),
        flow(5, "bob", "large", 55),
    ];
    store.sink.apply(1, 1, &flows).unwrap();
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    let order = |keys: &[GroupBy]| {
        let rows = usage.rows(&Filter::default(), keys).unwrap().rows;
        rows.iter().map(|row| row.keys.join(" ")).collect::<Vec<_>>()
    };
    let by_user = ["ci large", "ci small", "bob large", "ann large", "ann small"];
    assert_eq!(order(&[GroupBy::User, GroupBy::Host]), by_user);
    let by_month = ["1970-01 large", "1970-01 small"];
    assert_eq!(order(&[GroupBy::Month, GroupBy::Host]), by_month);
    let users: Vec<_> = usage.users().unwrap().into_iter().collect();
    assert_eq!(users, ["ann", "bob", "ci"]);
}
