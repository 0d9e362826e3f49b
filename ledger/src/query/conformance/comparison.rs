//! Random questions, which an engine answers as the one in memory does.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::test_runner::{Config, TestRunner};
use sys::clock::WallNanos;

use super::histories::{self, Act, HOSTS, SETS, TEAMS, USERS};
use super::{FEBRUARY, KEYS, QUARTER, SECOND, UsageFixture};
use crate::entry::Entry;
use crate::memory_usage::{History, MemoryUsage};
use crate::query::{Filter, GroupBy, Row, Usage};
use crate::record::Class;

/// What is asked of a history.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    fields: Filter,
    span: Span,
    keys: Vec<GroupBy>,
}

/// The span of a filter, near a moment of the history.
#[derive(Clone, Debug)]
enum Span {
    Ever,
    /// So many whole quarter-hours.
    Quarters(Index, u64),
    /// So many whole quarter-hours from one near the border of two months on.
    Border(u64, u64),
    /// From some seconds before to some behind.
    Ragged(Index, u64, u64),
    /// The moment alone.
    Moment(Index),
    Since(Index),
    Until(Index),
}

/// Any question.
pub(crate) fn question() -> impl Strategy<Value = Question> {
    fn one<T: Clone + std::fmt::Debug + 'static>(values: Vec<T>) -> impl Strategy<Value = Option<T>> {
        prop_oneof![4 => Just(None), 1 => select(values).prop_map(Some)]
    }
    let texts = |texts: &[&str]| one(texts.iter().map(|text| (*text).to_owned()).collect());
    let classes = one(vec![Class::External, Class::Internal]);
    let fields = (texts(&USERS), texts(&TEAMS), texts(&HOSTS), classes, texts(&SETS));
    let fields = fields.prop_map(|(user, team, host, class, set)| {
        let (since, until) = (None, None);
        Filter { since, until, user, team, host, class, set }
    });
    let index = any::<Index>;
    let span = prop_oneof![
        3 => Just(Span::Ever),
        2 => (index(), select(vec![1, 2, 96, 96 * 70])).prop_map(|(at, length)| Span::Quarters(at, length)),
        2 => (0..7_u64, select(vec![1, 96, 96 * 70])).prop_map(|(at, length)| Span::Border(at, length)),
        2 => (index(), 0..2_000_u64, select(vec![1, 1_250, 900 * 97, 900 * 96 * 70]))
            .prop_map(|(at, before, behind)| Span::Ragged(at, before, behind)),
        1 => index().prop_map(Span::Moment),
        1 => index().prop_map(Span::Since),
        1 => index().prop_map(Span::Until),
    ];
    let keys = subsequence(KEYS.to_vec(), 1..=3).prop_shuffle();
    (fields, span, keys).prop_map(|(fields, span, keys)| Question { fields, span, keys })
}

impl Question {
    /// The filter, for a history with these moments; over whole quarter-hours if `is_coarse`.
    fn filter(&self, moments: &[u64], is_coarse: bool) -> Filter {
        let at = |index: &Index| if moments.is_empty() { 0 } else { moments[index.index(moments.len())] };
        let (since, until) = match &self.span {
            Span::Ever => (None, None),
            Span::Quarters(index, length) => {
                let since = at(index) / QUARTER * QUARTER;
                (Some(since), Some(since + length * QUARTER))
            }
            Span::Border(number, length) => {
                let since = FEBRUARY - 3 * QUARTER + number * QUARTER;
                (Some(since), Some(since + length * QUARTER))
            }
            Span::Ragged(index, before, behind) => {
                (Some(at(index).saturating_sub(before * SECOND)), Some(at(index) + behind * SECOND))
            }
            Span::Moment(index) => (Some(at(index)), Some(at(index) + 1)),
            Span::Since(index) => (Some(at(index)), None),
            Span::Until(index) => (None, Some(at(index))),
        };
        let moment = |at: u64| WallNanos(if is_coarse { at / QUARTER * QUARTER } else { at });
        Filter { since: since.map(moment), until: until.map(moment), ..self.fields.clone() }
    }
}

/// What an engine has of a history.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Detail {
    /// Each flow.
    Full,
    /// Of some flows only sums by quarter-hour, without ports and protocols.
    Capped,
}

/// Compares the answers of `usage` with those of `history`; the entries of `unapplied` are in both.
pub(crate) fn compare<U: Usage>(
    mut usage: impl FnMut() -> U,
    (history, unapplied): (&History, &[(u32, Entry)]),
    questions: &[Question],
    detail: Detail,
) {
    let moments = history.moments();
    for (index, zone) in ["UTC", "Asia/Kathmandu", "America/St_Johns"].into_iter().enumerate() {
        let zone = TimeZone::get(zone).unwrap();
        let (found, expected) = (usage().in_zone(zone.clone()), history.usage(unapplied).in_zone(zone));
        assert_eq!(found.users().unwrap(), expected.users().unwrap());
        for user in USERS {
            assert_eq!(found.has_user(user).unwrap(), expected.has_user(user).unwrap(), "{user}");
        }
        assert_eq!(found.teams(), expected.teams());
        // A set has its number before its first entry is applied.
        assert!(found.sets().is_superset(&expected.sets()));
        for question in questions.iter().skip(index).step_by(3) {
            let filter = question.filter(&moments, detail == Detail::Capped);
            compare_answers(&found, &expected, &filter, &question.keys, detail);
        }
    }
}

fn compare_answers(
    found: &impl Usage,
    expected: &MemoryUsage,
    filter: &Filter,
    keys: &[GroupBy],
    detail: Detail,
) {
    let (answer, due) = (found.rows(filter, keys).unwrap(), expected.rows(filter, keys).unwrap());
    assert_eq!(answer.missing, [""; 0]);
    let needs_ports = keys.iter().any(|key| matches!(key, GroupBy::Port | GroupBy::Protocol));
    match detail {
        Detail::Capped if needs_ports => compare_as_far_as_known(&answer.rows, &due.rows),
        _ => assert_eq!(answer.rows, due.rows, "{keys:?} of {filter:?}"),
    }
    let (total, due) = (found.total(filter).unwrap(), expected.total(filter).unwrap());
    assert_eq!(total, due, "total of {filter:?}");
    if detail == Detail::Full {
        let limit = keys.len() * 7;
        let (listed, due) = (found.flows(filter, limit).unwrap(), expected.flows(filter, limit).unwrap());
        assert_eq!(listed, due, "flows of {filter:?}");
    }
}

/// Compares rows of which some have no port or protocol: no other exceeds the expected one, and those have
/// the difference.
fn compare_as_far_as_known(found: &[Row], expected: &[Row]) {
    let sums = |row: &Row| {
        let uncertain = [row.uncertain_up, row.uncertain_down];
        [row.flows, row.live, row.requests, row.up, row.down, uncertain[0], uncertain[1]]
    };
    let due: BTreeMap<&[String], [u64; 7]> = expected.iter().map(|row| (&row.keys[..], sums(row))).collect();
    for row in found.iter().filter(|row| row.keys.iter().all(|key| !key.is_empty())) {
        let most = due.get(&row.keys[..]).unwrap_or_else(|| panic!("{row:?} in {due:?}"));
        assert!(sums(row).iter().zip(most).all(|(sum, most)| sum <= most), "{row:?} of {most:?}");
    }
    let all = |rows: &[Row]| {
        rows.iter()
            .map(sums)
            .fold([0; 7], |one, other| std::array::from_fn(|index| one[index] + other[index]))
    };
    assert_eq!(all(found), all(expected));
}

/// Runs random histories on ledgers of `make`, each cut anywhere into what is applied and what is not.
pub(crate) fn check_histories<F: UsageFixture>(make: impl Fn() -> F) {
    let steps = prop::collection::vec(histories::step(true), 1..60);
    let cuts = prop::collection::vec((1_usize..25, 0_usize..12), 1..4);
    let questions = prop::collection::vec(question(), 45);
    let mut runner = TestRunner::new(Config::with_cases(40));
    let run = runner.run(&(steps, cuts, questions), |(steps, cuts, questions)| {
        check_history(&mut make(), &histories::acts(&steps), &cuts, &questions);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

fn check_history(
    fixture: &mut impl UsageFixture,
    acts: &[Act],
    cuts: &[(usize, usize)],
    questions: &[Question],
) {
    let mut history = History::default();
    let mut applied = 0;
    for (more, ahead) in cuts.iter().chain([&(acts.len(), 0)]) {
        let next = (applied + more).min(acts.len());
        for act in &acts[applied..next] {
            match act {
                Act::Number(names) => {
                    assert_eq!(fixture.number(names).accounts, history.number(names).accounts);
                }
                Act::Apply(epoch, entry) => {
                    fixture.apply(*epoch, std::slice::from_ref(&**entry));
                    history.apply(*epoch, entry);
                }
            }
        }
        applied = next;
        let unapplied: Vec<(u32, Entry)> = acts[applied..]
            .iter()
            .take(*ahead)
            .map_while(|act| match act {
                Act::Number(_) => None,
                Act::Apply(epoch, entry) => Some((*epoch, **entry)),
            })
            .collect();
        compare(|| fixture.usage(&unapplied), (&history, &unapplied), questions, Detail::Full);
    }
}
