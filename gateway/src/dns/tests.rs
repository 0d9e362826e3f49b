//! Resolution against name servers on loopback: which queries are sent, and what the lookups return.

mod name_server;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hickory_resolver::proto::rr::RecordType;
use sys::clock::Nanos;

use self::name_server::{Action, Gate, NameServer, Query, addresses};
use super::in_flight::{self, Backend, Completed};
use super::system::System;
use super::*;
use crate::jobs;

/// Longer than any test runs: a wait of this length never ends by itself.
const UNREACHED: Duration = Duration::from_secs(600);

/// Runs a future of this thread to its end.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Settings that depend on no clock and no file of this machine.
fn settings(servers: &[&NameServer]) -> ResolveSettings {
    ResolveSettings {
        servers: servers.iter().map(|server| server.address).collect(),
        deadline: UNREACHED,
        family_wait: UNREACHED,
        server_wait: UNREACHED,
        hosts: "/nonexistent/hosts".into(),
        resolv_conf: "/nonexistent/resolv.conf".into(),
        ..ResolveSettings::default()
    }
}

fn start(settings: ResolveSettings) -> (Resolver, DnsThread) {
    Resolver::start(settings, &jobs::start(1).unwrap()).unwrap()
}

/// An answer as `ttl address address`, an error as its text.
fn show(result: Result<Answer, ResolveError>) -> String {
    match result {
        Ok(answer) => {
            let addresses = answer.addresses().iter().map(ToString::to_string);
            let words: Vec<_> = [answer.ttl.as_secs().to_string()].into_iter().chain(addresses).collect();
            words.join(" ")
        }
        Err(error) => error.to_string(),
    }
}

const NOT_FOUND: &str = "the name does not exist or has no address";
const TIMEOUT: &str = "no DNS answer in time";
const OVERLOADED: &str = "too many DNS lookups at a time";
const OVER_SHARE: &str = "too many DNS lookups of one user at a time";
const ENDED: &str = "DNS failed: the resolver has ended";

fn look_up(resolver: &Resolver, name: &str) -> String {
    show(block_on(resolver.lookup(name)))
}

/// A script that answers by family.
fn by_family(v4: fn() -> Action, v6: fn() -> Action) -> impl Fn(&Query) -> Action {
    move |query| if query.family == RecordType::A { v4() } else { v6() }
}

/// Looks `db.test` up twice at a name server with this script; checks the result and all queries.
#[track_caller]
fn check(v4: fn() -> Action, v6: fn() -> Action, expected: &str, queries: &[&str]) {
    let server = NameServer::start(by_family(v4, v6));
    let (resolver, _thread) = start(settings(&[&server]));
    assert_eq!(look_up(&resolver, "db.test"), expected);
    // The TTL may have counted down by now.
    let without_ttl = |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    assert_eq!(without_ttl(&look_up(&resolver, "db.test")), without_ttl(expected), "the second time");
    assert_eq!(server.queries(), queries);
}

/// Looks `db.test` up once at a name server with this script.
#[track_caller]
fn check_once(v4: fn() -> Action, v6: fn() -> Action, expected: &str) {
    let server = NameServer::start(by_family(v4, v6));
    let (resolver, _thread) = start(settings(&[&server]));
    assert_eq!(look_up(&resolver, "db.test"), expected);
}

const BOTH: &[&str] = &["A db.test.", "AAAA db.test."];

#[test]
fn both_families_are_found_and_cached() {
    let v4 = || addresses(&["192.0.2.1", "192.0.2.2"]);
    check(v4, || addresses(&["2001:db8::1"]), "300 2001:db8::1 192.0.2.1 192.0.2.2", BOTH);
    check(v4, || Action::NoData(60), "300 192.0.2.1 192.0.2.2", BOTH);
    check(|| Action::NoData(60), || addresses(&["2001:db8::1"]), "300 2001:db8::1", BOTH);
    // Some servers deny a name when they are queried for its IPv6 addresses.
    check(v4, || Action::NxDomain(60), "300 192.0.2.1 192.0.2.2", BOTH);
    check(v4, || addresses(&["::ffff:192.0.2.1"]), "300 192.0.2.1 192.0.2.2", BOTH);
}

#[test]
fn negative_answers_are_cached() {
    check(|| Action::NxDomain(60), || Action::NxDomain(60), NOT_FOUND, BOTH);
    check(|| Action::NoData(60), || Action::NoData(60), NOT_FOUND, BOTH);
}

#[test]
fn ttl_is_that_of_the_shortest_record_within_bounds() {
    let alias = || Action::Alias("db.corp.", 20, Box::new(addresses(&["192.0.2.1"])));
    check_once(alias, || Action::NoData(60), "20 192.0.2.1");
    fn for_seconds(ttl: u32) -> Action {
        Action::Addresses(ttl, vec![[192, 0, 2, 1].into()])
    }
    check_once(|| for_seconds(40), || addresses(&["2001:db8::1"]), "40 2001:db8::1 192.0.2.1");
    check_once(|| for_seconds(0), || Action::NoData(60), "1 192.0.2.1");
    check_once(|| for_seconds(u32::MAX), || Action::NoData(60), "3600 192.0.2.1");
}

#[test]
fn truncated_answer_is_fetched_by_tcp() {
    let script = |query: &Query| match (query.family, query.tcp) {
        (RecordType::A, false) => Action::Truncated,
        (RecordType::A, true) => addresses(&["192.0.2.1"]),
        _ => Action::NoData(60),
    };
    let server = NameServer::start(script);
    let (resolver, _thread) = start(settings(&[&server]));
    assert_eq!(look_up(&resolver, "db.test"), "300 192.0.2.1");
    assert_eq!(server.queries(), ["A db.test.", "A db.test. tcp", "AAAA db.test."]);
}

#[test]
fn forged_answer_is_ignored() {
    let forged = || Action::ForgedFirst([6, 6, 6, 6].into(), Box::new(addresses(&["192.0.2.1"])));
    check(forged, || Action::NoData(60), "300 192.0.2.1", BOTH);
}

#[test]
fn many_addresses_keep_some_of_each_family() {
    let many_v4 = || Action::Addresses(300, (0..40).map(|n| IpAddr::from([192, 0, 2, n])).collect());
    let v4 = |count: u8| (0..count).map(|n| format!(" 192.0.2.{n}")).collect::<String>();
    check(many_v4, || Action::NoData(60), &format!("300{}", v4(16)), BOTH);
    let few = || addresses(&["2001:db8::a", "2001:db8::b"]);
    check(many_v4, few, &format!("300 2001:db8::a 2001:db8::b{}", v4(14)), BOTH);
    let many_v6 =
        || Action::Addresses(300, (0..20).map(|n| [0x2001, 0xdb8, 0, 0, 0, 0, 1, n].into()).collect());
    let v6 = (0..8).map(|n| format!(" 2001:db8::1:{n}")).collect::<String>();
    check(many_v4, many_v6, &format!("300{v6}{}", v4(8)), BOTH);
}

#[test]
fn alias_loop_ends() {
    let script = |query: &Query| match &*query.name {
        "a.test." => Action::Alias("b.test.", 300, Box::new(Action::NoData(60))),
        _ => Action::Alias("a.test.", 300, Box::new(Action::NoData(60))),
    };
    let server = NameServer::start(script);
    let (resolver, _thread) = start(settings(&[&server]));
    assert_eq!(look_up(&resolver, "a.test"), NOT_FOUND);
}

#[test]
fn server_error_is_reported() {
    let server = NameServer::start(|_| Action::ServFail);
    let (resolver, _thread) = start(settings(&[&server]));
    let expected = format!("DNS failed: {} answered Server Failure", server.address);
    assert_eq!(look_up(&resolver, "db.test"), expected);
}

#[test]
fn silent_server_ends_at_the_deadline() {
    let server = NameServer::start(|_| Action::Silence);
    let (resolver, _thread) =
        start(ResolveSettings { deadline: Duration::from_millis(50), ..settings(&[&server]) });
    assert_eq!(look_up(&resolver, "db.test"), TIMEOUT);
}

#[test]
fn failing_server_loses_preference() {
    let failing = NameServer::start(|_| Action::ServFail);
    let healthy = NameServer::start(by_family(|| addresses(&["192.0.2.1"]), || Action::NoData(60)));
    let (resolver, _thread) = start(settings(&[&failing, &healthy]));
    assert_eq!(look_up(&resolver, "a.test"), "300 192.0.2.1");
    assert_eq!(look_up(&resolver, "b.test"), "300 192.0.2.1");
    assert_eq!(failing.queries(), ["A a.test.", "AAAA a.test."]);
    assert_eq!(healthy.queries(), ["A a.test.", "A b.test.", "AAAA a.test.", "AAAA b.test."]);
}

#[test]
fn silent_server_triggers_the_next_one() {
    let silent = NameServer::start(|_| Action::Silence);
    let healthy = NameServer::start(by_family(|| addresses(&["192.0.2.1"]), || Action::NoData(60)));
    let settings =
        ResolveSettings { server_wait: Duration::from_millis(20), ..settings(&[&silent, &healthy]) };
    let (resolver, _thread) = start(settings);
    assert_eq!(look_up(&resolver, "db.test"), "300 192.0.2.1");
    assert_eq!(healthy.queries(), BOTH);
}

#[test]
fn slow_family_delays_nothing_and_is_cached() {
    let gate = Gate::default();
    let gate_in_script = gate.clone();
    let server = NameServer::start(move |query| match query.family {
        RecordType::A => addresses(&["192.0.2.1"]),
        _ => Action::Hold(gate_in_script.clone(), Box::new(addresses(&["2001:db8::1"]))),
    });
    let (resolver, _thread) =
        start(ResolveSettings { family_wait: Duration::from_millis(1), ..settings(&[&server]) });
    // The answer without the slow family has a short TTL, and is repeated while that family is in flight.
    assert_eq!(look_up(&resolver, "db.test"), "5 192.0.2.1");
    assert_eq!(look_up(&resolver, "db.test"), "5 192.0.2.1");
    gate.open();
    let complete = loop {
        let text = look_up(&resolver, "db.test");
        if text != "5 192.0.2.1" {
            break text;
        }
    };
    assert!(complete.ends_with(" 2001:db8::1 192.0.2.1"), "{complete}");
    assert_eq!(server.queries(), BOTH);
}

#[test]
fn only_family_with_records_is_awaited() {
    let gate = Gate::default();
    let gate_in_script = gate.clone();
    let server = NameServer::start(move |query| match query.family {
        RecordType::A => Action::NxDomain(60),
        _ => Action::Hold(gate_in_script.clone(), Box::new(addresses(&["2001:db8::1"]))),
    });
    let (resolver, _thread) = start(ResolveSettings { family_wait: Duration::ZERO, ..settings(&[&server]) });
    let lookup = start_lookup(&resolver, "db.test");
    // Gives a lookup that does not wait the time to fail the test. One that waits passes whenever this ends.
    thread::sleep(Duration::from_millis(50));
    gate.open();
    assert_eq!(show(block_on(lookup)), "300 2001:db8::1");
}

#[test]
fn name_in_flight_is_queried_once_and_blocks_none() {
    let gate = Gate::default();
    let gate_in_script = gate.clone();
    let server = NameServer::start(move |query| match &*query.name {
        "slow.test." => Action::Hold(gate_in_script.clone(), Box::new(Action::ServFail)),
        _ => addresses(&["192.0.2.1"]),
    });
    let (resolver, _thread) = start(settings(&[&server]));
    let mut lookups: Vec<_> = (0..100).map(|_| Box::pin(resolver.lookup("slow.test"))).collect();
    for lookup in &mut lookups {
        assert!(lookup.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    // Requests are received in order, so by now the table has all hundred. The failure is not cached there:
    // had any of them not joined, the server would be queried again.
    assert_eq!(look_up(&resolver, "quick.test"), "300 192.0.2.1");
    gate.open();
    for lookup in lookups {
        assert!(show(block_on(lookup)).ends_with("answered Server Failure"));
    }
    let slow: Vec<_> = server.queries().into_iter().filter(|query| query.contains("slow")).collect();
    assert_eq!(slow, ["A slow.test.", "AAAA slow.test."]);
}

#[test]
fn localhost_and_the_hosts_file_send_no_query() {
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    std::fs::write(&hosts, "10.0.0.5 db\n10.0.0.6 localhost\n").unwrap();
    let server = NameServer::start(|_| addresses(&["192.0.2.1"]));
    let (resolver, _thread) = start(ResolveSettings { hosts, ..settings(&[&server]) });
    assert_eq!(look_up(&resolver, "localhost"), "3600 ::1 127.0.0.1");
    assert_eq!(look_up(&resolver, "db.localhost"), "3600 ::1 127.0.0.1");
    assert_eq!(look_up(&resolver, "db"), "5 10.0.0.5");
    assert_eq!(server.queries(), [""; 0]);
    assert_eq!(look_up(&resolver, "notlocalhost"), "300 192.0.2.1");
    assert_eq!(
        server.queries(),
        ["A notlocalhost.", "AAAA notlocalhost."],
        "absolute, without a search domain"
    );
    assert_eq!(look_up(&resolver, "_sip.my-host.test"), "300 192.0.2.1");
}

/// A backend whose lookups behave as their names say.
struct FakeBackend {
    concurrency_max: usize,
    gate: tokio::sync::watch::Receiver<bool>,
    started: Arc<AtomicU32>,
}

impl Backend for FakeBackend {
    fn concurrency_max(&self) -> usize {
        self.concurrency_max
    }

    fn lookup(&mut self, name: Arc<str>) -> impl Future<Output = Completed> + Send + 'static {
        let mut gate = self.gate.clone();
        self.started.fetch_add(1, Ordering::Relaxed);
        async move {
            if name.starts_with("panic") {
                std::panic::panic_any("planted");
            }
            if name.starts_with("hang") {
                let _ = gate.wait_for(|open| *open).await;
            }
            let answer =
                Answer::from_families(&[], &[Ipv4Addr::new(192, 0, 2, 1).into()], UNREACHED).unwrap();
            Completed { reply: Reply::found(answer), background: None }
        }
    }
}

/// A resolver with the fake backend, its gate, and the count of lookups.
fn fake() -> (Resolver, DnsThread, tokio::sync::watch::Sender<bool>, Arc<AtomicU32>) {
    fake_with(NAMES_IN_FLIGHT_MAX, UNREACHED)
}

/// The same, with a bound on concurrent lookups, and a deadline for those that have not started.
fn fake_with(
    concurrency_max: usize,
    deadline: Duration,
) -> (Resolver, DnsThread, tokio::sync::watch::Sender<bool>, Arc<AtomicU32>) {
    let (open, gate) = tokio::sync::watch::channel(false);
    let started = Arc::new(AtomicU32::new(0));
    let backend = FakeBackend { concurrency_max, gate, started: Arc::clone(&started) };
    let (resolver, thread) = in_flight::start(backend, deadline).unwrap();
    (resolver, thread, open, started)
}

type Lookup<'a> = Pin<Box<dyn Future<Output = Result<Answer, ResolveError>> + 'a>>;

/// Starts a lookup.
fn start_lookup<'a>(resolver: &'a Resolver, name: &'a str) -> Lookup<'a> {
    start_lookup_for(resolver, AccountId::PROCESS, name)
}

/// The same for a user.
fn start_lookup_for<'a>(resolver: &'a Resolver, user: AccountId, name: &'a str) -> Lookup<'a> {
    let mut lookup: Lookup<'a> = Box::pin(async move { resolver.request(user, name).await.result });
    assert!(lookup.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    lookup
}

fn look_up_for(resolver: &Resolver, user: AccountId, name: &str) -> String {
    show(block_on(resolver.request(user, name)).result)
}

#[test]
fn panic_ends_one_lookup() {
    let (resolver, _thread, _open, _) = fake();
    assert_eq!(look_up(&resolver, "panic.test"), "DNS failed: the lookup panicked");
    assert_eq!(look_up(&resolver, "db.test"), "600 192.0.2.1");
    assert_eq!(look_up(&resolver, "panic.test"), "DNS failed: the lookup panicked");
}

#[test]
fn names_and_waiters_are_bounded() {
    let (resolver, _thread, open, started) = fake();
    let names: Vec<_> = (0..NAMES_IN_FLIGHT_MAX).map(|n| format!("hang{n}.test")).collect();
    let mut lookups: Vec<_> =
        names.iter().map(|name| start_lookup_for(&resolver, AccountId::next(), name)).collect();
    assert_eq!(look_up(&resolver, "db.test"), OVERLOADED, "one name too many");
    while lookups.len() < WAITERS_MAX {
        lookups.push(start_lookup_for(&resolver, AccountId::next(), "hang0.test"));
        // The channel is shorter than the table: let the DNS thread receive what was sent.
        if lookups.len() % 1_000 == 0 {
            look_up(&resolver, "db.test");
        }
    }
    assert_eq!(look_up(&resolver, "hang0.test"), OVERLOADED, "one waiter too many");
    open.send(true).unwrap();
    for lookup in lookups {
        assert_eq!(show(block_on(lookup)), "600 192.0.2.1");
    }
    assert_eq!(look_up(&resolver, "db.test"), "600 192.0.2.1");
    assert_eq!(started.load(Ordering::Relaxed), NAMES_IN_FLIGHT_MAX as u32 + 1);
}

/// 52 slow names a second filled the table, and every user got 503. Now one user has half of it.
#[test]
fn user_has_a_share_of_names_and_waiters() {
    let (resolver, _thread, open, started) = fake();
    let [ann, ben] = [(); 2].map(|()| AccountId::next());
    let names: Vec<_> = (0..NAMES_IN_FLIGHT_MAX / 2).map(|n| format!("hang{n}.test")).collect();
    let mut lookups: Vec<_> = names.iter().map(|name| start_lookup_for(&resolver, ann, name)).collect();
    assert_eq!(look_up_for(&resolver, ann, "db.test"), OVER_SHARE, "one name too many");
    assert_eq!(look_up_for(&resolver, ben, "db.test"), "600 192.0.2.1");
    while lookups.len() < WAITERS_MAX / 2 {
        lookups.push(start_lookup_for(&resolver, ann, "hang0.test"));
        // The channel is shorter than the table: let the DNS thread receive what was sent.
        if lookups.len() % 1_000 == 0 {
            look_up_for(&resolver, ben, "db.test");
        }
    }
    assert_eq!(look_up_for(&resolver, ann, "hang0.test"), OVER_SHARE, "one waiter too many");
    lookups.push(start_lookup_for(&resolver, ben, "hang0.test"));
    let lookups_by_others = started.load(Ordering::Relaxed) - NAMES_IN_FLIGHT_MAX as u32 / 2;
    open.send(true).unwrap();
    for lookup in lookups {
        assert_eq!(show(block_on(lookup)), "600 192.0.2.1");
    }
    assert_eq!(look_up_for(&resolver, ann, "db.test"), "600 192.0.2.1", "the share is free again");
    assert_eq!(started.load(Ordering::Relaxed), NAMES_IN_FLIGHT_MAX as u32 / 2 + lookups_by_others + 1);
}

/// Four names whose `getaddrinfo` hangs stopped the system's resolver for all.
#[test]
fn hung_lookups_hold_only_their_users_share() {
    let (resolver, _thread, open, started) = fake_with(4, UNREACHED);
    let [ann, ben] = [(); 2].map(|()| AccountId::next());
    let names: Vec<_> = (0..8).map(|n| format!("hang{n}.test")).collect();
    let mut lookups: Vec<_> = names.iter().map(|name| start_lookup_for(&resolver, ann, name)).collect();
    assert_eq!(look_up_for(&resolver, ben, "db.test"), "600 192.0.2.1");
    assert_eq!(started.load(Ordering::Relaxed), 2 + 1, "two of the eight, and one of the other user");
    // A name that is queued behind the first user's own starts at once on the share of another user.
    lookups.push(start_lookup_for(&resolver, ben, "hang7.test"));
    assert_eq!(look_up_for(&resolver, AccountId::next(), "db.test"), "600 192.0.2.1");
    assert_eq!(started.load(Ordering::Relaxed), 3 + 2);
    open.send(true).unwrap();
    for lookup in lookups {
        assert_eq!(show(block_on(lookup)), "600 192.0.2.1");
    }
    assert_eq!(started.load(Ordering::Relaxed), 5 + 5, "each name was looked up once");
}

#[test]
fn unstarted_lookup_ends_at_its_deadline() {
    let (resolver, _thread, _open, _) = fake_with(2, Duration::from_millis(20));
    let [ann, ben] = [(); 2].map(|()| AccountId::next());
    let _runs = start_lookup_for(&resolver, ann, "hang0.test");
    let mut waits = start_lookup_for(&resolver, ann, "hang1.test");
    // The table checks deadlines when an event arrives.
    let mut is_over = || {
        assert_eq!(look_up_for(&resolver, ben, "db.test"), "600 192.0.2.1");
        waits.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    let outcome = std::iter::repeat_with(&mut is_over).find_map(|outcome| match outcome {
        Poll::Ready(result) => Some(show(result)),
        Poll::Pending => None,
    });
    assert_eq!(outcome.as_deref(), Some(TIMEOUT));
}

#[test]
fn lookups_end_with_the_thread() {
    let (resolver, thread, _open, _) = fake();
    let lookup = start_lookup(&resolver, "hang.test");
    drop(thread);
    assert_eq!(show(block_on(lookup)), ENDED);
    assert_eq!(look_up(&resolver, "db.test"), ENDED);
    assert_eq!(look_up(&resolver, "localhost"), "3600 ::1 127.0.0.1");
}

#[test]
fn thread_ends_with_the_last_handle() {
    let (resolver, mut owner, _open, _) = fake();
    drop(resolver);
    owner.thread.take().unwrap().join().unwrap();
}

/// Checks the result of a system lookup for which `getaddrinfo` returns `found`.
#[track_caller]
fn check_getaddrinfo(found: fn() -> io::Result<Vec<IpAddr>>, expected: &str) {
    let system = System::with_getaddrinfo(&settings(&[]), jobs::start(1).unwrap(), move |_| found());
    let (resolver, _thread) = in_flight::start(system, Duration::from_secs(5)).unwrap();
    assert_eq!(look_up(&resolver, "db.test"), expected);
}

#[test]
fn getaddrinfo_results_map_to_replies() {
    check_getaddrinfo(
        || Ok(vec![[192, 0, 2, 1].into(), "2001:db8::1".parse().unwrap(), [192, 0, 2, 1].into()]),
        "30 2001:db8::1 192.0.2.1",
    );
    check_getaddrinfo(|| Ok(vec![]), NOT_FOUND);
    fn fail(text: &str) -> io::Result<Vec<IpAddr>> {
        Err(io::Error::other(format!("failed to lookup address information: {text}")))
    }
    check_getaddrinfo(|| fail("Name or service not known"), NOT_FOUND);
    check_getaddrinfo(|| fail("Name does not resolve"), NOT_FOUND);
    check_getaddrinfo(
        || fail("Temporary failure in name resolution"),
        "DNS failed: failed to lookup address information: Temporary failure in name resolution",
    );
    check_getaddrinfo(|| std::panic::panic_any("planted"), "DNS failed: the lookup panicked");
}

#[test]
fn hung_call_holds_one_pool_thread() {
    let gate = Gate::default();
    let (gate_in_script, calls) = (gate.clone(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&calls);
    let settings = ResolveSettings { deadline: Duration::from_millis(20), ..settings(&[]) };
    let system = System::with_getaddrinfo(&settings, jobs::start(1).unwrap(), move |name| {
        counted.fetch_add(1, Ordering::Relaxed);
        if name == "hang.test" {
            gate_in_script.wait();
        }
        Ok(vec![[192, 0, 2, 1].into()])
    });
    let (resolver, _thread) = in_flight::start(system, Duration::from_secs(5)).unwrap();
    // A thread that begins late finds that no lookup waits any more.
    while calls.load(Ordering::Relaxed) == 0 {
        assert_eq!(look_up(&resolver, "hang.test"), TIMEOUT);
    }
    for _ in 0..100 {
        assert_eq!(look_up(&resolver, "hang.test"), TIMEOUT);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    gate.open();
    let mut answers = std::iter::repeat_with(|| look_up(&resolver, "hang.test"));
    assert_eq!(answers.find(|answer| answer != TIMEOUT).unwrap(), "30 192.0.2.1");
}

/// The same on the pool itself, whose threads hang: as many as one user may have, and the rest is queued.
#[test]
fn hung_calls_leave_threads_for_other_users() {
    let (gate, calls) = (Gate::default(), Arc::new(AtomicU32::new(0)));
    let (gate_in_script, counted) = (gate.clone(), Arc::clone(&calls));
    let system = System::with_getaddrinfo(&settings(&[]), jobs::start(1).unwrap(), move |name| {
        counted.fetch_add(1, Ordering::Relaxed);
        if name.starts_with("hang") {
            gate_in_script.wait();
        }
        Ok(vec![[192, 0, 2, 1].into()])
    });
    let (resolver, _thread) = in_flight::start(system, UNREACHED).unwrap();
    let [ann, ben] = [(); 2].map(|()| AccountId::next());
    let share = jobs::DNS_LOOKUPS_MAX / 2;
    let names: Vec<_> = (0..2 * share).map(|n| format!("hang{n}.test")).collect();
    let lookups: Vec<_> = names.iter().map(|name| start_lookup_for(&resolver, ann, name)).collect();
    for number in 0..2 * share as u32 {
        assert_eq!(look_up_for(&resolver, ben, &format!("n{number}.test")), "30 192.0.2.1");
    }
    assert!(calls.load(Ordering::Relaxed) <= 3 * share as u32, "half of the hung names are queued");
    gate.open();
    for lookup in lookups {
        assert_eq!(show(block_on(lookup)), "30 192.0.2.1");
    }
}

#[test]
fn cache_repeats_replies_until_they_expire() {
    let (resolver, _thread, _open, started) = fake();
    let cache = ResolveCache::new(resolver);
    let second = |n: u64| Nanos(n * 1_000_000_000);
    let known = |name, now| cache.cached(name, now).map_or("unknown".into(), show);
    let answer = Answer::from_families(&[], &[[192, 0, 2, 1].into()], Duration::from_secs(60)).unwrap();
    cache.insert("db.test", &Reply::found(answer), second(100));
    cache.insert("none.test", &Reply::not_found(Duration::from_secs(10)), second(100));
    cache.insert("slow.test", &Reply::failed(ResolveError::Timeout), second(100));
    cache.insert("busy.test", &Reply::overloaded(), second(100));
    assert_eq!(known("db.test", second(100)), "60 192.0.2.1");
    assert_eq!(known("db.test", second(159)), "1 192.0.2.1");
    assert_eq!(known("db.test", second(160)), "unknown");
    assert_eq!(known("none.test", second(109)), NOT_FOUND);
    assert_eq!(known("none.test", second(110)), "unknown");
    assert_eq!(known("slow.test", second(100)), TIMEOUT);
    assert_eq!(known("slow.test", second(101)), "unknown");
    assert_eq!(known("busy.test", second(100)), "unknown");
    // Through the public method: the second lookup stops at the cache.
    for _ in 0..2 {
        assert!(show(block_on(cache.lookup(AccountId::PROCESS, "other.test"))).ends_with(" 192.0.2.1"));
    }
    assert_eq!(started.load(Ordering::Relaxed), 1);
}
