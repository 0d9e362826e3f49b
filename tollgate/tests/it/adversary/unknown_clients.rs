//! Refused clients that stay connected: they hold a handshake for the greeting's time, and never a permit of
//! a user.
//!
//! The attack: after a 407 for a request without credentials the connection had one of `[limits]
//! connections`, for which it had proven nothing. With the first byte of a next request it could not be
//! evicted before the greeting deadline, and got another such deadline behind each further refusal. **Cost**:
//! a connection and 60 bytes every 8 s for each permit; 70 kB/s deny the 9,000 permits of a default
//! configuration, to all users, for as long as the attack lasts. Now such a connection costs a handshake for
//! 10 s at most.

use std::io::Write;
use std::net::TcpStream;

use super::footprint::Footprint;
use crate::harness::{Gateway, TestDir};
use crate::origin::{Origin, ask_once, exchange, ok, read_response_to};
use crate::peers::{Destination, basic, check_echo, check_ended, connect_request};

const CONNECTIONS: usize = 20;

/// A gateway with few permits, and the credentials of ann.
fn gateway(extra: &str) -> (Gateway, String) {
    let dir = TestDir::new(&format!("[limits]\nconnections = {CONNECTIONS}\n{extra}"));
    dir.add_user("ann", "correct horse", "--allow 127.0.0.0/8");
    (Gateway::start_in(dir), format!("Proxy-Authorization: {}\r\n", basic("ann", "correct horse")))
}

/// The requests of a valid user, and how many succeeded.
#[derive(Debug, Default)]
struct Counts {
    requested: u32,
    served: u32,
}

impl Counts {
    /// Sends the request `times` times, each on a connection of its own.
    fn ask(&mut self, gateway: &Gateway, request: &str, times: u32) {
        self.requested += times;
        self.served += (0..times).map(|_| u32::from(ask_once(gateway, request).status == 200)).sum::<u32>();
    }

    #[track_caller]
    fn check(&self) {
        assert!(100 * self.served >= 99 * self.requested, "{self:?}");
    }
}

#[test]
fn refused_clients_with_early_bytes_hold_no_permit() {
    let origin = Origin::responding(ok("hello"));
    let (gateway, credentials) = gateway("");
    let known = origin.ask("GET", "/", &credentials);
    let mut counts = Counts::default();
    // Warm up, so that resources of the first use are held before the measurement, also the ledger's file of
    // this month.
    counts.ask(&gateway, &known, 1);
    gateway.await_metric("tollgate_ledger_records_total", 1.0);
    gateway.await_metric("tollgate_sessions_resting", 0.0);
    let before = Footprint::measure(&gateway);
    let refused_with_byte = |stream: &mut TcpStream| {
        assert_eq!(exchange(stream, origin.get("/")).status, 407);
        stream.write_all(b"G").unwrap();
    };
    for _ in 0..3 {
        let mut attackers: Vec<_> = (0..CONNECTIONS).map(|_| gateway.connect()).collect();
        attackers.iter_mut().for_each(refused_with_byte);
        counts.ask(&gateway, &known, 30);
    }
    counts.check();
    gateway.await_metric("tollgate_ledger_records_total", f64::from(counts.requested));
    before.await_return(&gateway);
}

/// The attack by a user: their idle connections could be evicted, but not those with one byte of a next
/// request.
#[test]
fn connection_with_partial_head_is_evicted_as_idle() {
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let (gateway, credentials) = gateway("[threads]\nreactors = 1\n");
    let known = origin.ask("GET", "/", &credentials);
    let mut waiting: Vec<_> = (0..CONNECTIONS).map(|_| gateway.connect()).collect();
    for stream in &mut waiting {
        assert_eq!(exchange(stream, &known).text(), "hello");
        stream.write_all(&known.as_bytes()[..1]).unwrap();
    }
    let connect = connect_request(&echo.address.to_string()).replacen("\r\n\r\n", "\r\n", 1);
    let mut tunnels = Vec::new();
    for _ in 0..CONNECTIONS / 2 {
        let mut stream = gateway.connect();
        stream.write_all(format!("{connect}{credentials}\r\n").as_bytes()).unwrap();
        assert_eq!(read_response_to("HEAD", &mut stream).status, 200);
        check_echo(&mut stream, b"there is a permit");
        tunnels.push(stream);
    }
    let (ended, live) = waiting.split_at_mut(CONNECTIONS / 2);
    for stream in ended {
        check_ended(stream, false);
    }
    for stream in live {
        assert_eq!(exchange(stream, &known.as_bytes()[1..]).text(), "hello", "a head in two parts");
    }
}

#[test]
fn unauthenticated_client_has_three_tries() {
    let origin = Origin::responding(ok("hello"));
    let (gateway, credentials) = gateway("[timeouts]\ngreeting = \"2s\"\n");
    let unknown = origin.get("/");
    let mut stream = gateway.connect();
    for closes in [None, None, Some("close")] {
        let response = exchange(&mut stream, &unknown);
        assert_eq!((response.status, response.header("Connection")), (407, closes));
    }
    check_ended(&mut stream, false);

    // A refused client that sends no more gets no 408.
    let mut silent = gateway.connect();
    assert_eq!(exchange(&mut silent, &unknown).status, 407);
    check_ended(&mut silent, false);

    let mut late = gateway.connect();
    assert_eq!(exchange(&mut late, &unknown).status, 407);
    late.write_all(&unknown.as_bytes()[..9]).unwrap();
    assert_eq!(read_response_to("GET", &mut late).status, 408);
    check_ended(&mut late, false);

    // The same connection has a deadline for each request once its user is known.
    let mut known = gateway.connect();
    assert_eq!(exchange(&mut known, &unknown).status, 407);
    for _ in 0..3 {
        assert_eq!(exchange(&mut known, origin.ask("GET", "/", &credentials)).text(), "hello");
        assert_eq!(exchange(&mut known, &unknown).status, 407);
    }
}

/// As curl, browsers, Java and apt do it: the first request without credentials, with its body, and all of it
/// again on the same connection.
#[test]
fn refused_request_is_repeated_on_its_connection() {
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let (gateway, credentials) = gateway("");
    for length in [0, 5, 60_000] {
        let lines = format!("Content-Length: {length}\r\n");
        let body = "x".repeat(length);
        let mut stream = gateway.connect();
        let response = exchange(&mut stream, origin.ask("POST", "/", &lines) + &body);
        assert_eq!((response.status, response.header("Connection")), (407, None), "{length}");
        let again = origin.ask("POST", "/", &format!("{lines}{credentials}")) + &body;
        assert_eq!(exchange(&mut stream, again).text(), "hello", "{length}");
        assert_eq!(origin.next().body.len(), length);
    }
    let mut stream = gateway.connect();
    assert_eq!(exchange(&mut stream, origin.get("/")).status, 407);
    let connect = format!("CONNECT {} HTTP/1.1\r\n{credentials}\r\n", echo.address);
    stream.write_all(connect.as_bytes()).unwrap();
    assert_eq!(read_response_to("HEAD", &mut stream).status, 200);
    check_echo(&mut stream, b"a tunnel behind a refusal");
}
