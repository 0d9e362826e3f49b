//! Authentication with a hashing thread that stops on demand: who gets in, and what each answer costs.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};

use argon2::{Algorithm, Argon2, Params, Version};
use engine::pool::Pool;
use password_hash::PasswordHasher;

use super::*;
use crate::budget::Budget;
use crate::config::{Config, LoadOptions};
use crate::dns::tests::block_on;
use crate::identity::users::TokenHash;

const CLIENT: &str = "192.0.2.1";
const TOKEN: &str = "tgt_0123456789abcdefghjkmnpqrs";

/// The line of a password, hashed as cheaply as argon2 permits.
fn password(password: &str) -> String {
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::new(8, 1, 1, None).unwrap());
    format!("password = \"{}\"\n", argon2.hash_password(password.as_bytes()).unwrap())
}

fn token() -> String {
    format!("token = \"{}\"\n", TokenHash::make(TOKEN).unwrap().to_text())
}

/// A table of one user.
fn user(name: &str, settings: &str) -> String {
    format!("[[user]]\nname = \"{name}\"\nallow = [\"example.com:443\"]\n{settings}\n")
}

fn config(text: &str) -> Config {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tollgate.toml");
    std::fs::write(&path, text).unwrap();
    Config::load(&LoadOptions { path: Some(path), ..LoadOptions::default() }).unwrap()
}

/// An authenticator with its hashing thread.
struct House {
    snapshot: Snapshot,
    pool: Pool,
    authenticator: Authenticator,
}

type Verify<'a> = Pin<Box<dyn Future<Output = Result<UserIndex, AuthError>> + 'a>>;

impl House {
    fn new(text: &str) -> House {
        let snapshot = Snapshot::first(config(text), Budget::new(Vec::new()));
        let settings = &snapshot.config.auth;
        let queue_max = settings.hash_queue as usize;
        let pool = crate::jobs::start(queue_max).unwrap();
        let shared = Arc::new(AuthShared::new(pool.clone(), settings).unwrap());
        let authenticator = Authenticator::new(shared);
        House { snapshot, pool, authenticator }
    }

    fn reload(&mut self, text: &str) {
        self.snapshot = self.snapshot.next(config(text));
    }

    /// The hashing thread stops until something is sent.
    fn stop_hashing(&self) -> mpsc::Sender<()> {
        let (go, gate) = mpsc::channel::<()>();
        let (stopped, is_stopped) = mpsc::channel();
        let job = self.pool.run(crate::jobs::HASHING, move || {
            stopped.send(()).unwrap();
            // Ends as well when the test is over.
            let _ = gate.recv();
        });
        assert!(job.is_ok());
        is_stopped.recv().unwrap();
        go
    }

    /// A client whose check is not done yet.
    fn begin<'a>(&'a self, user: &str, secret: &str, source: &str) -> Verify<'a> {
        let mut verify = self.verify(user, secret, source);
        assert!(verify.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        verify
    }

    fn verify<'a>(&'a self, user: &str, secret: &str, source: &str) -> Verify<'a> {
        let credentials = Credentials::new(user.as_bytes(), secret.as_bytes()).unwrap();
        let source = source.parse().unwrap();
        Box::pin(async move { self.authenticator.verify(&self.snapshot, &credentials, source).await })
    }

    /// The outcome in a word: the user's name, or the error.
    fn show(&self, outcome: Result<UserIndex, AuthError>) -> String {
        match outcome {
            Ok(user) => self.snapshot.config.users[user.as_usize()].name.to_string(),
            Err(error) => format!("{error:?}"),
        }
    }

    #[track_caller]
    fn check(&self, user: &str, secret: &str, expected: &str) {
        assert_eq!(self.show(block_on(self.verify(user, secret, CLIENT))), expected, "{user}");
    }

    /// Checks that the hashing thread has done so far.
    fn done(&self) -> u64 {
        // What came before this job is counted when it runs.
        let (count, counted) = mpsc::channel();
        let pool = self.pool.clone();
        assert!(
            self.pool
                .run(crate::jobs::HASHING, move || count.send(pool.stats().classes[0].finished).unwrap())
                .is_ok()
        );
        counted.recv().unwrap()
    }
}

#[test]
fn who_gets_in() {
    let house = House::new(
        &[
            user("ann", &password("open sesame")),
            user("bob", &(password("correct horse") + "disabled = true\n")),
            user("ci", &token()),
            user("old", &(token() + "disabled = true\n")),
            user("door", "from = [\"10.0.0.0/8\"]\n"),
        ]
        .concat(),
    );
    house.check("ann", "open sesame", "ann");
    house.check("ann", "open sesam", "Wrong");
    house.check("ann", "open sesamee", "Wrong");
    house.check("ann", "correct horse", "Wrong");
    house.check("ANN", "open sesame", "Wrong");
    house.check("bob", "correct horse", "Disabled");
    house.check("bob", "open sesame", "Wrong");
    house.check("ci", TOKEN, "ci");
    house.check("ci", &TOKEN[1..], "Wrong");
    house.check("old", TOKEN, "Disabled");
    house.check("ann", TOKEN, "Wrong");
    house.check("door", TOKEN, "Wrong");
    house.check("eve", "open sesame", "Wrong");
    house.check("eve", "open sesame", "Wrong");
    house.check("ann", &"a".repeat(255), "Wrong");
}

#[test]
fn what_was_right_is_remembered_until_other_settings_or_a_new_password() {
    let ann = user("ann", &password("open sesame"));
    let mut house = House::new(&ann);
    let done = house.done();
    (0..10).for_each(|_| house.check("ann", "open sesame", "ann"));
    assert_eq!(house.done(), done + 2, "one check, and the counting one");
    house.reload(&(ann.clone() + &user("bob", &token())));
    (0..10).for_each(|_| house.check("ann", "open sesame", "ann"));
    assert_eq!(house.done(), done + 3, "a reload forgets nothing");
    house.reload(&("[auth]\ncache_ttl = \"1h\"\n".to_owned() + &ann));
    (0..10).for_each(|_| house.check("ann", "open sesame", "ann"));
    assert_eq!(house.done(), done + 5);
    house.reload(&user("ann", &password("correct horse")));
    house.check("ann", "open sesame", "Wrong");
    house.check("ann", "correct horse", "ann");
    house.reload(&user("ann", &(password("correct horse") + "disabled = true\n")));
    house.check("ann", "correct horse", "Disabled");
    house.reload(&user("ann", &token()));
    house.check("ann", "correct horse", "Wrong");
}

#[test]
fn nothing_is_remembered_where_the_settings_say_so() {
    let house =
        House::new(&("[auth]\ncache_entries = 0\n".to_owned() + &user("ann", &password("open sesame"))));
    (0..10).for_each(|_| house.check("ann", "open sesame", "ann"));
    assert_eq!(house.done(), 10);
}

#[test]
fn every_wrong_answer_costs_a_check() {
    let house = House::new(&[user("ann", &password("open sesame")), user("ci", &token())].concat());
    for (checks, name) in (1..).zip(["ann", "ci", "eve"]) {
        house.check(name, "wrong", "Wrong");
        assert_eq!(house.done() + 1, 2 * checks, "{name}");
    }
    // Where nobody has a password there is nothing to tell apart.
    let house = House::new(&user("ci", &token()));
    house.check("ci", "wrong", "Wrong");
    house.check("eve", "wrong", "Wrong");
    assert_eq!(house.done(), 0);
}

#[test]
fn clients_with_the_same_credentials_share_a_check() {
    let house = House::new(&user("ann", &password("open sesame")));
    for secret in ["open sesame", "wrong"] {
        let go = house.stop_hashing();
        let clients: Vec<_> = (0..10).map(|n| house.begin("ann", secret, &format!("192.0.2.{n}"))).collect();
        assert_eq!(house.pool.stats().queued(), 1);
        go.send(()).unwrap();
        let expected = if secret == "wrong" { "Wrong" } else { "ann" };
        for client in clients {
            assert_eq!(house.show(block_on(client)), expected);
        }
    }
}

#[test]
fn clients_outlive_the_one_they_waited_behind() {
    let house = House::new(&user("ann", &password("open sesame")));
    let go = house.stop_hashing();
    let first = house.begin("ann", "open sesame", CLIENT);
    let others = [(); 3].map(|()| house.begin("ann", "open sesame", CLIENT));
    drop(first);
    go.send(()).unwrap();
    for other in others {
        assert_eq!(house.show(block_on(other)), "ann");
    }
    assert!(house.authenticator.flights.borrow().is_empty());
}

/// Whether the outcome is that it was throttled, for a while that makes sense.
#[track_caller]
fn check_throttled(outcome: Result<UserIndex, AuthError>) {
    let Err(AuthError::Throttled { retry_after_s }) = outcome else { panic!("{outcome:?}") };
    assert!((1..=60).contains(&retry_after_s), "{retry_after_s}");
}

#[test]
fn a_failure_counts_even_if_its_client_left() {
    let text = "[auth]\nfailures_per_minute = 2\n".to_owned() + &user("ann", &password("open sesame"));
    let house = House::new(&text);
    let go = house.stop_hashing();
    drop(house.begin("ann", "wrong", CLIENT));
    drop(house.begin("ann", "also wrong", CLIENT));
    go.send(()).unwrap();
    house.done();
    check_throttled(block_on(house.verify("ann", "open sesame", CLIENT)));
    assert_eq!(house.show(block_on(house.verify("ann", "open sesame", "192.0.2.3"))), "ann");
}

/// Right credentials of a disabled user were told by their time, since no hash was made of a token or of what
/// was remembered, and by their number, since none counted as a failure.
#[test]
fn right_credentials_of_a_disabled_user_cost_what_wrong_ones_do() {
    let few = "[auth]\nfailures_per_minute = 1\n".to_owned();
    let secrets = [("ann", password("open sesame")), ("ci", token())];
    let users = |rest: &str| {
        let tables = secrets.iter().map(|(name, secret)| user(name, &format!("{secret}{rest}")));
        few.clone() + &tables.collect::<String>()
    };
    let mut house = House::new(&users(""));
    house.check("ann", "open sesame", "ann");
    house.reload(&users("disabled = true\n"));
    for (name, secret) in [("ann", "open sesame"), ("ci", TOKEN)] {
        let before = house.done();
        house.check(name, secret, "Disabled");
        assert_eq!(house.done(), before + 2, "a hash, and what counts them: {name}");
        check_throttled(block_on(house.verify(name, secret, CLIENT)));
    }
    house.reload(&users(""));
    house.check("ann", "open sesame", "ann");
}

/// 25 wrong passwords of one user kept all who shared their address from logging in, with whatever
/// credentials. A budget is now one user's at one source; and what was right before passes whatever came
/// from its source.
#[test]
fn wrong_passwords_keep_out_who_sent_them_and_no_other() {
    let users = [user("ann", &password("open sesame")), user("bob", &password("correct horse"))].concat();
    let house = House::new(&("[auth]\nfailures_per_minute = 1\n".to_owned() + &users));
    house.check("ann", "open sesame", "ann");
    house.check("ann", "wrong", "Wrong");
    (0..24).for_each(|n| check_throttled(block_on(house.verify("ann", &format!("wrong {n}"), CLIENT))));
    house.check("bob", "correct horse", "bob");
    house.check("ann", "open sesame", "ann");
    // Of names that do not exist there are any number: the source's own budget ends that, for new ones.
    (0..9).for_each(|n| house.check(&format!("eve{n}"), "wrong", "Wrong"));
    check_throttled(block_on(house.verify("eve", "wrong", CLIENT)));
    house.check("ann", "open sesame", "ann");
    house.check("bob", "correct horse", "bob");
}

/// 32 wrong passwords at once were all looked at, because none had failed when the last one came.
#[test]
fn wrong_passwords_that_come_at_once_do_not_exceed_the_budget() {
    let text = "[auth]\nfailures_per_minute = 2\n".to_owned() + &user("ann", &password("open sesame"));
    let house = House::new(&text);
    let go = house.stop_hashing();
    // As many as a source may have in the queue.
    let clients: Vec<_> = (0..24).map(|n| house.begin("ann", &format!("wrong {n}"), CLIENT)).collect();
    go.send(()).unwrap();
    let outcomes: Vec<_> = clients.into_iter().map(block_on).collect();
    assert_eq!(outcomes[..2], [Err(AuthError::Wrong); 2]);
    outcomes[2..].iter().for_each(|outcome| check_throttled(*outcome));
}

#[test]
fn a_client_behind_one_whose_source_was_throttled_takes_its_place() {
    let text = "[auth]\nfailures_per_minute = 1\n".to_owned() + &user("ann", &password("open sesame"));
    let house = House::new(&text);
    let go = house.stop_hashing();
    let wrong = house.begin("ann", "wrong", CLIENT);
    let first = house.begin("ann", "open sesame", CLIENT);
    let [same, other] = [CLIENT, "192.0.2.2"].map(|source| house.begin("ann", "open sesame", source));
    go.send(()).unwrap();
    assert_eq!(block_on(wrong), Err(AuthError::Wrong));
    check_throttled(block_on(first));
    check_throttled(block_on(same));
    assert_eq!(house.show(block_on(other)), "ann");
    house.check("ann", "open sesame", "ann");
}

#[test]
fn a_token_gets_in_from_a_throttled_source() {
    let text = "[auth]\nfailures_per_minute = 1\n".to_owned() + &user("ci", &token());
    let house = House::new(&text);
    house.check("ci", "wrong", "Wrong");
    assert!(matches!(block_on(house.verify("ci", "wrong", CLIENT)), Err(AuthError::Throttled { .. })));
    house.check("ci", TOKEN, "ci");
}

#[test]
fn a_full_queue_is_overload_and_the_largest_source_makes_room() {
    let text = "[auth]\nhash_queue = 8\n".to_owned() + &user("ann", &password("open sesame"));
    let house = House::new(&text);
    let go = house.stop_hashing();
    let mut clients: Vec<_> = ["a", "b", "c"].map(|secret| house.begin("ann", secret, CLIENT)).into();
    assert_eq!(block_on(house.verify("ann", "d", CLIENT)), Err(AuthError::Overloaded));
    clients.extend([2, 3, 4].map(|n| house.begin("ann", &format!("e{n}"), &format!("192.0.2.{n}"))));
    let right = house.begin("ann", "open sesame", "192.0.2.5");
    assert_eq!(block_on(clients.remove(2)), Err(AuthError::Overloaded));
    clients.push(house.begin("ann", "g", "192.0.2.6"));
    assert_eq!(block_on(clients.remove(1)), Err(AuthError::Overloaded));
    assert_eq!(block_on(house.verify("ann", "f", "192.0.2.7")), Err(AuthError::Overloaded), "all have one");
    go.send(()).unwrap();
    for client in clients {
        assert_eq!(block_on(client), Err(AuthError::Wrong));
    }
    assert_eq!(house.show(block_on(right)), "ann");
    house.done();
    house.check("ann", "open sesame", "ann");
}

/// Wrong passwords from any number of addresses filled the queue, for good: nobody could log in.
#[test]
fn strangers_leave_room_for_sources_in_good_standing() {
    let users = [user("ann", &password("open sesame")), user("bob", &password("correct horse"))].concat();
    let house = House::new(&("[auth]\nhash_queue = 8\n".to_owned() + &users));
    house.check("ann", "open sesame", "ann");
    let go = house.stop_hashing();
    let attackers: Vec<_> =
        (0..6).map(|n| house.begin("ann", &format!("wrong {n}"), &format!("198.51.100.{n}"))).collect();
    assert_eq!(block_on(house.verify("ann", "wrong", "198.51.100.6")), Err(AuthError::Overloaded));
    let bob = house.begin("bob", "correct horse", CLIENT);
    go.send(()).unwrap();
    assert_eq!(house.show(block_on(bob)), "bob");
    for attacker in attackers {
        assert_eq!(block_on(attacker), Err(AuthError::Wrong));
    }
}

/// The user to whom an address belongs.
#[track_caller]
fn check_source(house: &House, source: &str, expected: &str) {
    let user = house.authenticator.from_source(&house.snapshot, source.parse().unwrap());
    let name = user.map_or("", |user| &house.snapshot.config.users[user.as_usize()].name);
    assert_eq!(name, expected, "{source}");
}

#[test]
fn source_addresses() {
    let house = House::new(
        &[
            user("b", "from = [\"10.1.0.0/16\", \"10.1.7.0/24\", \"10.1.255.255/32\", \"192.0.2.7/32\"]\n"),
            user("a", "from = [\"10.2.0.0/16\", \"2001:db8::/32\"]\n"),
            user("c", "from = [\"10.0.255.255/32\", \"2001:db9::1/128\"]\ndisabled = true\n"),
            user("d", "from = [\"255.255.255.255/32\", \"::/128\"]\n"),
        ]
        .concat(),
    );
    for (source, expected) in [
        ("10.0.255.254", ""),
        ("10.0.255.255", ""),
        ("10.1.0.0", "b"),
        ("10.1.7.255", "b"),
        ("10.1.8.0", "b"),
        ("10.1.255.255", "b"),
        ("::ffff:10.1.0.1", "b"),
        ("10.2.0.0", "a"),
        ("10.2.255.255", "a"),
        ("10.3.0.0", ""),
        ("0.0.0.0", ""),
        ("192.0.2.7", "b"),
        ("192.0.2.8", ""),
        ("255.255.255.255", "d"),
        ("::", "d"),
        ("::1", ""),
        ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", ""),
        ("2001:db8::", "a"),
        ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "a"),
        ("2001:db9::", ""),
        ("2001:db9::1", ""),
    ] {
        check_source(&house, source, expected);
    }
    check_source(&House::new(&user("x", "from = [\"0.0.0.0/0\"]\n")), "203.0.113.9", "x");
    check_source(&House::new(&user("x", "from = [\"0.0.0.0/0\"]\n")), "2001:db8::1", "");
    check_source(&House::new(&user("x", &token())), "203.0.113.9", "");
}

#[test]
fn the_smallest_network_around_an_address_decides() {
    let house = House::new(
        &[
            user("all", "from = [\"0.0.0.0/0\", \"::/0\", \"10.1.2.0/24\"]\n"),
            user("site", "from = [\"10.0.0.0/8\", \"2001:db8::/32\"]\n"),
            user("floor", "from = [\"10.1.0.0/16\", \"10.255.0.0/16\"]\n"),
            user("gone", "from = [\"10.1.3.0/24\", \"10.1.3.4/32\"]\ndisabled = true\n"),
            user("host", "from = [\"10.1.3.5/32\", \"2001:db8::1/128\"]\n"),
        ]
        .concat(),
    );
    for (source, expected) in [
        ("0.0.0.0", "all"),
        ("9.255.255.255", "all"),
        ("10.0.0.0", "site"),
        ("10.1.0.0", "floor"),
        ("10.1.2.255", "all"),
        ("10.1.3.0", ""),
        ("10.1.3.4", ""),
        ("10.1.3.5", "host"),
        ("10.1.3.6", ""),
        ("10.1.4.0", "floor"),
        ("10.2.0.0", "site"),
        ("10.255.255.255", "floor"),
        ("11.0.0.0", "all"),
        ("255.255.255.255", "all"),
        ("2001:db8::1", "host"),
        ("2001:db8::2", "site"),
        ("2001:db9::", "all"),
        ("::", "all"),
    ] {
        check_source(&house, source, expected);
    }
}
