//! The SQLite sink against its contract, on real files.

use std::net::SocketAddr;

use proptest::prelude::*;
use sys::clock::WallNanos;
use tempfile::TempDir;

use super::*;
use crate::record::{Class, CloseReason, Flow, Legs, Protocol};

struct Store {
    sink: SqliteSink,
    directory: TempDir,
}

impl Store {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::File::create(directory.path().join("test.db")).unwrap();
        Self { sink: open(&directory), directory }
    }

    fn other_connection(&self) -> Connection {
        Connection::open(self.directory.path().join("test.db")).unwrap()
    }

    /// Rows, up, down and the sum of all epochs' `applied_lsn`, as another connection sees them.
    fn totals(&self) -> (i64, i64, i64, i64) {
        let sql = "SELECT count(*), total(up), total(down), (SELECT sum(applied_lsn) FROM source) FROM flow";
        self.other_connection()
            .query_row(sql, [], |row| {
                let whole = |index| row.get::<_, f64>(index).map(|sum| sum as i64);
                Ok((row.get(0)?, whole(1)?, whole(2)?, row.get(3)?))
            })
            .unwrap()
    }
}

fn open(directory: &TempDir) -> SqliteSink {
    SqliteSink::open(&directory.path().join("test.db")).unwrap()
}

const FLOW: Flow<'_> = Flow {
    id: 1 << 100,
    opened: WallNanos(1_000),
    closed: WallNanos(2_000),
    user: "ci",
    host: "example.com",
    port: 443,
    address: None,
    client: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 50_000),
    class: Class::Internal,
    protocol: Protocol::HttpConnect,
    rule: "@corp[1] 10.20.0.0/16",
    reason: CloseReason::UpstreamReset,
    legs: Legs { client_rx: 11, upstream_tx: 10, upstream_rx: 21, client_tx: 20 },
};

/// Records whose `up` are the powers of two, so that a sum tells which are in it.
fn records(count: u32) -> Vec<Record> {
    let legs = |n| Legs { upstream_tx: 1_u64 << n, client_tx: 1, ..Legs::default() };
    (0..count).map(|n| Record::new(&Flow { id: n.into(), legs: legs(n), ..FLOW })).collect()
}

#[test]
fn a_row_says_what_the_record_said() {
    let mut store = Store::new();
    let long = "ü".repeat(127);
    let flows = [
        FLOW,
        Flow { host: "a\0b", user: "名前", address: Some("10.20.0.7".parse().unwrap()), ..FLOW },
        Flow { host: &long, client: "[2001:db8::1]:1".parse().unwrap(), id: u128::MAX, ..FLOW },
    ];
    let records: Vec<Record> = flows.iter().map(Record::new).collect();
    store.sink.apply(1, &records).unwrap();
    let connection = store.other_connection();
    let mut select = connection.prepare("SELECT * FROM flow ORDER BY rowid").unwrap();
    let names: Vec<String> = select.column_names().map(str::to_owned).collect();
    let rows = select.query_map([], |row| (0..names.len()).map(|index| row.get(index)).collect()).unwrap();
    let rows: Vec<Vec<rusqlite::types::Value>> = rows.collect::<Result<_, _>>().unwrap();
    assert_eq!(
        names.join(" "),
        "id opened_ns closed_ns user host port address client class protocol \
        rule reason cut client_rx upstream_tx upstream_rx client_tx up down"
    );
    for (row, flow) in rows.iter().zip(&flows) {
        let cut = flow.host.len() > 253;
        let host = if cut { &flow.host[..252] } else { flow.host };
        let expected: Vec<rusqlite::types::Value> = vec![
            flow.id.to_be_bytes().to_vec().into(),
            1_000.into(),
            2_000.into(),
            flow.user.to_owned().into(),
            host.to_owned().into(),
            443.into(),
            flow.address.map(|address| address.to_string()).into(),
            flow.client.to_string().into(),
            "internal".to_owned().into(),
            "http_connect".to_owned().into(),
            "@corp[1] 10.20.0.0/16".to_owned().into(),
            "upstream_reset".to_owned().into(),
            i64::from(cut).into(),
            11.into(),
            10.into(),
            21.into(),
            20.into(),
            10.into(),
            20.into(),
        ];
        assert_eq!(*row, expected);
    }
    assert_eq!(rows.len(), flows.len());
}

#[test]
fn impossible_counts_hold_up_nothing() {
    let mut store = Store::new();
    let legs = Legs { client_rx: u64::MAX, upstream_tx: 1 << 63, upstream_rx: u64::MAX, client_tx: 7 };
    let flow = Flow { legs, closed: WallNanos(u64::MAX), ..FLOW };
    store.sink.apply(1, &[Record::new(&flow)]).unwrap();
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let row: (i64, i64, i64) =
        store.other_connection().query_row("SELECT up, down, closed_ns FROM flow", [], read).unwrap();
    assert_eq!(row, (i64::MAX, 7, i64::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the records are cut into batches, and however often batches are sent again from an
    /// earlier record on, each is one row.
    #[test]
    fn any_split_and_any_resend_give_the_same_totals(
        cuts in prop::collection::vec((1_usize..12, 0_usize..12), 1..20),
    ) {
        let records = records(40);
        let mut store = Store::new();
        let mut end = 0;
        for (fresh, again) in cuts.into_iter().chain([(40, 0)]) {
            let start = end - again.min(end);
            end = (end + fresh).min(records.len());
            if start < end {
                store.sink.apply(start as u64 + 1, &records[start..end]).unwrap();
            }
        }
        prop_assert_eq!(store.totals(), (40, (1 << 40) - 1, 40, 40));
    }
}

#[test]
fn a_gap_is_final() {
    let mut store = Store::new();
    let records = records(3);
    store.sink.apply(1, &records[..1]).unwrap();
    let error = store.sink.apply(3, &records[2..]).unwrap_err();
    assert_eq!(error, SinkError::Final("record 2 is due, and 3 came".to_owned()));
    assert_eq!(store.totals(), (1, 1, 1, 1));
}

#[test]
fn a_full_disk_is_passing_and_leaves_no_part_of_a_batch() {
    let mut store = Store::new();
    let records = records(40);
    store.sink.apply(1, &records[..1]).unwrap();
    let pages: i64 = store.sink.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    let limit = |store: &Store, pages: i64| {
        let set = store
            .sink
            .connection
            .pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0));
        assert_eq!(set, Ok(pages));
    };
    limit(&store, pages);
    for _ in 0..3 {
        let error = store.sink.apply(2, &records[1..]).unwrap_err();
        assert!(matches!(&error, SinkError::Passing(text) if text.contains("full")), "{error:?}");
        assert_eq!(store.totals(), (1, 1, 1, 1));
    }
    limit(&store, pages + 100);
    store.sink.apply(2, &records[1..]).unwrap();
    assert_eq!(store.totals(), (40, (1 << 40) - 1, 40, 40));
}

#[test]
fn the_lock_of_somebody_else_is_passing() {
    let mut store = Store::new();
    let records = records(2);
    let other = store.other_connection();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.sink.apply(1, &records).unwrap_err();
    assert!(matches!(&error, SinkError::Passing(text) if text.contains("locked")), "{error:?}");
    other.execute_batch("ROLLBACK").unwrap();
    store.sink.apply(1, &records).unwrap();
    assert_eq!(store.totals(), (2, 3, 2, 2));
}

#[test]
fn a_reader_delays_the_checkpoint_and_neither_rows_nor_the_end() {
    let mut store = Store::new();
    let records = records(3);
    store.sink.apply(1, &records[..1]).unwrap();
    assert_eq!(store.sink.checkpoint(), Ok(true));
    let reader = store.other_connection();
    let count = |connection: &Connection| -> i64 {
        connection.query_row("SELECT count(*) FROM flow", [], |row| row.get(0)).unwrap()
    };
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(count(&reader), 1);
    store.sink.apply(2, &records[1..2]).unwrap();
    store.sink.apply(3, &records[2..]).unwrap();
    assert_eq!(store.sink.checkpoint(), Ok(false));
    store.sink.seal().unwrap();
    assert_eq!(count(&reader), 1, "the reader's moment stays");
    assert_eq!(store.totals(), (3, 7, 3, 3));
}

#[test]
fn each_opening_is_an_epoch_with_numbers_of_its_own() {
    let mut store = Store::new();
    let records = records(40);
    for (index, record) in records[..3].iter().enumerate() {
        store.sink.apply(1, std::slice::from_ref(record)).unwrap();
        // The second run is not ended in order.
        if index != 1 {
            store.sink.seal().unwrap();
        }
        store.sink = open(&store.directory);
    }
    assert_eq!(store.totals(), (3, 7, 3, 3));
    let connection = store.other_connection();
    let mut select =
        connection.prepare("SELECT epoch, sealed_ns IS NOT NULL FROM source ORDER BY epoch").unwrap();
    let epochs = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let epochs: Vec<(i64, bool)> = epochs.collect::<Result<_, _>>().unwrap();
    assert_eq!(epochs, [(1, true), (2, false), (3, true), (4, false)]);
}

#[test]
fn failed_syncs_and_damage_are_final_and_nothing_else_is() {
    let check = |extended_code, expected_final| {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(extended_code), None);
        assert_eq!(matches!(SinkError::from(error), SinkError::Final(_)), expected_final, "{extended_code}");
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
fn foreign_files_are_refused_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.db");
    let check = |expected: &str| {
        let before = std::fs::read(&path).unwrap();
        let error = SqliteSink::open(&path).err().expect("it is refused").to_string();
        assert!(error.contains(expected) && error.contains("test.db"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    };
    std::fs::write(&path, "Dear diary, today I was mistaken for a database.").unwrap();
    check("not a database");
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    check("not one of Tollgate's");
}
