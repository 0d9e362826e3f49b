//! A log flood: clients whose requests are refused at the highest rate.
//!
//! Regression: each refusal was a line of some 350 bytes, and a pipelining client without credentials causes
//! 10,000 and more of them a second by one connection. The ring of its thread overflowed, so lines of others
//! were lost, and a log on the ledger's disk filled it in hours, which stops the gateway.
//!
//! The attacker's cost now: a source has 20 lines at once for each reason and one a second. A further
//! refusal, some 100 bytes sent, only increments a count. All sources together have 20 lines a second, 0.7 GB
//! a day, and no line once the log's disk is nearly full.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use super::footprint::Footprint;
use crate::harness::{Gateway, LOCAL_USER, LOG};
use crate::peers::{Destination, basic, check_echo, connect_from, connect_request, tunnel};

/// An address without a user.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// Requests of the attack by all its connections.
const REQUESTS: usize = 12_000;

/// Requests of a connection, as many as are pipelined, unless the gateway closes it earlier.
const PIPELINED: usize = 500;

/// Sends `request` `count` times from `source`, pipelined, and reads the responses.
fn pipeline(gateway: &Gateway, source: Ipv4Addr, request: &str, count: usize) {
    let mut left = count;
    while left > 0 {
        let stream = connect_from(source, gateway.listeners[0]);
        let batch = request.repeat(PIPELINED.min(left));
        let mut sending: TcpStream = stream.try_clone().unwrap();
        let answered = thread::scope(|scope| {
            scope.spawn(move || {
                // The gateway may end the connection behind some refusals.
                let _ = sending.write_all(batch.as_bytes());
                let _ = sending.shutdown(Shutdown::Write);
            });
            count_responses(stream)
        });
        assert!(answered > 0, "each connection gets at least one response");
        left = left.saturating_sub(answered);
    }
}

/// Counts the responses until the end.
fn count_responses(mut stream: TcpStream) -> usize {
    let (mut text, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    // The gateway may reset the connection behind the last response.
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        text.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(text).unwrap().matches("HTTP/1.1 4").count()
}

/// Opens tunnels of a valid user, one after another, until `is_over`; returns the number of attempts, and the
/// client addresses of those that were opened.
fn tunnels(gateway: &Gateway, to: &Destination, is_over: &AtomicBool) -> (usize, Vec<String>) {
    let (mut attempted, mut clients) = (0, Vec::new());
    while !is_over.load(Ordering::SeqCst) || attempted < 20 {
        attempted += 1;
        let mut stream = tunnel(gateway, to.address);
        check_echo(&mut stream, b"still here");
        clients.push(stream.local_addr().unwrap().to_string());
    }
    (attempted, clients)
}

/// Logged refusals of `source`, by reason: the lines, and the counted ones without a line.
fn refusals(log: &[Value], source: Ipv4Addr) -> BTreeMap<String, (u64, u64)> {
    let (source, mut sums) = (source.to_string(), BTreeMap::<String, (u64, u64)>::new());
    for line in log {
        let reason = line["reason"].as_str().unwrap_or_default().to_owned();
        let client = line["client_addr"].as_str().unwrap_or_default();
        if line["event"] == "decision" && client.starts_with(&source) {
            sums.entry(reason).or_default().0 += 1;
        } else if line["event"] == "left_out" && line["source"] == source.as_str() {
            sums.entry(reason).or_default().1 += line["count"].as_u64().unwrap();
        }
    }
    sums
}

#[test]
fn anonymous_refusals_displace_no_log_line() {
    let destination = Destination::echo();
    let limits = "[limits]\nconnections_per_user = 100\n";
    let mut gateway = Gateway::start(&format!("{LOG}decisions = \"all\"\n{LOCAL_USER}{limits}"));
    let request = "GET http://dest.example/ HTTP/1.1\r\nHost: dest.example\r\n\r\n";
    // Warm up, so that resources of the first use are held before the measurement.
    pipeline(&gateway, ATTACKER, request, 10);
    let first = tunnel(&gateway, destination.address).local_addr().unwrap().to_string();
    gateway.await_metric("tollgate_connections_active", 0.0);
    gateway.await_metric("tollgate_handshakes_active", 0.0);
    gateway.await_metric("tollgate_ledger_records_total", 1.0);
    let denied = gateway.metric("tollgate_denied_total").unwrap();
    let before = Footprint::measure(&gateway);

    let is_over = AtomicBool::new(false);
    let (attempted, mut clients) = thread::scope(|scope| {
        let user = scope.spawn(|| tunnels(&gateway, &destination, &is_over));
        pipeline(&gateway, ATTACKER, request, REQUESTS);
        is_over.store(true, Ordering::SeqCst);
        user.join().unwrap()
    });
    assert!(clients.len() * 100 >= attempted * 99, "{} of {attempted} tunnels", clients.len());
    gateway.await_metric("tollgate_connections_active", 0.0);
    before.await_return(&gateway);
    let denied = gateway.metric("tollgate_denied_total").unwrap() - denied;
    assert!(denied >= REQUESTS as f64, "the attack was refused: {denied}");
    assert_eq!(gateway.metric("tollgate_log_dropped_total"), Some(0.0));
    let before = gateway.metric("tollgate_denied_total").unwrap();
    gateway.stop();

    let log = gateway.log();
    clients.push(first);
    for client in &clients {
        // The kernel may give a port to two tunnels, one after the other.
        let times = clients.iter().filter(|other| *other == client).count();
        for event in ["decision", "close"] {
            let is_its = |line: &&Value| line["client_addr"] == client.as_str() && line["event"] == event;
            assert_eq!(log.iter().filter(is_its).count(), times, "{event} of {client}");
        }
    }
    let sums = refusals(&log, ATTACKER);
    let (logged, left_out) = sums.values().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    assert_eq!(logged + left_out, before as u64, "refusals without a line are counted: {sums:?}");
    assert!(left_out > logged, "most refusals have no line: {sums:?}");
    let attack_bytes: usize = fs::read_to_string(gateway.path("log.jsonl"))
        .unwrap()
        .lines()
        .filter(|line| line.contains(&ATTACKER.to_string()))
        .map(|line| line.len() + 1)
        .sum();
    // 100 bytes for each refusal, where a line has some 350.
    assert!(attack_bytes < 100 * REQUESTS, "the log grew by {attack_bytes} bytes");
}

#[test]
fn repeated_denials_of_a_user_displace_no_log_line() {
    let destination = Destination::echo();
    let mut gateway = Gateway::local("");
    let request = "GET http://192.0.2.1/ HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n";
    let from = Ipv4Addr::LOCALHOST;
    let is_over = AtomicBool::new(false);
    let (_, clients) = thread::scope(|scope| {
        let user = scope.spawn(|| tunnels(&gateway, &destination, &is_over));
        pipeline(&gateway, from, request, REQUESTS);
        is_over.store(true, Ordering::SeqCst);
        user.join().unwrap()
    });
    gateway.await_metric("tollgate_connections_active", 0.0);
    let denied = gateway.metric("tollgate_denied_total").unwrap() as u64;
    gateway.stop();
    let log = gateway.log();
    let closed = log.iter().filter(|line| line["event"] == "close").count();
    assert_eq!(closed, clients.len());
    assert!(!log.iter().any(|line| line["event"] == "log_dropped"));
    let logged = log.iter().filter(|line| line["decision"] == "deny").count() as u64;
    let left_out: u64 = log
        .iter()
        .filter(|line| line["event"] == "left_out" && line["user"] == "me")
        .map(|line| line["count"].as_u64().unwrap())
        .sum();
    // The number of lines depends on the rate; the unit tests of the line limiter have the bounds.
    assert_eq!(logged + left_out, denied);
}

#[test]
fn wrong_password_is_logged_by_name_during_a_flood() {
    let gateway = Gateway::local("[auth]\nfailures_per_minute = 100\n");
    pipeline(
        &gateway,
        ATTACKER,
        &connect_request("dest.example:7").replace("CONNECT", "GET http://a/ HTTP/1.1\r\nX:"),
        200,
    );
    let credentials = basic("root", "guess");
    let guess = format!("CONNECT a:1 HTTP/1.1\r\nProxy-Authorization: {credentials}\r\n\r\n");
    pipeline(&gateway, ATTACKER, &guess, 1);
    let line = gateway.await_log_line("the guess", |line| line["reason"] == "credentials_wrong");
    assert_eq!(line["attempted_user"], "root");
}
