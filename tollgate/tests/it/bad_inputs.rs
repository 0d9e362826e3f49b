//! Bad inputs: each gets a specific response, and none reaches a destination. A canary listens at the address
//! that a lenient parser would derive from any of them.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};

use proto::limits::{HEAD_BYTES_MAX, HEADERS_MAX};

use crate::harness::{Gateway, eventually};
use crate::peers::{
    Destination, Response, ask, ask_socks, check_echo, connect_request, read_all, read_exactly, read_reply,
    read_response, reset, socks_request,
};

/// A user that may reach the canary in every spelling of its address, so that only the parser refuses; also
/// by name, and by a set that would open names to private addresses.
fn gateway() -> Gateway {
    Gateway::local(
        "[[user]]\nname = \"other\"\nfrom = [\"127.0.0.9/32\"]\nallow = [\"127.0.0.0/8\"]\n\
         [destinations.more]\nto = [\"*.localhost\"]\nclass = \"internal\"\n",
    )
}

#[track_caller]
fn check_refused(response: &Response, status: u16, part: &str, request: &[u8]) {
    let request = request.escape_ascii();
    assert_eq!(response.status, status, "{request}\n{response:?}");
    assert!(response.body.contains(part), "{request}\nexpected: {part}\n{response:?}");
    assert!(response.head.contains("\r\nProxy-Status: tollgate; error="), "{request}\n{response:?}");
}

#[test]
fn invalid_destinations_are_400() {
    let canary = Destination::echo();
    let port = canary.address.port();
    let gateway = gateway();
    let hosts: &[(&str, &str)] = &[
        ("0177.0.0.1", "unusual spelling"),
        ("127.1", "unusual spelling"),
        ("2130706433", "unusual spelling"),
        ("0x7f.0.0.1", "unusual spelling"),
        ("0x7f000001", "unusual spelling"),
        ("127.0.0.01", "unusual spelling"),
        ("127.0.0.256", "unusual spelling"),
        ("127.0.0.1.", "ends with a dot"),
        ("localhost.", "ends with a dot"),
        ("local..host", "empty label"),
        (".localhost", "empty label"),
        ("-localhost", "hyphen"),
        ("local%68ost", "the byte '%'"),
        ("[localhost]", "not a valid IPv6 address"),
        ("[127.0.0.1]", "not a valid IPv6 address"),
        ("[::1%lo]", "zone"),
        ("[::1", "never closed"),
        ("::1", "brackets"),
        ("user@localhost", "'@'"),
        ("http://localhost", "not a URL"),
        ("", "the host is empty"),
    ];
    for (host, part) in hosts {
        let request = format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n");
        check_refused(&ask(&gateway, &request).1, 400, part, request.as_bytes());
    }
    let ports = ["0", "65536", "-1", "+80", "443x", "0443", "", "99999999999999999999", "8 0"];
    for port in ports {
        let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n");
        let part = if port == "8 0" { "malformed" } else { "port must be a number from 1 to 65535" };
        check_refused(&ask(&gateway, &request).1, 400, part, request.as_bytes());
    }
    let without = "CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n";
    check_refused(&ask(&gateway, without).1, 400, "the port is missing", without.as_bytes());
    let long_label = format!("CONNECT {}.localhost:{port} HTTP/1.1\r\n\r\n", "a".repeat(64));
    check_refused(&ask(&gateway, &long_label).1, 400, "longer than 63", long_label.as_bytes());
    let long_name = format!("CONNECT {}localhost:{port} HTTP/1.1\r\n\r\n", "a.".repeat(123));
    check_refused(&ask(&gateway, &long_name).1, 400, "longer than 253", long_name.as_bytes());
    assert_eq!(canary.accepted(), 0);
}

#[test]
fn malformed_heads_are_refused() {
    let canary = Destination::echo();
    let to = canary.address;
    let gateway = gateway();
    let head_bound = HEAD_BYTES_MAX.to_string();
    let cases: Vec<(String, u16, &str)> = vec![
        (format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nHost: {to}\r\n\r\n"), 400, "more than one Host"),
        (format!("CONNECT {to} HTTP/1.1\r\nHost: elsewhere:443\r\n\r\n"), 400, "does not agree"),
        (format!("CONNECT {to} HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), 400, "no body"),
        (format!("CONNECT {to} HTTP/1.1\r\nContent-Length: +0\r\n\r\n"), 400, "no body"),
        (format!("CONNECT {to} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, "no body"),
        (format!("CONNECT {to} HTTP/1.1\nHost: {to}\n\n"), 400, "LF alone"),
        (format!("CONNECT {to} HTTP/1.1\r\nHost : {to}\r\n\r\n"), 400, "header name"),
        (format!("CONNECT {to} HTTP/1.1\r\n: empty\r\n\r\n"), 400, "header name"),
        (format!("CONNECT {to} HTTP/1.1\r\nX: a\r\n b\r\n\r\n"), 400, "folded"),
        (format!("CONNECT {to} HTTP/1.1\r\nX: a\0b\r\n\r\n"), 400, "control character"),
        (format!("CONNECT {to} HTTP/1.1\r\nX: a\rb\r\n\r\n"), 400, "CR"),
        (format!("CONNECT {to}\r\n\r\n"), 400, "no HTTP version"),
        (format!("CONNECT  {to} HTTP/1.1\r\n\r\n"), 400, "malformed"),
        (format!("CONNECT {to} HTTP/2.0\r\n\r\n"), 505, "HTTP/1.1"),
        (format!("CONNECT /{to} HTTP/1.1\r\n\r\n"), 400, ""),
        (format!("CONNECT {to}/path HTTP/1.1\r\n\r\n"), 400, ""),
        (format!("GET {to} HTTP/1.1\r\n\r\n"), 400, "only CONNECT"),
        (format!("CONNECT {to} HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX)), 431, &head_bound),
        (format!("CONNECT {to} HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000)), 431, &head_bound),
        (format!("CONNECT {to} HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1)), 431, "headers"),
    ];
    for (request, status, part) in &cases {
        check_refused(&ask(&gateway, request).1, *status, part, request.as_bytes());
    }
    assert_eq!(canary.accepted(), 0);
}

#[test]
fn bytes_after_a_refused_request_are_dropped() {
    let canary = Destination::echo();
    let gateway = gateway();
    let second = connect_request(&canary.address.to_string());
    for first in ["CONNECT 192.0.2.1:443 HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        let (_, response) = ask(&gateway, format!("{first}{second}"));
        assert!(response.status == 403 || response.status == 400, "{response:?}");
        assert!(!response.body.contains("HTTP/1.1"), "one response: {response:?}");
    }
    assert_eq!(canary.accepted(), 0);
}

#[test]
fn invalid_socks_requests_are_refused_by_reply_code() {
    let canary = Destination::echo();
    let port = canary.address.port();
    let gateway = gateway();
    let long = "a.".repeat(127);
    let hosts = [
        "0177.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "localhost\0.example",
        "localhost\0",
        "\0",
        "",
        "localhost.",
        "127.0.0.1.",
        "[127.0.0.1]",
        "local host",
        "localhost\r\n",
        "l\u{f6}calhost",
        "::1%lo",
        long.as_str(),
    ];
    for host in hosts {
        let (_, reply) = ask_socks(&gateway, &socks_request(host, port));
        assert_eq!(reply, 8, "{}", host.escape_default());
    }
    let port_0: &[u8] = &[5, 1, 0, 1, 127, 0, 0, 1, 0, 0];
    let requests: [(&[u8], u8); 6] = [
        (port_0, 8),
        (&[5, 0, 0, 1, 127, 0, 0, 1, 0, 9], 7),
        (&[5, 1, 1, 1, 127, 0, 0, 1, 0, 9], 1),
        (&[4, 1, 0, 1, 127, 0, 0, 1, 0, 9], 1),
        (&[5, 1, 0, 0, 127, 0, 0, 1, 0, 9], 8),
        (&[5, 1, 0, 5, 127, 0, 0, 1, 0, 9], 8),
    ];
    for (request, expected) in requests {
        assert_eq!(ask_socks(&gateway, request).1, expected, "{request:?}");
    }
    let handshakes: [(&[u8], &[u8]); 6] = [
        (&[5, 0], &[5, 0xff]),
        (&[5, 1, 1], &[5, 0xff]),
        (&[5, 1, 0x80], &[5, 0xff]),
        // A request sent ahead of the method's reply is read as login data, whose version must be 1 (RFC
        // 1929).
        (&[5, 1, 2, 5, 1, 0, 1, 127, 0, 0, 1, 0, 9], &[5, 2, 1, 1]),
        (&[5, 1, 2, 1, 0, 1, b'x'], &[5, 2, 1, 1]),
        (&[5, 1, 2, 1, 1, 0xff, 1, b'x'], &[5, 2, 1, 1]),
    ];
    for (sent, received) in handshakes {
        let mut stream = gateway.connect();
        stream.write_all(sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream), received, "{sent:?}");
    }
    assert_eq!(canary.accepted(), 0);
}

#[test]
fn unusual_but_unambiguous_requests_are_served() {
    let destination = Destination::echo();
    let (to, port) = (destination.address, destination.address.port());
    let gateway = gateway();
    let requests = [
        format!("CONNECT LOCALHOST:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"),
        format!("CONNECT [::ffff:127.0.0.1]:{port} HTTP/1.1\r\n\r\n"),
        format!("CONNECT [::FFFF:7F00:1]:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"),
        format!("CONNECT {to} HTTP/1.0\r\n\r\n"),
        format!("CONNECT {to} HTTP/1.1\r\nHost:{to}\r\nContent-Length: 0\r\n\r\n"),
        format!("CONNECT {to} HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(64)),
        format!("CONNECT {to} HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(8 * 1024 - 60)),
    ];
    for request in &requests {
        let (mut stream, response) = ask(&gateway, request);
        assert_eq!(response.status, 200, "{request}{response:?}");
        check_echo(&mut stream, b"served");
    }
    assert_eq!(destination.accepted(), requests.len() as u64);
}

#[test]
fn head_split_at_any_byte_is_accepted() {
    let destination = Destination::echo();
    let gateway = gateway();
    let request = connect_request(&destination.address.to_string());
    let socks = [&[5, 1, 0][..], &socks_request("localhost", destination.address.port())].concat();
    let send_in_two = |bytes: &[u8], at: usize| -> TcpStream {
        let mut stream = gateway.connect();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&bytes[..at]).unwrap();
        stream.write_all(&bytes[at..]).unwrap();
        stream
    };
    for at in 1..request.len() {
        let mut stream = send_in_two(request.as_bytes(), at);
        assert_eq!(read_response(&mut stream).status, 200, "split at {at}");
        check_echo(&mut stream, b"http");
    }
    for at in 1..socks.len() {
        let mut stream = send_in_two(&socks, at);
        assert_eq!(read_exactly(&mut stream, 2), [5, 0], "split at {at}");
        assert_eq!(read_reply(&mut stream), 0, "split at {at}");
        check_echo(&mut stream, b"socks");
    }
}

#[test]
fn host_cannot_forge_a_log_line() {
    let gateway = gateway();
    let (_, response) = ask(&gateway, "CONNECT a\u{1b}[31m\u{7f}.test:443 HTTP/1.1\r\n\r\n");
    assert_eq!(response.status, 400, "{response:?}");
    assert!(!response.body.contains('\u{1b}'), "{response:?}");
    gateway.await_log_line("the decision", |line| line["reason"] == "malformed");
    let text = std::fs::read_to_string(gateway.path("log.jsonl")).unwrap();
    assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)));
}

#[test]
fn reset_during_the_dial_leaves_nothing_open() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = Destination::on(listener, |mut stream| {
        read_all(&mut stream);
    });
    let gateway = gateway();
    for _ in 0..50 {
        let mut stream = gateway.connect();
        stream.write_all(connect_request(&destination.address.to_string()).as_bytes()).unwrap();
        reset(stream);
    }
    eventually("all connections are closed", || {
        gateway.metric("tollgate_handshakes_active") == Some(0.0)
            && gateway.metric("tollgate_connections_active") == Some(0.0)
    });
}
