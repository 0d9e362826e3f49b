//! Requests for a listener of the gateway itself, where the attacker would have the identity of a `from`
//! user.
//!
//! Each costs the attacker one request. Before the fix the harm was the identity of another user, for as long
//! as the gateway ran: it read its own addresses at the start and at a reload, and never in between.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use crate::harness::{Gateway, LOCAL_USER, eventually};
use crate::peers::{
    Destination, ask, ask_socks, check_echo, connect_from, connect_request, read_response, socks_request,
    tunnel,
};

/// Set for the process of a test in its own network namespace.
const OWN_NETWORK: &str = "TOLLGATE_TEST_ALONE";

/// Runs this test again in a network namespace of its own, where addresses can be added; `true` there.
///
/// `false` outside, once the inner run has succeeded, or where the kernel permits no such namespace.
fn in_own_network(test: &str) -> bool {
    if std::env::var_os(OWN_NETWORK).is_some() {
        return true;
    }
    let unshare = ["--map-root-user", "--net"];
    let granted = Command::new("unshare").args(unshare).args(["ip", "link", "set", "lo", "up"]).output();
    if !granted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: `unshare --map-root-user --net` or `ip` is not available");
        return false;
    }
    let mut again = Command::new("unshare");
    again.args(unshare).arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let output = again.env(OWN_NETWORK, "1").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("1 passed"), "no test is called {test}: {printed}");
    false
}

fn ip(line: &str) {
    let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn check_loop_refused(gateway: &Gateway, target: SocketAddr) {
    let (_, response) = ask(gateway, connect_request(&target.to_string()));
    assert_eq!(response.status, 403, "{target}: {response:?}");
    assert!(response.head.contains("error=proxy_loop_detected"), "{target}: {response:?}");
    let (_, reply) = ask_socks(gateway, &socks_request(&target.ip().to_string(), target.port()));
    assert_eq!(reply, 2, "{target}");
    let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
    let (_, response) = ask(gateway, request);
    assert_eq!(response.status, 403, "{target}: {response:?}");
}

#[test]
fn addresses_added_at_run_time_are_own() {
    if !in_own_network("adversary::own_addresses::addresses_added_at_run_time_are_own") {
        return;
    }
    ip("link set lo up");
    let user = LOCAL_USER.replace("allow = [", "allow = [\"10.0.0.0/8\", \"[fd00::]/8\", ");
    // `explain` does not know a kernel-chosen port, and in its own network the test can use a fixed one.
    let addresses = ["0.0.0.0:0", "[::]:0", "0.0.0.0:4128"];
    let everywhere = addresses.map(|address| format!("[[listener]]\naddress = \"{address}\"\n")).concat();
    let gateway = Gateway::start(&format!("{user}{everywhere}"));
    let [_, v4, v6, _] = gateway.listeners[..] else { panic!("{:?}", gateway.listeners) };
    ip("addr add 10.77.0.1/24 dev lo");
    // Linux connects to a secondary address from the primary one: the two ends of the socket differ.
    ip("addr add 10.77.0.2/24 dev lo");
    // No interface has the address of a local route.
    ip("route add local 10.78.0.0/24 dev lo");
    ip("addr add fd00:77::1/128 dev lo nodad");
    for address in ["10.77.0.1", "10.77.0.2", "10.78.0.9"] {
        check_loop_refused(&gateway, SocketAddr::new(address.parse().unwrap(), v4.port()));
        let decision = &gateway.explain(&format!("explain --json --user me --to {address}:4128"))["decision"];
        assert_eq!(decision["code"], "own_address", "{address}: {decision:#}");
        // Other listeners of this machine are not the gateway.
        let destination = TcpListener::bind((address, 0)).unwrap();
        let to = destination.local_addr().unwrap();
        drop(destination);
        let destination = Destination::on(TcpListener::bind(to).unwrap(), crate::peers::echo);
        check_echo(&mut tunnel(&gateway, destination.address), b"another service of this machine");
    }
    let added = SocketAddr::new("fd00:77::1".parse().unwrap(), v6.port());
    // The kernel makes an IPv6 address usable some time after `ip` has returned.
    eventually("the address accepts connections", || TcpStream::connect(added).is_ok());
    check_loop_refused(&gateway, added);
}

/// A request that began before a reload is judged by the configuration of its begin, which does not have the
/// listeners that the reload added.
#[test]
fn request_before_reload_reaches_no_new_listener() {
    let destination = Destination::echo();
    let gateway = Gateway::local("");
    let added = TcpListener::bind("127.0.0.5:0").unwrap().local_addr().unwrap();
    let begin = |request: &str| {
        let mut client = connect_from(Ipv4Addr::LOCALHOST, gateway.listeners[0]);
        client.write_all(&request.as_bytes()[..10]).unwrap();
        client
    };
    let finish = |mut client: TcpStream, request: &str| {
        client.write_all(&request.as_bytes()[10..]).unwrap();
        read_response(&mut client)
    };
    let (attack, valid) =
        (connect_request(&added.to_string()), connect_request(&destination.address.to_string()));
    let clients: Vec<_> = (0..8).map(|_| (begin(&attack), begin(&valid))).collect();
    gateway.await_metric("tollgate_handshakes_active", 16.0);
    gateway.reload(&format!("{LOCAL_USER}[[listener]]\naddress = \"{added}\"\n"));
    // New connections show that each thread has the new configuration.
    for _ in 0..8 {
        assert_eq!(ask(&gateway, &attack).1.status, 403);
    }
    for (attacker, client) in clients {
        let response = finish(attacker, &attack);
        assert_eq!(response.status, 403, "{response:?}");
        assert!(response.head.contains("error=proxy_loop_detected"), "{response:?}");
        assert_eq!(finish(client, &valid).status, 200);
    }
}

/// The kernel cannot know addresses that a router or a container engine forwards to the gateway.
#[test]
fn configured_own_addresses_are_refused() {
    let destination = Destination::echo();
    let own = "[network]\nown_addresses = [\"127.0.0.9\", \"127.0.0.10:4000\"]\n";
    let gateway = Gateway::local(own);
    let (listener, admin) = (gateway.listeners[0].port(), gateway.admin.port());
    for (address, port) in [("127.0.0.9", listener), ("127.0.0.9", admin), ("127.0.0.10", 4000)] {
        check_loop_refused(&gateway, SocketAddr::new(address.parse().unwrap(), port));
    }
    let (_, response) = ask(&gateway, connect_request("127.0.0.9:4000"));
    assert_eq!(response.status, 502, "no socket listens there: {response:?}");
    check_echo(&mut tunnel(&gateway, destination.address), b"as before");
    gateway.reload(&format!("{LOCAL_USER}[network]\nown_addresses = [\"{}\"]\n", destination.address));
    check_loop_refused(&gateway, destination.address);
}
