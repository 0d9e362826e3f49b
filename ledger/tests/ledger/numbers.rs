//! Numbers of accounts, while entries of earlier runs wait for the database.

use std::fs;
use std::sync::mpsc;

use ledger::record::{Flow, Identity};
use ledger::{Ledger, Names, Numbers, UserNames};

use crate::fixture::{Fixture, close, close_ledger, count, flow};

fn number(ledger: &Ledger, users: &[&str]) -> Numbers {
    let (sender, receiver) = mpsc::channel();
    let user = |name: &&str| UserNames { name: (*name).to_owned(), former: Vec::new() };
    let names = Names { users: users.iter().map(user).collect(), ..Names::default() };
    ledger.number(names, move |numbers| sender.send(numbers).unwrap());
    receiver.recv().unwrap()
}

/// A copy of `ledger.db` is put back that lacks an account, and the journal has a flow of that account.
#[test]
fn account_of_an_older_database_is_not_given_twice() {
    let fixture = Fixture::new();
    let (ledger, writer) = fixture.open();
    assert_eq!(number(&ledger, &["ann"]).accounts, [1]);
    close_ledger(ledger, writer);
    let (database, copy) = (fixture.directory().join("ledger.db"), fixture.directory().join("copy"));
    fs::copy(&database, &copy).unwrap();

    let (ledger, mut writer) = fixture.open();
    assert_eq!(number(&ledger, &["ben", "eve"]).accounts, [2, 3]);
    let eve = Identity::new(&Flow { account: 3, ..flow(7, "eve") });
    let mut open = writer.open(&eve).unwrap();
    count(&mut writer, &mut open, 5, 6);
    close(&mut writer, open);
    close_ledger(ledger, writer);

    fs::rename(&copy, &database).unwrap();
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(fixture.directory().join(format!("ledger.db{suffix}")));
    }
    let (ledger, writer) = fixture.open();
    assert!(ledger.recovery().entries > 0, "the journal has what the copy lacks");
    assert_eq!(number(&ledger, &["new", "eve", "ann"]).accounts, [4, 3, 1]);
    close_ledger(ledger, writer);
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
