//! Dials: a user requests names with many silent addresses, to use up the descriptors of other users.
//!
//! Before, a dial kept an attempt for each of up to 16 addresses until its deadline, 10 seconds, and `doctor`
//! counted one. An attacker spent a request for 15 descriptors; with the default 1,000 connections that was
//! 15,000 beside the two of each connection. Now a dial has three attempts at most. Two of these come from a
//! pool that `doctor` counts, and no user takes more than a share of it.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::footprint::Footprint;
use super::valid_user::ValidUser;
use crate::harness::{Gateway, eventually};
use crate::name_server::NameServer;
use crate::origin::{Origin, ok};
use crate::peers::{Destination, ask, connect_from, connect_request, read_response, silent_at};

const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The most attempts of one dial at a time, and of all dials of a thread beside their first ones.
const ATTEMPTS_MAX: usize = 3;
const EXTRAS_MAX: usize = 256;

/// Silent addresses, as many as a name may have.
const SILENT: u8 = 16;

/// One port of several addresses, of which each drops its packets.
struct Blackhole {
    port: u16,
    _held: Vec<(TcpListener, Vec<TcpStream>)>,
}

impl Blackhole {
    fn address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 77, 0, number + 1)
    }

    /// The first `count` addresses are silent; the next one is the returned listener's.
    fn start(count: u8) -> (Blackhole, TcpListener) {
        loop {
            let listener = TcpListener::bind((Blackhole::address(count), 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let silent = |number| silent_at(SocketAddr::from((Blackhole::address(number), port)));
            let held: Option<Vec<_>> = thread::scope(|scope| {
                let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || silent(number))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            // Otherwise the port is taken at one of the addresses.
            if let Some(held) = held {
                return (Blackhole { port, _held: held }, listener);
            }
        }
    }
}

/// A gateway for two users. Its name server gives `silent.test` all [`SILENT`] addresses, `late.test` those
/// before `late` and then the listener's, and other names an address of this machine.
fn gateway(late: usize, extra: &str) -> Gateway {
    let silent: Vec<IpAddr> = (0..SILENT).map(|number| Blackhole::address(number).into()).collect();
    let server = NameServer::start(move |name| match name {
        "late.test" => [&silent[..late], &[Blackhole::address(SILENT).into()]].concat(),
        "silent.test" => silent.clone(),
        _ => vec![Ipv4Addr::LOCALHOST.into()],
    });
    let user = |name: &str, address: &str| {
        format!("[[user]]\nname = \"{name}\"\nfrom = [\"{address}/32\"]\nallow = [\"@names\"]\n")
    };
    Gateway::start(&format!(
        "{}{}{}[destinations.names]\nto = [\"*.test\", \"silent.test\", \
         \"late.test\", \"quick.test\"]\nclass = \"internal\"\n{extra}",
        server.configuration(),
        user("me", "127.0.0.1"),
        user("greedy", "127.0.0.2"),
    ))
}

#[test]
fn dial_passes_silent_addresses_with_three_attempts() {
    const LATE: usize = 6;
    let (blackhole, listener) = Blackhole::start(SILENT);
    let destination = Destination::on(listener, drop);
    let gateway = gateway(LATE, "[threads]\nreactors = 1\n");
    // The start opens this socket last.
    eventually("the control socket is open", || gateway.path("tollgate-data/control").exists());
    let without = gateway.sockets();
    // From here on the name is cached. The admin side gets no request: its connections are sockets too.
    assert_eq!(ask(&gateway, connect_request("late.test:1")).1.status, 502);
    eventually("sockets are closed again", || gateway.sockets() <= without);

    let mut client = gateway.connect();
    let request = connect_request(&format!("late.test:{}", blackhole.port));
    let seen = thread::scope(|scope| {
        let dial = scope.spawn(|| {
            client.write_all(request.as_bytes()).unwrap();
            read_response(&mut client).status
        });
        let mut seen = BTreeSet::new();
        while !dial.is_finished() {
            seen.insert(gateway.sockets());
        }
        assert_eq!(dial.join().unwrap(), 200);
        seen
    });
    assert!(seen.last() <= Some(&(without + 1 + ATTEMPTS_MAX)), "{without} before the client: {seen:?}");
    eventually("the destination is reached", || destination.accepted() == 1);
    // Each attempt after the third replaced an earlier one.
    let replaced = gateway.metric("tollgate_dial_attempts_replaced_total").unwrap();
    assert_eq!(replaced, (LATE + 1 - ATTEMPTS_MAX) as f64);
    gateway.await_metric("tollgate_dial_extra_attempts", 0.0);
}

#[test]
fn dials_of_one_user_leave_attempts_to_others() {
    const DIALS: usize = 400;
    const REACTORS: usize = 2;
    let (blackhole, listener) = Blackhole::start(SILENT);
    Destination::on(listener, drop);
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let gateway = gateway(1, "[timeouts]\nconnect = \"4s\"\n");
    let mut valid_user = ValidUser::new(&gateway, &origin, &echo).with_hosts(|_| "quick.test".into());
    valid_user.check_served(6);
    let has_recorded = || gateway.metric("tollgate_ledger_records_total") >= Some(1.0);
    eventually("the ledger has its first record", has_recorded);
    let before = Footprint::measure(&gateway);

    let request = connect_request(&format!("silent.test:{}", blackhole.port));
    let pending: Vec<_> = (0..DIALS)
        .map(|_| {
            let mut stream = connect_from(GREEDY, gateway.listeners[0]);
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let extras = || gateway.metric("tollgate_dial_extra_attempts").unwrap();
    let mut most = 0.0;
    eventually("the attacker has used up its share", || {
        most = extras().max(most);
        gateway.metric("tollgate_dial_extra_refused_total") > Some(0.0)
    });
    valid_user.check_served(100);
    // Where the first address is silent, the second one gets an extra attempt.
    let late = connect_request(&format!("late.test:{}", blackhole.port));
    assert_eq!(ask(&gateway, &late).1.status, 200);
    assert!(extras().max(most) <= (REACTORS * EXTRAS_MAX / 2) as f64, "half of all extra attempts");
    let (taken, spare) = (gateway.descriptors() - before.descriptors, 32);
    assert!(taken <= 2 * DIALS + REACTORS * EXTRAS_MAX / 2 + spare, "{taken}");

    drop(pending);
    before.await_return(&gateway);
    gateway.await_metric("tollgate_dial_extra_attempts", 0.0);
    assert_eq!(gateway.metric("tollgate_task_panics_total"), Some(0.0));
}
