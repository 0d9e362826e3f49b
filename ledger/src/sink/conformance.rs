//! The contract of [`Sink`] as tests, which every implementation passes.
//!
//! Not handled here: what a power failure leaves of files (`docs/ledger-format.md`, and the kill tests).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sys::clock::WallNanos;

use super::{Sink, SinkError};
use crate::entry::{Entry, EntryVersion, TableFinding};
use crate::numbering::{AccountsAhead, Names, UserNames};
use crate::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};

/// A store under test.
pub(crate) trait SinkFixture {
    type Sink: Sink;

    /// The sink of the present process.
    fn sink(&mut self) -> &mut Self::Sink;

    /// The process ends as roughly as the fixture can, and another opens the store.
    fn restart(&mut self);

    /// An `apply` that ends before its caller learns the outcome, whether or not it took effect, and the next
    /// process.
    fn apply_unfinished(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]);

    /// Bytes up of each closed flow. Panics if a flow has two finals.
    fn finals(&mut self) -> BTreeMap<u128, u64>;
}

/// Runs all cases, each on a store of `make` that has never seen an entry.
pub(crate) fn check<F: SinkFixture>(make: impl Fn() -> F) {
    new_store_accepts_any_first_number(&mut make());
    number_becomes_visible_once(&mut make());
    unfinished_batch_is_sent_again(&mut make());
    gap_is_refused_whole(&mut make());
    earlier_run_adds_nothing(&mut make());
    checkpoint_survives(&mut make());
    skipped_entry_has_a_number(&mut make());
    counts_are_totals(&mut make());
    number_belongs_to_one_name(&mut make());
    expected_account_is_no_other_names(&mut make());
}

fn new_store_accepts_any_first_number(fixture: &mut impl SinkFixture) {
    assert_eq!(fixture.sink().applied_lsn(), Ok(None));
    assert_eq!(fixture.sink().checkpoint(), Ok(0), "nothing is applied");
    fixture.sink().apply(4, 71, &finals(71..=72)).unwrap();
    assert_applied(fixture, 71..=72);
}

fn number_becomes_visible_once(fixture: &mut impl SinkFixture) {
    // Each batch begins at a known number or at the next one; later ones have known, partly known and new
    // entries.
    for (first, last) in [(1, 2), (1, 2), (2, 4), (1, 4), (3, 3), (1, 6), (7, 7), (5, 9), (9, 9)] {
        fixture.sink().apply(1, first, &finals(first..=last)).unwrap();
    }
    assert_applied(fixture, 1..=9);
}

fn unfinished_batch_is_sent_again(fixture: &mut impl SinkFixture) {
    fixture.apply_unfinished(1, 1, &finals(1..=2));
    resume(fixture, 1, 1..=3);
    fixture.apply_unfinished(1, 4, &finals(4..=6));
    fixture.apply_unfinished(1, 4, &finals(4..=6));
    // Batches are grouped differently after a restart.
    resume(fixture, 1, 1..=5);
    resume(fixture, 1, 1..=7);
    assert_applied(fixture, 1..=7);
}

fn gap_is_refused_whole(fixture: &mut impl SinkFixture) {
    fixture.sink().apply(1, 1, &finals(1..=2)).unwrap();
    fixture.sink().checkpoint().unwrap();
    assert_fatal(fixture.sink().apply(1, 4, &finals(4..=5)));
    fixture.restart();
    assert_applied(fixture, 1..=2);
    fixture.sink().apply(1, 3, &finals(3..=5)).unwrap();
    assert_applied(fixture, 1..=5);
}

fn earlier_run_adds_nothing(fixture: &mut impl SinkFixture) {
    fixture.sink().apply(1, 1, &finals(1..=2)).unwrap();
    fixture.sink().apply(3, 3, &finals(3..=4)).unwrap();
    fixture.sink().checkpoint().unwrap();
    // Any run may repeat what is known.
    fixture.sink().apply(1, 1, &finals(1..=2)).unwrap();
    fixture.sink().apply(2, 2, &finals(2..=4)).unwrap();
    for epoch in [1, 2] {
        assert_fatal(fixture.sink().apply(epoch, 5, &finals(5..=5)));
        fixture.restart();
        assert_fatal(fixture.sink().apply(epoch, 4, &finals(4..=5)));
        fixture.restart();
        assert_applied(fixture, 1..=4);
    }
    fixture.sink().apply(3, 4, &finals(4..=5)).unwrap();
    fixture.sink().apply(4, 6, &finals(6..=6)).unwrap();
    assert_applied(fixture, 1..=6);
}

fn checkpoint_survives(fixture: &mut impl SinkFixture) {
    fixture.sink().apply(1, 1, &finals(1..=3)).unwrap();
    let stable = fixture.sink().checkpoint().unwrap();
    assert!(stable <= 3, "{stable} is not applied");
    fixture.sink().apply(1, 4, &finals(4..=5)).unwrap();
    fixture.restart();
    let applied = fixture.sink().applied_lsn().unwrap().unwrap_or(0);
    assert!((stable..=5).contains(&applied), "{applied} is left, and {stable} was stable");
    resume(fixture, 1, 1..=5);
    assert_applied(fixture, 1..=5);
    // Nothing is new: as before, or further.
    let again = fixture.sink().checkpoint().unwrap();
    assert!((stable..=5).contains(&again), "{again} after {stable}");
    fixture.sink().seal().unwrap();
    fixture.restart();
    assert_applied(fixture, 1..=5);
}

fn skipped_entry_has_a_number(fixture: &mut impl SinkFixture) {
    let (skipped, _) = Entry::read(&[5, 0, 200, 0, 9], EntryVersion::V2).expect("a kind that may be skipped");
    assert!(matches!(skipped, Entry::Skipped(_)));
    fixture.sink().apply(1, 1, &[final_of(1, 1), skipped, final_of(3, 3)]).unwrap();
    assert_eq!(fixture.sink().applied_lsn(), Ok(Some(3)));
    fixture.sink().apply(1, 4, &[skipped, skipped]).unwrap();
    assert_eq!(fixture.sink().applied_lsn(), Ok(Some(5)));
    fixture.sink().apply(1, 4, &[skipped, skipped, final_of(6, 6)]).unwrap();
    assert_eq!(fixture.finals(), BTreeMap::from([(1, 1), (3, 3), (6, 6)]));
}

fn counts_are_totals(fixture: &mut impl SinkFixture) {
    let interim = |id, up| Entry::Interim(record(id, up));
    fixture.sink().apply(1, 1, &[interim(1, 10), interim(2, 5), interim(1, 30)]).unwrap();
    assert_eq!(fixture.finals(), BTreeMap::new());
    let at = WallNanos(9_000);
    let began = Entry::RunBegan { epoch: 2, at, run: 0, table: TableFinding::None };
    fixture.sink().apply(1, 4, &[final_of(1, 40)]).unwrap();
    // A run ends what earlier ones left open, with the last counts.
    fixture.sink().apply(2, 5, &[began, interim(3, 7)]).unwrap();
    assert_eq!(fixture.finals(), BTreeMap::from([(1, 40), (2, 5)]));
}

fn number_belongs_to_one_name(fixture: &mut impl SinkFixture) {
    // Users and sets go, and come back in another order. A policy stays for two configurations.
    let configurations: [(&[&str], &[&str], u8); 8] = [
        (&["ci", "build"], &["corp"], 1),
        (&["ci", "build"], &["corp"], 1),
        (&["deploy", "build"], &["lab", "corp", "dmz"], 2),
        (&[], &[], 2),
        (&["ops", "ci", "deploy"], &["dmz", "lab"], 3),
        (&["build"], &["corp", "edge"], 3),
        (&["ops", "new", "build"], &["edge"], 1),
        (&["new"], &["other"], 1),
    ];
    let (mut accounts, mut sets, mut policies) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut before = None;
    for (users, named_sets, policy) in configurations {
        let names = Names {
            users: users
                .iter()
                .map(|name| UserNames { name: (*name).into(), ..UserNames::default() })
                .collect(),
            sets: named_sets.iter().map(|name| (*name).into()).collect(),
            policy: [policy; 32],
        };
        let numbers = fixture.sink().number(&names).unwrap();
        assert_eq!((numbers.accounts.len(), numbers.sets.len()), (users.len(), named_sets.len()));
        note_numbers(&mut accounts, users, numbers.accounts);
        note_numbers(&mut sets, named_sets, numbers.sets.into_iter().map(u32::from));
        // A policy that comes back may get another number.
        assert!(numbers.policy > 0);
        assert_eq!(*policies.entry(numbers.policy).or_insert(policy), policy, "two policies have one number");
        let known = before.replace((policy, numbers.policy)).filter(|(before, _)| *before == policy);
        assert!(known.is_none_or(|(_, known)| known == numbers.policy), "policy {policy} had {known:?}");
        // Without a checkpoint.
        fixture.restart();
        assert_eq!(fixture.sink().applied_lsn(), Ok(None), "a number is no entry");
    }
    assert_eq!((accounts.len(), sets.len()), (5, 5));
}

fn expected_account_is_no_other_names(fixture: &mut impl SinkFixture) {
    let entry = |id: u128, user, account| Entry::Final(Record::new(&Flow { user, account, ..flow(id, 7) }));
    let users = |names: &[&str]| Names {
        users: names.iter().map(|name| UserNames { name: (*name).into(), ..UserNames::default() }).collect(),
        ..Names::default()
    };
    // As an older copy of a store, which lacks what an earlier run numbered.
    let mut ahead = AccountsAhead::default();
    [("ops", 2), ("deploy", 5), ("deploy", 6)].iter().for_each(|(name, account)| ahead.note(name, *account));
    fixture.sink().expect_accounts(ahead);
    fixture.sink().apply(1, 1, &[entry(1, "build", 0), entry(2, "lint", 0), entry(3, "ops", 0)]).unwrap();
    fixture.sink().apply(1, 4, &[entry(4, "deploy", 5), entry(5, "ops", 2), entry(6, "deploy", 6)]).unwrap();
    let accounts = fixture.sink().number(&users(&["ops", "build", "lint", "new"])).unwrap().accounts;
    assert_eq!(accounts[0], 2, "a name without a number has the one that it comes with later");
    let distinct: BTreeSet<u32> = accounts.iter().copied().chain([0, 5, 6]).collect();
    assert_eq!(distinct.len(), accounts.len() + 3, "{accounts:?}");
    fixture.sink().checkpoint().unwrap();
    fixture.restart();
    let again = fixture.sink().number(&users(&["ops", "build", "lint", "new", "newer"])).unwrap().accounts;
    assert_eq!(again[..4], accounts);
    assert!(!distinct.contains(&again[4]), "{again:?}");
}

/// Notes the numbers of `names`; panics if a name had another one, or a number another name.
fn note_numbers(known: &mut BTreeMap<String, u32>, names: &[&str], numbers: impl IntoIterator<Item = u32>) {
    for (name, number) in names.iter().zip(numbers) {
        assert!(number > 0, "{name} has no number");
        let owner = known.iter().find(|(_, known)| **known == number).map(|(owner, _)| owner.as_str());
        assert!(owner.is_none_or(|owner| owner == *name), "{name} got number {number} of {owner:?}");
        let before = known.insert((*name).to_owned(), number);
        assert!(before.is_none_or(|before| before == number), "{name} had number {before:?}: {number}");
    }
}

/// Sends entries `lsns` of run `epoch` from behind the last applied one, as a start does.
fn resume(fixture: &mut impl SinkFixture, epoch: u32, lsns: std::ops::RangeInclusive<u64>) {
    let applied = fixture.sink().applied_lsn().unwrap().unwrap_or(0);
    let first = lsns.start().max(&(applied + 1)).to_owned();
    if first <= *lsns.end() {
        fixture.sink().apply(epoch, first, &finals(first..=*lsns.end())).unwrap();
    }
}

#[track_caller]
fn assert_applied(fixture: &mut impl SinkFixture, lsns: std::ops::RangeInclusive<u64>) {
    assert_eq!(fixture.sink().applied_lsn(), Ok(Some(*lsns.end())));
    let expected: BTreeMap<u128, u64> = lsns.map(|lsn| (lsn.into(), lsn)).collect();
    assert_eq!(fixture.finals(), expected);
}

#[track_caller]
fn assert_fatal(outcome: Result<(), SinkError>) {
    assert!(matches!(outcome, Err(SinkError::Fatal(_))), "{outcome:?}");
}

/// Finals of flows that have the numbers of their entries, and as many bytes up.
fn finals(lsns: std::ops::RangeInclusive<u64>) -> Vec<Entry> {
    lsns.map(|lsn| final_of(lsn.into(), lsn)).collect()
}

fn final_of(id: u128, up: u64) -> Entry {
    Entry::Final(record(id, up))
}

fn record(id: u128, up: u64) -> Record {
    Record::new(&flow(id, up))
}

fn flow(id: u128, up: u64) -> Flow<'static> {
    Flow {
        id,
        opened: WallNanos(1_000),
        closed: WallNanos(2_000),
        account: 0,
        policy: 0,
        set: 0,
        user: "ci",
        host: "example.com",
        port: 443,
        address: None,
        client: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 50_000),
        class: Class::External,
        protocol: Protocol::Socks5,
        rule: "rule",
        reason: CloseReason::ClientClosed,
        requests: 0,
        legs: Legs { upstream_tx: up, ..Legs::default() },
        uncertain: Uncertain::default(),
    }
}
