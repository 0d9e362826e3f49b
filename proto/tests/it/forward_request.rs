//! Forwarded plain requests: the exact bytes that are written for the destination, or the exact error.

use proto::http_forward::{Forward, Framing, RequestTraits, write_options_response};
use proto::http_head::{HeaderStorage, RequestError, RequestHead, Version};
use proto::limits::{CONNECTION_OPTIONS_MAX, HEADERS_MAX};

/// Our own name in `Via`.
pub(crate) const VIA: &str = "gate";

/// A forwarded request.
pub(crate) struct Forwarded {
    /// The destination, as `host:port`.
    pub(crate) target: String,
    /// The head that the destination reads.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Framing,
    pub(crate) traits: RequestTraits,
    pub(crate) targets_proxy: bool,
    pub(crate) may_forward_trailers: bool,
    pub(crate) authorization: Option<Vec<u8>>,
}

/// Calls the parser and the writer; no other function of this file does.
pub(crate) fn forward(head: &[u8], closes: bool) -> Result<Forwarded, RequestError> {
    let mut storage = HeaderStorage::new();
    let head = RequestHead::parse(head, &mut storage)?;
    let forward = Forward::read(&head)?;
    if forward.was_forwarded_by(VIA) {
        return Err(RequestError::Looped);
    }
    let mut written = b"before".to_vec();
    forward.write(&mut written, VIA, closes);
    Ok(Forwarded {
        target: forward.target.to_string(),
        head: written.split_off("before".len()),
        body: forward.body,
        traits: forward.traits(),
        targets_proxy: forward.targets_proxy(),
        may_forward_trailers: forward.may_forward_trailers(),
        authorization: forward.authorization.map(<[u8]>::to_vec),
    })
}

fn render(head: &[u8], closes: bool) -> String {
    match forward(head, closes) {
        Ok(forwarded) => String::from_utf8(forwarded.head).expect("the cases are UTF-8"),
        Err(error) => {
            let inner = match error {
                RequestError::Head(inner) => format!("{inner:?}"),
                other => format!("{other:?}"),
            };
            format!("{} {inner}", error.status())
        }
    }
}

#[track_caller]
fn check(head: &str, expected: &str) {
    assert_eq!(render(head.as_bytes(), false), expected, "{head:?}");
}

/// Checks a GET with these header lines; `expected` is an error, or the text between `Host` and `Via`.
#[track_caller]
fn check_headers(headers: &str, expected: &str) {
    let head = format!("GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n{headers}\r\n");
    check(&head, &or_refusal("GET /x", expected, "1.1"));
}

/// The same in HTTP/1.0.
#[track_caller]
fn check_headers_10(headers: &str, expected: &str) {
    let head = format!("GET http://a.example/x HTTP/1.0\r\n{headers}\r\n");
    check(&head, &or_refusal("GET /x", expected, "1.0"));
}

/// The same with a method and a URL.
#[track_caller]
fn check_line(line: &str, headers: &str, written_line: &str, expected: &str) {
    let head = format!("{line} HTTP/1.1\r\nHost: a.example\r\n{headers}\r\n");
    check(&head, &or_refusal(written_line, expected, "1.1"));
}

fn or_refusal(line: &str, expected: &str, version: &str) -> String {
    if expected.starts_with(['4', '5']) {
        return expected.to_owned();
    }
    format!("{line} HTTP/1.1\r\nHost: a.example\r\n{expected}Via: {version} {VIA}\r\n\r\n")
}

const NOTHING: &str = "";

#[test]
fn requests_of_real_clients_are_forwarded() {
    check(
        "GET http://packages.example/debian/dists/stable/InRelease HTTP/1.1\r\nHost: packages.example\r\n\
         User-Agent: curl/8.14.1\r\nAccept: */*\r\nProxy-Connection: Keep-Alive\r\n\
         Proxy-Authorization: Basic bWU6eA==\r\n\r\n",
        "GET /debian/dists/stable/InRelease HTTP/1.1\r\nHost: packages.example\r\nUser-Agent: curl/8.14.1\r\n\
         Accept: */*\r\nVia: 1.1 gate\r\n\r\n",
    );
    check(
        "POST http://api.example:8080/v1/items?x=1&y=%20z HTTP/1.1\r\nHost: api.example:8080\r\n\
         Connection: keep-alive\r\nContent-Length: 12\r\nAuthorization: Bearer abc\r\n\
         Content-Type: application/json\r\nCookie: a=1; b=2\r\nExpect: 100-continue\r\n\r\n",
        "POST /v1/items?x=1&y=%20z HTTP/1.1\r\nHost: api.example:8080\r\nAuthorization: Bearer abc\r\n\
         Content-Type: application/json\r\nCookie: a=1; b=2\r\nContent-Length: 12\r\nExpect: 100-continue\r\n\
         Via: 1.1 gate\r\n\r\n",
    );
    check(
        "GET http://a.example/ HTTP/1.0\r\nUser-Agent: Wget/1.12\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: Wget/1.12\r\nVia: 1.0 gate\r\n\r\n",
    );
}

#[test]
fn end_to_end_lines_are_forwarded_unchanged() {
    let lines = "X-First: 1\r\naccept-ENCODING: gzip\r\nX-First: 2\r\nVia: 1.0 other\r\nEmpty:\u{20}\r\n\
                 Cookie: a=1\r\nX-First: 1\r\nCookie: b=2\r\nObs: \u{fc}\t x\r\n\
                 Accept: a/b\r\nAccept: c/d\r\n\
                 Transfer_Encoding: chunked\r\nContent-Length-: 5\r\nTrailer: X-Sum\r\nForwarded: for=b\r\n";
    check_headers(lines, lines);
    check_headers("X:1\r\nY:  2\t \r\n", "X: 1\r\nY: 2\r\n");
    check_headers(&"x: 1\r\n".repeat(HEADERS_MAX - 1), &"x: 1\r\n".repeat(HEADERS_MAX - 1));
    check_headers(&"x: 1\r\n".repeat(HEADERS_MAX), "431 TooManyHeaders");
}

#[test]
fn content_length_has_one_spelling() {
    for (value, body) in [
        ("0", Framing::Length(0)),
        ("1", Framing::Length(1)),
        ("4294967296", Framing::Length(1 << 32)),
        ("9223372036854775807", Framing::Length(i64::MAX as u64)),
    ] {
        check_headers(&format!("Content-Length: {value}\r\n"), &format!("Content-Length: {value}\r\n"));
        check_headers_10(&format!("content-length:{value} \r\n"), &format!("Content-Length: {value}\r\n"));
        let head = format!("PUT http://a/ HTTP/1.0\r\nContent-Length: {value}\r\n\r\n");
        assert_eq!(forward(head.as_bytes(), false).ok().map(|forwarded| forwarded.body), Some(body));
    }
    for value in [
        "",
        " ",
        "+1",
        "-1",
        "-0",
        "+0",
        "0x1",
        "1,1",
        "1, 1",
        "1 1",
        "1.0",
        "1e3",
        "1;",
        "\"1\"",
        "a",
        "01",
        "00",
        "000000000000000000001",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "18446744073709551617",
        "99999999999999999999999999",
        "\u{661}",
        "1\u{a0}",
    ] {
        check_headers(&format!("Content-Length: {value}\r\n"), "400 LengthMalformed");
    }
    check_headers("Content-Length: 1\x0b\r\n", "400 HeaderValueMalformed");
    check_headers("Content-Length: 1\0\r\n", "400 HeaderValueMalformed");
    check_headers("Content-Length: 1\r\r\n", "400 CarriageReturnBare");
    check_headers("Content-Length: 1\r\n 0\r\n", "400 HeaderFolded");
    check_headers("Content-Length : 1\r\n", "400 HeaderNameMalformed");
    check_headers("Content-Length\t: 1\r\n", "400 HeaderNameMalformed");
    check_headers("Content-Length\r\n", "400 HeaderNameMalformed");
    for second in ["Content-Length: 5", "Content-Length: 6", "content-length: 5", "CONTENT-LENGTH:"] {
        let lines = format!("Content-Length: 5\r\nX: 1\r\n{second}\r\n");
        check_headers(&lines, "400 HeaderRepeated(\"Content-Length\")");
    }
}

#[test]
fn only_chunked_alone_is_accepted_as_coding() {
    for value in ["chunked", "Chunked", "CHUNKED", " chunked ", "\tchunked\t"] {
        check_headers(&format!("transfer-encoding:{value}\r\n"), "Transfer-Encoding: chunked\r\n");
        check_headers_10(&format!("Transfer-Encoding:{value}\r\n"), "400 CodingInHttp10");
    }
    // A coding before `chunked` cannot be decoded, and RFC 9112, section 6.1, requires 501.
    for value in
        ["gzip, chunked", "gzip,chunked", "chunked, chunked", "identity, chunked", ",chunked", "chunked,"]
    {
        check_headers(&format!("Transfer-Encoding: {value}\r\n"), "501 CodingUnknown");
        check_headers_10(&format!("Transfer-Encoding: {value}\r\n"), "400 CodingInHttp10");
    }
    // Without `chunked` at the end the length of the body is unknown: 400 (section 6.3).
    for value in [
        "",
        ",",
        "identity",
        "gzip",
        "xchunked",
        "chunkedx",
        "chunked x",
        "x chunked",
        "chunked, gzip",
        "chunked, identity",
        "chunked;q=1",
        "\"chunked\"",
        "'chunked'",
        "chunked\u{a0}",
        "ch\u{fc}nked",
        "chun\u{212a}ed", // The Kelvin sign lowers to k.
    ] {
        check_headers(&format!("Transfer-Encoding: {value}\r\n"), "400 ChunkedNotLast");
    }
    check_headers("Transfer-Encoding: \x0bchunked\r\n", "400 HeaderValueMalformed");
    check_headers("Transfer-Encoding: chunked\x0c\r\n", "400 HeaderValueMalformed");
    check_headers("Transfer-Encoding: chunked\0\r\n", "400 HeaderValueMalformed");
    check_headers("Transfer-Encoding : chunked\r\n", "400 HeaderNameMalformed");
    check_headers("Transfer-Encoding\x0b: chunked\r\n", "400 HeaderNameMalformed");
    check_headers("Transfer-Encoding:\r\n chunked\r\n", "400 HeaderFolded");
    check_headers(" Transfer-Encoding: chunked\r\n", "400 HeaderFolded");
    check_headers("X: y\nTransfer-Encoding: chunked\r\n", "400 LineFeedBare");
    check_headers("X: y\rTransfer-Encoding: chunked\r\n", "400 CarriageReturnBare");
    for second in ["chunked", "identity", ""] {
        let lines = format!("Transfer-Encoding: chunked\r\nTransfer-encoding: {second}\r\n");
        check_headers(&lines, "400 HeaderRepeated(\"Transfer-Encoding\")");
    }
}

#[test]
fn content_length_beside_coding_is_refused() {
    for (length, coding) in [("5", "chunked"), ("0", "chunked"), ("", "identity"), ("5, 5", "x"), ("5", "")] {
        let lines = [format!("Content-Length: {length}\r\n"), format!("Transfer-Encoding: {coding}\r\n")];
        check_headers(&lines.concat(), "400 FramingConflict");
        check_headers_10(&[&*lines[1], &lines[0]].concat(), "400 FramingConflict");
    }
}

#[test]
fn ambiguous_line_ends_are_refused() {
    check("\r\nGET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", "400 FirstLineEmpty");
    check("\nGET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", "400 LineFeedBare");
    check("GET http://a.example/ HTTP/1.1\nHost: a.example\n\n", "400 LineFeedBare");
    check("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\n", "400 LineFeedBare");
    check("GET http://a.example/ HTTP/1.1\rHost: a.example\r\n\r\n", "400 CarriageReturnBare");
    for (lines, expected) in [
        (": x\r\n", "400 HeaderNameMalformed"),
        (":\r\n", "400 HeaderNameMalformed"),
        ("\0: x\r\n", "400 HeaderNameMalformed"),
        ("X\0: x\r\n", "400 HeaderNameMalformed"),
        ("X Y: x\r\n", "400 HeaderNameMalformed"),
        ("X;: x\r\n", "400 HeaderNameMalformed"),
        ("GET http://b.example/ HTTP/1.1\r\n", "400 HeaderNameMalformed"),
        ("X: a\0b\r\n", "400 HeaderValueMalformed"),
        ("X: a\x1b[31m\r\n", "400 HeaderValueMalformed"),
        ("X: a\x7f\r\n", "400 HeaderValueMalformed"),
        ("X: a\r\n b\r\n", "400 HeaderFolded"),
        ("X: a\r\n\tb\r\n", "400 HeaderFolded"),
        ("X: a\nHost: b.example\r\n", "400 LineFeedBare"),
        ("X: a\rHost: b.example\r\n", "400 CarriageReturnBare"),
    ] {
        check_headers(lines, expected);
    }
}

#[test]
fn host_header_must_match_the_url() {
    for (url, host) in [
        ("http://a.example/x", "a.example"),
        ("http://a.example/x", "A.Example"),
        ("http://A.EXAMPLE/x", "a.example:80"),
        ("http://a.example:80/x", "a.example"),
        ("http://a.example:80/x", "a.example:80"),
        ("HTTP://a.example/x", "\ta.example "),
    ] {
        let head = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        check(&head, "GET /x HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gate\r\n\r\n");
    }
    for host in [
        "",
        "b.example",
        "a.example.",
        "a.example:8080",
        "a.example:443",
        "a.example:",
        "a.example:080",
        "a.example:0",
        "a.example, a.example",
        "a.example b.example",
        "a.example/",
        "x@a.example",
        "http://a.example",
        "[a.example]",
        "a.example#",
        "a%2eexample",
        "*",
    ] {
        let head = format!("GET http://a.example/x HTTP/1.1\r\nHost: {host}\r\n\r\n");
        check(&head, "400 HostDisagrees");
        check(&head.replace("HTTP/1.1", "HTTP/1.0"), "400 HostDisagrees");
    }
    check("GET http://a.example/ HTTP/1.1\r\n\r\n", "400 HostMissing");
    check("GET http://a.example/ HTTP/1.1\r\nHostname: a.example\r\n\r\n", "400 HostMissing");
    check_headers("Host: a.example\r\n", "400 HeaderRepeated(\"Host\")");
    check_headers("hOST: b.example\r\n", "400 HeaderRepeated(\"Host\")");
    check_headers("Host : b.example\r\n", "400 HeaderNameMalformed");
    check("GET http://[::1]/ HTTP/1.1\r\nHost: ::1\r\n\r\n", "400 HostDisagrees");
    check(
        "GET http://[0:0::1]:80/ HTTP/1.1\r\nHost: [::1]\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]\r\nVia: 1.1 gate\r\n\r\n",
    );
}

/// Without `Host`, which is optional in HTTP/1.0: only the URL decides.
#[track_caller]
fn check_url(url: &str, target: &str, host: &str, path: &str) {
    let head = format!("GET {url} HTTP/1.0\r\n\r\n");
    check(&head, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nVia: 1.0 gate\r\n\r\n"));
    assert_eq!(forward(head.as_bytes(), false).expect("the request is forwarded").target, target);
}

#[test]
fn url_gives_target_host_and_path() {
    for (url, target, host, path) in [
        ("http://a.example", "a.example:80", "a.example", "/"),
        ("http://a.example/", "a.example:80", "a.example", "/"),
        ("http://a.example:80/", "a.example:80", "a.example", "/"),
        ("http://a.example:443/", "a.example:443", "a.example:443", "/"),
        ("http://a.example:65535/", "a.example:65535", "a.example:65535", "/"),
        ("hTTp://A.Example:8080/A/b", "a.example:8080", "a.example:8080", "/A/b"),
        ("http://a.example?x=/y", "a.example:80", "a.example", "/?x=/y"),
        ("http://a.example?", "a.example:80", "a.example", "/?"),
        ("http://a.example:81?x", "a.example:81", "a.example:81", "/?x"),
        ("http://a.example//b.example/", "a.example:80", "a.example", "//b.example/"),
        ("http://a.example/../%2e%2e/./x", "a.example:80", "a.example", "/../%2e%2e/./x"),
        ("http://a.example/x@b.example:1/", "a.example:80", "a.example", "/x@b.example:1/"),
        ("http://a.example/http://b.example/", "a.example:80", "a.example", "/http://b.example/"),
        (
            "http://a.example/?u=x@b.example&v=[1]{2}|3",
            "a.example:80",
            "a.example",
            "/?u=x@b.example&v=[1]{2}|3",
        ),
        ("http://a.example/;a='b',!*()~$", "a.example:80", "a.example", "/;a='b',!*()~$"),
        ("http://a.example/{a}|[b]?\\^`", "a.example:80", "a.example", "/{a}|[b]?\\^`"),
        ("http://a.example/%00%0d%0a%zz%", "a.example:80", "a.example", "/%00%0d%0a%zz%"),
        ("http://xn--bcher-kva.example/", "xn--bcher-kva.example:80", "xn--bcher-kva.example", "/"),
        ("http://10.0.0.1:8080/", "10.0.0.1:8080", "10.0.0.1:8080", "/"),
        ("http://[2001:DB8::1]", "[2001:db8::1]:80", "[2001:db8::1]", "/"),
        ("http://[2001:db8:0:0::1]:81/", "[2001:db8::1]:81", "[2001:db8::1]:81", "/"),
        ("http://[::ffff:127.0.0.1]/", "127.0.0.1:80", "127.0.0.1", "/"),
        ("http://[::ffff:7f00:1]:81/", "127.0.0.1:81", "127.0.0.1:81", "/"),
    ] {
        check_url(url, target, host, path);
    }
}

#[test]
fn ambiguous_urls_are_refused() {
    for (url, error) in [
        ("http://", "Target(HostEmpty)"),
        ("http:///", "Target(HostEmpty)"),
        ("http:///a.example/", "Target(HostEmpty)"),
        ("http://?x", "Target(HostEmpty)"),
        ("http://:80/", "Target(HostEmpty)"),
        ("http://a.example:/", "Target(PortInvalid)"),
        ("http://a.example:", "Target(PortInvalid)"),
        ("http://a.example:0/", "Target(PortInvalid)"),
        ("http://a.example:65536/", "Target(PortInvalid)"),
        ("http://a.example:0443/", "Target(PortInvalid)"),
        ("http://a.example:+80/", "Target(PortInvalid)"),
        ("http://a.example:-1/", "Target(PortInvalid)"),
        ("http://a.example:80x/", "Target(PortInvalid)"),
        ("http://a.example:80:80/", "Target(BracketsMissing)"),
        ("http://::1/", "Target(BracketsMissing)"),
        ("http://ok@b.example/", "Target(UserForbidden)"),
        ("http://ok:pass@b.example/", "Target(UserForbidden)"),
        ("http://a.example:80@b.example/", "Target(UserForbidden)"),
        ("http://@a.example/", "Target(UserForbidden)"),
        ("http://a.example\\@b.example/", "Target(ByteForbidden(92))"),
        ("http://a.example\\b.example/", "Target(ByteForbidden(92))"),
        ("http://a.example\\/", "Target(ByteForbidden(92))"),
        ("http://a%2eexample/", "Target(ByteForbidden(37))"),
        ("http://a.example%00.b.example/", "Target(ByteForbidden(37))"),
        ("http://a.example%2f@b.example/", "Target(ByteForbidden(37))"),
        ("http://a.example,b.example/", "Target(ByteForbidden(44))"),
        ("http://a.example;b/", "Target(ByteForbidden(59))"),
        ("http://a.example&b/", "Target(ByteForbidden(38))"),
        ("http://*.example/", "Target(ByteForbidden(42))"),
        ("http://b\u{fc}cher.example/", "Target(NotAscii)"),
        ("http://a\u{3002}example/", "Target(NotAscii)"),
        ("http://\u{2460}.example/", "Target(NotAscii)"),
        ("http://a.example./", "Target(TrailingDot)"),
        ("http://.a.example/", "Target(LabelEmpty)"),
        ("http://a..example/", "Target(LabelEmpty)"),
        ("http://-a.example/", "Target(LabelHyphen)"),
        ("http://127.1/", "Target(AmbiguousAddress)"),
        ("http://2130706433/", "Target(AmbiguousAddress)"),
        ("http://0x7f.0.0.1/", "Target(AmbiguousAddress)"),
        ("http://0x7f000001/", "Target(AmbiguousAddress)"),
        ("http://0177.0.0.1/", "Target(AmbiguousAddress)"),
        ("http://127.0.0.01:80/", "Target(AmbiguousAddress)"),
        ("http://1.2.3.4.5/", "Target(AmbiguousAddress)"),
        ("http://256.1.1.1/", "Target(AmbiguousAddress)"),
        ("http://[fe80::1%25eth0]/", "Target(ZoneForbidden)"),
        ("http://[fe80::1%eth0]:80/", "Target(ZoneForbidden)"),
        ("http://[::1/", "Target(BracketNotClosed)"),
        ("http://[::1]80/", "Target(PortInvalid)"),
        ("http://[::1]:/", "Target(PortInvalid)"),
        ("http://[::1]x]/", "Target(NotIpv6)"),
        ("http://[]/", "Target(NotIpv6)"),
        ("http://[a.example]/", "Target(NotIpv6)"),
        ("http://[127.0.0.1]/", "Target(NotIpv6)"),
        ("http://[v1.x]/", "Target(NotIpv6)"),
        ("http://a.example/#top", "UriMalformed(35)"),
        ("http://a.example#@b.example/", "UriMalformed(35)"),
        ("http://a.example/?x#y", "UriMalformed(35)"),
        ("http://a.example/a\\b", "UriMalformed(92)"),
        ("http://a.example/\"", "UriMalformed(34)"),
        ("http://a.example/?\"", "UriMalformed(34)"),
        ("http://a.example/<", "UriMalformed(60)"),
        ("http://a.example/?>", "UriMalformed(62)"),
        ("http://a.example/^", "UriMalformed(94)"),
        ("http://a.example/`", "UriMalformed(96)"),
        ("http://a.example/\u{fc}", "UriMalformed(195)"),
        ("http://a.example/?\u{fc}", "UriMalformed(195)"),
        ("http://a.example/\u{2028}", "UriMalformed(226)"),
        ("http://a.example/a b", "RequestLineMalformed"),
        ("http://a.example/a\tb", "RequestLineMalformed"),
        ("http://a.example/\0", "RequestLineMalformed"),
        ("http://a.example/\x7f", "RequestLineMalformed"),
        ("http://a.example/a\rb", "CarriageReturnBare"),
        ("http:/a.example/", "AuthorityWithoutConnect"),
        ("http:a.example", "AuthorityWithoutConnect"),
        ("//a.example/", "NotProxyRequest"),
    ] {
        check(&format!("GET {url} HTTP/1.0\r\n\r\n"), &format!("400 {error}"));
    }
    for (url, error) in [
        ("https://a.example/", "501 SchemeNeedsTunnel"),
        ("HTTPS://a.example/", "501 SchemeNeedsTunnel"),
        ("ws://a.example/", "400 WebSocketUnasked"),
        ("wss://a.example/", "501 SchemeUnknown"),
        ("ws:///a.example/", "400 Target(HostEmpty)"),
        ("ws://u@a.example/", "400 Target(UserForbidden)"),
        ("ws://b.example/", "400 HostDisagrees"),
        ("ws://a.example:81/", "400 HostDisagrees"),
        ("ws://a.example/#x", "400 UriMalformed(35)"),
        ("://a.example/", "501 SchemeUnknown"),
        ("httpx://a.example/", "501 SchemeUnknown"),
        ("a.example/http://b.example/", "501 SchemeUnknown"),
    ] {
        check(&format!("GET {url} HTTP/1.1\r\nHost: a.example\r\n\r\n"), error);
    }
    let head = b"GET http://a.example/\xff HTTP/1.0\r\n\r\n";
    assert_eq!(render(head, false), "400 RequestLineMalformed");
}

#[test]
fn methods_are_case_sensitive_tokens() {
    for method in ["GET", "PATCH", "PROPFIND", "get", "M-SEARCH", "head", "PRI", "X!#$%&'*+-.^_`|~"] {
        check_line(&format!("{method} http://a.example/x"), "", &format!("{method} /x"), NOTHING);
    }
    // A server that ignores case would open a tunnel, or return our headers.
    for method in ["TRACE", "trace", "CONNECT", "connect", "Connect"] {
        check_line(&format!("{method} http://a.example/x"), "", "", "405 MethodNotAllowed");
    }
    check_line("TRACE http://a.example/", "Max-Forwards: 0\r\n", "", "405 MethodNotAllowed");
}

#[test]
fn options_asterisk_and_max_forwards() {
    for (url, path) in [
        ("http://a.example", "*"),
        ("http://a.example:80", "*"),
        ("http://a.example/", "/"),
        ("http://a.example?", "/?"),
        ("http://a.example/*", "/*"),
    ] {
        check_line(&format!("OPTIONS {url}"), "", &format!("OPTIONS {path}"), NOTHING);
    }
    check_line("options http://a.example", "", "options /", NOTHING);
    check_line("OPTIONS *", "", "", "405 MethodNotAllowed");
    check_line("GET *", "", "", "400 AsteriskWithoutOptions");
    for (received, written) in [
        ("5", "4"),
        ("1", "0"),
        ("0", "0"),
        ("007", "6"),
        ("4294967295", "4294967294"),
        ("4294967296", "4294967294"),
        ("99999999999999999999", "4294967294"),
    ] {
        let (received, written) =
            (format!("Max-Forwards: {received}\r\n"), format!("Max-Forwards: {written}\r\n"));
        check_line("OPTIONS http://a.example", &received, "OPTIONS *", &written);
        let head = format!("OPTIONS http://a.example/ HTTP/1.0\r\n{received}\r\n");
        let forwarded = forward(head.as_bytes(), false).expect("the request is valid");
        assert_eq!(forwarded.targets_proxy, received == "Max-Forwards: 0\r\n");
    }
    for value in ["", "-1", "+5", "5x", "0x5", "5, 4", "\u{661}"] {
        let header = format!("Max-Forwards: {value}\r\n");
        check_line("OPTIONS http://a.example", &header, "", "400 MaxForwardsMalformed");
    }
    // For other methods it is forwarded unchecked.
    for value in ["0", "5", "x"] {
        let header = format!("Max-Forwards: {value}\r\n");
        check_headers(&header, &header);
    }
    check_headers("Max-Forwards: 5\r\nmax-forwards: 0\r\n", "400 HeaderRepeated(\"Max-Forwards\")");
    assert!(
        !forward(b"GET http://a/ HTTP/1.0\r\nMax-Forwards: 0\r\n\r\n", false).expect("valid").targets_proxy
    );
}

#[test]
fn own_options_response() {
    for (closes, connection) in [(false, ""), (true, "Connection: close\r\n")] {
        let mut out = Vec::new();
        write_options_response(&mut out, "then", closes);
        let allow = "Allow: CONNECT, GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n";
        let expected =
            format!("HTTP/1.1 200 OK\r\n{allow}Content-Length: 0\r\n{connection}Date: then\r\n\r\n");
        assert_eq!(String::from_utf8(out).expect("ASCII"), expected);
    }
}

#[test]
fn hop_by_hop_headers_are_removed() {
    for line in [
        "Connection: close",
        "Connection: keep-alive",
        "Connection:",
        "Connection: ,, ,",
        "Proxy-Connection: keep-alive",
        "proxy-connection: close, x-foo",
        "Keep-Alive: timeout=5, max=100",
        "TE: gzip",
        "TE: trailers;q=0.5",
        "Proxy-Authorization: Basic bWU6eA==",
        "PROXY-AUTHORIZATION: Basic bWU6eA==",
        "Proxy-Authenticate: Basic",
        "Proxy-Authentication-Info: x",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
        "Upgrade: websocket",
        "Connection: connection",
        "Connection: proxy-connection, Proxy-Authorization, keep-alive",
    ] {
        check_headers(&format!("{line}\r\n"), NOTHING);
        check_headers(&format!("X: 1\r\n{line}\r\nY: 2\r\n"), "X: 1\r\nY: 2\r\n");
    }
    check_headers("TE: trailers\r\n", "TE: trailers\r\nConnection: TE\r\n");
    check_headers("Connection: te\r\nTE: gzip;q=0.5, Trailers\r\n", "TE: trailers\r\nConnection: TE\r\n");
    check_headers_10("Connection: TE\r\nTE: trailers\r\n", NOTHING);
}

#[test]
fn headers_named_by_connection_are_removed() {
    for (lines, expected) in [
        ("Connection: x-foo\r\nX-Foo: 1\r\nX-Foobar: 2\r\nx-foo: 3\r\n", "X-Foobar: 2\r\n"),
        ("X-A: 1\r\nX-B: 2\r\nX-C: 3\r\nConnection: x-c , ,x-A\r\n", "X-B: 2\r\n"),
        ("Connection: close\r\nX-A: 1\r\nX-B: 2\r\nconnection: X-B\r\n", "X-A: 1\r\n"),
        ("Authorization: Basic eA==\r\nConnection: authorization\r\n", NOTHING),
        ("Cookie: a\r\nAccept: b\r\nVia: 1.1 c\r\nConnection: accept, via, cookie\r\n", NOTHING),
        ("Connection: absent\r\nX: 1\r\n", "X: 1\r\n"),
        ("Close: 1\r\nX: 1\r\nConnection: close\r\n", "X: 1\r\n"),
        ("Proxy-Connection: x-foo\r\nX-Foo: 1\r\n", "X-Foo: 1\r\n"),
    ] {
        check_headers(lines, expected);
    }
    // Headers about the destination, the body or an expectation cannot be removed.
    for name in ["host", "Content-Length", "transfer-encoding", "EXPECT", "max-forwards"] {
        check_headers(&format!("Connection: close, {name}\r\n"), "400 ConnectionMalformed");
    }
    for value in ["x y", "\"x\"", "x;y", "x=1", "close\tx", "(x)", "\u{fc}"] {
        check_headers(&format!("Connection: {value}\r\n"), "400 ConnectionMalformed");
    }
    let list = vec!["x"; CONNECTION_OPTIONS_MAX].join(",");
    check_headers(&format!("Connection: {list}\r\nX: 1\r\n"), NOTHING);
    check_headers(&format!("Connection: {list}\r\nConnection: y\r\n"), "431 ConnectionTooLong");
    check_headers(
        &format!("Connection: {}\r\n", ",".repeat(CONNECTION_OPTIONS_MAX)),
        "431 ConnectionTooLong",
    );
}

#[test]
fn connection_options_may_forbid_trailers() {
    for (line, may_forward_trailers) in [
        ("", true),
        ("Connection: close, keep-alive, TE, upgrade\r\n", true),
        ("Connection: trailer\r\n", false),
        ("Connection: close, x-sum\r\n", false),
    ] {
        let head = format!("PUT http://a/ HTTP/1.0\r\n{line}Content-Length: 1\r\n\r\n");
        let forwarded = forward(head.as_bytes(), false).expect("the request is forwarded");
        assert_eq!(forwarded.may_forward_trailers, may_forward_trailers, "{line}");
    }
}

#[test]
fn upgrade_offers_one_protocol_only() {
    for protocol in ["websocket", "WebSocket", "x-ssh/2.0", "h3"] {
        let lines = format!("Connection: Upgrade\r\nUpgrade: {protocol}\r\nSec-WebSocket-Key: x\r\n");
        let written = format!("Sec-WebSocket-Key: x\r\nUpgrade: {protocol}\r\nConnection: Upgrade\r\n");
        check_headers(&lines, &written);
        check_headers_10(&lines, "Sec-WebSocket-Key: x\r\n");
    }
    let websocket = "Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\n";
    check_headers(
        &format!("{websocket}Content-Length: 0\r\n"),
        "Content-Length: 0\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    );
    check_headers(
        &format!("{websocket}TE: trailers\r\n"),
        "Upgrade: websocket\r\nTE: trailers\r\nConnection: Upgrade, TE\r\n",
    );
    // The request itself is forwarded, without the offer.
    check_headers(&format!("{websocket}Content-Length: 5\r\n"), "Content-Length: 5\r\n");
    check_headers(&format!("{websocket}Transfer-Encoding: chunked\r\n"), "Transfer-Encoding: chunked\r\n");
    for offer in [
        "h2c",
        "H2C",
        "h2",
        "HTTP/2.0",
        "http/1.1",
        "TLS/1.2",
        "tls",
        "",
        "websocket, h2c",
        "websocket,",
        "websocket/13/2",
        "websocket/",
        "/13",
        "web socket",
        "\"websocket\"",
    ] {
        let lines =
            format!("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {offer}\r\nHTTP2-Settings: x\r\n");
        check_headers(&lines, NOTHING);
    }
    check_headers("Upgrade: websocket\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", NOTHING);
    check_headers("Upgrade: \r\nConnection: upgrade\r\nUpgrade: websocket\r\n", NOTHING);
    check_headers("Connection: upgrade\r\n", NOTHING);
}

#[test]
fn ws_url_requires_a_websocket_upgrade() {
    for (url, protocol, path) in [
        ("ws://a.example", "websocket", "/"),
        ("ws://a.example/x?y", "websocket", "/x?y"),
        ("WS://A.EXAMPLE:80/x", "WebSocket", "/x"),
    ] {
        let headers = format!("Connection: upgrade\r\nUpgrade: {protocol}\r\n");
        let written = format!("Upgrade: {protocol}\r\nConnection: Upgrade\r\n");
        check_line(&format!("GET {url}"), &headers, &format!("GET {path}"), &written);
    }
    for headers in [
        "",
        "Upgrade: websocket\r\n",
        "Connection: upgrade\r\n",
        "Connection: upgrade\r\nUpgrade: h2c\r\n",
        "Connection: upgrade\r\nUpgrade: x-ssh/2.0\r\n",
        "Connection: upgrade\r\nUpgrade: websocket, h2c\r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n",
    ] {
        check_line("GET ws://a.example/x", headers, "", "400 WebSocketUnasked");
    }
    let old = "GET ws://a.example/x HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    check(old, "400 WebSocketUnasked");
}

#[test]
fn only_100_continue_is_accepted_in_expect() {
    check_headers("Expect: 100-continue\r\n", "Expect: 100-continue\r\n");
    check_headers("expect:100-Continue\r\n", "Expect: 100-continue\r\n");
    // HTTP/1.0 has no interim responses (RFC 9110, section 10.1.1).
    check_headers_10("Expect: 100-continue\r\n", NOTHING);
    for value in ["", "100", "200-ok", "100-continue, x", "100-continue;x", "100-continuex"] {
        check_headers(&format!("Expect: {value}\r\n"), "417 ExpectationUnknown");
    }
    check_headers("Expect: 100-continue\r\nExpect: 100-continue\r\n", "400 HeaderRepeated(\"Expect\")");
}

#[test]
fn via_is_appended_and_detects_loops() {
    for line in [
        "Via: 1.1 other",
        "Via: 1.1 gate2, 1.0 gat (gate)",
        "Via: gate",
        "Via: 1.1 GATE",
        "Via: ",
        "Via: ,,",
        "Via: 1.1 other (1.1 gate)",
        "X-Via: 1.1 gate",
    ] {
        check_headers(&format!("{line}\r\n"), &format!("{line}\r\n"));
    }
    for line in [
        "Via: 1.1 gate",
        "via: 1.0 gate",
        "Via: 1.1 other, 1.1 gate",
        "Via: 1.1 other,1.1 gate (us)",
        "Via: 1.1 gate, 1.1 other",
        "Via: HTTP/1.1 gate",
        "Via: 2 \t gate",
        "Via: 1.1 other\r\nVia: 1.1 gate",
        "Connection: via\r\nVia: 1.1 gate",
    ] {
        check_headers(&format!("{line}\r\n"), "508 Looped");
    }
    // A gateway of the same name refuses a head that this one has written.
    let once = render(b"GET http://a.example/ HTTP/1.0\r\n\r\n", false);
    check(&once.replace("GET /", "GET http://a.example/"), "508 Looped");
}

#[test]
fn closing_request_says_connection_close() {
    for (lines, expected) in [
        ("", "Connection: close\r\n"),
        ("Connection: keep-alive\r\n", "Connection: close\r\n"),
        ("TE: trailers\r\n", "TE: trailers\r\nConnection: TE, close\r\n"),
        // Its connection ends with the upgraded protocol.
        ("Connection: upgrade\r\nUpgrade: websocket\r\n", "Upgrade: websocket\r\nConnection: Upgrade\r\n"),
    ] {
        let head = format!("GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n");
        assert_eq!(render(head.as_bytes(), true), or_refusal("GET /x", expected, "1.1"));
    }
}

#[test]
fn request_traits_are_read() {
    let traits = |line: &str, headers: &str| {
        let head = format!("{line}\r\nHost: a\r\n{headers}\r\n");
        forward(head.as_bytes(), false).expect("the request is forwarded").traits
    };
    for (line, headers, keeps_alive) in [
        ("GET http://a/ HTTP/1.1", "", true),
        ("GET http://a/ HTTP/1.1", "Connection: keep-alive\r\n", true),
        ("GET http://a/ HTTP/1.1", "Connection: x, CLOSE\r\n", false),
        ("GET http://a/ HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ("GET http://a/ HTTP/1.1", "Connection: x-close\r\n", true),
        ("GET http://a/ HTTP/1.1", "Proxy-Connection: close\r\n", false),
        ("GET http://a/ HTTP/1.0", "", false),
        // A proxy keeps no connection of HTTP/1.0 open (RFC 9112, section 9.3).
        ("GET http://a/ HTTP/1.0", "Connection: keep-alive\r\nProxy-Connection: keep-alive\r\n", false),
    ] {
        assert_eq!(traits(line, headers).keeps_alive, keeps_alive, "{line} {headers:?}");
    }
    for (method, headers, is_repeatable) in [
        ("GET", "", true),
        ("HEAD", "", true),
        ("OPTIONS", "", true),
        ("PUT", "", true),
        ("DELETE", "", true),
        ("POST", "", false),
        ("PATCH", "", false),
        ("get", "", false),
        ("GET", "Content-Length: 1\r\n", false),
        ("PUT", "Transfer-Encoding: chunked\r\n", false),
        ("GET", "Connection: upgrade\r\nUpgrade: websocket\r\n", false),
    ] {
        let traits = traits(&format!("{method} http://a/ HTTP/1.1"), headers);
        assert_eq!(traits.is_repeatable, is_repeatable, "{method} {headers:?}");
        assert_eq!(traits.is_head(), method == "HEAD");
        assert_eq!(traits.upgrade.is_some(), headers.contains("websocket"));
        assert_eq!(traits.version, Version::Http11);
    }
    let expects = "Expect: 100-continue\r\n";
    for (line, headers, expects_continue) in [
        ("PUT http://a/ HTTP/1.1", "", false),
        ("PUT http://a/ HTTP/1.1", expects, true),
        ("PUT http://a/ HTTP/1.0", expects, false),
    ] {
        assert_eq!(traits(line, headers).expects_continue, expects_continue, "{line} {headers:?}");
    }
}

#[test]
fn proxy_credentials_are_not_forwarded_or_printed() {
    let head = b"GET http://a/ HTTP/1.0\r\nProxy-Authorization: Basic c2VjcmV0\r\nAuthorization: x\r\n\r\n";
    let forwarded = forward(head, false).expect("valid");
    assert_eq!(forwarded.authorization.as_deref(), Some(&b"Basic c2VjcmV0"[..]));
    assert!(!forwarded.head.windows(8).any(|bytes| bytes == b"c2VjcmV0"));
    check_headers(
        "Proxy-Authorization: Basic eA==\r\nproxy-authorization: Basic eQ==\r\n",
        "400 HeaderRepeated(\"Proxy-Authorization\")",
    );
    let mut storage = HeaderStorage::new();
    let head = RequestHead::parse(head, &mut storage).expect("valid");
    let debug = format!("{head:?} {:?}", Forward::read(&head));
    assert!(debug.contains("authorization: Some(..)") && !debug.contains("c2VjcmV0"), "{debug}");
    assert!(!debug.contains("66, 97, 115"), "byte slices print as lists of numbers: {debug}");
    for url in ["http://a/?token=c2VjcmV0", "http://me:c2VjcmV0@a/"] {
        let head = format!("GET {url} HTTP/1.0\r\n\r\n");
        let mut storage = HeaderStorage::new();
        let head = RequestHead::parse(head.as_bytes(), &mut storage).expect("valid");
        let debug = format!("{head:?} {:?}", Forward::read(&head));
        assert!(debug.contains("GET") && !debug.contains("c2VjcmV0"), "{debug}");
    }
}
