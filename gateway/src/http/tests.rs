//! Plain HTTP on a simulated kernel: requests and responses in any parts, and connections that end between.

mod runs;

use std::time::Duration;

use ledger::record::CloseReason;

use crate::simulation::Pair;

const GET: &[u8] = b"GET http://93.184.216.1:443/path HTTP/1.1\r\nHost: 93.184.216.1:443\r\n\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";

const CHUNKED: &[u8] =
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1;name=value\r\ny\r\n0\r\n\r\n";

#[test]
fn request_in_single_bytes_is_the_same_request() {
    let mut pair = Pair::new("");
    let client = pair.connect();
    pair.send(&client, GET);
    let upstream = pair.accept();
    let whole = pair.receive(&upstream);
    assert!(whole.starts_with(b"GET /path HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&whole));
    pair.send(&upstream, RESPONSE);
    let response = pair.receive(&client);
    assert!(response.ends_with(b"\r\n\r\nbody"), "{}", String::from_utf8_lossy(&response));
    for byte in GET {
        pair.send(&client, &[*byte]);
    }
    assert_eq!(pair.receive(&upstream), whole);
    for byte in RESPONSE {
        pair.send(&upstream, &[*byte]);
    }
    assert_eq!(without_date(&pair.receive(&client)), without_date(&response));
    let bill = pair.stop();
    let completed: Vec<_> =
        bill.iter().map(|flow| (flow.requests, flow.up, flow.down, flow.reason)).collect();
    let (up, down) = (whole.len() as u64, response.len() as u64);
    assert_eq!(completed, [(2, 2 * up, 2 * down, CloseReason::Completed)]);
}

/// A response head may tell the time, which passes.
fn without_date(response: &[u8]) -> String {
    let text = String::from_utf8_lossy(response);
    text.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("date:")).collect()
}

#[test]
fn chunked_response_in_single_bytes_is_whole() {
    let mut pair = Pair::new("");
    let client = pair.connect();
    pair.send(&client, GET);
    let upstream = pair.accept();
    let mut received = Vec::new();
    for byte in CHUNKED {
        pair.send(&upstream, &[*byte]);
        received.extend(pair.receive(&client));
    }
    let text = String::from_utf8_lossy(&received);
    assert!(text.contains("bod") && text.contains('y') && text.ends_with("0\r\n\r\n"), "{text}");
    let bill = pair.stop();
    assert_eq!((bill[0].down, bill[0].reason), (received.len() as u64, CloseReason::Completed));
}

#[test]
fn response_cut_by_a_reset_is_billed_as_sent() {
    let mut pair = Pair::new("");
    let client = pair.connect();
    pair.send(&client, GET);
    let upstream = pair.accept();
    pair.send(&upstream, &RESPONSE[..RESPONSE.len() - 2]);
    let received = pair.receive(&client);
    assert!(received.ends_with(b"bo"));
    upstream.reset();
    assert!(pair.is_closed(&client));
    let bill = pair.stop();
    assert_eq!((bill[0].down, bill[0].reason), (received.len() as u64, CloseReason::UpstreamReset));
}

#[test]
fn closed_upstream_is_replaced_for_the_next_request() {
    let mut pair = Pair::new("");
    let client = pair.connect();
    for _ in 0..3 {
        pair.send(&client, GET);
        let upstream = pair.accept();
        pair.send(&upstream, RESPONSE);
        assert!(pair.receive(&client).ends_with(b"body"));
        drop(upstream);
        pair.pass_time(Duration::from_secs(1));
    }
    let bill = pair.stop();
    assert_eq!((bill.len(), bill[0].requests), (1, 3), "each connection leads to the same address");
}

#[test]
fn idle_client_is_closed_after_keep_alive() {
    let mut pair = Pair::new("[timeouts]\nkeep_alive = \"30s\"");
    let client = pair.connect();
    pair.send(&client, GET);
    let upstream = pair.accept();
    pair.send(&upstream, RESPONSE);
    pair.receive(&client);
    pair.pass_time(Duration::from_secs(29));
    assert!(!pair.has_ended(&client));
    pair.pass_time(Duration::from_secs(2));
    assert!(pair.has_ended(&client));
}
