//! The contract of [`Usage`] as tests, which every engine passes.
//!
//! Not handled here: what a dropped month, a damaged row or an unreadable journal takes from an answer.

pub(crate) mod comparison;
pub(crate) mod histories;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sys::clock::WallNanos;

use super::{Filter, FlowRow, GroupBy, Row, Usage};
use crate::consent::Consent;
use crate::entry::{Entry, TableFinding};
use crate::numbering::{Names, Numbers, UserNames};
use crate::record::tests::FLOW;
use crate::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};

/// A ledger under test.
pub(crate) trait UsageFixture {
    type Usage: Usage;

    /// Gives numbers to `names`.
    fn number(&mut self, names: &Names) -> Numbers;

    /// Applies the next entries, which run `epoch` wrote.
    fn apply(&mut self, epoch: u32, entries: &[Entry]);

    /// The usage as of now, with entries of the journal that are not applied, each with its run.
    fn usage(&mut self, unapplied: &[(u32, Entry)]) -> Self::Usage;
}

/// Runs all cases, each on a ledger of `make` that is empty.
pub(crate) fn check<F: UsageFixture>(make: impl Fn() -> F) {
    empty_ledger_has_no_usage(&mut make());
    answers_are_of_one_moment(&mut make());
    bytes_belong_to_the_quarter_hour_of_their_count(&mut make());
    counts_and_moments_never_fall(&mut make());
    requests_and_uncertain_bytes_count_at_the_end(&mut make());
    run_ends_open_flows(&mut make());
    span_has_its_beginning_and_not_its_end(&mut make());
    every_field_of_a_filter_is_met(&mut make());
    rows_of_any_keys_add_up(&mut make());
    renamed_user_keeps_its_usage(&mut make());
    flow_stays_with_its_account(&mut make());
    removed_set_keeps_its_usage(&mut make());
    groups_are_ordered_key_by_key(&mut make());
    periods_are_those_of_the_zone(&mut make());
    sum_beyond_the_bound_is_an_error(&mut make());
    entries_ahead_count_as_if_applied(&mut make());
    flows_are_listed_in_their_order(&mut make());
    accepted_losses_are_told(&mut make());
}

const SECOND: u64 = 1_000_000_000;
const QUARTER: u64 = 900 * SECOND;
/// 2026-01-31T23:45:00Z, the last quarter-hour of a month.
const EVENING: u64 = 1_769_903_100 * SECOND;
/// 2026-02-01T00:00:00Z.
const FEBRUARY: u64 = EVENING + QUARTER;

const PLAIN: Flow<'_> = Flow {
    id: 1,
    opened: WallNanos(EVENING),
    closed: WallNanos(EVENING),
    account: 0,
    policy: 0,
    set: 0,
    requests: 0,
    rule: "user:ci/allow[0] example.com:443",
    legs: Legs { client_rx: 0, upstream_tx: 0, upstream_rx: 0, client_tx: 0 },
    uncertain: Uncertain { up: 0, down: 0 },
    ..FLOW
};

/// A flow that moved bytes up and down until `at`.
fn flow(id: u128, at: u64, up: u64, down: u64) -> Flow<'static> {
    let legs = Legs { client_rx: up, upstream_tx: up, upstream_rx: down, client_tx: down };
    Flow { id, closed: WallNanos(at), legs, ..PLAIN }
}

fn open(flow: Flow<'_>) -> Entry {
    Entry::Interim(Record::new(&flow))
}

fn end(flow: Flow<'_>) -> Entry {
    Entry::Final(Record::new(&flow))
}

fn began(epoch: u32, at: u64) -> Entry {
    Entry::RunBegan { epoch, at: WallNanos(at), run: 1, table: TableFinding::None }
}

fn users(names: &[(&str, &[&str])]) -> Names {
    let user = |(name, former): &(&str, &[&str])| UserNames {
        name: (*name).to_owned(),
        former: former.iter().map(|name| (*name).to_owned()).collect(),
    };
    Names { users: names.iter().map(user).collect(), ..Names::default() }
}

fn span(since: u64, until: u64) -> Filter {
    Filter { since: Some(WallNanos(since)), until: Some(WallNanos(until)), ..Filter::default() }
}

fn of_user(name: &str) -> Filter {
    Filter { user: Some(name.to_owned()), ..Filter::default() }
}

fn of_set(name: &str) -> Filter {
    Filter { set: Some(name.to_owned()), ..Filter::default() }
}

fn of_host(name: &str) -> Filter {
    Filter { host: Some(name.to_owned()), ..Filter::default() }
}

fn of_class(class: Class) -> Filter {
    Filter { class: Some(class), ..Filter::default() }
}

/// Flows, open flows, bytes up and down.
fn sums(row: &Row) -> [u64; 4] {
    [row.flows, row.live, row.up, row.down]
}

fn total(usage: &impl Usage, filter: &Filter) -> [u64; 4] {
    let total = usage.total(filter).unwrap();
    assert_eq!(total.keys, ["total"]);
    sums(&total)
}

/// Each row: its keys, separated by spaces, and its sums.
fn rows(usage: &impl Usage, filter: &Filter, keys: &[GroupBy]) -> Vec<(String, [u64; 4])> {
    let answer = usage.rows(filter, keys).unwrap();
    assert_eq!(answer.missing, [""; 0]);
    answer.rows.iter().map(|row| (row.keys.join(" "), sums(row))).collect()
}

#[track_caller]
fn assert_rows(usage: &impl Usage, filter: &Filter, keys: &[GroupBy], expected: &[(&str, [u64; 4])]) {
    let expected: Vec<(String, [u64; 4])> =
        expected.iter().map(|(keys, sums)| ((*keys).to_owned(), *sums)).collect();
    assert_eq!(rows(usage, filter, keys), expected, "{keys:?} of {filter:?}");
}

fn all() -> Filter {
    Filter::default()
}

fn empty_ledger_has_no_usage(fixture: &mut impl UsageFixture) {
    fixture.number(&users(&[("ci", &[])]));
    let usage = fixture.usage(&[]);
    assert_eq!(total(&usage, &all()), [0; 4]);
    for key in KEYS {
        assert_rows(&usage, &all(), &[key], &[]);
    }
    assert_eq!(usage.flows(&all(), 9).unwrap(), []);
    assert!(usage.users().unwrap().is_empty(), "no flow is the user's");
    assert!(!usage.has_user("ci").unwrap());
    assert!(usage.sets().is_empty() && usage.consents().unwrap().is_empty());
    assert_eq!(usage.completeness(), super::Completeness::default());
}

fn answers_are_of_one_moment(fixture: &mut impl UsageFixture) {
    fixture.apply(1, &[open(flow(1, EVENING, 10, 1)), end(flow(2, EVENING, 20, 2))]);
    let before = fixture.usage(&[]);
    fixture.number(&users(&[("later", &["ci"])]));
    let later = Flow { user: "later", ..flow(3, EVENING, 80, 8) };
    fixture.apply(1, &[end(flow(1, FEBRUARY, 40, 4)), end(later)]);
    for _ in 0..2 {
        assert_eq!(total(&before, &all()), [1, 1, 30, 3]);
        assert_rows(&before, &all(), &[GroupBy::Host], &[("example.com", [1, 1, 30, 3])]);
        assert_rows(&before, &all(), &[GroupBy::User], &[("ci", [1, 1, 30, 3])]);
        assert_rows(&before, &all(), &[GroupBy::Month], &[("2026-01", [1, 1, 30, 3])]);
        assert_eq!(before.flows(&all(), 9).unwrap().len(), 2);
        assert!(!before.has_user("later").unwrap() && !before.users().unwrap().contains("later"));
    }
    assert_eq!(total(&fixture.usage(&[]), &all()), [3, 0, 140, 14]);
}

fn bytes_belong_to_the_quarter_hour_of_their_count(fixture: &mut impl UsageFixture) {
    let late = FEBRUARY + 7 * SECOND;
    fixture.apply(
        1,
        &[
            open(flow(1, EVENING, 1, 0)),
            open(flow(1, EVENING + SECOND, 3, 10)),
            // Nothing moved in two quarter-hours.
            open(flow(1, late + 2 * QUARTER, 7, 10)),
            end(flow(1, late + 3 * QUARTER, 15, 11)),
            open(flow(2, late, 100, 0)),
        ],
    );
    let usage = fixture.usage(&[]);
    let quarters = [
        ("2026-01-31T23:45Z", [0, 0, 3, 10]),
        ("2026-02-01T00:00Z", [0, 1, 100, 0]),
        ("2026-02-01T00:30Z", [0, 0, 4, 0]),
        ("2026-02-01T00:45Z", [1, 0, 8, 1]),
    ];
    assert_rows(&usage, &all(), &[GroupBy::Quarter], &quarters);
    let months = [("2026-01", [0, 0, 3, 10]), ("2026-02", [1, 1, 112, 1])];
    assert_rows(&usage, &all(), &[GroupBy::Month], &months);
    for filter in [all(), of_host("example.com")] {
        let with = |since, until| Filter { host: filter.host.clone(), ..span(since, until) };
        // What is before the last quarter-hour counts at the end of its own.
        assert_eq!(total(&usage, &with(EVENING, FEBRUARY - 1)), [0; 4]);
        assert_eq!(total(&usage, &with(FEBRUARY - 1, FEBRUARY)), [0, 0, 3, 10]);
        // What is in the last one counts at its end, or at the last count.
        assert_eq!(total(&usage, &with(FEBRUARY, late)), [0; 4]);
        assert_eq!(total(&usage, &with(late, late + 1)), [0, 1, 100, 0]);
        let ended = late + 3 * QUARTER;
        assert_eq!(total(&usage, &with(ended, ended + 1)), [1, 0, 8, 1]);
        assert_eq!(total(&usage, &with(late + 1, ended)), [0, 0, 4, 0]);
    }
}

fn counts_and_moments_never_fall(fixture: &mut impl UsageFixture) {
    let with_requests = |requests, of: Flow<'static>| Flow { requests, ..of };
    fixture.apply(
        1,
        &[
            open(flow(1, EVENING + 9 * SECOND, 50, 5)),
            // No count is higher: the moment does not change either.
            open(flow(1, FEBRUARY, 50, 4)),
            open(flow(2, FEBRUARY, 50, 5)),
            // The clock went back, over a month.
            open(flow(2, EVENING, 70, 1)),
            end(with_requests(4, flow(3, EVENING, 9, 9))),
            open(with_requests(9, flow(4, EVENING, 100, 100))),
            // A request more is a higher count.
            open(with_requests(10, flow(4, FEBRUARY, 0, 0))),
        ],
    );
    let quarters = [("2026-01-31T23:45Z", [1, 1, 159, 114]), ("2026-02-01T00:00Z", [0, 2, 70, 5])];
    assert_rows(&fixture.usage(&[]), &all(), &[GroupBy::Quarter], &quarters);
    fixture.apply(
        1,
        &[
            end(flow(1, EVENING, 20, 6)),
            end(with_requests(3, flow(2, EVENING, 60, 0))),
            end(flow(4, EVENING, 1, 1)),
        ],
    );
    let usage = fixture.usage(&[]);
    let quarters = [("2026-01-31T23:45Z", [2, 0, 159, 115]), ("2026-02-01T00:00Z", [2, 0, 70, 5])];
    assert_rows(&usage, &all(), &[GroupBy::Quarter], &quarters);
    assert_eq!(usage.total(&all()).unwrap().requests, 4 + 3 + 10);
    let listed = usage.flows(&all(), 9).unwrap();
    let first = listed.iter().find(|flow| flow.id == 1).unwrap();
    assert_eq!((first.up, first.down, first.closed), (50, 6, WallNanos(EVENING + 9 * SECOND)));
}

fn requests_and_uncertain_bytes_count_at_the_end(fixture: &mut impl UsageFixture) {
    let with =
        |requests, up, down, of: Flow<'static>| Flow { requests, uncertain: Uncertain { up, down }, ..of };
    let rest = |usage: &dyn Fn(GroupBy) -> Row, key| {
        let row = usage(key);
        [row.requests, row.uncertain_up, row.uncertain_down]
    };
    fixture.apply(1, &[open(with(5, 7, 9, flow(1, EVENING, 1, 1)))]);
    let usage = fixture.usage(&[]);
    let only = |key| usage.rows(&all(), &[key]).unwrap().rows.remove(0);
    assert_eq!(rest(&only, GroupBy::User), [0; 3]);
    assert_eq!(rest(&only, GroupBy::Host), [0; 3]);
    fixture.apply(1, &[end(with(6, 3, 9, flow(1, FEBRUARY, 1, 1)))]);
    let usage = fixture.usage(&[]);
    for key in [GroupBy::User, GroupBy::Host, GroupBy::Port] {
        let only = |key| usage.rows(&span(FEBRUARY, FEBRUARY + 1), &[key]).unwrap().rows.remove(0);
        assert_eq!(rest(&only, key), [6, 7, 9], "the higher counts, at the end: {key:?}");
    }
}

fn run_ends_open_flows(fixture: &mut impl UsageFixture) {
    fixture.apply(1, &[open(Flow { requests: 3, ..flow(1, EVENING, 10, 0) }), open(flow(2, EVENING, 20, 0))]);
    // The next run found the second flow in the live table.
    fixture.apply(2, &[end(flow(2, FEBRUARY, 25, 0)), began(2, FEBRUARY + QUARTER)]);
    fixture.apply(2, &[open(flow(3, FEBRUARY + QUARTER, 40, 0))]);
    let usage = fixture.usage(&[]);
    let quarters = [
        ("2026-01-31T23:45Z", [1, 0, 30, 0]),
        ("2026-02-01T00:00Z", [1, 0, 5, 0]),
        ("2026-02-01T00:15Z", [0, 1, 40, 0]),
    ];
    assert_rows(&usage, &all(), &[GroupBy::Quarter], &quarters);
    assert_eq!(usage.total(&span(EVENING, FEBRUARY)).unwrap().requests, 3);
    let lost = usage.flows(&all(), 9).unwrap().into_iter().find(|flow| flow.id == 1).unwrap();
    assert_eq!((lost.reason.as_str(), lost.closed), ("lost", WallNanos(EVENING)));
}

fn span_has_its_beginning_and_not_its_end(fixture: &mut impl UsageFixture) {
    let at = EVENING + 77;
    fixture.apply(1, &[end(flow(1, at, 1, 0)), end(flow(2, at + 1, 2, 0)), end(flow(3, u64::MAX, 4, 0))]);
    let usage = fixture.usage(&[]);
    let up = |filter: &Filter| {
        let [_, _, up, _] = total(&usage, filter);
        let with_host = Filter { host: Some("example.com".to_owned()), ..filter.clone() };
        assert_eq!(total(&usage, &with_host)[2], up, "{filter:?}");
        let listed = usage.flows(filter, 9).unwrap();
        assert_eq!(listed.iter().map(|flow| flow.up).sum::<u64>(), up, "{filter:?}");
        up
    };
    let since = |at| Filter { since: Some(WallNanos(at)), ..Filter::default() };
    let until = |at| Filter { until: Some(WallNanos(at)), ..Filter::default() };
    assert_eq!([up(&since(at)), up(&since(at + 1)), up(&since(at + 2))], [7, 6, 4]);
    assert_eq!([up(&until(at)), up(&until(at + 1)), up(&until(at + 2))], [0, 1, 3]);
    assert_eq!([up(&span(at, at + 1)), up(&span(at, at)), up(&span(at + 1, at))], [1, 0, 0]);
    // The last moment of the ledger, in 2262, stands for all later ones.
    let last = i64::MAX as u64;
    assert_eq!(
        [up(&since(last)), up(&since(u64::MAX)), up(&until(u64::MAX)), up(&until(last - 1))],
        [4, 4, 7, 3]
    );
}

fn every_field_of_a_filter_is_met(fixture: &mut impl UsageFixture) {
    let flows = [
        flow(1, EVENING, 1, 0),
        Flow { user: "ops", ..flow(2, EVENING, 2, 0) },
        Flow { host: "b.example", ..flow(3, EVENING, 4, 0) },
        Flow { class: Class::Internal, ..flow(4, EVENING, 8, 0) },
        Flow { set: 1, rule: "@corp[0] example.com", ..flow(5, EVENING, 16, 0) },
        flow(6, FEBRUARY, 32, 0),
    ];
    fixture.apply(1, &flows.map(end));
    let usage = fixture.usage(&[]);
    let up = |filter: Filter| total(&usage, &filter)[2];
    assert_eq!(up(of_user("ci")), 63 - 2);
    assert_eq!(up(of_host("example.com")), 63 - 4);
    assert_eq!([up(of_class(Class::Internal)), up(of_class(Class::External))], [8, 63 - 8]);
    assert_eq!(up(of_set("corp")), 16);
    let every = Filter {
        user: Some("ci".to_owned()),
        host: Some("example.com".to_owned()),
        class: Some(Class::External),
        set: Some("corp".to_owned()),
        ..span(EVENING, FEBRUARY)
    };
    assert_eq!(up(every.clone()), 16);
    for none in [
        Filter { user: Some("ops".to_owned()), ..every.clone() },
        Filter { host: Some("b.example".to_owned()), ..every.clone() },
        Filter { class: Some(Class::Internal), ..every.clone() },
        Filter { set: Some("lab".to_owned()), ..every.clone() },
        Filter { until: Some(WallNanos(EVENING)), ..every },
        // Names that have no number, and hosts without a flow.
        of_user("none"),
        of_set("none"),
        of_host("EXAMPLE.com"),
        of_host(""),
    ] {
        assert_eq!(total(&usage, &none), [0; 4], "{none:?}");
        assert_rows(&usage, &none, &[GroupBy::Host], &[]);
        assert_eq!(usage.flows(&none, 9).unwrap(), [], "{none:?}");
    }
}

const KEYS: [GroupBy; 10] = [
    GroupBy::User,
    GroupBy::Host,
    GroupBy::Port,
    GroupBy::Protocol,
    GroupBy::Class,
    GroupBy::Set,
    GroupBy::Quarter,
    GroupBy::Hour,
    GroupBy::Day,
    GroupBy::Month,
];

fn rows_of_any_keys_add_up(fixture: &mut impl UsageFixture) {
    let other = Flow { user: "ops", host: "b.example", port: 22, protocol: Protocol::Http, ..PLAIN };
    fixture.apply(
        1,
        &[
            open(flow(1, EVENING, 1, 0)),
            end(flow(1, FEBRUARY, 3, 9)),
            end(Flow { id: 2, requests: 7, class: Class::Internal, ..flow(2, FEBRUARY, 10, 0) }),
            open(Flow { id: 3, legs: Legs { upstream_tx: 100, ..Legs::default() }, ..other }),
            // Without any byte.
            open(Flow { id: 4, ..other }),
        ],
    );
    let usage = fixture.usage(&[]);
    let mut lists: Vec<Vec<GroupBy>> = KEYS.map(|key| vec![key]).to_vec();
    lists.extend(KEYS.iter().flat_map(|one| KEYS.map(|other| vec![*one, other])));
    lists.push(KEYS.to_vec());
    for keys in lists {
        let answer = usage.rows(&all(), &keys).unwrap();
        let sum = |column: fn(&Row) -> u64| answer.rows.iter().map(column).sum::<u64>();
        let found = [sum(|row| row.flows), sum(|row| row.live), sum(|row| row.up), sum(|row| row.down)];
        assert_eq!((found, sum(|row| row.requests)), ([2, 2, 113, 9], 7), "{keys:?}");
        assert!(answer.rows.iter().all(|row| row.keys.len() == keys.len()));
    }
    let by_port = [("22", [0, 2, 100, 0]), ("443", [2, 0, 13, 9])];
    assert_rows(&usage, &all(), &[GroupBy::Port], &by_port);
    let by_protocol = [("http", [0, 2, 100, 0]), ("socks5", [2, 0, 13, 9])];
    assert_rows(&usage, &all(), &[GroupBy::Protocol], &by_protocol);
}

fn renamed_user_keeps_its_usage(fixture: &mut impl UsageFixture) {
    assert_eq!(fixture.number(&users(&[("robert", &[])])).accounts, [1]);
    let of = |id, user, account, up| Flow { user, account, ..flow(id, EVENING, up, 0) };
    fixture.apply(1, &[end(of(1, "robert", 1, 1)), open(of(2, "robert", 1, 2))]);
    assert_eq!(fixture.number(&users(&[("bob", &["rob", "robert"])])).accounts, [1]);
    fixture.apply(1, &[end(of(3, "bob", 1, 4)), end(of(4, "bob", 0, 8)), end(of(2, "robert", 1, 16))]);
    let usage = fixture.usage(&[]);
    assert_rows(&usage, &all(), &[GroupBy::User], &[("bob", [4, 0, 29, 0])]);
    for name in ["bob", "robert"] {
        assert_eq!(total(&usage, &of_user(name)), [4, 0, 29, 0], "{name}");
        assert!(usage.flows(&of_user(name), 9).unwrap().iter().all(|flow| flow.user == "bob"));
        assert!(usage.has_user(name).unwrap());
    }
    assert!(usage.users().unwrap().into_iter().eq(["bob", "robert"]));
    assert!(!usage.has_user("rob").unwrap(), "it never was the user's name");
    // Another user gets the earlier name.
    assert_eq!(fixture.number(&users(&[("robert", &[]), ("bob", &[])])).accounts, [2, 1]);
    fixture.apply(1, &[end(of(5, "robert", 2, 32))]);
    let usage = fixture.usage(&[]);
    assert_rows(&usage, &all(), &[GroupBy::User], &[("robert", [1, 0, 32, 0]), ("bob", [4, 0, 29, 0])]);
    assert_eq!(total(&usage, &of_user("robert")), [1, 0, 32, 0]);
}

fn flow_stays_with_its_account(fixture: &mut impl UsageFixture) {
    fixture.number(&users(&[("robert", &[])]));
    // Flows that began before their user had a number.
    let robert = |id, at, up| Flow { user: "robert", ..flow(id, at, up, 0) };
    fixture
        .apply(1, &[open(robert(1, EVENING, 1)), open(robert(2, EVENING, 2)), open(robert(3, EVENING, 4))]);
    fixture.number(&users(&[("bob", &["robert"])]));
    fixture.number(&users(&[("bob", &[]), ("robert", &[])]));
    fixture.apply(1, &[end(robert(1, FEBRUARY, 9)), open(robert(2, FEBRUARY, 18))]);
    let unapplied = [(1, end(robert(3, FEBRUARY, 36))), (1, end(robert(4, FEBRUARY, 64)))];
    let usage = fixture.usage(&unapplied);
    let by_user = [("robert", [1, 0, 64, 0]), ("bob", [2, 1, 63, 0])];
    assert_rows(&usage, &all(), &[GroupBy::User], &by_user);
    assert_rows(&usage, &of_host("example.com"), &[GroupBy::User], &by_user);
    assert_eq!(total(&usage, &Filter { user: Some("bob".to_owned()), ..span(FEBRUARY - 1, FEBRUARY) })[2], 7);
    assert!(usage.flows(&all(), 9).unwrap().iter().all(|flow| flow.user == "bob"));
}

fn removed_set_keeps_its_usage(fixture: &mut impl UsageFixture) {
    let sets = |names: &[&str]| Names {
        sets: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Names::default()
    };
    assert_eq!(fixture.number(&sets(&["corp", "cdn"])).sets, [1, 2]);
    let of = |id, set, rule, up| end(Flow { set, rule, ..flow(id, EVENING, up, 0) });
    fixture.apply(1, &[of(1, 1, "@corp[0] a", 1), of(2, 2, "@cdn[0] a", 4), of(3, 0, "rule", 2)]);
    fixture.number(&sets(&["lab"]));
    // Numbers that no numbering gave, of an older copy of a ledger: a rule tells the name, or not.
    fixture.apply(1, &[of(4, 7, "@edge[2] b", 8), of(5, 8, "rule", 16)]);
    let later = [of(6, 9, "@later[0] c", 32), of(7, 1, "@corp[0] a", 64), of(8, 10, "rule", 3)];
    let unapplied = later.map(|entry| (1, entry));
    let usage = fixture.usage(&unapplied);
    let expected = [
        ("corp", [2, 0, 65, 0]),
        ("later", [1, 0, 32, 0]),
        ("set 8", [1, 0, 16, 0]),
        ("edge", [1, 0, 8, 0]),
        ("cdn", [1, 0, 4, 0]),
        ("set 10", [1, 0, 3, 0]),
        ("", [1, 0, 2, 0]),
    ];
    assert_rows(&usage, &all(), &[GroupBy::Set], &expected);
    assert_rows(&usage, &of_host("example.com"), &[GroupBy::Set], &expected);
    assert_eq!([total(&usage, &of_set("cdn"))[2], total(&usage, &of_set("lab"))[2]], [4, 0]);
    assert_eq!(total(&usage, &of_set("corp"))[2], 65);
    assert_eq!(total(&usage, &of_set("later"))[2], 32);
    assert!(usage.sets().into_iter().eq(["cdn", "corp", "edge", "lab", "later"]));
}

fn groups_are_ordered_key_by_key(fixture: &mut impl UsageFixture) {
    let of = |id, user, host, up, down| end(Flow { user, host, ..flow(id, EVENING, up, down) });
    fixture.apply(
        1,
        &[
            of(1, "small", "a", 5, 0),
            of(2, "big", "a", 1, 0),
            // More than "small" in both directions together.
            of(3, "big", "b", 1, 4),
            of(4, "even", "b", 2, 3),
            end(Flow { user: "small", host: "c", ..flow(5, EVENING - QUARTER, 0, 0) }),
        ],
    );
    let usage = fixture.usage(&[]);
    let names = |keys: &[GroupBy]| -> Vec<String> {
        rows(&usage, &all(), keys).into_iter().map(|(keys, _)| keys).collect()
    };
    assert_eq!(names(&[GroupBy::User]), ["big", "even", "small"]);
    assert_eq!(names(&[GroupBy::User, GroupBy::Host]), ["big b", "big a", "even b", "small a", "small c"]);
    assert_eq!(names(&[GroupBy::Host]), ["b", "a", "c"]);
    let by_three = names(&[GroupBy::Class, GroupBy::User, GroupBy::Host]);
    let due = ["big b", "big a", "even b", "small a", "small c"].map(|names| format!("external {names}"));
    assert_eq!(by_three, due);
    assert_eq!(
        names(&[GroupBy::Quarter, GroupBy::User]),
        [
            "2026-01-31T23:30Z small",
            "2026-01-31T23:45Z big",
            "2026-01-31T23:45Z even",
            "2026-01-31T23:45Z small",
        ]
    );
}

fn periods_are_those_of_the_zone(fixture: &mut impl UsageFixture) {
    let at = |moment: &str| u64::try_from(moment.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap();
    // Clocks in Berlin go from 03:00 back to 02:00 at 01:00 UTC.
    let moments = ["2026-10-24T22:10:00Z", "2026-10-25T00:20:00Z", "2026-10-25T01:20:00Z"];
    let ends = moments.iter().enumerate();
    let ends: Vec<Entry> = ends.map(|(id, moment)| end(flow(id as u128, at(moment), 1, 0))).collect();
    fixture.apply(1, &ends);
    for (zone, key, expected) in [
        (
            "Europe/Berlin",
            GroupBy::Hour,
            vec!["2026-10-25T00:00+02:00", "2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00"],
        ),
        (
            "Europe/Berlin",
            GroupBy::Quarter,
            vec!["2026-10-25T00:00+02:00", "2026-10-25T02:15+02:00", "2026-10-25T02:15+01:00"],
        ),
        ("Europe/Berlin", GroupBy::Day, vec!["2026-10-25"]),
        (
            "Asia/Kathmandu",
            GroupBy::Hour,
            vec!["2026-10-25T03:00+05:45", "2026-10-25T06:00+05:45", "2026-10-25T07:00+05:45"],
        ),
        ("America/St_Johns", GroupBy::Day, vec!["2026-10-24"]),
        ("UTC", GroupBy::Hour, vec!["2026-10-24T22:00Z", "2026-10-25T00:00Z", "2026-10-25T01:00Z"]),
        ("Pacific/Kiritimati", GroupBy::Month, vec!["2026-10"]),
        ("UTC", GroupBy::Day, vec!["2026-10-24", "2026-10-25"]),
    ] {
        let usage = fixture.usage(&[]).in_zone(TimeZone::get(zone).unwrap());
        let found: Vec<String> = rows(&usage, &all(), &[key]).into_iter().map(|(key, _)| key).collect();
        assert_eq!(found, expected, "{zone}");
        let by_host: Vec<String> =
            rows(&usage, &of_host("example.com"), &[key]).into_iter().map(|(key, _)| key).collect();
        assert_eq!(by_host, expected, "{zone}, from details");
    }
}

fn sum_beyond_the_bound_is_an_error(fixture: &mut impl UsageFixture) {
    let most = (i64::MAX - 1) as u64;
    fixture.apply(1, &[end(flow(1, EVENING, most, 1))]);
    assert_eq!(total(&fixture.usage(&[]), &all()), [1, 0, most, 1]);
    let one = end(Flow { user: "ops", ..flow(2, EVENING, 1, u64::MAX) });
    for _ in 0..2 {
        let usage = fixture.usage(&[(1, one)]);
        assert!(usage.total(&all()).is_err());
        assert!(usage.rows(&all(), &[GroupBy::Host]).is_err());
        assert!(usage.rows(&all(), &[GroupBy::User]).is_err());
        assert!(usage.rows(&all(), &[GroupBy::Month]).is_err());
        assert_eq!(total(&usage, &of_user("ci")), [1, 0, most, 1], "other sums are as before");
    }
    fixture.apply(1, &[one]);
    let usage = fixture.usage(&[]);
    assert!(usage.total(&all()).is_err() && usage.rows(&all(), &[GroupBy::Day]).is_err());
    assert_eq!(total(&usage, &of_user("ci")), [1, 0, most, 1]);
    // Every sum, not bytes alone.
    let many = |id| end(Flow { user: "many", requests: most, ..flow(id, EVENING, 1, 1) });
    fixture.apply(1, &[many(3), many(4)]);
    assert!(fixture.usage(&[]).total(&of_user("many")).is_err());
}

fn entries_ahead_count_as_if_applied(fixture: &mut impl UsageFixture) {
    let history = [
        open(flow(1, EVENING, 10, 0)),
        open(Flow { user: "ops", ..flow(2, EVENING, 20, 1) }),
        open(flow(1, EVENING + 5 * SECOND, 15, 0)),
        open(flow(1, FEBRUARY, 15, 0)),
        end(Flow { user: "new", ..flow(3, EVENING, 40, 0) }),
        end(Flow { requests: 2, ..flow(1, FEBRUARY + SECOND, 80, 0) }),
        began(2, FEBRUARY + 2 * SECOND),
    ];
    let whole = [
        (all(), [3, 0, 140, 1]),
        (of_user("ci"), [1, 0, 80, 0]),
        (of_user("new"), [1, 0, 40, 0]),
        (span(EVENING, EVENING + 1), [2, 0, 60, 1]),
        (span(EVENING + 1, FEBRUARY), [0, 0, 15, 0]),
        (span(FEBRUARY, FEBRUARY + SECOND), [0; 4]),
        (span(FEBRUARY, FEBRUARY + QUARTER), [1, 0, 65, 0]),
    ];
    for applied in 0..=history.len() {
        let unapplied: Vec<(u32, Entry)> = history[applied..].iter().map(|entry| (1, *entry)).collect();
        let usage = fixture.usage(&unapplied);
        for (filter, expected) in &whole {
            assert_eq!(total(&usage, filter), *expected, "{applied} applied, {filter:?}");
            let by_host = Filter { host: Some("example.com".to_owned()), ..filter.clone() };
            assert_eq!(total(&usage, &by_host), *expected, "{applied} applied, {by_host:?}");
        }
        assert!(usage.users().unwrap().into_iter().eq(["ci", "new", "ops"]), "{applied} applied");
        assert!(usage.has_user("new").unwrap(), "{applied} applied");
        assert_eq!(usage.completeness().includes_unapplied, applied < history.len());
        if applied < history.len() {
            fixture.apply(1, &history[applied..=applied]);
        }
    }
}

fn flows_are_listed_in_their_order(fixture: &mut impl UsageFixture) {
    let opened = |at, of: Flow<'static>| Flow { opened: WallNanos(at), ..of };
    let described = Flow {
        user: "ops",
        host: "b.example",
        port: 22,
        address: Some("192.0.2.7".parse().unwrap()),
        client: "[2001:db8::1]:5000".parse().unwrap(),
        class: Class::Internal,
        protocol: Protocol::HttpConnect,
        rule: "@corp[1] 192.0.2.0/24",
        set: 1,
        reason: CloseReason::UpstreamReset,
        uncertain: Uncertain { up: 3, down: 4 },
        ..flow(7, FEBRUARY + QUARTER, 6, 60)
    };
    fixture.apply(
        1,
        &[
            open(opened(EVENING, flow(1, EVENING, 1, 10))),
            end(flow(2, FEBRUARY, 2, 20)),
            // The clock was back for a moment.
            end(flow(3, EVENING, 3, 30)),
            open(opened(EVENING + 1, flow(4, FEBRUARY, 4, 40))),
            open(Flow { closed: WallNanos(EVENING), legs: Legs::default(), ..described }),
            end(described),
            end(flow(5, FEBRUARY, 5, 50)),
        ],
    );
    let usage = fixture.usage(&[(1, end(flow(6, FEBRUARY, 7, 70)))]);
    let ids = |filter: &Filter, limit| -> Vec<u128> {
        usage.flows(filter, limit).unwrap().into_iter().map(|flow| flow.id).collect()
    };
    assert_eq!(ids(&all(), 9), [4, 1, 5, 7, 2, 3]);
    assert_eq!(ids(&all(), 4), [4, 1, 5, 7]);
    assert_eq!(ids(&all(), 1), [4]);
    assert_eq!(ids(&all(), 0), [0; 0]);
    assert_eq!(ids(&span(FEBRUARY, FEBRUARY + 1), 9), [4, 5, 2]);
    assert_eq!(ids(&Filter { host: Some("b.example".to_owned()), ..of_user("ops") }, 9), [7]);
    assert_eq!((ids(&of_set("corp"), 9), ids(&of_class(Class::External), 1)), (vec![7], vec![4]));
    let listed = usage.flows(&of_user("ops"), 9).unwrap().remove(0);
    assert_eq!(
        listed,
        FlowRow {
            id: 7,
            opened: WallNanos(EVENING),
            closed: WallNanos(FEBRUARY + QUARTER),
            live: false,
            user: "ops".to_owned(),
            host: "b.example".to_owned(),
            port: 22,
            address: Some("192.0.2.7".to_owned()),
            client: "[2001:db8::1]:5000".to_owned(),
            class: "internal".to_owned(),
            protocol: "http_connect".to_owned(),
            rule: "@corp[1] 192.0.2.0/24".to_owned(),
            reason: "upstream_reset".to_owned(),
            up: 6,
            down: 60,
            uncertain_up: 3,
            uncertain_down: 4,
        }
    );
    let open = usage.flows(&all(), 1).unwrap().remove(0);
    assert!(open.live && open.reason.is_empty() && open.closed == WallNanos(FEBRUARY));
}

fn accepted_losses_are_told(fixture: &mut impl UsageFixture) {
    let accepted = |at, what| Entry::Accepted(Consent::new(1, WallNanos(at), (0, 0), "root", what));
    fixture.apply(1, &[accepted(FEBRUARY, "a segment is missing"), accepted(EVENING, "a table is missing")]);
    assert_eq!(
        fixture.usage(&[]).consents().unwrap(),
        [
            "2026-01-31T23:45:00Z by root: a table is missing",
            "2026-02-01T00:00:00Z by root: a segment is missing",
        ]
    );
}
