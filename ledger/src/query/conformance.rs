//! The contract of [`Usage`] as tests, which every engine passes.
//!
//! Not handled here: what a dropped month, a damaged row or an unreadable journal takes from an answer.

pub(crate) mod comparison;
mod filters;
pub(crate) mod histories;
mod lists;
mod names;
mod order;
mod sums;

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
    sums::bytes_belong_to_the_quarter_hour_of_their_count(&mut make());
    sums::counts_and_moments_never_fall(&mut make());
    sums::requests_and_uncertain_bytes_count_at_the_end(&mut make());
    sums::run_ends_open_flows(&mut make());
    filters::span_has_its_beginning_and_not_its_end(&mut make());
    filters::every_field_of_a_filter_is_met(&mut make());
    sums::rows_of_any_keys_add_up(&mut make());
    names::renamed_user_keeps_its_usage(&mut make());
    names::flow_stays_with_its_account(&mut make());
    names::removed_set_keeps_its_usage(&mut make());
    names::team_has_the_usage_of_its_present_and_removed_users(&mut make());
    order::groups_are_ordered_key_by_key(&mut make());
    order::periods_are_those_of_the_zone(&mut make());
    sums::sum_beyond_the_bound_is_an_error(&mut make());
    sums::entries_ahead_count_as_if_applied(&mut make());
    lists::flows_are_listed_in_their_order(&mut make());
    lists::accepted_losses_are_told(&mut make());
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
        team: String::new(),
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

fn of_team(name: &str) -> Filter {
    Filter { team: Some(name.to_owned()), ..Filter::default() }
}

/// The same users, each with its team.
fn with_teams(mut names: Names, teams: &[&str]) -> Names {
    names.users.iter_mut().zip(teams).for_each(|(user, team)| user.team = (*team).to_owned());
    names
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

const KEYS: [GroupBy; 11] = [
    GroupBy::User,
    GroupBy::Team,
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
