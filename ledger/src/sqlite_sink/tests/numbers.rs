//! Numbers of accounts, sets and policies: kept for ever, and never given twice.

use super::*;
use crate::database::schema::{self, month_db::MONTH};
use crate::numbering::{Names, Numbers, UserNames};
use crate::verify::verify;

fn user(name: &str, former: &[&str]) -> UserNames {
    let former = former.iter().map(|name| (*name).to_owned()).collect();
    UserNames { name: name.to_owned(), former, team: String::new() }
}

fn number(store: &mut Store, users: &[UserNames]) -> Numbers {
    store.sink.number(&Names { users: users.to_vec(), policy: [1; 32], ..Names::default() }).unwrap()
}

fn accounts(store: &mut Store, users: &[UserNames]) -> Vec<u32> {
    let numbers = number(store, users);
    assert!(numbers.notes.is_empty(), "{:?}", numbers.notes);
    numbers.accounts
}

/// A flow of `user` with an account, and with bytes that identify it.
fn flow(id: u32, user: &str, account: u32) -> Entry {
    let legs = Legs { upstream_tx: 1 << id, ..Legs::default() };
    last(&Flow { id: id.into(), user, account, legs, ..FLOW })
}

fn by_user(store: &Store) -> Vec<(String, u64)> {
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    let rows = usage.rows(&Filter::default(), &[GroupBy::User]).unwrap().rows;
    let mut rows: Vec<_> = rows.into_iter().map(|mut row| (row.keys.remove(0), row.up)).collect();
    rows.sort();
    rows
}

#[test]
fn removed_user_keeps_its_account() {
    let mut store = Store::new();
    let (ann, ben, cid) = (user("ann", &[]), user("ben", &[]), user("cid", &[]));
    assert_eq!(accounts(&mut store, &[ann.clone(), ben.clone()]), [1, 2]);
    assert_eq!(accounts(&mut store, std::slice::from_ref(&ben)), [2]);
    store.reopen();
    assert_eq!(accounts(&mut store, &[cid, ben, ann]), [3, 2, 1]);
}

#[test]
fn renamed_user_keeps_its_account() {
    let mut store = Store::new();
    assert_eq!(accounts(&mut store, &[user("robert", &[])]), [1]);
    store.sink.apply(1, 1, &[flow(0, "robert", 1)]).unwrap();
    let renamed = user("bob", &["rob", "robert"]);
    assert_eq!(accounts(&mut store, std::slice::from_ref(&renamed)), [1]);
    // A connection that began under the earlier name ends, and one that the gateway could not number.
    store.sink.apply(1, 2, &[flow(1, "robert", 1), flow(2, "bob", 1), flow(3, "bob", 0)]).unwrap();
    assert_eq!(by_user(&store), [("bob".to_owned(), 15)]);
    store.reopen();
    assert_eq!(accounts(&mut store, &[renamed]), [1]);
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    for name in ["bob", "robert"] {
        let filter = Filter { user: Some(name.to_owned()), ..Filter::default() };
        assert_eq!(usage.total(&filter).unwrap().up, 15, "{name}");
        assert!(usage.flows(&filter, 9).unwrap().iter().all(|flow| flow.user == "bob"));
    }
    assert_eq!(accounts(&mut store, &[user("robert", &["bob"])]), [1], "and back");
    assert_eq!(by_user(&store), [("robert".to_owned(), 15)]);
}

#[test]
fn former_name_of_a_renamed_user_is_free_for_another() {
    let mut store = Store::new();
    accounts(&mut store, &[user("robert", &[])]);
    store.sink.apply(1, 1, &[flow(0, "robert", 1)]).unwrap();
    accounts(&mut store, &[user("bob", &["robert"])]);
    for _ in 0..2 {
        assert_eq!(accounts(&mut store, &[user("robert", &[]), user("bob", &[])]), [2, 1]);
        store.reopen();
    }
    store.sink.apply(1, 2, &[flow(1, "robert", 2), flow(2, "robert", 0), flow(3, "bob", 0)]).unwrap();
    assert_eq!(by_user(&store), [("bob".to_owned(), 9), ("robert".to_owned(), 6)]);
}

#[test]
fn two_accounts_with_usage_stay_apart() {
    let mut store = Store::new();
    assert_eq!(accounts(&mut store, &[user("robert", &[]), user("bob", &[])]), [1, 2]);
    let numbers = number(&mut store, &[user("bob", &["robert"])]);
    assert_eq!(numbers.accounts, [2]);
    assert!(numbers.notes[0].contains("`robert`"), "{:?}", numbers.notes);
}

/// The database is older than the journal, as after a restore: its entries tell numbers that it lacks.
#[test]
fn numbers_of_entries_are_taken_over() {
    let mut store = Store::new();
    let numbered = Flow { user: "eve", account: 7, set: 5, policy: 9, rule: "@cdn[0] a.example", ..FLOW };
    store.sink.apply(1, 1, &[last(&numbered)]).unwrap();
    for _ in 0..2 {
        let names = Names {
            users: vec![user("new", &[]), user("eve", &[])],
            sets: vec!["other".to_owned(), "cdn".to_owned()],
            policy: [3; 32],
        };
        let numbers = store.sink.number(&names).unwrap();
        assert_eq!(
            (&numbers.accounts[..], &numbers.sets[..], numbers.policy),
            (&[8, 7][..], &[6, 5][..], 10)
        );
        store.reopen();
    }
    let usage = SqliteUsage::open(store.directory.path()).unwrap();
    let rows = usage.rows(&Filter::default(), &[GroupBy::Set]).unwrap().rows;
    assert_eq!(rows[0].keys, ["cdn"]);
    let of_set = |set: &str| Filter { set: Some(set.to_owned()), ..Filter::default() };
    assert_eq!(usage.total(&of_set("cdn")).unwrap().up, 10);
    assert_eq!(usage.total(&of_set("other")).unwrap().up, 0);
}

#[test]
fn policy_has_a_new_version_when_it_differs() {
    let mut store = Store::new();
    let mut version = |policy| {
        let version = store.sink.number(&Names { policy, ..Names::default() }).unwrap().policy;
        store.reopen();
        version
    };
    assert_eq!([[1; 32], [1; 32], [2; 32], [1; 32]].map(&mut version), [1, 1, 2, 3]);
}

#[test]
fn sets_beyond_the_last_number_are_named() {
    let mut store = Store::new();
    let last_one = Flow { set: u16::MAX, rule: "@last[0] a.example", ..FLOW };
    store.sink.apply(1, 1, &[last(&last_one)]).unwrap();
    let numbers = store.sink.number(&Names { sets: vec!["more".to_owned()], ..Names::default() }).unwrap();
    assert_eq!(numbers.sets, [0]);
    assert!(numbers.notes[0].contains("`more`"), "{:?}", numbers.notes);
}

/// Months of an earlier version have names only, later ones have numbers that such a name must not get.
#[test]
fn rebuilt_accounts_are_those_of_the_rows() {
    let store = Store::new();
    let ledger = store.ledger();
    let older = schema::new_in_memory(MONTH).unwrap();
    older
        .execute_batch("CREATE TABLE flow_2 (user TEXT); INSERT INTO flow_2 VALUES ('bob'), ('ann')")
        .unwrap();
    let later = {
        let mut other = Store::new();
        other.sink.apply(1, 1, &[flow(0, "ann", 1), flow(1, "cid", 3)]).unwrap();
        let copy = Connection::open(other.directory.path().join("usage-197001.db")).unwrap();
        let mut memory = Connection::open_in_memory().unwrap();
        rusqlite::backup::Backup::new(&copy, &mut memory).unwrap().step(-1).unwrap();
        memory
    };
    let mut registry = Registry::read(&ledger).unwrap();
    registry.learn(&ledger, &[older, later]).unwrap();
    for registry in [registry, Registry::read(&ledger).unwrap()] {
        let found = ["ann", "bob", "cid"].map(|name| registry.accounts.find(name));
        assert_eq!(found, [Some(1), Some(4), Some(3)]);
    }
}

/// A file of the version before, which knew no teams, is read, and migrated by the next start.
#[test]
fn team_is_kept_with_its_account_on_stable_storage() {
    let mut store = Store::new();
    let in_team = |name: &str, team: &str| UserNames { team: team.to_owned(), ..user(name, &[]) };
    assert_eq!(accounts(&mut store, &[in_team("ci", "web"), in_team("ops", "")]), [1, 2]);
    store.reopen();
    accounts(&mut store, &[in_team("ops", "db")]);
    accounts(&mut store, &[in_team("ops", "")]);
    let teams = |store: &Store| SqliteUsage::open(store.directory.path()).unwrap().teams();
    assert!(teams(&store).into_iter().eq(["web"]), "a removed user keeps its team");
    assert!(verify(store.directory.path()).unwrap().is_clean());
    let stored: Vec<(i64, String)> = {
        let ledger = store.ledger();
        let mut select = ledger.prepare("SELECT account, team FROM account_team ORDER BY account").unwrap();
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(stored, [(1, "web".to_owned()), (2, String::new())]);
    let changed = store.ledger().execute("UPDATE account_team SET team = 'wed' WHERE account = 1", []);
    assert_eq!(changed.unwrap(), 1);
    assert!(SqliteUsage::open(store.directory.path()).unwrap_err().to_string().contains("damaged"));
    assert!(!verify(store.directory.path()).is_ok_and(|report| report.is_clean()));
}
