//! Silent connections: they occupy every handshake, and clients with a request wait behind them.
//!
//! The attack: connections that send nothing, or that stay open behind a refusal, held all of `[limits]
//! handshakes` for `[timeouts] greeting` each, and the next 2,000 were in the kernel's queue already.
//! **Cost**: 200 connections a second from one address denied the gateway to all users, for as long as the
//! attack lasted. Now a new connection evicts the oldest handshake of the source that holds most. To lock out
//! a client that sends its request at once, an attacker has to open as many connections as there are
//! handshakes within that client's round trip, from addresses of which none holds more than the client's own.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use super::footprint::Footprint;
use super::valid_user::ValidUser;
use crate::harness::{Gateway, LOCAL_USER};
use crate::origin::{Origin, exchange, ok};
use crate::peers::{
    Destination, check_echo, connect_from, connect_request, read_exactly, read_reply, read_response,
    socks_request, tunnel,
};

const HANDSHAKES: usize = 64;
/// The address of the valid user, as in all tests.
const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// An address without a user.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn gateway() -> Gateway {
    gateway_with(HANDSHAKES)
}

fn gateway_with(handshakes: usize) -> Gateway {
    // The test has both ends of thousands of connections.
    sys::limits::raise_descriptors().unwrap();
    let limits = format!("[limits]\nhandshakes = {handshakes}\n[threads]\nreactors = 1\n");
    Gateway::start(&format!("{LOCAL_USER}{limits}"))
}

/// Attacks by `open`, a connection for each number, while a valid user is served.
fn attack(attackers: usize, open: impl Fn(&Gateway, usize) -> TcpStream) {
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let gateway = gateway();
    let mut valid_user = ValidUser::new(&gateway, &origin, &echo);
    valid_user.check_served(3);
    gateway.await_metric("tollgate_ledger_records_total", 3.0);
    let before = Footprint::measure(&gateway);
    let mut open_ones = Vec::new();
    for number in 0..attackers {
        open_ones.push(open(&gateway, number));
        if number > 2 * HANDSHAKES && number % 20 == 0 {
            valid_user.check_served(1);
        }
    }
    valid_user.check_served(100);
    // The user's kept connection and its upstream are the gateway's too.
    let held = gateway.descriptors();
    assert!(held <= before.descriptors + HANDSHAKES + 2, "{held} descriptors, {} before", before.descriptors);
    drop(open_ones);
    drop(valid_user);
    before.await_return(&gateway);
    assert_eq!(gateway.metric("tollgate_task_panics_total"), Some(0.0));
}

#[test]
fn silent_connections_of_one_source_block_no_user() {
    attack(2000, |gateway, _| connect_from(ATTACKER, gateway.listeners[0]));
}

#[test]
fn silent_connections_of_own_address_block_no_user() {
    attack(2000, |gateway, _| connect_from(LOCAL, gateway.listeners[0]));
}

#[test]
fn silent_connections_of_many_sources_block_no_user() {
    attack(2000, |gateway, number| {
        let last = u8::try_from(number % 200).unwrap();
        connect_from(Ipv4Addr::new(127, 0, 1, last), gateway.listeners[0])
    });
}

/// Regression: where one handshake at a time is evicted, its slot went to the next connection, and none was
/// accepted any more: fewer than 32 handshakes a thread limited all connections.
#[test]
fn silent_connections_block_no_user_at_few_handshakes() {
    for handshakes in [1, 2, 31] {
        let (gateway, echo) = (gateway_with(handshakes), Destination::echo());
        let silent: Vec<_> = (0..100).map(|_| connect_from(ATTACKER, gateway.listeners[0])).collect();
        for _ in 0..3 {
            check_echo(&mut tunnel(&gateway, echo.address), b"served");
        }
        drop(silent);
    }
}

/// The attack of `unknown_clients` with both parts in one packet: such a connection waited in a task, of
/// which a thread has 16,384.
#[test]
fn refused_client_with_early_bytes_stays_a_handshake() {
    attack(300, |gateway, _| {
        let mut stream = connect_from(ATTACKER, gateway.listeners[0]);
        assert_eq!(
            exchange(&mut stream, "GET http://127.0.0.1:9/ HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\nG").status,
            407
        );
        stream
    });
}

/// A client that reads no response is evicted like one that sends no request.
#[test]
fn lingering_refused_clients_block_no_user() {
    attack(300, |gateway, _| {
        let mut stream = connect_from(ATTACKER, gateway.listeners[0]);
        stream.write_all(b"CONNECT 127.0.0.1:9 HTTP/1.1\r\n\r\n").unwrap();
        stream
    });
}

/// One address is that of many clients behind a NAT: while there is capacity none is evicted, however slow.
#[test]
fn slow_clients_of_one_address_are_served_below_limit() {
    const CLIENTS: usize = HANDSHAKES / 2;
    let echo = Destination::echo();
    let gateway = gateway();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| gateway.connect()).collect();
    clients.iter_mut().for_each(|client| client.write_all(&[5, 1]).unwrap());
    gateway.await_metric("tollgate_handshakes_active", CLIENTS as f64);
    for client in &mut clients {
        client.write_all(&[0]).unwrap();
        assert_eq!(read_exactly(client, 2), [5, 0]);
        client.write_all(&socks_request("127.0.0.1", echo.address.port())).unwrap();
        assert_eq!(read_reply(client), 0);
        check_echo(client, b"served");
    }
}

/// Dials of users occupied the handshakes of new connections, for as long as a destination was silent.
#[test]
fn dialling_tunnels_hold_no_handshake() {
    let (silent, _held) = crate::peers::silent_destination();
    let gateway = gateway();
    let request = connect_request(&silent.local_addr().unwrap().to_string());
    let dialling: Vec<_> = (0..2 * HANDSHAKES)
        .map(|_| {
            let mut stream = gateway.connect();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    gateway.await_metric("tollgate_handshakes_active", 2.0 * HANDSHAKES as f64);
    let echo = Destination::echo();
    let mut stream = gateway.connect();
    stream.write_all(connect_request(&echo.address.to_string()).as_bytes()).unwrap();
    assert_eq!(read_response(&mut stream).status, 200);
    drop(dialling);
}
