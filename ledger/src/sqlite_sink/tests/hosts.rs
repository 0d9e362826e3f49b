//! Questions by host: from sums, and from the rows that are not summed up yet.

use super::tables::{FEBRUARY, HOUR};
use super::*;
use rusqlite::types::ValueRef;

use crate::database::checksum;
use crate::database::host_sums::SummedTo;
use crate::database::packed::{self, HostSums};
use crate::database::packed_hosts;
use crate::database::sums::Sums;
use crate::verify::{Problem, verify};

const DAY: u64 = 24 * HOUR;

/// Flows and parts of three users and five hosts, one each hour from the last days of January on.
pub(super) fn hourly(count: u64) -> Vec<Entry> {
    let hosts = ["a.example", "b.example", "c.example", "d.example", "e.example"];
    let users = ["ann", "bob", "ci"];
    let entry = |n: u64| {
        // A flow of three entries, two of which are interims, beside three flows of one.
        let is_long = n % 6 < 3;
        let number = if is_long { n / 6 } else { n };
        let at = FEBRUARY - 2 * DAY + n * HOUR;
        let flow = Flow {
            id: u128::from(number) << 64 | u128::from(is_long),
            user: users[(number % 3) as usize],
            host: hosts[(number % 5) as usize],
            class: if number % 5 == 4 { Class::Internal } else { Class::External },
            closed: WallNanos(at),
            legs: Legs { upstream_tx: 100 + n, client_tx: 1_000 + n * n, ..Legs::default() },
            ..FLOW
        };
        if is_long && n % 6 < 2 { interim_of(&last(&flow)) } else { last(&flow) }
    };
    (0..count).map(entry).collect()
}

/// Windows, users, hosts and keys in all combinations.
pub(super) fn answers(directory: &Path) -> Vec<(UsageRow, Vec<UsageRow>)> {
    let usage = SqliteUsage::open(directory).unwrap();
    let windows = [
        (None, None),
        (Some(FEBRUARY), None),
        (Some(FEBRUARY - DAY), Some(FEBRUARY + DAY)),
        (Some(FEBRUARY + 5 * HOUR + 7), Some(FEBRUARY + 3 * DAY - 11)),
        (Some(FEBRUARY + HOUR), Some(FEBRUARY + 2 * HOUR)),
        (Some(FEBRUARY + 300 * DAY), None),
    ];
    let keys: [&[GroupBy]; 12] = [
        &[GroupBy::User],
        &[GroupBy::Quarter],
        &[GroupBy::Set, GroupBy::Hour],
        &[GroupBy::User, GroupBy::Day],
        &[GroupBy::Month, GroupBy::User],
        &[GroupBy::Day],
        &[GroupBy::Host],
        &[GroupBy::User, GroupBy::Host],
        &[GroupBy::Day, GroupBy::Host],
        &[GroupBy::Class],
        &[GroupBy::Month, GroupBy::Host],
        &[GroupBy::Hour, GroupBy::Host],
    ];
    let mut answers = Vec::new();
    for (since, until) in windows {
        for (user, host) in
            [(None, None), (Some("bob"), None), (None, Some("b.example")), (Some("x"), Some("y"))]
        {
            let filter = Filter {
                since: since.map(WallNanos),
                until: until.map(WallNanos),
                user: user.map(str::to_owned),
                host: host.map(str::to_owned),
                ..Filter::default()
            };
            let total = usage.total(&filter).unwrap();
            answers.extend(keys.map(|keys| (total.clone(), usage.rows(&filter, keys).unwrap().rows)));
        }
    }
    answers
}

const UNPACK: &str = "DELETE FROM packed_host_day; DELETE FROM packed_host_month;";

fn count(store: &Store, what: &str) -> i64 {
    let file = Connection::open(store.directory.path().join("usage-202602.db")).unwrap();
    file.query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0)).unwrap()
}

fn execute(store: &Store, sql: &str) {
    let file = Connection::open(store.directory.path().join("usage-202602.db")).unwrap();
    file.execute_batch(sql).unwrap();
}

fn summed(store: &Store, month: &str) -> SummedTo {
    SummedTo::read(&Connection::open(store.directory.path().join(month)).unwrap()).unwrap()
}

#[test]
fn sums_by_host_equal_those_of_rows() {
    let entries = hourly(200);
    let mut store = Store::new();
    store.sink.apply(1, 1, &entries[..150]).unwrap();
    store.sink.seal().unwrap();
    let to = summed(&store, "usage-202602.db");
    assert!(to.flow > 0 && to.part > 0, "{to:?}");
    // Rows beyond the sums.
    store.sink.apply(1, 151, &entries[150..]).unwrap();
    assert_eq!(summed(&store, "usage-202602.db"), to);
    let from_sums = answers(store.directory.path());
    assert!(verify(store.directory.path()).unwrap().is_clean());
    for month in Month::files(store.directory.path()).unwrap() {
        let file = Connection::open(month.path(store.directory.path())).unwrap();
        file.execute_batch(&format!("DELETE FROM host_source; DELETE FROM host_day; {UNPACK}")).unwrap();
    }
    assert_eq!(from_sums, answers(store.directory.path()));
}

/// The month commits before `ledger.db`. Sums that include such a month's last rows are not used.
#[test]
fn sums_with_rows_that_are_not_visible_are_not_used() {
    let mut store = Store::new();
    store.sink.apply(1, 1, &finals(2)).unwrap();
    drop(store.sink.stage(1, 3, &finals(5)[2..]).unwrap());
    store.sink.months.close().unwrap();
    assert_eq!(summed(&store, "usage-197001.db").flow, 5);
    assert_eq!(store.totals(), (2, 3, 2, 2));
    store.sink.apply(1, 3, &finals(5)[2..]).unwrap();
    assert_eq!(store.totals(), (5, 31, 5, 5));
}

#[test]
fn sums_are_discarded_with_their_rows() {
    let mut store = Store::new();
    store.sink.apply(1, 1, &finals(5)).unwrap();
    store.sink.seal().unwrap();
    assert_eq!(summed(&store, "usage-197001.db").flow, 5);
    store.sink.months.remove_beyond(Month::containing(0), 1, 3).unwrap();
    assert_eq!(summed(&store, "usage-197001.db"), SummedTo::default());
    let rows: i64 = store.month().query_row("SELECT count(*) FROM host_day", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 0);
}

#[test]
fn rows_behind_a_damaged_one_are_not_summed_up() {
    let mut store = Store::new();
    store.sink.apply(1, 1, &finals(2)).unwrap();
    store.month().execute_batch("UPDATE flow SET host = 'other' WHERE rowid = 2").unwrap();
    // The next process reads the rows.
    store.reopen();
    store.sink.apply(1, 3, &finals(3)[2..]).unwrap();
    store.sink.seal().unwrap();
    assert_eq!(summed(&store, "usage-197001.db").flow, 1);
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    let rows = usage.rows(&Filter::default(), &[GroupBy::Host]).unwrap().rows;
    assert_eq!((rows.len(), rows[0].up), (1, 1 + 4), "the damaged row is left out");
    assert!(usage.completeness().has_damaged_rows);
}

#[test]
fn packed_hosts_equal_the_rows_they_are_made_of() {
    let mut store = Store::new();
    store.sink.apply(1, 1, &hourly(200)).unwrap();
    store.sink.seal().unwrap();
    assert_eq!((count(&store, "packed_host_day"), count(&store, "packed_host_month")), (7, 1));
    assert!(verify(store.directory.path()).unwrap().is_clean());
    let from_values = answers(store.directory.path());
    execute(&store, UNPACK);
    assert_eq!(answers(store.directory.path()), from_values);
    // A late flow of a day that is over.
    let late = Flow { id: 7 << 80, closed: WallNanos(FEBRUARY + 1), host: "b.example", ..FLOW };
    store.sink.apply(1, 201, &[last(&late)]).unwrap();
    store.sink.seal().unwrap();
    assert_eq!((count(&store, "packed_host_day"), count(&store, "packed_host_month")), (7, 1));
    assert!(verify(store.directory.path()).unwrap().is_clean());
    let with_late = answers(store.directory.path());
    assert_ne!(with_late, from_values);
    // A damaged value is reported by `verify`, and its rows are read.
    for table in ["packed_host_month", "packed_host_day"] {
        execute(&store, &format!("UPDATE {table} SET sums = x'00'"));
        assert_eq!(answers(store.directory.path()), with_late, "{table}");
        assert!(!verify(store.directory.path()).unwrap().is_clean());
    }
    // The next writer of the file makes them again.
    store.sink.months.applied(Month::containing(FEBRUARY as i64), 1).unwrap();
    store.sink.seal().unwrap();
    assert_eq!((count(&store, "packed_host_day"), count(&store, "packed_host_month")), (7, 1));
    assert!(verify(store.directory.path()).unwrap().is_clean());
}

#[test]
fn late_flow_discards_packed_hosts_in_its_transaction() {
    let mut store = Store::new();
    store.sink.apply(1, 1, &hourly(200)).unwrap();
    store.sink.seal().unwrap();
    let late = Flow { id: 7 << 80, closed: WallNanos(FEBRUARY + 1), host: "b.example", ..FLOW };
    store.sink.apply(1, 201, &[last(&late)]).unwrap();
    let before = answers(store.directory.path());
    let path = store.directory.path().join("usage-202602.db");
    assert!(crate::database::host_sums::sum_up(&mut Connection::open(path).unwrap(), &mut None, 1).unwrap());
    assert_eq!((count(&store, "packed_host_day"), count(&store, "packed_host_month")), (6, 0));
    assert_eq!(answers(store.directory.path()), before);
}

/// A gateway that was stopped when a month ended packs it at its next start.
#[test]
fn start_packs_the_last_month() {
    let mut store = Store::new();
    store.sink.apply(1, 1, &hourly(200)).unwrap();
    store.sink.seal().unwrap();
    execute(&store, "DELETE FROM packed_host_day WHERE day = 20491; DELETE FROM packed_host_month");
    store.reopen();
    store.sink.checkpoint().unwrap();
    assert_eq!((count(&store, "packed_host_day"), count(&store, "packed_host_month")), (7, 1));
    assert!(verify(store.directory.path()).unwrap().is_clean());
    // One that it cannot open does not stop it.
    std::fs::write(store.directory.path().join("usage-202602.db"), [7; 8_192]).unwrap();
    store.reopen();
    store.sink.checkpoint().unwrap();
    store.sink.apply(1, 201, &[last(&Flow { id: 1 << 100, ..FLOW })]).unwrap();
    store.sink.checkpoint().unwrap();
}

/// The journal waits for what is durable, and not for what can be made again.
#[test]
fn full_disk_delays_sums_by_host_alone() {
    let hosts: Vec<String> = (0..400).map(|number| format!("host-{number}.example")).collect();
    let flows = hosts.iter().zip(0_u64..).map(|(host, number)| {
        last(&Flow { id: number.into(), closed: WallNanos(FEBRUARY + number), host, ..FLOW })
    });
    let mut store = Store::new();
    store.sink.apply(1, 1, &flows.collect::<Vec<_>>()).unwrap();
    store.sink.months.each_open(|file| {
        let pages: i64 = file.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        file.pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0)).unwrap();
    });
    store.sink.seal().unwrap();
    assert_eq!(count(&store, "host_day"), 0);
    assert!(verify(store.directory.path()).unwrap().is_clean());
    store.sink.months.applied(Month::containing(FEBRUARY as i64), 1).unwrap();
    store.sink.seal().unwrap();
    assert_eq!((count(&store, "host_day"), count(&store, "packed_host_day")), (400, 1));
    assert!(verify(store.directory.path()).unwrap().is_clean());
}

/// A day that cannot be packed does not keep the others from it, nor is it read again.
#[test]
fn day_with_a_damaged_row_does_not_stop_the_packing_of_others() {
    let mut store = Store::new();
    store.sink.apply(1, 1, &hourly(200)).unwrap();
    store.sink.seal().unwrap();
    execute(&store, "UPDATE host_day SET up = up + 1 WHERE day = (SELECT min(day) FROM host_day)");
    execute(&store, UNPACK);
    let path = store.directory.path().join("usage-202602.db");
    let (mut file, mut unpackable) = (Connection::open(path).unwrap(), Default::default());
    let month = Month::containing(FEBRUARY as i64);
    assert!(packed_hosts::pack(&mut file, month, i64::MAX, &mut unpackable).unwrap());
    assert_eq!((count(&store, "packed_host_day"), count(&store, "packed_host_month")), (6, 0));
    assert_eq!(unpackable.len(), 1);
}

/// Two texts with one FNV-1a hash.
const SAME_HASH: [&str; 2] = ["8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"];

/// Hosts that only some days have, and one with the hash of another.
#[test]
fn many_hosts_are_merged() {
    let mut hosts: Vec<String> = (0..900).map(|number| format!("host-{number}.example")).collect();
    hosts.extend(SAME_HASH.map(str::to_owned));
    assert_eq!(packed::hash(SAME_HASH[0]), packed::hash(SAME_HASH[1]));
    let flows = (0_u64..2_700).map(|number| {
        let index = (number * number % 902) as usize;
        let closed = WallNanos(FEBRUARY + number * HOUR / 4);
        let legs = Legs { upstream_tx: number % 7, client_tx: number, ..Legs::default() };
        last(&Flow { id: number.into(), closed, host: &hosts[index], legs, ..FLOW })
    });
    let mut store = Store::new();
    store.sink.apply(1, 1, &flows.collect::<Vec<_>>()).unwrap();
    store.sink.seal().unwrap();
    assert_eq!((count(&store, "packed_host_day"), count(&store, "packed_host_month")), (28, 1));
    let usage = |filter: &Filter, keys: &[GroupBy]| {
        let usage = SqliteUsage::open(store.directory.path()).unwrap();
        usage.rows(filter, keys).unwrap().rows
    };
    let mut expected = std::collections::BTreeMap::<&str, [u64; 3]>::new();
    for number in 0..2_700 {
        let sums = expected.entry(&hosts[(number * number % 902) as usize]).or_default();
        *sums = [sums[0] + 1, sums[1] + number % 7, sums[2] + number];
    }
    let by_host = usage(&Filter::default(), &[GroupBy::Host]);
    assert_eq!(by_host.len(), expected.len());
    for row in &by_host {
        assert_eq!([row.flows, row.up, row.down], expected[row.keys[0].as_str()], "{}", row.keys[0]);
    }
    // From the values of days.
    let by_day = usage(&Filter::default(), &[GroupBy::Day, GroupBy::Host]);
    for (host, sums) in expected {
        let of_host = Filter { host: Some(host.to_owned()), ..Filter::default() };
        let rows = [by_day.iter().filter(|row| row.keys[1] == host).cloned().collect(), usage(&of_host, &[])];
        for rows in rows {
            let sum = |column: fn(&UsageRow) -> u64| rows.iter().map(column).sum::<u64>();
            assert_eq!([sum(|row| row.flows), sum(|row| row.up), sum(|row| row.down)], sums, "{host}");
        }
    }
    assert!(verify(store.directory.path()).unwrap().is_clean());
}

/// Their checksums are right, and their content is not.
#[test]
fn verify_compares_packed_hosts() {
    let entry = |name, hash| HostSums {
        hash,
        name,
        class: Class::External,
        set: 0,
        sums: Sums { flows: 1, ..Sums::default() },
    };
    let wrong_sums = packed::pack_hosts([entry("a.example", packed::hash("a.example"))]).unwrap();
    let wrong_hash = packed::pack_hosts([entry("a.example", 7)]).unwrap();
    for (sql, unit, value) in [
        ("INSERT OR REPLACE INTO packed_host_day VALUES (?1, ?2, ?3)", 20_490, &wrong_sums),
        ("INSERT OR REPLACE INTO packed_host_day VALUES (?1, ?2, ?3)", 20_490, &wrong_hash),
        ("INSERT OR REPLACE INTO packed_host_month VALUES (?1, ?2, ?3)", 202_602, &wrong_sums),
    ] {
        let mut store = Store::new();
        store.sink.apply(1, 1, &hourly(200)).unwrap();
        store.sink.seal().unwrap();
        let file = Connection::open(store.directory.path().join("usage-202602.db")).unwrap();
        checksum::put(&file, sql, &[ValueRef::Integer(unit), ValueRef::Blob(value)]).unwrap();
        let report = verify(store.directory.path()).unwrap();
        assert!(matches!(&report.problems[..], [Problem::Damaged { .. }]), "{sql}: {:#?}", report.problems);
    }
}
