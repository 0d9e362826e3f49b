//! The ledger as its users see it: opened, filled from several threads, asked, closed and opened again.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;

use ledger::query::{Filter, GroupBy, QueryError, Row, Usage};
use ledger::record::{Class, CloseReason, Flow, Legs, Protocol, Record};
use ledger::{Inlet, Ledger, OpenError};
use sys::clock::WallNanos;

const DAY_NS: u64 = 86_400_000_000_000;

/// 2026-01-31T00:00:00Z.
const JANUARY_31: u64 = 20_484 * DAY_NS;

const FLOW: Flow<'_> = Flow {
    id: 0,
    opened: WallNanos(JANUARY_31),
    closed: WallNanos(JANUARY_31),
    user: "ci",
    host: "example.com",
    port: 443,
    address: None,
    client: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 50_000),
    class: Class::External,
    protocol: Protocol::Socks5,
    rule: "",
    reason: CloseReason::ClientClosed,
    legs: Legs { client_rx: 0, upstream_tx: 0, upstream_rx: 0, client_tx: 0 },
};

fn flow<'a>(user: &'a str, host: &'a str, closed: u64, up: u64, down: u64) -> Flow<'a> {
    let legs = Legs { client_rx: up, upstream_tx: up, upstream_rx: down, client_tx: down };
    Flow { user, host, closed: WallNanos(closed), legs, ..FLOW }
}

fn push(inlet: &mut Inlet, flow: &Flow<'_>) {
    let record = Record::new(flow);
    while inlet.push(&record).is_err() {
        thread::yield_now();
    }
}

/// A closed ledger in `directory` that `flows` went into.
fn fill(directory: &Path, flows: &[Flow<'_>]) {
    let (ledger, mut inlets) = Ledger::open(directory, 1).unwrap();
    flows.iter().for_each(|flow| push(&mut inlets[0], flow));
    assert_eq!(ledger.close().unwrap().records, flows.len() as u64);
}

/// Rows as text, one per line.
fn text(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{} {} {} {}\n", row.key, row.flows, row.up, row.down)).collect()
}

fn check(directory: &Path, filter: &Filter, group: GroupBy, expected: &[&str]) {
    let usage = Usage::open(directory).unwrap();
    let rows = usage.rows(filter, group).unwrap();
    let expected: String = expected.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(text(&rows), expected);
    let total = usage.total(filter).unwrap();
    assert_eq!(total.flows, rows.iter().map(|row| row.flows).sum::<u64>());
    assert_eq!(total.up, rows.iter().map(|row| row.up).sum::<u64>());
    assert_eq!(total.down, rows.iter().map(|row| row.down).sum::<u64>());
}

#[test]
fn usage_is_grouped_filtered_and_ordered() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fill(
        directory,
        &[
            flow("ci", "github.com", JANUARY_31 - 1, 1, 10),
            flow("ci", "github.com", JANUARY_31, 2, 20),
            Flow { class: Class::Internal, ..flow("ann", "db.corp", JANUARY_31 + DAY_NS - 1, 500, 7) },
            flow("ann", "github.com", JANUARY_31 + DAY_NS, 4, 40),
            flow("bob", "a.example", JANUARY_31 + DAY_NS, 40, 4),
        ],
    );
    let all = Filter::default();
    check(directory, &all, GroupBy::User, &["ann 2 504 47", "bob 1 40 4", "ci 2 3 30"]);
    check(directory, &all, GroupBy::Host, &["db.corp 1 500 7", "github.com 3 7 70", "a.example 1 40 4"]);
    check(directory, &all, GroupBy::Class, &["internal 1 500 7", "external 4 47 74"]);
    let days = ["2026-01-30 1 1 10", "2026-01-31 2 502 27", "2026-02-01 2 44 44"];
    check(directory, &all, GroupBy::Day, &days);

    let since = Filter { since: Some(WallNanos(JANUARY_31)), ..all.clone() };
    check(directory, &since, GroupBy::Day, &days[1..]);
    let until = Filter { until: Some(WallNanos(JANUARY_31 + DAY_NS)), ..all.clone() };
    check(directory, &until, GroupBy::Day, &days[..2]);
    let one_day = Filter { until: until.until, ..since };
    check(directory, &one_day, GroupBy::Day, &days[1..2]);
    let ann = Filter { user: Some("ann".to_owned()), ..all.clone() };
    check(directory, &ann, GroupBy::Host, &["db.corp 1 500 7", "github.com 1 4 40"]);
    let github = Filter { host: Some("github.com".to_owned()), ..all.clone() };
    check(directory, &github, GroupBy::User, &["ann 1 4 40", "ci 2 3 30"]);
    let outside = Filter { class: Some(Class::External), ..all.clone() };
    check(directory, &outside, GroupBy::User, &["ann 1 4 40", "bob 1 40 4", "ci 2 3 30"]);
    let nobody = Filter { user: Some("ci' OR 1".to_owned()), ..all };
    check(directory, &nobody, GroupBy::User, &[]);
}

#[test]
fn equal_sums_come_in_the_order_of_their_keys() {
    let directory = tempfile::tempdir().unwrap();
    let flows = ["d", "b", "c", "a"].map(|user| flow(user, "example.com", JANUARY_31, 1, 1));
    fill(directory.path(), &flows);
    let expected = ["a 1 1 1", "b 1 1 1", "c 1 1 1", "d 1 1 1"];
    check(directory.path(), &Filter::default(), GroupBy::User, &expected);
}

#[test]
fn keys_of_any_text_stay_apart() {
    let directory = tempfile::tempdir().unwrap();
    let long = "x".repeat(255);
    let hosts = ["a\0b", "a", "é", "e\u{301}", "", &long, &long[..254]];
    fill(directory.path(), &hosts.map(|host| flow("u\0", host, JANUARY_31, 1, 0)));
    let usage = Usage::open(directory.path()).unwrap();
    let rows = usage.rows(&Filter::default(), GroupBy::Host).unwrap();
    let mut expected = ["a\0b", "a", "é", "e\u{301}", "", &long[..253]];
    expected.sort_unstable();
    let mut keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, expected);
    let filter = Filter { user: Some("u\0".to_owned()), host: Some("a\0b".to_owned()), ..Filter::default() };
    assert_eq!(usage.total(&filter).unwrap().flows, 1);
}

#[test]
fn sums_are_exact_to_the_last_bit_or_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let large = i64::MAX as u64 - 5;
    fill(directory.path(), &[flow("ci", "a", JANUARY_31, large, 1), flow("ci", "b", JANUARY_31, 5, 0)]);
    let all = Filter::default();
    check(directory.path(), &all, GroupBy::User, &["ci 2 9223372036854775807 1"]);
    fill(directory.path(), &[flow("ci", "c", JANUARY_31, 1, 0)]);
    let error = Usage::open(directory.path()).unwrap().total(&all).unwrap_err();
    assert!(error.to_string().contains("overflow"), "{error}");
}

#[test]
fn an_absent_ledger_is_told_from_an_empty_one() {
    let directory = tempfile::tempdir().unwrap();
    let absent = Usage::open(&directory.path().join("nowhere")).unwrap_err();
    assert!(matches!(&absent, QueryError::Absent { .. }), "{absent:?}");
    assert!(absent.to_string().contains("nowhere"), "{absent}");
    assert!(!directory.path().join("nowhere").exists(), "asking makes nothing");
    std::fs::File::create(directory.path().join("ledger.db")).unwrap();
    assert!(matches!(Usage::open(directory.path()), Err(QueryError::Absent { .. })));
    fill(directory.path(), &[]);
    check(directory.path(), &Filter::default(), GroupBy::User, &[]);
}

#[test]
fn the_second_opener_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (ledger, _inlets) = Ledger::open(directory.path(), 1).unwrap();
    let refusal = Ledger::open(directory.path(), 1).err().expect("it is in use");
    assert!(matches!(&refusal, OpenError::Locked { .. }), "{refusal:?}");
    assert!(refusal.to_string().contains(directory.path().to_str().unwrap()), "{refusal}");
    ledger.close().unwrap();
    drop(Ledger::open(directory.path(), 1).unwrap());
    drop(Ledger::open(directory.path(), 1).unwrap());
}

#[test]
fn rows_add_up_over_reopenings_and_threads() {
    const THREADS: u64 = 3;
    const FLOWS: u64 = 4_000;
    let directory = tempfile::tempdir().unwrap();
    for round in 1..=2 {
        let (ledger, inlets) = Ledger::open(directory.path(), THREADS as usize).unwrap();
        thread::scope(|scope| {
            for mut inlet in inlets {
                scope.spawn(move || {
                    (0..FLOWS).for_each(|n| push(&mut inlet, &flow("ci", "a", JANUARY_31, n, 1)));
                });
            }
        });
        assert_eq!(ledger.close().unwrap().records, THREADS * FLOWS);
        let total = Usage::open(directory.path()).unwrap().total(&Filter::default()).unwrap();
        let up = round * THREADS * FLOWS * (FLOWS - 1) / 2;
        let flows = round * THREADS * FLOWS;
        assert_eq!(total, Row { key: "total".to_owned(), flows, up, down: flows });
    }
}

#[test]
fn an_orderly_end_leaves_the_database_alone() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), &[FLOW]);
    let mut names: Vec<_> =
        directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["LOCK", "ledger.db"], "no log is left to be replayed");
}

#[test]
fn questions_are_answered_while_the_ledger_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let (ledger, mut inlets) = Ledger::open(directory.path(), 1).unwrap();
    let before = Usage::open(directory.path()).unwrap();
    let flows = |usage: &Usage| usage.total(&Filter::default()).unwrap().flows;
    assert_eq!(flows(&before), 0);
    for count in 1..=3 {
        push(&mut inlets[0], &flow("ci", "a", JANUARY_31, 1, 1));
        while ledger.status().records < count {
            thread::yield_now();
        }
        assert_eq!(flows(&Usage::open(directory.path()).unwrap()), count);
    }
    assert_eq!(flows(&before), 0, "an open `Usage` keeps its moment");
    ledger.close().unwrap();
    assert_eq!(flows(&before), 0);
    assert_eq!(flows(&Usage::open(directory.path()).unwrap()), 3);
}

#[test]
fn a_lost_process_loses_no_applied_record() {
    let directory = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let (ledger, mut inlets) = Ledger::open(directory.path(), 1).unwrap();
    push(&mut inlets[0], &flow("ci", "a", JANUARY_31, 1, 1));
    while ledger.status().records < 1 {
        thread::yield_now();
    }
    // What the files hold at this moment is what a killed process leaves behind.
    for entry in directory.path().read_dir().unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    assert_eq!(Usage::open(copy.path()).unwrap().total(&Filter::default()).unwrap().flows, 1);
    fill(copy.path(), &[FLOW]);
    assert_eq!(Usage::open(copy.path()).unwrap().total(&Filter::default()).unwrap().flows, 2);
}
