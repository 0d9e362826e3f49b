//! A destination's responses: the kind of each, and the exact bytes that are written for the client.

use std::sync::LazyLock;

use proto::http_forward::{RequestTraits, ResponseHeaders, ResponseKind, write_response};
use proto::http_head::{HeadError, HeadTooLarge, HeaderStorage, ResponseError, ResponseHead};
use proto::limits::HEADERS_MAX;

use crate::forward_request::{VIA, forward};

static GET: LazyLock<RequestTraits> = LazyLock::new(|| traits("GET http://a/ HTTP/1.1", ""));
static HEAD: LazyLock<RequestTraits> = LazyLock::new(|| traits("HEAD http://a/ HTTP/1.1", ""));
static GET_10: LazyLock<RequestTraits> = LazyLock::new(|| traits("GET http://a/ HTTP/1.0", ""));
static WEBSOCKET: LazyLock<RequestTraits> =
    LazyLock::new(|| traits("GET http://a/ HTTP/1.1", "Connection: upgrade\r\nUpgrade: websocket\r\n"));

fn traits(line: &str, headers: &str) -> RequestTraits {
    let head = format!("{line}\r\nHost: a\r\n{headers}\r\n");
    forward(head.as_bytes(), false).expect("the request is forwarded").traits
}

/// Calls the parser and the writer; no other function of this file does.
pub(crate) fn read_and_write(
    head: &[u8],
    traits: &RequestTraits,
    closes: bool,
) -> Result<(ResponseKind, Vec<u8>), ResponseError> {
    let mut storage = HeaderStorage::new();
    let head = ResponseHead::parse(head, &mut storage)?;
    let kind = ResponseKind::read(&head, traits)?;
    let mut written = b"before".to_vec();
    write_response(&mut written, &head, kind, traits, ResponseHeaders { via: VIA, date: None, closes });
    Ok((kind, written.split_off("before".len())))
}

/// The kind in a few words, and the written head; or the error and an empty text.
fn render(traits: &RequestTraits, head: &[u8], closes: bool) -> (String, String) {
    match read_and_write(head, traits, closes) {
        Ok((kind, written)) => {
            let summary = match kind {
                ResponseKind::Interim => "interim".to_owned(),
                ResponseKind::Upgraded => "upgraded".to_owned(),
                ResponseKind::Final { body, keeps_alive } => {
                    format!("{body:?}, {}", if keeps_alive { "kept" } else { "last" })
                }
            };
            (summary, String::from_utf8(written).expect("the cases are UTF-8"))
        }
        Err(ResponseError::Head(error)) => (format!("{error:?}"), String::new()),
        Err(error) => (format!("{error:?}"), String::new()),
    }
}

#[track_caller]
fn check(traits: &RequestTraits, head: &str, summary: &str, written: &str) {
    assert_eq!(render(traits, head.as_bytes(), false), (summary.to_owned(), written.to_owned()), "{head:?}");
}

/// Checks a response with this status line and these lines. `written` is the text between the written status
/// line and `Via`; a refused response writes nothing.
#[track_caller]
fn check_lines(traits: &RequestTraits, status: &str, lines: &str, summary: &str, written: &str) {
    let expected = format!("HTTP/1.1 {status}\r\n{written}Via: 1.1 {VIA}\r\n\r\n");
    check(traits, &format!("HTTP/1.1 {status}\r\n{lines}\r\n"), summary, &expected);
}

/// Checks a 200 that cannot be forwarded.
#[track_caller]
fn check_refused(lines: &str, error: &str) {
    for traits in [&GET, &HEAD, &GET_10, &WEBSOCKET] {
        check(traits, &format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), error, "");
    }
}

const NOTHING: &str = "";
const CLOSE: &str = "Connection: close\r\n";

#[test]
fn responses_of_real_servers_are_forwarded() {
    check_lines(
        &GET,
        "200 OK",
        "Server: nginx\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: text/html\r\n\
         Content-Length: 612\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nETag: \"x\"\r\n\
         Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nvia: 1.1 cache\r\nProxy-Status: cache; hit\r\n",
        "Length(612), kept",
        "Server: nginx\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: text/html\r\nETag: \"x\"\r\n\
         Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nvia: 1.1 cache\r\nProxy-Status: cache; hit\r\n\
         Content-Length: 612\r\n",
    );
    check(
        &GET,
        "HTTP/1.0 200 OK\r\nServer: SimpleHTTP/0.6 Python/3.13\r\nContent-type: text/html\r\n\r\n",
        "UntilClose, last",
        "HTTP/1.1 200 OK\r\nServer: SimpleHTTP/0.6 Python/3.13\r\nContent-type: text/html\r\n\
         Connection: close\r\nVia: 1.0 gate\r\n\r\n",
    );
    check_lines(&GET, "304 Not Modified", "ETag: \"x\"\r\n", "None, kept", "ETag: \"x\"\r\n");
}

#[test]
fn status_lines_are_strict() {
    for (line, status) in [
        ("HTTP/1.1 200 OK", "200 OK"),
        ("HTTP/1.1 200 ", "200 "),
        ("HTTP/1.1 200", "200 "),
        ("HTTP/1.1 404 Not  Found\t(really)", "404 Not  Found\t(really)"),
        ("HTTP/1.1 200  OK ", "200  OK "),
        // A reason phrase in an unknown encoding is dropped.
        ("HTTP/1.1 200 Tr\u{e8}s bien", "200 "),
        ("HTTP/1.1 299 x", "299 x"),
        ("HTTP/1.1 600 x", "600 x"),
        ("HTTP/1.1 999 x", "999 x"),
        ("HTTP/1.1 205 Reset Content", "205 Reset Content"),
        ("HTTP/1.1 426 Upgrade Required", "426 Upgrade Required"),
    ] {
        let written = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nVia: 1.1 gate\r\n\r\n");
        check(&GET, &format!("{line}\r\nContent-Length: 0\r\n\r\n"), "Length(0), kept", &written);
    }
    for line in [
        "HTTP/1.1 099 x",
        "HTTP/1.1 000 x",
        "HTTP/1.1 20 x",
        "HTTP/1.1 2000 x",
        "HTTP/1.1 -20 x",
        "HTTP/1.1 +200 x",
        "HTTP/1.1 0x8 x",
        "HTTP/1.1 200OK",
        "HTTP/1.1 200\tOK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1\t200 OK",
        "HTTP/1.1 OK",
        "HTTP/1.1 ",
        "HTTP/1.1",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1 200 \x1b[31m",
        "HTTP/1.1 200 \x7f",
        "HTTP/1.10 200 OK",
        "HTTP/1.2 200 OK",
        "HTTP/1.",
        "HTTP/2 200",
        "HTTP/2.0 200 OK",
        "HTTP/0.9 200 OK",
        "HTTP/11 200 OK",
        "http/1.1 200 OK",
        " HTTP/1.1 200 OK",
        "ICY 200 OK",
        "RTSP/1.0 200 OK",
        "SSH-2.0-OpenSSH_9.2",
        "220 mail.example ESMTP",
        "+OK ready",
        "<html>",
        "\x15\x03\x01\0\x02\x02\x50",
        "\r\nHTTP/1.1 200 OK",
        "\nHTTP/1.1 200 OK",
        "",
    ] {
        check(&GET, &format!("{line}\r\nContent-Length: 0\r\n\r\n"), "StatusLineMalformed", "");
    }
    check(&GET, "HTTP/1.1 200 O\rK\r\n\r\n", "CarriageReturnBare", "");
    check(&GET, "HTTP/1.1 200 OK\n\n", "LineFeedBare", "");
    check(&GET, "HTTP/1.1 200 OK\r\n", "NotOneHead", "");
    check(&GET, "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "NotOneHead", "");
}

#[test]
fn response_lines_are_as_strict_as_request_lines() {
    for (lines, error) in [
        (": x\r\n", "HeaderNameMalformed"),
        ("Content-Length : 1\r\n", "HeaderNameMalformed"),
        ("Transfer-Encoding\t: chunked\r\n", "HeaderNameMalformed"),
        ("Transfer-Encoding: \x0bchunked\r\n", "HeaderValueMalformed"),
        ("Set-Cookie: a\0b\r\n", "HeaderValueMalformed"),
        ("X: a\r\n Content-Length: 1\r\n", "HeaderFolded"),
        (" X: a\r\n", "HeaderFolded"),
        ("X: a\nContent-Length: 1\r\n", "LineFeedBare"),
        ("X: a\rContent-Length: 1\r\n", "CarriageReturnBare"),
        ("Connection: content-length\r\nContent-Length: 1\r\n", "ConnectionMalformed"),
        ("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n", "ConnectionMalformed"),
        ("Connection: a b\r\n", "ConnectionMalformed"),
    ] {
        check_refused(lines, error);
    }
    check_refused(&"X: 1\r\n".repeat(HEADERS_MAX + 1), "TooManyHeaders");
    check_refused(&format!("Connection: {}\r\n", ",".repeat(100)), "ConnectionTooLong");
}

/// Also for HEAD, where the length has no effect here: another proxy after this one may use it.
#[test]
fn ambiguous_body_length_is_refused() {
    for value in ["", "+1", "-1", "0x1", "1, 1", "1,2", "01", "1 2", "9223372036854775808", "1e1", "a"] {
        check_refused(&format!("Content-Length: {value}\r\n"), "LengthMalformed");
    }
    for coding in ["gzip, chunked", "chunked, chunked", "identity, chunked"] {
        check_refused(&format!("Transfer-Encoding: {coding}\r\n"), "CodingUnknown");
    }
    for coding in ["", "identity", "gzip", "xchunked", "chunked, gzip", "chunked;x"] {
        check_refused(&format!("Transfer-Encoding: {coding}\r\n"), "ChunkedNotLast");
    }
    for (first, second) in [("chunked", "5"), ("chunked", "0"), ("identity", "5"), ("", "")] {
        let (coding, length) =
            (format!("Transfer-Encoding: {first}\r\n"), format!("Content-Length: {second}\r\n"));
        check_refused(&format!("{coding}{length}"), "FramingConflict");
        check_refused(&format!("{length}{coding}"), "FramingConflict");
    }
    check_refused("Content-Length: 5\r\nContent-Length: 5\r\n", "HeaderRepeated(\"Content-Length\")");
    check_refused("Content-Length: 5\r\ncontent-length: 6\r\n", "HeaderRepeated(\"Content-Length\")");
    check_refused(
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "HeaderRepeated(\"Transfer-Encoding\")",
    );
    let head = "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n";
    check(&GET, head, "CodingInHttp10", "");
}

#[test]
fn client_learns_where_the_body_ends() {
    let (length, chunked) = ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n");
    check_lines(&GET, "200 OK", "content-length:5\r\n", "Length(5), kept", length);
    check_lines(&GET, "200 OK", "transfer-encoding: CHUNKED\r\n", "Chunked, kept", chunked);
    check_lines(&GET, "200 OK", "", "UntilClose, last", CLOSE);
    check_lines(&GET, "200 OK", "Connection: keep-alive\r\n", "UntilClose, last", CLOSE);
    check_lines(&GET_10, "200 OK", length, "Length(5), kept", length);
    // The frames are removed: HTTP/1.0 finds the end by the connection's end only.
    check_lines(&GET_10, "200 OK", chunked, "Chunked, kept", CLOSE);
    check_lines(&GET_10, "200 OK", "", "UntilClose, last", CLOSE);
    for (traits, head, expected) in [
        (&GET, "HTTP/1.1 200 OK\r\n\r\n", true),
        (&GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false),
        (&GET_10, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true),
        (&GET_10, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false),
        (&GET_10, "HTTP/1.1 304 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false),
        (&GET, "HTTP/1.1 100 Continue\r\n\r\n", false),
    ] {
        let (kind, _) = read_and_write(head.as_bytes(), traits, false).expect("valid");
        assert_eq!(kind.ends_with_connection(traits), expected, "{head:?}");
    }
}

#[test]
fn closing_response_says_connection_close_once() {
    for (lines, written) in [
        ("Content-Length: 5\r\n", "Content-Length: 5\r\nConnection: close\r\n"),
        ("Transfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nConnection: close\r\n"),
        ("Connection: close\r\n", CLOSE),
        ("", CLOSE),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        let expected = format!("HTTP/1.1 200 OK\r\n{written}Via: 1.1 gate\r\n\r\n");
        assert_eq!(render(&GET, head.as_bytes(), true).1, expected);
    }
    let interim = render(&GET, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", true).1;
    assert_eq!(interim, "HTTP/1.1 103 Early Hints\r\nLink: x\r\nVia: 1.1 gate\r\n\r\n");
}

#[test]
fn head_204_and_304_have_no_body() {
    let (length, chunked) = ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n");
    for (traits, status, lines, summary, written) in [
        (&HEAD, "200 OK", length, "None, kept", length),
        (&HEAD, "200 OK", chunked, "None, kept", NOTHING),
        (&HEAD, "200 OK", "", "None, kept", NOTHING),
        (&HEAD, "200 OK", "Connection: close\r\n", "None, last", NOTHING),
        (&HEAD, "404 Not Found", length, "None, kept", length),
        (&GET, "304 Not Modified", length, "None, kept", length),
        (&GET, "304 Not Modified", chunked, "None, kept", NOTHING),
        (&GET, "304 Not Modified", "", "None, kept", NOTHING),
        (&GET, "204 No Content", "", "None, kept", NOTHING),
        (&GET, "204 No Content", "Content-Length: 0\r\n", "None, kept", NOTHING),
        // RFC 9110, section 8.6, and RFC 9112, section 6.1, forbid these: a body may follow all the same.
        (&GET, "204 No Content", length, "None, last", NOTHING),
        (&GET, "204 No Content", chunked, "None, last", NOTHING),
        (&HEAD, "204 No Content", length, "None, last", NOTHING),
        // All others have the body that their head states.
        (&GET, "205 Reset Content", length, "Length(5), kept", length),
        (&GET, "200 OK", "Content-Length: 0\r\n", "Length(0), kept", "Content-Length: 0\r\n"),
    ] {
        check_lines(traits, status, lines, summary, written);
    }
}

#[test]
fn destination_keep_alive_is_read() {
    for (version, lines, summary) in [
        ("1.1", "", "kept"),
        ("1.1", "Connection: keep-alive\r\n", "kept"),
        ("1.1", "Connection: close\r\n", "last"),
        ("1.1", "connection: x, Close\r\n", "last"),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", "last"),
        ("1.1", "Proxy-Connection: close\r\n", "last"),
        ("1.0", "", "last"),
        ("1.0", "Connection: Keep-Alive\r\n", "kept"),
        ("1.0", "Keep-Alive: timeout=5\r\n", "last"),
        ("1.0", "Proxy-Connection: keep-alive\r\n", "last"),
        ("1.0", "Connection: keep-alive, close\r\n", "last"),
    ] {
        let head = format!("HTTP/{version} 200 OK\r\n{lines}Content-Length: 5\r\n\r\n");
        let written = format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nVia: {version} gate\r\n\r\n");
        check(&GET, &head, &format!("Length(5), {summary}"), &written);
    }
}

#[test]
fn interim_responses_skip_http_10_clients() {
    for (status, lines, written) in [
        ("100 Continue", "", NOTHING),
        ("102 Processing", "Content-Length: 5\r\n", NOTHING),
        ("103 Early Hints", "Link: </x>\r\nTransfer-Encoding: chunked\r\n", "Link: </x>\r\n"),
        ("199 x", "Connection: close\r\nKeep-Alive: 1\r\n", NOTHING),
    ] {
        for traits in [&GET, &HEAD, &WEBSOCKET] {
            check_lines(traits, status, lines, "interim", written);
        }
        check(&GET_10, &format!("HTTP/1.1 {status}\r\n{lines}\r\n"), "interim", "");
    }
}

#[test]
fn upgrade_happens_only_as_requested() {
    for lines in [
        "Upgrade: websocket\r\nConnection: Upgrade\r\n",
        "connection: keep-alive, upgrade\r\nupgrade: WebSocket\r\nContent-Length: 5\r\n",
        "Upgrade: WEBSOCKET\r\nConnection: upgrade\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let upgrade =
            lines.lines().find(|line| line.to_ascii_lowercase().starts_with("upgrade")).expect("named");
        let protocol = upgrade.split(' ').nth(1).expect("named");
        let written = format!("Upgrade: {protocol}\r\nConnection: Upgrade\r\n");
        check_lines(&WEBSOCKET, "101 Switching Protocols", lines, "upgraded", &written);
        for traits in [&GET, &HEAD, &GET_10] {
            check(traits, &format!("HTTP/1.1 101 x\r\n{lines}\r\n"), "UpgradeUnasked", "");
        }
    }
    for lines in [
        "",
        "Connection: Upgrade\r\n",
        "Upgrade: websocket\r\n",
        "Upgrade: websocket\r\nConnection: close\r\n",
        "Upgrade: h2c\r\nConnection: Upgrade\r\n",
        "Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n",
        "Upgrade: websocket/13\r\nConnection: Upgrade\r\n",
        "Upgrade: \r\nConnection: Upgrade\r\n",
        "Upgrade: websocket\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    ] {
        check(&WEBSOCKET, &format!("HTTP/1.1 101 x\r\n{lines}\r\n"), "UpgradeUnasked", "");
    }
    // A final response: the protocols that it offers do not change the client's connection.
    let lines = "Upgrade: h2,h2c\r\nConnection: Upgrade\r\nContent-Length: 5\r\n";
    check_lines(&WEBSOCKET, "200 OK", lines, "Length(5), kept", "Content-Length: 5\r\n");
    check_lines(&GET, "426 Upgrade Required", lines, "Length(5), kept", "Content-Length: 5\r\n");
}

#[test]
fn status_407_of_a_destination_is_refused() {
    for traits in [&GET, &HEAD, &GET_10] {
        let head = "HTTP/1.1 407 x\r\nProxy-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n";
        check(traits, head, "ProxyCredentialsAsked", "");
    }
    check_lines(
        &GET,
        "401 Unauthorized",
        "Proxy-Authenticate: Basic\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n",
        "Length(0), kept",
        "WWW-Authenticate: Basic\r\nContent-Length: 0\r\n",
    );
}

#[test]
fn hop_by_hop_headers_are_removed() {
    let length = "Content-Length: 5\r\n";
    for line in [
        "Connection: keep-alive",
        "Keep-Alive: timeout=5",
        "Proxy-Connection: keep-alive",
        "Proxy-Authenticate: Basic",
        "Proxy-Authentication-Info: x",
        "Proxy-Authorization: Basic eA==",
        "TE: trailers",
        "Upgrade: h2c",
        "HTTP2-Settings: x",
    ] {
        let lines = format!("A: 1\r\n{line}\r\n{length}B: 2\r\n");
        check_lines(&GET, "200 OK", &lines, "Length(5), kept", &format!("A: 1\r\nB: 2\r\n{length}"));
    }
    let lines = format!("Connection: x-foo, set-cookie\r\nX-Foo: 1\r\nSet-Cookie: 2\r\nX: 3\r\n{length}");
    check_lines(&GET, "200 OK", &lines, "Length(5), kept", &format!("X: 3\r\n{length}"));
    // Repeated lines, and lines with similar names, are forwarded.
    let lines = "Trailer: X-Sum\r\nX: 1\r\nx: 2\r\nX: 1\r\nConnections: close\r\nVia: 1.1 gate\r\n";
    check_lines(&GET, "200 OK", &format!("{lines}{length}"), "Length(5), kept", &format!("{lines}{length}"));
}

#[test]
fn response_errors_map_to_proxy_status_types() {
    for (error, proxy_status, part) in [
        (ResponseError::StatusLineMalformed, "http_protocol_error", "does not respond in HTTP/1.x"),
        (ResponseError::ProxyCredentialsAsked, "http_protocol_error", "belong to a proxy"),
        (ResponseError::UpgradeUnasked, "http_upgrade_failed", "did not offer"),
        (HeadError::FramingConflict.into(), "http_protocol_error", "contradict each other"),
        (HeadError::CodingUnknown.into(), "http_response_transfer_coding", "not implemented"),
        (HeadError::ChunkedNotLast.into(), "http_response_transfer_coding", "must be chunked"),
        (
            HeadError::HeadTooLarge(HeadTooLarge).into(),
            "http_response_header_section_size",
            "response is malformed: the head is longer than",
        ),
    ] {
        assert_eq!(error.proxy_status_error(), proxy_status, "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn date_is_added_to_undated_final_responses() {
    let written = |head: &str| {
        let mut storage = HeaderStorage::new();
        let head = ResponseHead::parse(head.as_bytes(), &mut storage).expect("the head is well-formed");
        let kind = ResponseKind::read(&head, &GET).expect("the response can be forwarded");
        let date = (!head.has_date()).then_some("Sun, 06 Nov 1994 08:49:37 GMT");
        let mut written = Vec::new();
        write_response(&mut written, &head, kind, &GET, ResponseHeaders { via: VIA, date, closes: false });
        String::from_utf8(written).expect("the head is ASCII")
    };
    let dates = |head: &str| {
        let written = written(head);
        written.lines().filter_map(|line| line.strip_prefix("Date: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(dates("HTTP/1.1 204 \r\n\r\n"), ["Sun, 06 Nov 1994 08:49:37 GMT"]);
    assert_eq!(dates("HTTP/1.1 204 \r\nDate: then\r\n\r\n"), ["then"]);
    let named = "HTTP/1.1 204 \r\nDate: then\r\nConnection: date\r\n\r\n";
    assert_eq!(dates(named), ["Sun, 06 Nov 1994 08:49:37 GMT"], "a Date named by Connection is removed");
    assert!(dates("HTTP/1.1 103 \r\n\r\n").is_empty());
}
