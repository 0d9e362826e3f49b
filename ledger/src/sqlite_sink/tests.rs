//! The SQLite sink against its contract, on real files.

mod derived;
mod hosts;
mod numbers;
mod random;
mod tables;

pub(crate) use tables::{later, mixed, small};

use std::net::SocketAddr;

use proptest::prelude::*;
use rusqlite::ffi;
use sys::clock::WallNanos;
use tempfile::TempDir;

use super::*;
use crate::database::month::Month;
use crate::query::{Filter, GroupBy, Row as UsageRow, Usage};
use crate::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};

pub(crate) struct Store {
    pub(crate) sink: SqliteSink,
    directory: TempDir,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self::with(SinkSettings::default())
    }

    fn with(settings: SinkSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { sink: SqliteSink::open(directory.path(), 1, settings).unwrap(), directory }
    }

    /// Another connection to the totals.
    fn ledger(&self) -> Connection {
        Connection::open(self.directory.path().join("ledger.db")).unwrap()
    }

    fn month(&self) -> Connection {
        Connection::open(self.directory.path().join("usage-197001.db")).unwrap()
    }

    /// Flows, up, down and the number of the last entry, as a reader sees them.
    fn totals(&self) -> (u64, u64, u64, u64) {
        let usage = SqliteUsage::open(self.directory.path()).unwrap();
        let total = usage.total(&Filter::default()).unwrap();
        let applied = usage.applied.first().map_or(0, |(_, lsn)| lsn.cast_unsigned());
        let rows = usage.rows(&Filter::default(), &[GroupBy::Host]).unwrap().rows;
        let sum = |of: fn(&UsageRow) -> u64| rows.iter().map(of).sum::<u64>();
        let details = (sum(|row| row.flows), sum(|row| row.up), sum(|row| row.down));
        assert_eq!(details, (total.flows, total.up, total.down), "details and rollups agree");
        (total.flows, total.up, total.down, applied)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    fn usage(&self) -> SqliteUsage {
        SqliteUsage::open(self.directory.path()).unwrap()
    }

    fn reopen(&mut self) {
        self.sink = SqliteSink::open(self.directory.path(), 1, SinkSettings::default()).unwrap();
    }
}

/// The beginning of a run.
fn began(epoch: u32, at: WallNanos) -> Entry {
    Entry::RunBegan { epoch, at, run: 0, table: TableFinding::None }
}

const FLOW: Flow<'_> = Flow {
    id: 1 << 100,
    opened: WallNanos(1_000),
    closed: WallNanos(2_000),
    account: 0,
    policy: 0,
    set: 0,
    user: "ci",
    host: "example.com",
    port: 443,
    address: None,
    client: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 50_000),
    class: Class::Internal,
    protocol: Protocol::HttpConnect,
    rule: "@corp[1] 10.20.0.0/16",
    reason: CloseReason::UpstreamReset,
    requests: 0,
    legs: Legs { client_rx: 11, upstream_tx: 10, upstream_rx: 21, client_tx: 20 },
    uncertain: Uncertain { up: 3, down: 4 },
};

/// Finals whose `up` are the powers of two, so that a sum identifies its flows.
pub(crate) fn finals(count: u32) -> Vec<Entry> {
    let legs = |n| Legs { upstream_tx: 1_u64 << n, client_tx: 1, ..Legs::default() };
    (0..count).map(|n| last(&Flow { id: n.into(), legs: legs(n), ..FLOW })).collect()
}

fn last(flow: &Flow<'_>) -> Entry {
    Entry::Final(Record::new(flow))
}

#[test]
fn row_has_every_field_of_its_record() {
    let mut store = Store::new();
    let long = "ü".repeat(127);
    let flows = [
        FLOW,
        Flow {
            host: "a\0b",
            user: "名前",
            address: Some("10.20.0.7".parse().unwrap()),
            account: 7,
            policy: 8,
            set: 9,
            requests: 10,
            ..FLOW
        },
        Flow { host: &long, client: "[2001:db8::1]:1".parse().unwrap(), id: u128::MAX, ..FLOW },
    ];
    let records: Vec<Entry> = flows.iter().map(last).collect();
    store.sink.apply(1, 1, &records).unwrap();
    let connection = store.month();
    let mut select = connection.prepare("SELECT * FROM flow ORDER BY rowid").unwrap();
    let names: Vec<String> = select.column_names().map(str::to_owned).collect();
    let rows = select.query_map([], |row| (0..names.len()).map(|index| row.get(index)).collect()).unwrap();
    let rows: Vec<Vec<rusqlite::types::Value>> = rows.collect::<Result<_, _>>().unwrap();
    assert_eq!(
        names.join(" "),
        "id opened_ns account policy set_number user host port address client class protocol rule cut \
         closed_ns quarter requests client_rx upstream_tx upstream_rx client_tx uncertain_up uncertain_down \
         up_before down_before reason gateway epoch lsn crc up down"
    );
    for (((row, flow), lsn), account) in rows.iter().zip(&flows).zip(1_i64..).zip([1, 7, 1]) {
        let cut = flow.host.len() > 253;
        let host = if cut { &flow.host[..252] } else { flow.host };
        let expected: Vec<rusqlite::types::Value> = vec![
            flow.id.to_be_bytes().to_vec().into(),
            1_000.into(),
            i64::from(account).into(),
            i64::from(flow.policy).into(),
            i64::from(flow.set).into(),
            flow.user.to_owned().into(),
            host.to_owned().into(),
            443.into(),
            flow.address.map(|address| address.to_string()).into(),
            flow.client.to_string().into(),
            "internal".to_owned().into(),
            "http_connect".to_owned().into(),
            "@corp[1] 10.20.0.0/16".to_owned().into(),
            i64::from(cut).into(),
            2_000.into(),
            0.into(),
            i64::try_from(flow.requests).unwrap().into(),
            11.into(),
            10.into(),
            21.into(),
            20.into(),
            3.into(),
            4.into(),
            0.into(),
            0.into(),
            "upstream_reset".to_owned().into(),
            1.into(),
            1.into(),
            lsn.into(),
            row[29].clone(),
            10.into(),
            20.into(),
        ];
        assert_eq!(*row, expected);
    }
    assert_eq!(rows.len(), flows.len());
}

#[test]
fn impossible_counts_are_capped_and_applied() {
    let mut store = Store::new();
    let legs = Legs { client_rx: u64::MAX, upstream_tx: 1 << 63, upstream_rx: u64::MAX, client_tx: 7 };
    let flow = Flow { legs, closed: WallNanos(u64::MAX), ..FLOW };
    let again = Flow { id: 2, ..flow };
    store.sink.apply(1, 1, &[last(&flow), last(&again)]).unwrap();
    store.sink.apply(1, 3, &[began(1, WallNanos(u64::MAX))]).unwrap();
    let path = store.directory.path().join("usage-226204.db");
    let row: (i64, i64, i64) = Connection::open(path)
        .unwrap()
        .query_row("SELECT up, down, closed_ns FROM flow", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!(row, (i64::MAX, 7, i64::MAX));
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    assert!(usage.total(&Filter::default()).is_err(), "an overflow is an error, never a wrong number");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the records are cut into batches, and however often earlier records are sent again, each is
    /// one row.
    #[test]
    fn any_split_and_resend_gives_the_same_totals(
        cuts in prop::collection::vec((1_usize..12, 0_usize..12), 1..20),
    ) {
        let records = finals(40);
        let mut store = Store::new();
        let mut end = 0;
        for (fresh, again) in cuts.into_iter().chain([(40, 0)]) {
            let start = end - again.min(end);
            end = (end + fresh).min(records.len());
            if start < end {
                store.sink.apply(1, start as u64 + 1, &records[start..end]).unwrap();
            }
        }
        prop_assert_eq!(store.totals(), (40, (1 << 40) - 1, 40, 40));
    }
}

#[test]
fn lsn_gap_is_fatal() {
    let mut store = Store::new();
    let records = finals(3);
    store.sink.apply(1, 1, &records[..1]).unwrap();
    let error = store.sink.apply(1, 3, &records[2..]).unwrap_err();
    assert_eq!(error, SinkError::Fatal("entry 2 is due, and 3 came".to_owned()));
    assert_eq!(store.totals(), (1, 1, 1, 1));
}

#[test]
fn full_disk_is_retryable_and_rolls_batch_back() {
    let host = "x".repeat(253);
    let wide = |n: u32| {
        let legs = Legs { upstream_tx: 1_u64 << n, client_tx: 1, ..Legs::default() };
        Flow { id: n.into(), host: &host, legs, ..FLOW }
    };
    for of_month in [true, false] {
        let mut store = Store::new();
        let records = finals(40);
        store.sink.apply(1, 1, &records[..1]).unwrap();
        // Migrations leave free pages.
        let vacuum = |connection: &Connection| connection.execute_batch("VACUUM").unwrap();
        store.sink.months.each_open(vacuum);
        vacuum(&store.sink.connection);
        let limit = |store: &mut Store, more: i64| {
            let count = |connection: &Connection| -> i64 {
                connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap()
            };
            let set = |connection: &Connection| {
                let pages = count(connection) + more;
                connection
                    .pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0))
                    .unwrap()
            };
            match of_month {
                true => store.sink.months.each_open(|connection| _ = set(connection)),
                false => _ = set(&store.sink.connection),
            }
        };
        limit(&mut store, 0);
        // Open flows fill `ledger.db`, closed ones the month.
        let entries: Vec<Entry> = match of_month {
            true => records[1..].to_vec(),
            // Wide rows, for the file has some free pages.
            false => (1..40).map(|n| interim_of(&last(&wide(n)))).collect(),
        };
        for _ in 0..3 {
            let error = store.sink.apply(1, 2, &entries).unwrap_err();
            assert!(matches!(&error, SinkError::Retryable(text) if text.contains("full")), "{error:?}");
            assert_eq!(store.totals(), (1, 1, 1, 1));
        }
        limit(&mut store, 100);
        store.sink.apply(1, 2, &entries).unwrap();
        assert_eq!(store.totals(), (if of_month { 40 } else { 1 }, (1 << 40) - 1, 40, 40));
    }
}

fn interim_of(entry: &Entry) -> Entry {
    match entry {
        Entry::Final(record) => Entry::Interim(*record),
        other => *other,
    }
}

#[test]
fn foreign_lock_is_retryable() {
    let mut store = Store::new();
    let records = finals(3);
    store.sink.apply(1, 1, &records[..1]).unwrap();
    for other in [store.ledger(), store.month()] {
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = store.sink.apply(1, 2, &records[1..]).unwrap_err();
        assert!(matches!(&error, SinkError::Retryable(text) if text.contains("locked")), "{error:?}");
        other.execute_batch("ROLLBACK").unwrap();
    }
    store.sink.apply(1, 2, &records[1..]).unwrap();
    assert_eq!(store.totals(), (3, 7, 3, 3));
}

#[test]
fn reader_blocks_neither_checkpoint_nor_seal() {
    let mut store = Store::new();
    let records = finals(3);
    assert_eq!(store.sink.checkpoint(), Ok(0));
    store.sink.apply(1, 1, &records[..1]).unwrap();
    assert_eq!(store.sink.checkpoint(), Ok(1));
    let reader = SqliteUsage::open(store.directory.path()).unwrap();
    let flows = |usage: &SqliteUsage| usage.total(&Filter::default()).unwrap().flows;
    assert_eq!(flows(&reader), 1);
    store.sink.apply(1, 2, &records[1..2]).unwrap();
    store.sink.apply(1, 3, &records[2..]).unwrap();
    assert_eq!(store.sink.checkpoint(), Ok(3));
    store.sink.seal().unwrap();
    assert_eq!(flows(&reader), 1, "the reader's snapshot stays");
    assert_eq!(reader.rows(&Filter::default(), &[GroupBy::Host]).unwrap().rows[0].flows, 1);
    assert_eq!(store.totals(), (3, 7, 3, 3));
}

#[test]
fn lsns_continue_across_runs_and_old_run_is_fenced() {
    let mut store = Store::new();
    let records = finals(4);
    assert_eq!(store.sink.applied_lsn(), Ok(None));
    // The store accepts any first number.
    store.sink.apply(3, 77, &records[..2]).unwrap();
    store.reopen();
    assert_eq!(store.sink.applied_lsn(), Ok(Some(78)));
    store.sink.apply(5, 79, &records[2..3]).unwrap();
    let error = store.sink.apply(4, 80, &records[3..]).unwrap_err();
    assert_eq!(error, SinkError::Fatal("run 5 of this gateway has taken over from run 4".to_owned()));
    let error = store.sink.apply(5, 81, &records[3..]).unwrap_err();
    assert_eq!(error, SinkError::Fatal("entry 80 is due, and 81 came".to_owned()));
    assert_eq!(store.totals(), (3, 7, 3, 79));
}

#[test]
fn only_failed_syncs_and_damage_are_fatal() {
    let check = |extended_code, expected_fatal| {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(extended_code), None);
        assert_eq!(matches!(SinkError::from(error), SinkError::Fatal(_)), expected_fatal, "{extended_code}");
    };
    check(ffi::SQLITE_IOERR_FSYNC, true);
    check(ffi::SQLITE_IOERR_DIR_FSYNC, true);
    check(ffi::SQLITE_CORRUPT, true);
    check(ffi::SQLITE_CORRUPT_INDEX, true);
    check(ffi::SQLITE_NOTADB, true);
    check(ffi::SQLITE_FULL, false);
    check(ffi::SQLITE_IOERR_WRITE, false);
    check(ffi::SQLITE_BUSY, false);
    check(ffi::SQLITE_BUSY_SNAPSHOT, false);
    check(ffi::SQLITE_LOCKED, false);
}

#[test]
fn damaged_row_is_never_added_to() {
    for damage in [
        "UPDATE rollup_quarter SET up = up + 1",
        "UPDATE rollup_day SET account = 2; UPDATE rollup_day SET account = 1, flows = 2",
        "UPDATE rollup_month SET class = 'external'; UPDATE rollup_month SET class = 'internal', flows = 2",
        "UPDATE total_quarter SET down = down + 1",
        "UPDATE live SET up_before = 1",
        "UPDATE source SET applied_lsn = 1",
    ] {
        let mut store = Store::new();
        let flow = interim_of(&last(&FLOW));
        store.sink.apply(1, 1, &[flow, finals(1)[0]]).unwrap();
        store.ledger().execute_batch(damage).unwrap();
        let error = store.sink.apply(1, 3, &[last(&FLOW)]).unwrap_err();
        assert!(matches!(&error, SinkError::Fatal(text) if text.contains("damaged")), "{damage}: {error:?}");
    }
}

#[test]
fn foreign_files_are_refused_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let check = |expected: &str| {
        let before = std::fs::read(&path).unwrap();
        let opened = SqliteSink::open(directory.path(), 1, SinkSettings::default());
        let error = opened.err().expect("the file is refused").to_string();
        assert!(error.contains(expected) && error.contains("ledger.db"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    };
    std::fs::write(&path, "Dear diary, today I was mistaken for a database.").unwrap();
    check("not a database");
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    check("not one of Tollgate's");
}
