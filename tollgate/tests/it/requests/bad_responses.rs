//! Bad responses: an ambiguous one is a 502, and a truncated one is never taken for complete.

use std::io::Write;

use crate::harness::Gateway;
use crate::origin::{Origin, Reply, ask_once, exchange, ok, read_head, read_response_to};
use crate::peers::{check_ended, read_until_reset};

#[test]
fn ambiguous_response_is_a_502() {
    let gateway = Gateway::local("");
    let large = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    let interims = "HTTP/1.1 102 Processing\r\n\r\n".repeat(40);
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "http_protocol_error"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "http_protocol_error"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "http_protocol_error"),
        ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nhello", "http_protocol_error"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: br\r\n\r\n", "http_response_transfer_coding"),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "http_protocol_error"),
        ("HTTP/1.1 200 OK\nContent-Length: 0\n\n", "http_protocol_error"),
        ("HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "http_protocol_error"),
        ("HTTP/1.1 20 OK\r\n\r\n", "http_protocol_error"),
        ("HTTP/2 200\r\n\r\n", "http_protocol_error"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n", "http_protocol_error"),
        ("SSH-2.0-OpenSSH\r\n\r\n", "http_protocol_error"),
        (
            "HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
            "http_protocol_error",
        ),
        (&*large, "http_response_header_section_size"),
    ];
    for (bytes, error) in cases {
        let origin = Origin::responding(bytes);
        let response = ask_once(&gateway, origin.get("/"));
        assert_eq!(response.status, 502, "{bytes}{response:?}");
        assert_eq!(response.header("Proxy-Status"), Some(&*format!("tollgate; error={error}")), "{bytes}");
        assert_eq!(response.header("Proxy-Authenticate"), None);
    }
    let origin = Origin::responding(interims);
    let mut stream = gateway.connect();
    let mut status = exchange(&mut stream, origin.get("/")).status;
    while status == 102 {
        status = read_response_to("GET", &mut stream).status;
    }
    assert_eq!(status, 502);
}

#[test]
fn connection_with_a_bad_response_is_not_reused() {
    let gateway = Gateway::local("");
    for bytes in [
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 407 Login\r\nContent-Length: 0\r\n\r\n",
    ] {
        let origin = Origin::responding(bytes);
        let mut stream = gateway.connect();
        for count in 1..=3 {
            let response = exchange(&mut stream, origin.get("/"));
            assert_eq!((response.status, response.header("Connection")), (502, None), "{bytes}");
            assert_eq!(origin.accepted(), count, "{bytes}");
        }
    }
}

#[test]
fn truncated_response_ends_with_a_reset() {
    let gateway = Gateway::local("");
    for bytes in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let origin = Origin::start(move |_| Reply::RespondAndClose(bytes.as_bytes().to_vec()));
        let mut stream = gateway.connect();
        stream.write_all(origin.get("/").as_bytes()).unwrap();
        read_head(&mut stream).unwrap();
        read_until_reset(&mut stream);
        gateway.check_closed(stream.local_addr().unwrap(), "upstream_reset");
    }
}

#[test]
fn bytes_after_a_response_are_no_response() {
    let origin = Origin::start(|_| {
        let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
        Reply::Respond([&ok("hello")[..], poison.as_bytes()].concat())
    });
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    for _ in 0..5 {
        assert_eq!(exchange(&mut stream, origin.get("/")).text(), "hello");
    }
    assert_eq!(origin.accepted(), 5, "a connection with unsolicited bytes is not reused");
    let lengthy = Origin::responding("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello");
    for _ in 0..3 {
        assert_eq!(exchange(&mut stream, lengthy.get("/")).status, 204);
    }
    assert_eq!(lengthy.accepted(), 3);
    drop(stream);
    let mut stream = gateway.connect();
    let mut head = origin.ask("HEAD", "/", "");
    head.push_str(&origin.get("/"));
    stream.write_all(head.as_bytes()).unwrap();
    read_response_to("HEAD", &mut stream);
    assert_eq!(read_response_to("GET", &mut stream).text(), "hello");
    drop(stream);
    let mut ended = gateway.connect();
    ended.write_all(b"GET").unwrap();
    ended.shutdown(std::net::Shutdown::Write).unwrap();
    check_ended(&mut ended, false);
}
