//! Numbers of accounts, while entries of earlier runs wait for the database.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use ledger::SqliteUsage;
use ledger::query::{Filter, Usage};
use ledger::record::{Flow, Identity};
use ledger::{FlowWriter, Ledger, Names, Numbers, Status, UserNames};

use crate::fixture::{Fixture, close, close_ledger, count, flow};
use crate::losses::{copied, wait_for};

fn number(ledger: &Ledger, users: &[&str]) -> Numbers {
    let (sender, receiver) = mpsc::channel();
    let user = |name: &&str| UserNames { name: (*name).to_owned(), ..UserNames::default() };
    let names = Names { users: users.iter().map(user).collect(), ..Names::default() };
    ledger.number(names, move |numbers| sender.send(numbers).unwrap());
    receiver.recv().unwrap()
}

/// A copy of a `ledger.db` that has the account of `ann`, 1, and no other.
fn copy_with_ann(fixture: &Fixture) -> PathBuf {
    let (ledger, writer) = fixture.open();
    assert_eq!(number(&ledger, &["ann"]).accounts, [1]);
    close_ledger(ledger, writer);
    let copy = fixture.directory().join("copy");
    fs::copy(fixture.directory().join("ledger.db"), &copy).unwrap();
    copy
}

fn put_back(fixture: &Fixture, copy: &Path) {
    let database = fixture.directory().join("ledger.db");
    fs::copy(copy, &database).unwrap();
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(fixture.directory().join(format!("ledger.db{suffix}")));
    }
}

fn run_flow(writer: &mut FlowWriter, id: u128, user: &str, account: u32) {
    let mut open = writer.open(&Identity::new(&Flow { account, ..flow(id, user) })).unwrap();
    count(writer, &mut open, 5, 6);
    close(writer, open);
}

fn flows_of(fixture: &Fixture, user: &str) -> u64 {
    let filter = Filter { user: Some(user.to_owned()), ..Filter::default() };
    SqliteUsage::open(&fixture.directory()).unwrap().total(&filter).unwrap().flows
}

/// A copy of `ledger.db` is put back that lacks an account, and the journal has a flow of that account.
#[test]
fn account_of_an_older_database_is_not_given_twice() {
    let fixture = Fixture::new();
    let copy = copy_with_ann(&fixture);
    let (ledger, mut writer) = fixture.open();
    assert_eq!(number(&ledger, &["ben", "eve"]).accounts, [2, 3]);
    run_flow(&mut writer, 7, "eve", 3);
    close_ledger(ledger, writer);

    put_back(&fixture, &copy);
    let (ledger, writer) = fixture.open();
    assert!(ledger.recovery().entries > 0, "the journal has what the copy lacks");
    assert_eq!(number(&ledger, &["new", "eve", "ann"]).accounts, [4, 3, 1]);
    close_ledger(ledger, writer);
}

/// The same, and in front of that flow the journal has flows without accounts: of a user whose account comes
/// later, and of a new name.
#[test]
fn account_that_comes_later_is_not_given_to_an_earlier_name() {
    let fixture = Fixture::new();
    let copy = copy_with_ann(&fixture);
    let (ledger, mut writer) = fixture.open();
    assert_eq!(number(&ledger, &["eve", "fay"]).accounts, [2, 3]);
    for (id, user, account) in [(1, "fay", 0), (2, "new", 0), (3, "eve", 2), (4, "fay", 3)] {
        run_flow(&mut writer, id, user, account);
    }
    close_ledger(ledger, writer);

    put_back(&fixture, &copy);
    let (ledger, writer) = fixture.open();
    assert_eq!(number(&ledger, &["eve", "fay", "ann", "new"]).accounts, [2, 3, 1, 4]);
    close_ledger(ledger, writer);
    assert_eq!(["fay", "new", "eve"].map(|user| flows_of(&fixture, user)), [2, 1, 1]);
}

/// The same, and only the live table of a killed run has the account.
#[test]
fn account_in_the_live_table_is_not_given_to_an_earlier_name() {
    let fixture = Fixture::new();
    let copy = copy_with_ann(&fixture);
    let (ledger, mut writer) = fixture.open();
    assert_eq!(number(&ledger, &["eve"]).accounts, [2]);
    let eve = Identity::new(&Flow { account: 2, ..flow(2, "eve") });
    let open = writer.open(&eve).unwrap();
    let before = ledger.status().appended;
    run_flow(&mut writer, 1, "new", 0);
    // What is copied does not change meanwhile.
    wait_for(|| {
        let Status { appended, durable, applied, .. } = ledger.status();
        appended > before && durable == appended && applied == appended
    });
    let killed = copied(&fixture);
    close(&mut writer, open);
    close_ledger(ledger, writer);

    put_back(&killed, &copy);
    let (ledger, writer) = killed.open();
    assert_eq!(ledger.recovery().killed, 1);
    assert_eq!(number(&ledger, &["new", "eve"]).accounts, [3, 2]);
    close_ledger(ledger, writer);
    assert_eq!(["new", "eve"].map(|user| flows_of(&killed, user)), [1, 1]);
}

/// A later request replaces one that waits, and each is answered at most once.
#[test]
fn many_requests_are_answered_or_replaced() {
    let fixture = Fixture::new();
    let (ledger, writer) = fixture.open();
    for round in 0..100_u32 {
        let name = format!("user{}", round % 7);
        ledger.number(Names::default(), |_| {});
        assert_eq!(number(&ledger, &[&name]).accounts, [round % 7 + 1]);
    }
    close_ledger(ledger, writer);
}
