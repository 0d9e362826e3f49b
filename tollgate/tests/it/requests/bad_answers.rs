//! Bad answers: one that could be read in two ways is none, and one that breaks off is never taken for whole.

use std::io::Write;

use crate::harness::Gateway;
use crate::origin::{Origin, Reply, ask_once, exchange, ok, read_answer_to, read_head};
use crate::peers::{check_ended, read_until_reset};

#[test]
fn an_answer_that_could_be_read_in_two_ways_is_a_502() {
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
    for (said, error) in cases {
        let origin = Origin::saying(said);
        let answer = ask_once(&gateway, origin.get("/"));
        assert_eq!(answer.status, 502, "{said}{answer:?}");
        assert_eq!(answer.header("Proxy-Status"), Some(&*format!("tollgate; error={error}")), "{said}");
        assert_eq!(answer.header("Proxy-Authenticate"), None);
    }
    let origin = Origin::saying(interims);
    let mut stream = gateway.connect();
    let mut status = exchange(&mut stream, origin.get("/")).status;
    while status == 102 {
        status = read_answer_to("GET", &mut stream).status;
    }
    assert_eq!(status, 502);
}

#[test]
fn a_connection_that_brought_a_bad_answer_is_not_used_again() {
    let gateway = Gateway::local("");
    for said in [
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 407 Login\r\nContent-Length: 0\r\n\r\n",
    ] {
        let origin = Origin::saying(said);
        let mut stream = gateway.connect();
        for count in 1..=3 {
            let answer = exchange(&mut stream, origin.get("/"));
            assert_eq!((answer.status, answer.header("Connection")), (502, None), "{said}");
            assert_eq!(origin.accepted(), count, "{said}");
        }
    }
}

#[test]
fn an_answer_that_breaks_off_ends_with_a_reset() {
    let gateway = Gateway::local("");
    for said in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let origin = Origin::start(move |_| Reply::SayAndClose(said.as_bytes().to_vec()));
        let mut stream = gateway.connect();
        stream.write_all(origin.get("/").as_bytes()).unwrap();
        read_head(&mut stream).unwrap();
        read_until_reset(&mut stream);
        gateway.check_closed(stream.local_addr().unwrap(), "upstream_reset");
    }
}

#[test]
fn what_follows_an_answer_is_nobodys_answer() {
    let origin = Origin::start(|_| {
        let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
        Reply::Say([&ok("hello")[..], poison.as_bytes()].concat())
    });
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    for _ in 0..5 {
        assert_eq!(exchange(&mut stream, origin.get("/")).text(), "hello");
    }
    assert_eq!(origin.accepted(), 5, "a connection that says more than it was asked is not used again");
    let lengthy = Origin::saying("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello");
    for _ in 0..3 {
        assert_eq!(exchange(&mut stream, lengthy.get("/")).status, 204);
    }
    assert_eq!(lengthy.accepted(), 3);
    drop(stream);
    let mut stream = gateway.connect();
    let mut head = origin.ask("HEAD", "/", "");
    head.push_str(&origin.get("/"));
    stream.write_all(head.as_bytes()).unwrap();
    read_answer_to("HEAD", &mut stream);
    assert_eq!(read_answer_to("GET", &mut stream).text(), "hello");
    drop(stream);
    let mut ended = gateway.connect();
    ended.write_all(b"GET").unwrap();
    ended.shutdown(std::net::Shutdown::Write).unwrap();
    check_ended(&mut ended, false);
}
