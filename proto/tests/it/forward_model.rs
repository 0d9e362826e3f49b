//! The forwarded bytes, read by a second parser: `hyper`'s server must find exactly one request, with the
//! same destination, headers and body that this crate parsed.
//!
//! Not handled here: search by coverage (the fuzz targets).

use std::num::NonZeroU16;

use proptest::prelude::*;
use proptest::sample::select;
use proto::http_forward::{Body, Framing};
use proto::target::Target;

use crate::forward_body::run_body;
use crate::forward_request::{VIA, forward};
use crate::mutation::mutated;
use crate::seeded;
use crate::server::{ReceivedRequest, parse_with_hyper};

/// The request that a server must receive by the RFCs, computed from the client's bytes alone. It assumes an
/// accepted head and does not check the syntax again.
fn model(head: &str, body: &[u8]) -> ReceivedRequest {
    let mut lines = head.trim_end_matches("\r\n").split("\r\n");
    let words: Vec<&str> = lines.next().expect("a first line").split(' ').collect();
    let (_, after_scheme) = words[1].split_once("://").expect("absolute form");
    let (authority, path) =
        after_scheme.split_at(after_scheme.find(['/', '?']).unwrap_or(after_scheme.len()));
    let path = match (words[0], path) {
        ("OPTIONS", "") => "*".to_owned(),
        (_, path) if path.starts_with('/') => path.to_owned(),
        (_, path) => format!("/{path}"),
    };
    let lines: Vec<(String, &str)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim_matches([' ', '\t'])))
        .collect();
    let values =
        |name: &str| -> Vec<&str> { lines.iter().filter(|line| line.0 == name).map(|line| line.1).collect() };
    let options = values("connection").join(",").to_ascii_lowercase();
    let is_named = |name: &str| options.split(',').any(|option| option.trim_matches([' ', '\t']) == name);
    let mut headers: Vec<(String, Vec<u8>)> = lines
        .iter()
        .filter(|(name, _)| {
            !REWRITTEN_HEADERS.contains(&&**name) && !HOP_BY_HOP_HEADERS.contains(&&**name) && !is_named(name)
        })
        .map(|(name, value)| (name.clone(), value.as_bytes().to_vec()))
        .collect();
    let mut add = |name: &str, value: &str| headers.push((name.to_owned(), value.as_bytes().to_vec()));
    let port = NonZeroU16::new(80).expect("80 is not 0");
    let target = Target::parse_with_port(authority.as_bytes(), port).expect("an accepted target").to_string();
    add("host", target.strip_suffix(":80").unwrap_or(&target));
    add("via", &format!("{} {VIA}", &words[2]["HTTP/".len()..]));
    values("content-length").into_iter().for_each(|length| add("content-length", length));
    values("transfer-encoding").into_iter().for_each(|_| add("transfer-encoding", "chunked"));
    // A table checks these (`forward_request`); here only their count matters, at most one.
    headers.retain(|header| !GENERATED_HEADERS.contains(&&*header.0));
    headers.sort_by(|one, other| one.0.cmp(&other.0));
    ReceivedRequest { method: words[0].to_owned(), path, headers, body: body.to_vec() }
}

/// Headers that the gateway generates, regardless of the client's.
const REWRITTEN_HEADERS: [&str; 3] = ["host", "content-length", "transfer-encoding"];
const HOP_BY_HOP_HEADERS: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "proxy-authentication-info",
    "http2-settings",
];
const GENERATED_HEADERS: [&str; 5] = ["connection", "te", "upgrade", "expect", "max-forwards"];

#[track_caller]
fn assert_hyper_agrees(head: &str, data: &[u8]) -> bool {
    let Ok(forwarded) = forward(head.as_bytes(), false) else { return false };
    let sent = match forwarded.body {
        Framing::None => Vec::new(),
        Framing::Length(length) if length > 1000 => return false,
        Framing::Length(length) => data.iter().copied().cycle().take(length as usize).collect(),
        Framing::Chunked => {
            let half = &data[..data.len() / 2];
            let line = |data: &[u8]| [format!("{:x};x=y\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
            let first = if half.is_empty() { Vec::new() } else { line(half) };
            [first, line(&data[data.len() / 2..]), b"0;z\r\nX-Sum: 1\r\n\r\n".to_vec()].concat()
        }
        Framing::UntilClose => panic!("a request ends before its connection"),
    };
    let expected_body = if forwarded.body == Framing::Chunked { data } else { &sent };
    let (kept, taken) = run_body(Body::new(forwarded.body), &sent, []).expect("the body is sound");
    assert_eq!(taken, sent.len());
    let written = [&forwarded.head[..], &kept].concat();
    let mut received = parse_with_hyper(&written)
        .unwrap_or_else(|error| panic!("{error}: {:?} as {:?}", head, written.escape_ascii().to_string()));
    assert_eq!(received.len(), 1, "{head:?} as {:?}", written.escape_ascii().to_string());
    let mut received = received.remove(0);
    for name in GENERATED_HEADERS {
        assert!(received.headers.iter().filter(|header| header.0 == name).count() <= 1);
        received.headers.retain(|header| header.0 != name);
    }
    assert_eq!(received, model(head, expected_body), "{head:?}");
    true
}

fn header_line() -> impl Strategy<Value = String> {
    let line = select(vec![
        "Content-Length: 0",
        "Content-Length: 5",
        "content-length:17",
        "Transfer-Encoding: chunked",
        "Connection: close, x-y",
        "Connection: keep-alive, Cookie",
        "Connection: upgrade",
        "Upgrade: websocket",
        "Upgrade: h2c",
        "TE: trailers",
        "Expect: 100-continue",
        "Max-Forwards: 3",
        "Proxy-Authorization: Basic eA==",
        "Proxy-Connection: keep-alive",
        "Keep-Alive: timeout=5",
        "HTTP2-Settings: x",
        "Via: 1.0 other, 1.1 third",
        "X-Y: 1",
        "x-y:\t2 \t",
        "X-Z: a, b;c=\"d\"",
        "Cookie: a=1",
        "Authorization: x",
        "Host: a.example",
        "Content_Length: 3",
        "X: \u{fc}",
    ]);
    let end = prop_oneof![20 => Just(""), 1 => Just(" "), 1 => Just("\t")];
    (line, end).prop_map(|(line, end)| [line, end, "\r\n"].concat())
}

fn head() -> impl Strategy<Value = String> {
    let method =
        prop_oneof![4 => Just("GET"), 1 => select(vec!["POST", "HEAD", "OPTIONS", "get", "M-S", "CONNECT"])];
    let authority = prop_oneof![
        4 => Just(("a.example", "a.example")),
        1 => select(vec![
            ("A.example:80", "a.example"), ("a.example:8080", "a.example:8080"), ("[::1]", "[::1]:80"),
            ("10.0.0.1:81", "10.0.0.1:81"), ("[::ffff:1.2.3.4]", "1.2.3.4"), ("u@a.example", "a.example"),
        ]),
    ];
    let path = select(vec![
        "",
        "/",
        "/a/b?c=d",
        "?x=http://y/",
        "//b.example/",
        "/%2e%2e/\\",
        "/../a;b=c",
        "/{x}|[y]?\\^`'",
        "/~!$&'()*+,;=:@-._",
        "/?q={}|<",
        "/#f",
    ]);
    let version = prop_oneof![8 => Just("HTTP/1.1"), 1 => Just("HTTP/1.0")];
    let lines = prop::collection::vec(header_line(), 0..5);
    // With the headers that `ws://` requires, and without.
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    let scheme = prop_oneof![8 => Just(("http", "")), 1 => Just(("ws", upgrade)), 1 => Just(("ws", ""))];
    (method, scheme, authority, path, version, lines).prop_map(
        |(method, scheme, to, path, version, lines)| {
            let ((scheme, upgrade), (url, host), lines) = (scheme, to, lines.concat());
            format!("{method} {scheme}://{url}{path} {version}\r\nHost: {host}\r\n{upgrade}{lines}\r\n")
        },
    )
}

/// Texts that an attacker or a broken client would insert.
const INSERTIONS: [&str; 20] = [
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\n ",
    "\0",
    " ",
    "\t",
    ":",
    ",",
    "x",
    "0",
    "\x7f",
    "\u{fc}",
    "/",
    "?",
    "@",
    "\r\nHost: z",
    "\r\nContent-Length: 3",
    "\r\nTransfer-Encoding: chunked",
];

fn mutated_head() -> impl Strategy<Value = String> {
    mutated(head(), &INSERTIONS)
}

proptest! {
    #![proptest_config(seeded(16_384))]

    #[test]
    fn hyper_reads_the_request_we_understood(
        head in mutated_head(),
        data in prop::collection::vec(select(b"ab\r\n05".as_slice()), 1..12),
    ) {
        assert_hyper_agrees(&head, &data);
    }

    #[test]
    fn hyper_agrees_on_every_url_byte(
        before in "[ -~]{0,3}", byte in 0x21u8..0x7f, after in "[!-~]{0,3}",
    ) {
        let url = format!("http://a.example/{}{}{after}", before.replace(' ', "?"), char::from(byte));
        assert_hyper_agrees(&format!("GET {url} HTTP/1.1\r\nHost: a.example\r\n\r\n"), b"x");
    }
}

/// The properties above would also hold for a parser that refuses everything.
#[test]
fn generator_reaches_both_outcomes() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::new(seeded(1));
    let strategy = mutated_head();
    let heads = (0..2000).map(|_| strategy.new_tree(&mut runner).expect("no filter rejects").current());
    let (forwarded, refused): (Vec<_>, Vec<_>) = heads.partition(|head| assert_hyper_agrees(head, b"hello"));
    assert!(forwarded.len() > 300 && refused.len() > 300, "{} and {}", forwarded.len(), refused.len());
}

/// hyper can detect the faults: it finds two requests, and refuses a truncated body.
#[test]
fn hyper_detects_smuggling_and_truncation() {
    let two = parse_with_hyper(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(two.map(|received| received.len()), Ok(2));
    assert!(parse_with_hyper(b"GET /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhell").is_err());
    assert!(parse_with_hyper(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET").is_err());
}
