//! Deadlines of requests: each wait ends, with an answer where one can still be given.

use std::io::{ErrorKind, Write};

use crate::harness::Gateway;
use crate::origin::{Origin, exchange, ok, read_answer_to, read_head, request_to};
use crate::peers::{Destination, check_ended, read_exactly};

#[test]
fn an_origin_that_does_not_answer_is_504_and_a_client_that_does_not_go_on_408() {
    let destination = Destination::start(|mut stream| {
        // Never a word, until the gateway ends it.
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
        let answer = exchange(&mut stream, request);
        assert_eq!(answer.status, status, "{lines}{answer:?}");
        assert_eq!(answer.header("Proxy-Status"), Some(&*format!("tollgate; error={error}")));
        gateway.check_closed(stream.local_addr().unwrap(), "idle_timeout");
    }
}

#[test]
fn an_answer_that_stalls_is_cut_off_so_that_nobody_takes_it_for_whole() {
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
fn a_client_that_ended_its_direction_is_not_waited_with_for_long() {
    let destination = Destination::start(|mut stream| {
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    });
    let gateway = Gateway::local("[timeouts]\nhalf_closed = \"1s\"\n");
    let mut stream = gateway.connect();
    let address = destination.address;
    stream.write_all(request_to(address, "GET", "/", "").as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_answer_to("GET", &mut stream).status, 504);
    gateway.check_closed(stream.local_addr().unwrap(), "half_closed_timeout");
}

#[test]
fn a_client_that_reads_no_answer_is_not_waited_for() {
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let refused = request_to("192.0.2.1", "GET", "/", "").repeat(1000);
    // Until the gateway, whose answers nobody reads, reads no more either, and gives up.
    let given_up = loop {
        if let Err(error) = stream.write_all(refused.as_bytes()) {
            break error;
        }
    };
    assert!(matches!(given_up.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{given_up}");
}

#[test]
fn who_rests_for_too_long_is_closed_and_who_drips_a_next_request_gets_408() {
    let origin = Origin::saying(ok("hello"));
    let gateway = Gateway::local("[timeouts]\nkeep_alive = \"1s\"\ngreeting = \"500ms\"\n");
    let (mut silent, mut dripping) = (gateway.connect(), gateway.connect());
    assert_eq!(exchange(&mut silent, origin.get("/")).text(), "hello");
    assert_eq!(exchange(&mut dripping, origin.get("/")).text(), "hello");
    dripping.write_all(b"GET http://").unwrap();
    assert_eq!(read_answer_to("GET", &mut dripping).status, 408);
    check_ended(&mut silent, false);
    gateway.await_metric("tollgate_sessions_resting", 0.0);
    assert_eq!(gateway.metric("tollgate_handshakes_active"), Some(0.0));
}
