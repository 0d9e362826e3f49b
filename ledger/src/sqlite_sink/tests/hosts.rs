//! Questions by host: from sums, and from the rows that are not summed up yet.

use super::tables::{FEBRUARY, HOUR};
use super::*;
use crate::database::host_sums::SummedTo;
use crate::verify::verify;

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
    let usage = Usage::open(directory).unwrap();
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
        file.execute_batch("DELETE FROM host_source; DELETE FROM host_day; DELETE FROM host_month").unwrap();
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
    store.sink.apply(1, 3, &finals(3)[2..]).unwrap();
    store.sink.seal().unwrap();
    assert_eq!(summed(&store, "usage-197001.db").flow, 1);
    let usage = Usage::open(store.directory.path()).unwrap();
    let rows = usage.rows(&Filter::default(), &[GroupBy::Host]).unwrap().rows;
    assert_eq!((rows.len(), rows[0].up), (1, 1 + 4), "the damaged row is left out");
    assert!(usage.has_damaged_rows());
}
