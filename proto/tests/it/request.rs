//! Request heads: accepted ones, and every fault with its status and error.

use proto::http_connect::Connect;
use proto::http_forward::Forward;
use proto::http_head::{
    HeadError, HeadScanner, HeadTooLarge, HeaderStorage, RequestError, RequestHead, UriForm,
};
use proto::limits::{HEAD_BYTES_MAX, HEADERS_MAX};
use proto::target::TargetError;

/// The result in one line.
fn render(head: &[u8]) -> String {
    let mut storage = HeaderStorage::new();
    let error = |error: RequestError| {
        let inner = match error {
            RequestError::Head(inner) => format!("{inner:?}"),
            other => format!("{other:?}"),
        };
        format!("{} {inner}", error.status())
    };
    let head = match RequestHead::parse(head, &mut storage) {
        Ok(head) => head,
        Err(reason) => return error(reason),
    };
    let json = if head.accepts_json() { " json" } else { "" };
    if !head.is_connect() {
        let refused = Forward::read(&head).err().map(error);
        return format!("{:?} {}{json}", head.uri_form(), refused.unwrap_or("forward".to_owned()));
    }
    match Connect::read(&head) {
        Ok(connect) => {
            let authorization = connect.authorization.map(|value| value.escape_ascii().to_string());
            format!("connect {} {}{json}", connect.target, authorization.unwrap_or("-".to_owned()))
        }
        Err(reason) => error(reason),
    }
}

/// Delivers the head at every split, followed by other bytes, and compares each result.
#[track_caller]
fn check(head: &str, expected: &str) {
    let followed = [head.as_bytes(), b"\x16\x03\x01"].concat();
    for cut in 0..=followed.len() {
        let mut scanner = HeadScanner::default();
        let early = scanner.find(&followed[..cut]).expect("the head is small");
        let length = early.or_else(|| scanner.find(&followed).expect("the head is small"));
        let length = length.unwrap_or_else(|| panic!("no end found in {head:?}"));
        assert_eq!(length, head.len(), "{head:?} cut at {cut}");
    }
    assert_eq!(render(head.as_bytes()), expected, "{head:?}");
}

/// Checks a CONNECT with these header lines.
#[track_caller]
fn check_headers(headers: &str, expected: &str) {
    check(&format!("CONNECT a.example:443 HTTP/1.1\r\n{headers}\r\n"), expected);
}

const ACCEPTED: &str = "connect a.example:443 -";

#[test]
fn connects_of_real_clients_are_accepted() {
    check(
        "CONNECT api.github.com:443 HTTP/1.1\r\nHost: api.github.com:443\r\n\
         Proxy-Authorization: Basic bWU6eA==\r\nUser-Agent: curl/8.5.0\r\n\
         Proxy-Connection: Keep-Alive\r\n\r\n",
        "connect api.github.com:443 Basic bWU6eA==",
    );
    check("CONNECT a.example:22 HTTP/1.0\r\n\r\n", "connect a.example:22 -");
    check(
        "CONNECT www.example.com:443 HTTP/1.0\r\nUser-Agent: Mozilla/4.0\r\nProxy-Connection: Keep-Alive\r\n\
         Content-Length: 0\r\nHost: www.example.com\r\nPragma: no-cache\r\n\r\n",
        "connect www.example.com:443 -",
    );
    check(
        "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n",
        "connect [2001:db8::1]:443 -",
    );
    check("CONNECT 10.0.0.1:5432 HTTP/1.1\r\nHost:10.0.0.1:5432\r\n\r\n", "connect 10.0.0.1:5432 -");
}

#[test]
fn request_lines_are_strict() {
    let malformed = "400 RequestLineMalformed";
    for (line, expected) in [
        ("CONNECT  a.example:443 HTTP/1.1", malformed),
        ("CONNECT a.example:443  HTTP/1.1", malformed),
        ("CONNECT a.example:443 HTTP/1.1 ", malformed),
        (" CONNECT a.example:443 HTTP/1.1", malformed),
        ("CONNECT\ta.example:443\tHTTP/1.1", malformed),
        ("CONNECT a.example:443 http/1.1", malformed),
        ("CONNECT a.example:443 HTTP/1.10", "400 RequestLineMalformed"),
        ("CONNECT a.example:443 HTTP/1.2", "505 VersionUnsupported"),
        ("CONNECT a.example:443 HTTP/1.1x", "400 RequestLineMalformed"),
        ("CONNECT HTTP/1.1", "400 VersionMissing"),
        ("CONNECT a.example:443", "400 VersionMissing"),
        ("GET /", "400 VersionMissing"),
        ("CONNECT", malformed),
        ("C(NNECT a.example:443 HTTP/1.1", malformed),
        ("CONNECT a.example:443\0 HTTP/1.1", malformed),
        ("CONNECT evil\0.a.example:443 HTTP/1.1", malformed),
        ("CONNECT a.example:443\r HTTP/1.1", "400 CarriageReturnBare"),
        ("CONNECT a.example:443 HTTP/0.9", "505 VersionUnsupported"),
        ("CONNECT a.example:443 HTTP/2.0", "505 VersionUnsupported"),
        ("CONNECT a.example:443 HTTP/3", "400 RequestLineMalformed"),
        ("CONNECT a.example:443 HTTP/01.1", "400 RequestLineMalformed"),
        ("CONNECT a.example:443 HTTP/1", "400 RequestLineMalformed"),
        ("PRI * HTTP/2.0", "505 VersionUnsupported"),
        ("", "400 FirstLineEmpty"),
    ] {
        check(&format!("{line}\r\n{}", if line.is_empty() { "" } else { "\r\n" }), expected);
    }
}

#[test]
fn targets_are_strict() {
    for (target, expected) in [
        ("a.example", "400 Target(PortMissing)"),
        ("a.example:0", "400 Target(PortInvalid)"),
        ("a.example:65536", "400 Target(PortInvalid)"),
        ("a.example:-1", "400 Target(PortInvalid)"),
        ("a.example:443x", "400 Target(PortInvalid)"),
        ("a.example:0443", "400 Target(PortInvalid)"),
        ("a.example.:443", "400 Target(TrailingDot)"),
        ("0177.0.0.1:443", "400 Target(AmbiguousAddress)"),
        ("2130706433:443", "400 Target(AmbiguousAddress)"),
        ("[example.com]:443", "400 Target(NotIpv6)"),
        ("[fe80::1%25eth0]:443", "400 Target(ZoneForbidden)"),
        ("ok@evil.example:443", "400 Target(UserForbidden)"),
        ("http://a.example:443/", "400 Target(NotAuthority)"),
        ("/", "400 Target(NotAuthority)"),
        ("*", "400 Target(PortMissing)"),
        ("evil%2ea.example:443", "400 Target(ByteForbidden(37))"),
        ("b\u{fc}cher.example:443", "400 Target(NotAscii)"),
        ("A.EXAMPLE:443", ACCEPTED),
        ("[::ffff:127.0.0.1]:443", "connect 127.0.0.1:443 -"),
    ] {
        check(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"), expected);
    }
}

#[test]
fn lines_end_in_crlf_without_folding() {
    check("CONNECT a.example:443 HTTP/1.1\n\n", "400 LineFeedBare");
    check("CONNECT a.example:443 HTTP/1.1\r\n\n", "400 LineFeedBare");
    check("CONNECT a.example:443 HTTP/1.1\n\r\n", "400 LineFeedBare");
    check("\n", "400 LineFeedBare");
    check_headers("Host: a.example\n", "400 LineFeedBare");
    check_headers("X: 1\nHost: a.example\r\n", "400 LineFeedBare");
    check_headers("X: 1\rHost: a.example\r\n", "400 CarriageReturnBare");
    check_headers("X: 1\r\r\n", "400 CarriageReturnBare");
    check_headers("X: 1\r\n folded\r\n", "400 HeaderFolded");
    check_headers("X: 1\r\n\tfolded\r\n", "400 HeaderFolded");
    check_headers(" X: 1\r\n", "400 HeaderFolded");
    check_headers(" \r\n", "400 HeaderFolded");
}

#[test]
fn header_names_and_values_are_strict() {
    for name in
        ["Content-Length ", "Host ", "Host\t", "", "Ho st", "H\0st", "H\u{f6}st", "Host(", "X\"Y", "\x7f"]
    {
        check_headers(&format!("{name}: a.example\r\n"), "400 HeaderNameMalformed");
    }
    check_headers("no colon at all\r\n", "400 HeaderNameMalformed");
    for value in ["a\0b", "a\x01b", "a\x7fb", "\x0b"] {
        check_headers(&format!("X: {value}\r\n"), "400 HeaderValueMalformed");
    }
    check_headers("X: tab\tand obs-text \u{fc} are harmless\r\n", ACCEPTED);
    check_headers("X:\r\nY: \r\n", ACCEPTED);
}

#[test]
fn connect_with_a_body_is_refused() {
    for header in [
        "Content-Length: 1",
        "Content-Length: +0",
        "Content-Length: 00",
        "Content-Length: -0",
        "Content-Length: 0, 0",
        "Content-Length: 0x0",
        "Content-Length: 18446744073709551616",
        "Content-Length:",
        "content-LENGTH: 5",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding:",
        "transfer-encoding: xchunked\r\nContent-Length: 0",
    ] {
        check_headers(&format!("{header}\r\n"), "400 BodyForbidden");
    }
    check_headers("Content-Length: 0\r\n", ACCEPTED);
    check_headers("Content-Length: 0\r\nContent-Length: 0\r\n", "400 HeaderRepeated(\"Content-Length\")");
    check_headers("Content-Length: 0\r\nContent-Length: 5\r\n", "400 HeaderRepeated(\"Content-Length\")");
    check_headers(
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "400 HeaderRepeated(\"Transfer-Encoding\")",
    );
}

#[test]
fn host_header_must_match_the_target() {
    for host in ["a.example:443", "A.Example:443", "a.example", "A.EXAMPLE"] {
        check_headers(&format!("Host: {host}\r\n"), ACCEPTED);
    }
    for host in [
        "",
        "b.example:443",
        "b.example",
        "a.example:80",
        "a.example:",
        "a.example:0443",
        "a.example.:443",
        "a.example, b.example",
        "ok@a.example:443",
        "a.example:443/",
        "[a.example]:443",
        "http://a.example:443",
    ] {
        check_headers(&format!("Host: {host}\r\n"), "400 HostDisagrees");
    }
    check_headers("Host: a.example\r\nHost: a.example\r\n", "400 HeaderRepeated(\"Host\")");
    check_headers("Host: a.example\r\nhost: b.example\r\n", "400 HeaderRepeated(\"Host\")");
    check("CONNECT [::1]:443 HTTP/1.1\r\nHost: [0:0::1]:443\r\n\r\n", "connect [::1]:443 -");
    check("CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]\r\n\r\n", "connect [::1]:443 -");
    check("CONNECT [::1]:443 HTTP/1.1\r\nHost: [::2]:443\r\n\r\n", "400 HostDisagrees");
    check("CONNECT [::1]:443 HTTP/1.1\r\nHost: ::1\r\n\r\n", "400 HostDisagrees");
    check("CONNECT [::ffff:10.0.0.1]:443 HTTP/1.1\r\nHost: 10.0.0.1:443\r\n\r\n", "connect 10.0.0.1:443 -");
}

#[test]
fn credentials_are_read_once_and_never_printed() {
    check_headers("proxy-authorization: Basic eA==\r\n", "connect a.example:443 Basic eA==");
    check_headers("Authorization: Basic eA==\r\n", ACCEPTED);
    check_headers(
        "Proxy-Authorization: Basic eA==\r\nProxy-Authorization: Basic eQ==\r\n",
        "400 HeaderRepeated(\"Proxy-Authorization\")",
    );
    let head = b"CONNECT a.example:443 HTTP/1.1\r\nProxy-Authorization: Basic c2VjcmV0\r\n\r\n";
    let mut storage = HeaderStorage::new();
    let head = RequestHead::parse(head, &mut storage).unwrap();
    let debug = format!("{head:?} {:?}", Connect::read(&head));
    assert!(debug.contains("authorization: Some(..)") && !debug.contains("c2VjcmV0"), "{debug}");
    // Byte slices print as lists of numbers.
    assert!(!debug.contains("66, 97, 115"), "{debug}");
}

#[test]
fn header_count_is_bounded() {
    check_headers(&"X: 1\r\n".repeat(HEADERS_MAX), ACCEPTED);
    check_headers(&"X: 1\r\n".repeat(HEADERS_MAX + 1), "431 TooManyHeaders");
}

#[test]
fn accept_header_selects_json() {
    let json = "connect a.example:443 - json";
    for (accept, expected) in [
        ("application/json", json),
        ("Application/JSON", json),
        ("text/html, application/json;q=0.9, */*;q=0.1", json),
        ("application/json ; charset=utf-8", json),
        ("application/json;q=0.001", json),
        ("application/json;q=0", ACCEPTED),
        ("application/json; Q=0.000", ACCEPTED),
        ("application/jsonx", ACCEPTED),
        ("*/*", ACCEPTED),
        ("", ACCEPTED),
    ] {
        check_headers(&format!("Accept: {accept}\r\n"), expected);
    }
    check_headers("Accept: text/html\r\nAccept: application/json\r\n", json);
    check_headers("Accent: application/json\r\n", ACCEPTED);
}

#[test]
fn request_target_forms_other_than_url_are_refused() {
    for (line, expected) in [
        ("GET http://a.example/", "Absolute forward"),
        ("PROPFIND http://a.example/", "Absolute forward"),
        ("GET https://a.example/", "Absolute 501 SchemeNeedsTunnel"),
        ("GET ftp://a.example/", "Absolute 501 SchemeUnknown"),
        ("GET /", "Origin 400 NotProxyRequest"),
        ("GET /metrics?x=http://y", "Origin 400 NotProxyRequest"),
        ("GET //a.example/", "Origin 400 NotProxyRequest"),
        ("OPTIONS *", "Asterisk 405 MethodNotAllowed"),
        ("OPTIONS /", "Origin 400 NotProxyRequest"),
        ("TRACE http://a.example/", "Absolute 405 MethodNotAllowed"),
        ("TRACE /", "Origin 405 MethodNotAllowed"),
        ("connect a.example:443", "Authority 400 AuthorityWithoutConnect"),
        ("GET a.example:443", "Authority 400 AuthorityWithoutConnect"),
        ("GET **", "Authority 400 AuthorityWithoutConnect"),
    ] {
        check(&format!("{line} HTTP/1.1\r\nHost: a.example\r\n\r\n"), expected);
    }
    check(
        "GET / HTTP/1.1\r\nAccept: application/json\r\nContent-Length: 5\r\n\r\n",
        "Origin 400 NotProxyRequest json",
    );
    check("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400 HeaderRepeated(\"Host\")");
    let form = |uri: &str| {
        let head = format!("GET {uri} HTTP/1.1\r\n\r\n");
        RequestHead::parse(head.as_bytes(), &mut HeaderStorage::new()).unwrap().uri_form()
    };
    assert_eq!(form("/a://b"), UriForm::Origin);
    assert_eq!(form("ftp://a"), UriForm::Absolute);
    assert_eq!(form("*"), UriForm::Asterisk);
}

#[test]
fn input_must_be_exactly_one_head() {
    for bytes in [
        "",
        "C",
        "CONNECT a.example:443 HTTP/1.1\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\n\r\nx",
        "CONNECT a.example:443 HTTP/1.1\r\n\r\nCONNECT b.example:443 HTTP/1.1\r\n\r\n",
    ] {
        assert_eq!(render(bytes.as_bytes()), "500 NotOneHead", "{bytes:?}");
    }
}

#[test]
fn request_errors_have_remedy_and_proxy_status() {
    let too_large = format!("longer than {HEAD_BYTES_MAX} bytes");
    for (error, status, proxy_status, part) in [
        (RequestError::SchemeNeedsTunnel, 501, "proxy_internal_response", "asked for by CONNECT"),
        (RequestError::NotProxyRequest, 400, "http_request_error", "this is a proxy"),
        (RequestError::VersionUnsupported, 505, "proxy_internal_response", "send HTTP/1.1"),
        (RequestError::Looped, 508, "proxy_loop_detected", "would loop"),
        (HeadError::HeaderRepeated("Host").into(), 400, "http_request_error", "more than one Host header"),
        (HeadError::NotOneHead.into(), 500, "proxy_internal_error", "the gateway"),
        (HeadError::HeadTooLarge(HeadTooLarge).into(), 431, "http_request_error", &too_large),
        (TargetError::TrailingDot.into(), 400, "http_request_error", "ends with a dot: remove it"),
    ] {
        assert_eq!(error.status(), status, "{error:?}");
        assert_eq!(error.proxy_status_error(), proxy_status, "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    }
}
