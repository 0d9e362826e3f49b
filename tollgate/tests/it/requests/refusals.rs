//! Refusals of requests: what reaches no origin, the response, and whether the connection stays usable.

use std::io::Write;

use crate::harness::Gateway;
use crate::origin::{Origin, ask_once, exchange, ok, read_response_to, request_to};
use crate::peers::{check_ended, read_all};

/// The lines between the request line and the empty line, or the whole request; then status and text.
type Case<'a> = (&'a str, u16, &'a str);

const FRAMINGS: [Case<'_>; 22] = [
    ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400, "contradict each other"),
    ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400, "contradict each other"),
    ("Content-Length: 5\r\nContent-Length: 6\r\n", 400, "more than one Content-Length"),
    ("Content-Length: 5\r\nContent-Length: 5\r\n", 400, "more than one Content-Length"),
    ("Content-Length: 5, 5\r\n", 400, "one decimal number"),
    ("Content-Length : 5\r\n", 400, "header name is malformed"),
    ("Content-Length: +5\r\n", 400, "one decimal number"),
    ("Content-Length: 0x5\r\n", 400, "one decimal number"),
    ("Content-Length: 05\r\n", 400, "one decimal number"),
    ("Content-Length: -1\r\n", 400, "one decimal number"),
    ("Content-Length: 9223372036854775808\r\n", 400, "one decimal number"),
    ("Content-Length: 18446744073709551617\r\n", 400, "one decimal number"),
    ("Content-Length:\r\n", 400, "one decimal number"),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400, "more than one Transfer-Encoding"),
    ("Transfer-Encoding: xchunked\r\n", 400, "transfer coding"),
    ("Transfer-Encoding: gzip, chunked\r\n", 501, "transfer coding"),
    ("Transfer-Encoding: identity\r\n", 400, "transfer coding"),
    ("Transfer-Encoding:\x0bchunked\r\n", 400, "control character"),
    ("Transfer-Encoding\r\n: chunked\r\n", 400, "header name"),
    ("X: y\r\n Content-Length: 5\r\n", 400, "folded"),
    (": empty\r\nContent-Length: 5\r\n", 400, "header name"),
    ("Connection: content-length\r\nContent-Length: 5\r\n", 400, "Connection header"),
];

#[test]
fn ambiguous_framing_reaches_no_origin() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    for (lines, status, part) in FRAMINGS {
        let smuggled = origin.get("/smuggled");
        let mut stream = gateway.connect();
        let request = format!("{}0\r\n\r\n{smuggled}", origin.ask("POST", "/", lines));
        stream.write_all(request.as_bytes()).unwrap();
        let response = read_response_to("POST", &mut stream);
        assert_eq!(response.status, status, "{lines}{response:?}");
        assert!(response.text().contains(part), "{lines}{response:?}");
        assert_eq!(response.header("Connection"), Some("close"), "{lines}");
        assert_eq!(read_all(&mut stream), b"", "{lines}: one response");
    }
    assert!(origin.has_no_request() && origin.accepted() == 0);
}

#[test]
fn ambiguous_chunks_end_the_request() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    let huge = "f".repeat(16);
    let extended = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(5000));
    let trailers = format!("0\r\nX: {}\r\n\r\n", "t".repeat(5000));
    let bodies = [
        " 5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "\r\n0\r\n\r\n",
        "-1\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\nHost: elsewhere\r\n\r\n",
        "0\r\n\rX",
        &*huge,
        &*extended,
        &*trailers,
    ];
    for body in bodies {
        let request = origin.ask("POST", "/", "Transfer-Encoding: chunked\r\n") + body;
        let mut stream = gateway.connect();
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(read_response_to("POST", &mut stream).status, 400, "{body:?}");
        assert_eq!(read_all(&mut stream), b"", "{body:?}");
    }
    assert!(origin.has_no_request(), "the origin got no complete request");
}

#[test]
fn ambiguous_destination_reaches_no_origin() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    let (address, port) = (origin.address, origin.address.port());
    let with_host = |url: String, host: String| format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let with_url = |url: String| with_host(url, address.to_string());
    let url = format!("http://{address}/");
    let cases: Vec<(String, u16, &str)> = vec![
        (format!("GET {url} HTTP/1.1\r\n\r\n"), 400, "Host header is missing"),
        (with_host(url.clone(), String::new()), 400, "does not agree"),
        (with_host(url.clone(), "127.0.0.1".into()), 400, "does not agree"),
        (with_host(url.clone(), format!("localhost:{port}")), 400, "does not agree"),
        (with_host(url.clone(), format!("{address}, {address}")), 400, "does not agree"),
        (with_host(url.clone(), format!("{address}\r\nHost: {address}")), 400, "more than one Host"),
        (with_url(format!("http://ok@{address}/")), 400, "'@'"),
        (with_url(format!("http://127.1:{port}/")), 400, "four decimal numbers"),
        (with_url(format!("http://2130706433:{port}/")), 400, "four decimal numbers"),
        (with_url(format!("http://0177.0.0.1:{port}/")), 400, "four decimal numbers"),
        (with_url(format!("http://localhost.:{port}/")), 400, "remove it"),
        (with_url(format!("http://localhost%2e:{port}/")), 400, "'%'"),
        (with_url(format!("http://127.0.0.1:0{port}/")), 400, "port must be a number"),
        (with_url("http://127.0.0.1:/".into()), 400, "port must be a number"),
        (with_url("http:///path".into()), 400, "host is empty"),
        (with_url(format!("http://[::ffff:127.0.0.1%25lo]:{port}/")), 400, "zone"),
        (with_url(format!("http://{address}/#x")), 400, "fragment"),
        (with_url(format!("http://{address}\\@elsewhere/")), 400, ""),
        (with_url(format!("http://{address}/a\\b")), 400, "percent-encode"),
        (with_url(format!("http://{address}/\u{e4}")), 400, ""),
        (with_url(format!("https://{address}/")), 501, "CONNECT"),
        (with_url(format!("ftp://{address}/")), 501, "only http://"),
        (with_url(format!("http:{address}/")), 400, ""),
        (format!("GET http://{address}/ HTTP/1.1\nHost: {address}\n\n"), 400, "LF alone"),
    ];
    for (request, status, part) in cases {
        let response = ask_once(&gateway, &request);
        assert_eq!(response.status, status, "{request}{response:?}");
        assert!(response.text().contains(part), "{request}{response:?}");
    }
    assert_eq!(origin.accepted(), 0);
}

#[test]
fn refused_request_of_known_length_keeps_connection() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    let forbidden = |lines: &str| request_to("192.0.2.1", "POST", "/", lines);
    let mut stream = gateway.connect();
    for (lines, body) in [("", 0), ("Content-Length: 5\r\n", 5), ("Content-Length: 60000\r\n", 60_000)] {
        stream.write_all(&[forbidden(lines).as_bytes(), &vec![b'x'; body]].concat()).unwrap();
        let response = read_response_to("POST", &mut stream);
        assert_eq!((response.status, response.header("Connection")), (403, None));
        assert_eq!(exchange(&mut stream, origin.get("/")).text(), "hello");
    }
    let head = exchange(&mut stream, forbidden("").replace("POST", "HEAD"));
    assert!(head.status == 403 && head.header("Content-Length") != Some("0"));
    assert_eq!(exchange(&mut stream, origin.get("/")).text(), "hello", "HEAD gets a head alone");
    let json = exchange(&mut stream, forbidden("Accept: application/json\r\n"));
    let body: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
    assert_eq!(body["error"], "http_request_denied");
    for lines in [
        "Content-Length: 70000\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nExpect: 100-continue\r\n",
    ] {
        let mut stream = gateway.connect();
        let response = exchange(&mut stream, forbidden(lines));
        assert_eq!((response.status, response.header("Connection")), (403, Some("close")), "{lines}");
        check_ended(&mut stream, false);
    }
}

#[test]
fn overlong_urls_and_heads_are_414_and_431() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    // RFC 9110, section 4.1: at least 8,000 bytes of URL should be supported.
    let path = format!("/{}", "x".repeat(8000));
    assert_eq!(ask_once(&gateway, origin.get(&path)).text(), "hello");
    assert!(origin.next().head.starts_with(&format!("GET {path} HTTP/1.1\r\n")));
    let long = "x".repeat(20_000);
    for (request, status) in [
        (origin.get(&format!("/{long}")), 414),
        (format!("CONNECT {long}:443 HTTP/1.1\r\n\r\n"), 414),
        (origin.ask("GET", "/", &format!("X: {long}\r\n")), 431),
    ] {
        let response = ask_once(&gateway, request);
        assert_eq!((response.status, response.header("Connection")), (status, Some("close")));
    }
    assert!(origin.has_no_request());
}

#[test]
fn odd_expectations_and_forwards_are_refused() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    for (method, lines, status) in [
        ("GET", "Expect: tea\r\n", 417),
        ("OPTIONS", "Max-Forwards: -1\r\n", 400),
        ("TRACE", "", 405),
        ("GET", "Connection: a b\r\n", 400),
    ] {
        assert_eq!(ask_once(&gateway, origin.ask(method, "/", lines)).status, status, "{method} {lines}");
    }
    assert_eq!(origin.accepted(), 0);
}

/// RFC 9110, section 9.3.2: a response to HEAD has no body. A client would take one for the next response.
#[test]
fn refused_head_request_has_no_response_body() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("[timeouts]\ngreeting = \"2s\"\n");
    let long = "x".repeat(20_000);
    let at_once = FRAMINGS.iter().map(|(lines, status, _)| (origin.ask("HEAD", "/", lines), *status));
    let more = [
        (origin.ask("HEAD", "/", "Expect: tea\r\n"), 417),
        (origin.ask("HEAD", "/", "Connection: a b\r\n"), 400),
        (origin.ask("HEAD", "/", &format!("X: {long}\r\n")), 431),
        (format!("HEAD /{long} HTTP/1.1\r\n\r\n"), 414),
        ("HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(), 400),
        ("HEAD https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(), 501),
        ("HEAD http://a.example/ HTTP/1.1\r\nHost:".to_owned(), 408),
    ];
    for (request, status) in at_once.chain(more) {
        // The first request of a connection, and a later one.
        for earlier in [0, 1] {
            let mut stream = gateway.connect();
            for _ in 0..earlier {
                assert_eq!(exchange(&mut stream, origin.get("/")).text(), "hello");
            }
            let response = exchange(&mut stream, &request);
            assert_eq!(response.status, status, "{request}{response:?}");
            assert_eq!(
                read_all(&mut stream).escape_ascii().to_string(),
                "",
                "behind {response:?} to {request}"
            );
        }
    }
    // A HEAD that follows another request, or precedes it, does not change that request's response.
    let mut stream = gateway.connect();
    assert_eq!(exchange(&mut stream, request_to("192.0.2.1", "HEAD", "/", "")).status, 403);
    let both = "CONNECT 192.0.2.1:443 HTTP/1.1\r\nHost: 192.0.2.1:443\r\n\r\nHEAD / HTTP/1.1\r\n\r\n";
    let response = exchange(&mut stream, both);
    assert!(response.status == 403 && response.text().contains("rule"), "{response:?}");
}
