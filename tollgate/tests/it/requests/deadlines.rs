//! Deadlines of requests: each wait ends, with a response where one can still be sent.

use std::io::Write;
use std::thread;

use crate::harness::Gateway;
use crate::origin::{Origin, exchange, ok, read_head, read_response_to, request_to};
use crate::peers::{Destination, check_ended, read_exactly};

#[test]
fn silent_origin_is_504_and_stalled_client_408() {
    let destination = Destination::start(|mut stream| {
        // Sends nothing, until the gateway closes the connection.
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    });
    let gateway = Gateway::local("[timeouts]\nidle = \"1s\"\n");
    let address = destination.address;
    for (lines, sent, status, error) in [
        ("", "", 504, "http_response_timeout"),
        ("Content-Length: 9\r\n", "part", 408, "http_request_error"),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhel", 408, "http_request_error"),
    ] {
        let mut stream = gateway.connect();
        let request = request_to(address, "POST", "/", lines) + sent;
        let response = exchange(&mut stream, request);
        assert_eq!(response.status, status, "{lines}{response:?}");
        assert_eq!(response.header("Proxy-Status"), Some(&*format!("tollgate; error={error}")));
        gateway.check_closed(stream.local_addr().unwrap(), "idle_timeout");
    }
}

#[test]
fn stalled_response_ends_with_a_reset() {
    let destination = Destination::start(|mut stream| {
        read_head(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\npart").unwrap();
        let _ = std::io::Read::read(&mut stream, &mut [0]);
    });
    for (timeout, reason) in [("idle = \"1s\"", "idle_timeout"), ("lifetime = \"1s\"", "lifetime_timeout")] {
        let gateway = Gateway::local(&format!("[timeouts]\n{timeout}\n"));
        let mut stream = gateway.connect();
        let address = destination.address;
        stream.write_all(request_to(address, "GET", "/", "").as_bytes()).unwrap();
        read_head(&mut stream).unwrap();
        assert_eq!(read_exactly(&mut stream, 4), b"part");
        check_ended(&mut stream, true);
        gateway.check_closed(stream.local_addr().unwrap(), reason);
    }
}

#[test]
fn half_closed_client_waits_within_half_closed() {
    let destination = Destination::start(|mut stream| {
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    });
    let gateway = Gateway::local("[timeouts]\nhalf_closed = \"1s\"\n");
    let mut stream = gateway.connect();
    let address = destination.address;
    stream.write_all(request_to(address, "GET", "/", "").as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_response_to("GET", &mut stream).status, 504);
    gateway.check_closed(stream.local_addr().unwrap(), "half_closed_timeout");
}

/// The kernel keeps the unread responses for a minute at most; the tests of `flow/closing.rs` have a shorter
/// bound, and see the reset.
#[test]
fn client_that_reads_no_response_is_closed() {
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let refused = request_to("192.0.2.1", "GET", "/", "").repeat(1000);
    thread::scope(|scope| {
        // Until the gateway, whose responses are unread, stops reading, and closes the connection.
        let client = scope.spawn(|| while stream.write_all(refused.as_bytes()).is_ok() {});
        gateway.await_metric("tollgate_connections_closing", 1.0);
        gateway.await_metric("tollgate_handshakes_active", 0.0);
        assert!(!client.is_finished(), "the connection was closed in order, not reset");
        drop(gateway);
    });
}

#[test]
fn idle_client_is_closed_and_dripping_client_gets_408() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("[timeouts]\nkeep_alive = \"1s\"\ngreeting = \"500ms\"\n");
    let (mut silent, mut dripping) = (gateway.connect(), gateway.connect());
    assert_eq!(exchange(&mut silent, origin.get("/")).text(), "hello");
    assert_eq!(exchange(&mut dripping, origin.get("/")).text(), "hello");
    dripping.write_all(b"GET http://").unwrap();
    assert_eq!(read_response_to("GET", &mut dripping).status, 408);
    check_ended(&mut silent, false);
    gateway.await_metric("tollgate_sessions_resting", 0.0);
    assert_eq!(gateway.metric("tollgate_handshakes_active"), Some(0.0));
}
