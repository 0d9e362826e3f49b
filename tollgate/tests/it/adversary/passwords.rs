//! Attacks on the identity of users: credentials that are wrong, guessed, or left out.
//!
//! Guarantees: on every protocol, credentials take precedence over the source address. Wrong passwords lock
//! out only the source that sends them, however many arrive at once and from any number of sources.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::footprint::Footprint;
use super::valid_user::StopOnDrop;
use crate::harness::{Gateway, LOCAL_USER, TestDir, eventually};
use crate::peers::{
    Destination, basic, check_echo, connect_from, connect_request, read_exactly, read_reply, read_response,
    socks_request, tunnel,
};

/// An address without a user.
const UNKNOWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
/// The address of the user `net`.
const TRUSTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Sends a CONNECT request from `source`, with credentials if given; returns the status.
fn ask_http(
    gateway: &Gateway,
    source: Ipv4Addr,
    login: Option<(&str, &str)>,
    target: &str,
) -> (TcpStream, u16) {
    let mut stream = connect_from(source, gateway.listeners[0]);
    let line = login
        .map(|(user, secret)| format!("Proxy-Authorization: {}\r\n", basic(user, secret)))
        .unwrap_or_default();
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{line}\r\n").unwrap();
    let status = read_response(&mut stream).status;
    (stream, status)
}

/// The outcome of a SOCKS5 handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reached {
    /// No offered method is accepted.
    NoMethod,
    /// User and password are refused.
    NoLogin,
    /// The reply to its request.
    Reply(u8),
}

/// Offers `methods` from `source`, sends `login` if the method requires it, and requests `target`.
fn ask_socks(
    gateway: &Gateway,
    source: Ipv4Addr,
    methods: &[u8],
    (user, secret): (&str, &str),
    target: &Destination,
) -> (TcpStream, Reached) {
    let mut stream = connect_from(source, gateway.listeners[0]);
    let length = |bytes: usize| u8::try_from(bytes).unwrap();
    stream.write_all(&[&[5, length(methods.len())], methods].concat()).unwrap();
    match read_exactly(&mut stream, 2)[..] {
        [5, 0] => {}
        [5, 2] => {
            let (user, secret) = (user.as_bytes(), secret.as_bytes());
            let login = [&[1, length(user.len())], user, &[length(secret.len())], secret].concat();
            stream.write_all(&login).unwrap();
            match read_exactly(&mut stream, 2)[..] {
                [1, 0] => {}
                [1, 1] => return (stream, Reached::NoLogin),
                ref other => panic!("not a verdict: {other:?}"),
            }
        }
        [5, 0xff] => return (stream, Reached::NoMethod),
        ref other => panic!("not a method: {other:?}"),
    }
    stream.write_all(&socks_request("127.0.0.1", target.address.port())).unwrap();
    let reply = read_reply(&mut stream);
    (stream, Reached::Reply(reply))
}

/// A client in the network of the user `net` names itself `app1` with a wrong password. A gateway that chose
/// the method "none" for every known source accepted it by its address: the deny rules of `app1` did not
/// apply, and `net` paid. An attacker spends one connection.
#[test]
fn wrong_credentials_are_refused_from_known_networks() {
    let (open, closed) = (Destination::echo(), Destination::echo());
    let dir = TestDir::new(&format!(
        "[[user]]\nname = \"net\"\nfrom = [\"{TRUSTED}/32\"]\nallow = [\"127.0.0.0/8\"]\n"
    ));
    let deny = format!("--deny {}", closed.address);
    dir.add_user("app1", "correct horse", &format!("--allow 127.0.0.0/8 {deny}"));
    let mut gateway = Gateway::start_in(dir);
    let (right, wrong, duke) = (("app1", "correct horse"), ("app1", "WRONG"), ("duke", ""));

    // Offers of curl, Go and PySocks with credentials, of Java always; and other orders.
    for methods in [&[0, 2][..], &[0, 1, 2], &[2, 0], &[2]] {
        for source in [TRUSTED, UNKNOWN_ADDRESS] {
            let ask = |login, target| ask_socks(&gateway, source, methods, login, target).1;
            assert_eq!(ask(wrong, &open), Reached::NoLogin, "{methods:?} from {source}");
            assert_eq!(ask(("ghost", "WRONG"), &open), Reached::NoLogin, "{methods:?} from {source}");
            assert_eq!(ask(right, &open), Reached::Reply(0), "{methods:?} from {source}");
            assert_eq!(ask(right, &closed), Reached::Reply(2), "the rules of app1: {methods:?}");
        }
        // Without credentials, Java's client sends its account's name and an empty password.
        assert_eq!(ask_socks(&gateway, TRUSTED, methods, duke, &closed).1, Reached::Reply(0), "{methods:?}");
        assert_eq!(
            ask_socks(&gateway, UNKNOWN_ADDRESS, methods, duke, &open).1,
            Reached::NoLogin,
            "{methods:?}"
        );
    }
    // Offers of curl, Go and PySocks without credentials.
    for methods in [&[0][..], &[0, 1]] {
        assert_eq!(ask_socks(&gateway, TRUSTED, methods, duke, &closed).1, Reached::Reply(0), "{methods:?}");
        assert_eq!(
            ask_socks(&gateway, UNKNOWN_ADDRESS, methods, duke, &open).1,
            Reached::NoMethod,
            "{methods:?}"
        );
    }
    assert_eq!(ask_socks(&gateway, TRUSTED, &[1], duke, &open).1, Reached::NoMethod);

    let target = open.address.to_string();
    for (source, login, status) in [
        (TRUSTED, None, 200),
        (TRUSTED, Some(wrong), 407),
        (TRUSTED, Some(("app1", "")), 407),
        (TRUSTED, Some(right), 200),
        (UNKNOWN_ADDRESS, None, 407),
        (UNKNOWN_ADDRESS, Some(wrong), 407),
        (UNKNOWN_ADDRESS, Some(right), 200),
    ] {
        assert_eq!(ask_http(&gateway, source, login, &target).1, status, "{login:?} from {source}");
    }

    // The authenticated user pays, else the user of the address.
    let (mut stream, _) = ask_socks(&gateway, TRUSTED, &[0, 2], right, &open);
    check_echo(&mut stream, b"app1 pays");
    let (mut other, _) = ask_socks(&gateway, TRUSTED, &[0, 2], duke, &open);
    check_echo(&mut other, b"net pays this");
    drop((stream, other));
    gateway.await_metric("tollgate_connections_active", 0.0);
    gateway.stop();
    assert_eq!((gateway.usage_of("app1").1, gateway.usage_of("net").1), (9, 13));
}

/// Two users that share an address; the attacker guesses the password of one.
fn gateway_of_two(settings: &str) -> Gateway {
    let dir = TestDir::new(settings);
    dir.add_user("ann", "open sesame", "--allow 127.0.0.0/8");
    dir.add_user("bob", "correct horse", "--allow 127.0.0.0/8");
    Gateway::start_in(dir)
}

/// A neighbour behind the same address sends wrong passwords of one user. All users of the address were then
/// refused, with right credentials too: 25 requests a minute locked out an office. Now they lock the guessed
/// user at that address. To lock out a user that never logged in takes ten times as many names and hashes,
/// and users that logged in before stay admitted.
#[test]
fn wrong_passwords_of_one_user_block_no_other() {
    let gateway = gateway_of_two("[auth]\nfailures_per_minute = 2\n");
    let destination = Destination::echo();
    let target = destination.address.to_string();
    let ask = |user: &str, secret: &str| ask_http(&gateway, UNKNOWN_ADDRESS, Some((user, secret)), &target).1;
    // Connections go to either thread.
    let bob_is_in = || (0..12).for_each(|n| assert_eq!(ask("bob", "correct horse"), 200, "{n}"));
    assert_eq!(ask("bob", "correct horse"), 200);
    let statuses: Vec<u16> = (0..25).map(|n| ask("ann", &format!("wrong {n}"))).collect();
    assert!(statuses.starts_with(&[407, 407]) && statuses.contains(&429), "{statuses:?}");
    bob_is_in();
    // The source's own budget: other names, until no new one is checked. The budget grows meanwhile.
    assert!((0..100).any(|n| ask(&format!("eve{n}"), "wrong") == 429));
    bob_is_in();
    // Knowing the name locks nothing: ann is admitted at another address.
    let (_, status) = ask_http(&gateway, TRUSTED, Some(("ann", "open sesame")), &target);
    assert_eq!(status, 200);
}

/// Concurrent guesses were all checked, because none had failed when the last one arrived: 32 instead of the
/// budget, each minute. Now each takes from the budget before its check.
#[test]
fn concurrent_guesses_stay_within_the_budget() {
    let gateway = gateway_of_two("[auth]\nfailures_per_minute = 2\n");
    // As many as a source may have in the queue.
    let guesses: Vec<TcpStream> = (0..24)
        .map(|n| {
            let mut stream = connect_from(UNKNOWN_ADDRESS, gateway.listeners[0]);
            let secret = basic("ann", &format!("wrong {n}"));
            let head = "CONNECT 127.0.0.1:9 HTTP/1.1\r\nHost: 127.0.0.1:9\r\nProxy-Authorization: ";
            write!(stream, "{head}{secret}\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let checked = guesses.into_iter().map(|mut stream| read_response(&mut stream).status);
    let checked = checked.inspect(|status| assert!([407, 429].contains(status), "{status}"));
    // A budget of two in a minute gives one more every 30 seconds.
    let count = checked.filter(|status| *status == 407).count();
    assert!((2..=3).contains(&count), "{count} guesses were checked");
}

/// Wrong passwords from many addresses, each within its budget, need more hashes than are computed: all users
/// that needed a check were refused with 503, for as long as it lasted. An attacker needs an address for each
/// 20 hashes in a minute, and a connection for each. Now unknown clients lose their login, and no user that
/// logged in before from the same address.
#[test]
fn known_users_log_in_while_the_hash_queue_is_full() {
    const ATTACKERS: u32 = 16;
    const LOG_INS: u32 = 20;
    // No cached credentials: every login needs a hash, as the first of a day does.
    let gateway = gateway_of_two("[auth]\ncache_entries = 0\nhash_queue = 8\n");
    let destination = Destination::echo();
    let target = destination.address.to_string();
    let bob = |_: u32| ask_http(&gateway, UNKNOWN_ADDRESS, Some(("bob", "correct horse")), &target).1;
    assert_eq!(bob(0), 200);
    let before = Footprint::measure(&gateway).with_spare(8);

    let (is_over, addresses, refused) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let attack = || {
        while !is_over.load(Ordering::Relaxed) {
            let source = Ipv4Addr::from(0x7f01_0000 + addresses.fetch_add(1, Ordering::Relaxed));
            // A different password each, because equal ones are hashed once.
            let (_, status) = ask_http(&gateway, source, Some(("ann", &source.to_string())), &target);
            refused.fetch_add(u32::from(status == 503), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let _stop = StopOnDrop(&is_over);
        (0..ATTACKERS).for_each(|_| _ = scope.spawn(attack));
        eventually("the queue is full", || refused.load(Ordering::Relaxed) > 0);
        let statuses: Vec<u16> = (0..LOG_INS).map(bob).collect();
        assert_eq!(statuses, [200; LOG_INS as usize]);
    });
    // The ledger opens some files of its own meanwhile.
    before.await_return(&gateway);
}

/// Four unknown sources, each with a dozen wrong passwords in flight, filled the share of unknown sources in
/// the queue: of twelve users that logged in for the first time, each from an address of their own, two
/// succeeded. After a restart that was every login by password. Now a source that has failed yields to one
/// that has not. **Cost**: to delay the login of an unknown client an attacker spends an IPv4 address, or an
/// IPv6 /48, for each hash, and gets it back after an hour: 40 addresses a second where a hash takes 25 ms.
#[test]
fn first_logins_precede_repeated_failures() {
    const SOURCES: u32 = 4;
    const UNDER_WAY: u32 = 6;
    const LOG_INS: u8 = 13;
    let dir = TestDir::new("[auth]\nhash_queue = 16\n");
    (0..LOG_INS).for_each(|n| dir.add_user(&format!("u{n}"), "open sesame", "--allow 127.0.0.0/8"));
    let gateway = Gateway::start_in(dir);
    let destination = Destination::echo();
    let target = destination.address.to_string();
    // The first hash allocates memory that is kept.
    let (_, status) = ask_http(&gateway, TRUSTED, Some(("u0", "open sesame")), &target);
    assert_eq!(status, 200);
    let before = Footprint::measure(&gateway).with_spare(8);

    let (is_over, guesses, refused) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let attack = &|source: Ipv4Addr| {
        while !is_over.load(Ordering::Relaxed) {
            let name = format!("w{}", guesses.fetch_add(1, Ordering::Relaxed));
            let (_, status) = ask_http(&gateway, source, Some((&name, "guess")), &target);
            refused.fetch_add(u32::from(status == 503), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let _stop = StopOnDrop(&is_over);
        for n in 0..SOURCES * UNDER_WAY {
            let source = Ipv4Addr::from(0x7f02_0001 + n % SOURCES);
            scope.spawn(move || attack(source));
        }
        eventually("the queue is full", || refused.load(Ordering::Relaxed) > 0);
        let log_in = |n: u8| {
            let source = Ipv4Addr::new(127, 3, 0, 1 + n);
            ask_http(&gateway, source, Some((&format!("u{n}"), "open sesame")), &target).1
        };
        let statuses: Vec<u16> = (1..LOG_INS).map(log_in).collect();
        assert_eq!(statuses, [200; LOG_INS as usize - 1]);
    });
    // The ledger opens some files of its own meanwhile.
    before.await_return(&gateway);
}

/// Handshakes during a credential check were not evicted for new connections. Wrong credentials from as many
/// sources as there are slots kept all of them, and each new connection evicted the one that was not being
/// checked: a client that had not sent its request yet. **Cost**: 200 connections a second.
#[test]
fn wrong_passwords_in_all_handshakes_block_no_client() {
    const HANDSHAKES: u32 = 16;
    const ROUNDS: u32 = 20;

    let limits = format!("{LOCAL_USER}[limits]\nhandshakes = {HANDSHAKES}\n[threads]\nreactors = 1\n");
    let dir = TestDir::new(&limits);
    dir.add_user("ann", "open sesame", "--allow 127.0.0.0/8");
    let gateway = Gateway::start_in(dir);
    let destination = Destination::echo();
    let target = destination.address.to_string();
    let guess = |number: u32| {
        let source = Ipv4Addr::from(0x7f04_0001 + number);
        let mut stream = connect_from(source, gateway.listeners[0]);
        let login = basic("ann", &number.to_string());
        write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {login}\r\n\r\n")
            .unwrap();
        stream
    };
    let _first = tunnel(&gateway, destination.address);
    let mut accepted = 1.0;
    for round in 0..ROUNDS {
        let mut guesses: Vec<_> = (0..HANDSHAKES).map(|n| guess(round * 100 + n)).collect();
        let mut client = gateway.connect();
        guesses.extend((HANDSHAKES..HANDSHAKES + 6).map(|n| guess(round * 100 + n)));
        accepted += f64::from(HANDSHAKES + 7);
        eventually("all are accepted", || gateway.metric("tollgate_accepted_total") >= Some(accepted));
        client.write_all(connect_request(&target).as_bytes()).unwrap();
        assert_eq!(read_response(&mut client).status, 200, "round {round}");
    }
}
