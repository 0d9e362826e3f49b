//! Authentication with a hashing thread that tests can pause: which credentials are accepted, and what each
//! result costs.

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
use crate::users::TokenHash;

const CLIENT: &str = "192.0.2.1";
const TOKEN: &str = "tgt_0123456789abcdefghjkmnpqrs";

/// The setting of a password, hashed as cheaply as argon2 permits.
fn password(password: &str) -> String {
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::new(8, 1, 1, None).unwrap());
    format!("password = \"{}\"\n", argon2.hash_password(password.as_bytes()).unwrap())
}

fn token() -> String {
    format!("token = \"{}\"\n", TokenHash::make(TOKEN).unwrap().to_text())
}

/// A `[[user]]` table.
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
struct Fixture {
    snapshot: Snapshot,
    pool: Pool,
    authenticator: Authenticator,
}

type Verify<'a> = Pin<Box<dyn Future<Output = Result<UserIndex, AuthError>> + 'a>>;

impl Fixture {
    fn new(text: &str) -> Fixture {
        let snapshot = Snapshot::first(config(text), Budget::new(Vec::new()));
        let settings = &snapshot.config.auth;
        let queue_max = settings.hash_queue as usize;
        let pool = crate::jobs::start(queue_max).unwrap();
        let shared = Arc::new(AuthShared::new(pool.clone(), settings).unwrap());
        let authenticator = Authenticator::new(shared);
        Fixture { snapshot, pool, authenticator }
    }

    fn reload(&mut self, text: &str) {
        self.snapshot = self.snapshot.next(config(text));
    }

    /// Pauses the hashing thread until something is sent.
    fn pause_hashing(&self) -> mpsc::Sender<()> {
        let (resume, resumed) = mpsc::channel::<()>();
        let (stopped, is_stopped) = mpsc::channel();
        let job = self.pool.run(crate::jobs::HASHING, move || {
            stopped.send(()).unwrap();
            // Also returns when the test ends and drops the sender.
            let _ = resumed.recv();
        });
        assert!(job.is_ok());
        is_stopped.recv().unwrap();
        resume
    }

    /// Starts a check that is not done yet.
    fn start_verify<'a>(&'a self, user: &str, secret: &str, source: &str) -> Verify<'a> {
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

    /// The number of jobs that the hashing thread has finished.
    fn finished_checks(&self) -> u64 {
        // When this job runs, all earlier ones are counted.
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
fn verify_accepts_only_right_credentials() {
    let fixture = Fixture::new(
        &[
            user("ann", &password("open sesame")),
            user("bob", &(password("correct horse") + "disabled = true\n")),
            user("ci", &token()),
            user("old", &(token() + "disabled = true\n")),
            user("source", "from = [\"10.0.0.0/8\"]\n"),
        ]
        .concat(),
    );
    fixture.check("ann", "open sesame", "ann");
    fixture.check("ann", "open sesam", "Wrong");
    fixture.check("ann", "open sesamee", "Wrong");
    fixture.check("ann", "correct horse", "Wrong");
    fixture.check("ANN", "open sesame", "Wrong");
    fixture.check("bob", "correct horse", "Disabled");
    fixture.check("bob", "open sesame", "Wrong");
    fixture.check("ci", TOKEN, "ci");
    fixture.check("ci", &TOKEN[1..], "Wrong");
    fixture.check("old", TOKEN, "Disabled");
    fixture.check("ann", TOKEN, "Wrong");
    fixture.check("source", TOKEN, "Wrong");
    fixture.check("eve", "open sesame", "Wrong");
    fixture.check("eve", "open sesame", "Wrong");
    fixture.check("ann", &"a".repeat(255), "Wrong");
}

#[test]
fn cache_holds_until_settings_or_password_change() {
    let ann = user("ann", &password("open sesame"));
    let mut fixture = Fixture::new(&ann);
    let finished_checks = fixture.finished_checks();
    (0..10).for_each(|_| fixture.check("ann", "open sesame", "ann"));
    assert_eq!(fixture.finished_checks(), finished_checks + 2, "one check, and the job that counts");
    fixture.reload(&(ann.clone() + &user("bob", &token())));
    (0..10).for_each(|_| fixture.check("ann", "open sesame", "ann"));
    assert_eq!(fixture.finished_checks(), finished_checks + 3, "a reload keeps the cache");
    fixture.reload(&("[auth]\ncache_ttl = \"1h\"\n".to_owned() + &ann));
    (0..10).for_each(|_| fixture.check("ann", "open sesame", "ann"));
    assert_eq!(fixture.finished_checks(), finished_checks + 5);
    fixture.reload(&user("ann", &password("correct horse")));
    fixture.check("ann", "open sesame", "Wrong");
    fixture.check("ann", "correct horse", "ann");
    fixture.reload(&user("ann", &(password("correct horse") + "disabled = true\n")));
    fixture.check("ann", "correct horse", "Disabled");
    fixture.reload(&user("ann", &token()));
    fixture.check("ann", "correct horse", "Wrong");
}

#[test]
fn cache_entries_zero_disables_the_cache() {
    let fixture =
        Fixture::new(&("[auth]\ncache_entries = 0\n".to_owned() + &user("ann", &password("open sesame"))));
    (0..10).for_each(|_| fixture.check("ann", "open sesame", "ann"));
    assert_eq!(fixture.finished_checks(), 10);
}

#[test]
fn every_wrong_secret_costs_one_check() {
    let fixture = Fixture::new(&[user("ann", &password("open sesame")), user("ci", &token())].concat());
    for (checks, name) in (1..).zip(["ann", "ci", "eve"]) {
        fixture.check(name, "wrong", "Wrong");
        assert_eq!(fixture.finished_checks() + 1, 2 * checks, "{name}");
    }
    // Where no user has a password, there is nothing to distinguish.
    let fixture = Fixture::new(&user("ci", &token()));
    fixture.check("ci", "wrong", "Wrong");
    fixture.check("eve", "wrong", "Wrong");
    assert_eq!(fixture.finished_checks(), 0);
}

#[test]
fn equal_credentials_share_one_check() {
    let fixture = Fixture::new(&user("ann", &password("open sesame")));
    for secret in ["open sesame", "wrong"] {
        let resume = fixture.pause_hashing();
        let clients: Vec<_> =
            (0..10).map(|n| fixture.start_verify("ann", secret, &format!("192.0.2.{n}"))).collect();
        assert_eq!(fixture.pool.stats().queued(), 1);
        resume.send(()).unwrap();
        let expected = if secret == "wrong" { "Wrong" } else { "ann" };
        for client in clients {
            assert_eq!(fixture.show(block_on(client)), expected);
        }
    }
}

#[test]
fn shared_check_survives_its_first_client() {
    let fixture = Fixture::new(&user("ann", &password("open sesame")));
    let resume = fixture.pause_hashing();
    let first = fixture.start_verify("ann", "open sesame", CLIENT);
    let others = [(); 3].map(|()| fixture.start_verify("ann", "open sesame", CLIENT));
    drop(first);
    resume.send(()).unwrap();
    for other in others {
        assert_eq!(fixture.show(block_on(other)), "ann");
    }
    assert!(fixture.authenticator.pending_checks.borrow().is_empty());
}

/// Asserts that the outcome is a throttling for a plausible time.
#[track_caller]
fn check_throttled(outcome: Result<UserIndex, AuthError>) {
    let Err(AuthError::Throttled { retry_after_s }) = outcome else { panic!("{outcome:?}") };
    assert!((1..=60).contains(&retry_after_s), "{retry_after_s}");
}

#[test]
fn failure_counts_after_its_client_left() {
    let text = "[auth]\nfailures_per_minute = 2\n".to_owned() + &user("ann", &password("open sesame"));
    let fixture = Fixture::new(&text);
    let resume = fixture.pause_hashing();
    drop(fixture.start_verify("ann", "wrong", CLIENT));
    drop(fixture.start_verify("ann", "also wrong", CLIENT));
    resume.send(()).unwrap();
    fixture.finished_checks();
    check_throttled(block_on(fixture.verify("ann", "open sesame", CLIENT)));
    assert_eq!(fixture.show(block_on(fixture.verify("ann", "open sesame", "192.0.2.3"))), "ann");
}

/// Right credentials of a disabled user were revealed by their time, since no hash was made of a token or of
/// a cached password, and by their number, since none counted as a failure.
#[test]
fn disabled_user_costs_as_much_as_a_wrong_secret() {
    let limit = "[auth]\nfailures_per_minute = 1\n".to_owned();
    let secrets = [("ann", password("open sesame")), ("ci", token())];
    let users = |more: &str| {
        let tables = secrets.iter().map(|(name, secret)| user(name, &format!("{secret}{more}")));
        limit.clone() + &tables.collect::<String>()
    };
    let mut fixture = Fixture::new(&users(""));
    fixture.check("ann", "open sesame", "ann");
    fixture.reload(&users("disabled = true\n"));
    for (name, secret) in [("ann", "open sesame"), ("ci", TOKEN)] {
        let before = fixture.finished_checks();
        fixture.check(name, secret, "Disabled");
        assert_eq!(fixture.finished_checks(), before + 2, "a hash, and the job that counts: {name}");
        check_throttled(block_on(fixture.verify(name, secret, CLIENT)));
    }
    fixture.reload(&users(""));
    fixture.check("ann", "open sesame", "ann");
}

/// 25 wrong passwords of one user locked out all users at the same address, with any credentials. Now a
/// budget belongs to one user at one source, and credentials that were right before are accepted in any case.
#[test]
fn wrong_passwords_throttle_only_their_sender() {
    let users = [user("ann", &password("open sesame")), user("bob", &password("correct horse"))].concat();
    let fixture = Fixture::new(&("[auth]\nfailures_per_minute = 1\n".to_owned() + &users));
    fixture.check("ann", "open sesame", "ann");
    fixture.check("ann", "wrong", "Wrong");
    (0..24).for_each(|n| check_throttled(block_on(fixture.verify("ann", &format!("wrong {n}"), CLIENT))));
    fixture.check("bob", "correct horse", "bob");
    fixture.check("ann", "open sesame", "ann");
    // Names that do not exist are unlimited; the source's own budget ends the attempts, for new names.
    (0..9).for_each(|n| fixture.check(&format!("eve{n}"), "wrong", "Wrong"));
    check_throttled(block_on(fixture.verify("eve", "wrong", CLIENT)));
    fixture.check("ann", "open sesame", "ann");
    fixture.check("bob", "correct horse", "bob");
}

/// 32 wrong passwords at once were all checked, because none had failed when the last one arrived.
#[test]
fn concurrent_wrong_passwords_stay_within_budget() {
    let text = "[auth]\nfailures_per_minute = 2\n".to_owned() + &user("ann", &password("open sesame"));
    let fixture = Fixture::new(&text);
    let resume = fixture.pause_hashing();
    // As many as a source may queue.
    let clients: Vec<_> =
        (0..24).map(|n| fixture.start_verify("ann", &format!("wrong {n}"), CLIENT)).collect();
    resume.send(()).unwrap();
    let outcomes: Vec<_> = clients.into_iter().map(block_on).collect();
    assert_eq!(outcomes[..2], [Err(AuthError::Wrong); 2]);
    outcomes[2..].iter().for_each(|outcome| check_throttled(*outcome));
}

#[test]
fn waiter_retries_after_a_throttled_first_client() {
    let text = "[auth]\nfailures_per_minute = 1\n".to_owned() + &user("ann", &password("open sesame"));
    let fixture = Fixture::new(&text);
    let resume = fixture.pause_hashing();
    let wrong = fixture.start_verify("ann", "wrong", CLIENT);
    let first = fixture.start_verify("ann", "open sesame", CLIENT);
    let [same, other] =
        [CLIENT, "192.0.2.2"].map(|source| fixture.start_verify("ann", "open sesame", source));
    resume.send(()).unwrap();
    assert_eq!(block_on(wrong), Err(AuthError::Wrong));
    check_throttled(block_on(first));
    check_throttled(block_on(same));
    assert_eq!(fixture.show(block_on(other)), "ann");
    fixture.check("ann", "open sesame", "ann");
}

#[test]
fn token_is_accepted_from_a_throttled_source() {
    let text = "[auth]\nfailures_per_minute = 1\n".to_owned() + &user("ci", &token());
    let fixture = Fixture::new(&text);
    fixture.check("ci", "wrong", "Wrong");
    assert!(matches!(block_on(fixture.verify("ci", "wrong", CLIENT)), Err(AuthError::Throttled { .. })));
    fixture.check("ci", TOKEN, "ci");
}

#[test]
fn full_queue_overloads_or_evicts_largest_source() {
    let text = "[auth]\nhash_queue = 8\n".to_owned() + &user("ann", &password("open sesame"));
    let fixture = Fixture::new(&text);
    let resume = fixture.pause_hashing();
    let mut clients: Vec<_> =
        ["a", "b", "c"].map(|secret| fixture.start_verify("ann", secret, CLIENT)).into();
    assert_eq!(block_on(fixture.verify("ann", "d", CLIENT)), Err(AuthError::Overloaded));
    clients.extend([2, 3, 4].map(|n| fixture.start_verify("ann", &format!("e{n}"), &format!("192.0.2.{n}"))));
    let right = fixture.start_verify("ann", "open sesame", "192.0.2.5");
    assert_eq!(block_on(clients.remove(2)), Err(AuthError::Overloaded));
    clients.push(fixture.start_verify("ann", "g", "192.0.2.6"));
    assert_eq!(block_on(clients.remove(1)), Err(AuthError::Overloaded));
    assert_eq!(
        block_on(fixture.verify("ann", "f", "192.0.2.7")),
        Err(AuthError::Overloaded),
        "each source has one"
    );
    resume.send(()).unwrap();
    for client in clients {
        assert_eq!(block_on(client), Err(AuthError::Wrong));
    }
    assert_eq!(fixture.show(block_on(right)), "ann");
    fixture.finished_checks();
    fixture.check("ann", "open sesame", "ann");
}

/// Wrong passwords from any number of addresses filled the queue permanently, and no user could log in.
#[test]
fn unknown_sources_leave_capacity_for_trusted_ones() {
    let users = [user("ann", &password("open sesame")), user("bob", &password("correct horse"))].concat();
    let fixture = Fixture::new(&("[auth]\nhash_queue = 8\n".to_owned() + &users));
    fixture.check("ann", "open sesame", "ann");
    let resume = fixture.pause_hashing();
    let attackers: Vec<_> = (0..6)
        .map(|n| fixture.start_verify("ann", &format!("wrong {n}"), &format!("198.51.100.{n}")))
        .collect();
    assert_eq!(block_on(fixture.verify("ann", "wrong", "198.51.100.6")), Err(AuthError::Overloaded));
    let bob = fixture.start_verify("bob", "correct horse", CLIENT);
    resume.send(()).unwrap();
    assert_eq!(fixture.show(block_on(bob)), "bob");
    for attacker in attackers {
        assert_eq!(block_on(attacker), Err(AuthError::Wrong));
    }
}

/// Asserts the user that a source address identifies.
#[track_caller]
fn check_source(fixture: &Fixture, source: &str, expected: &str) {
    let user = fixture.authenticator.user_of_source(&fixture.snapshot, source.parse().unwrap());
    let name = user.map_or("", |user| &fixture.snapshot.config.users[user.as_usize()].name);
    assert_eq!(name, expected, "{source}");
}

#[test]
fn source_networks_identify_users() {
    let fixture = Fixture::new(
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
        check_source(&fixture, source, expected);
    }
    check_source(&Fixture::new(&user("x", "from = [\"0.0.0.0/0\"]\n")), "203.0.113.9", "x");
    check_source(&Fixture::new(&user("x", "from = [\"0.0.0.0/0\"]\n")), "2001:db8::1", "");
    check_source(&Fixture::new(&user("x", &token())), "203.0.113.9", "");
}

#[test]
fn smallest_enclosing_network_decides() {
    let fixture = Fixture::new(
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
        check_source(&fixture, source, expected);
    }
}
