//! The invariants of forwarded plain requests and responses.
//!
//! `httparse`, `hyper`'s server and Tollgate's own parser agree on every head that Tollgate writes. A body
//! that arrives in one piece and one that arrives in two give the same result.

use std::num::NonZeroU16;

use httparse::Header;
use proto::http_forward::{
    Body, BodyError, Forward, Framing, RequestTraits, ResponseHeaders, ResponseKind, write_response,
};
use proto::http_head::{HeadScanner, HeaderStorage, RequestHead, ResponseHead, UriForm, Version};
use proto::limits::HEADERS_MAX;
use proto::target::Target;

use crate::server::parse_with_hyper;

const VIA: &str = "gate";

/// The port of a `Host` without one.
const DEFAULT_PORT: NonZeroU16 = NonZeroU16::new(80).expect("80 is not 0");

/// Headers of a written head: as many as a parsed head may have, and those that Tollgate adds.
const WRITTEN_HEADERS_MAX: usize = HEADERS_MAX + 8;

/// Headers that a written head never has. It may have `Connection`, `TE` and `Upgrade`, which Tollgate
/// generates.
const FORBIDDEN_HEADERS: [&str; 6] = [
    "Keep-Alive",
    "Proxy-Connection",
    "Proxy-Authorization",
    "Proxy-Authenticate",
    "Proxy-Authentication-Info",
    "HTTP2-Settings",
];

/// The longest body by `Content-Length` that is generated.
const BODY_BYTES_MAX: u64 = 4096;

/// A request or a response (if the input begins with `HTTP/`) and its body. The first byte of the input says
/// where the body is split.
pub fn http_forward(data: &[u8]) {
    let Some((&split, buffer)) = data.split_first() else { return };
    let split = usize::from(split);
    for framing in [Framing::Chunked, Framing::Length(9), Framing::UntilClose, Framing::None] {
        assert_split(framing, buffer, split);
    }
    let Ok(Some(length)) = HeadScanner::default().find(buffer) else { return };
    let (head, rest) = buffer.split_at(length);
    if head.starts_with(b"HTTP/") {
        assert_responses(head, rest, split);
    } else {
        assert_request(head, rest, split);
    }
}

fn assert_request(head: &[u8], rest: &[u8], split: usize) {
    let mut storage = HeaderStorage::new();
    let bytes = head;
    let Ok(head) = RequestHead::parse(bytes, &mut storage) else { return };
    let forward = match Forward::read(&head) {
        Ok(forward) => forward,
        Err(error) => return assert!((400..600).contains(&error.status())),
    };
    assert_unambiguous(bytes);
    assert!(!head.is_connect() && head.uri_form() == UriForm::Absolute);
    assert_ne!(forward.body, Framing::UntilClose);
    for closes in [false, true] {
        let mut written = Vec::new();
        forward.write(&mut written, VIA, closes);
        assert_request_tokens(&written, &head, &forward);
        assert_forwarded_again(&written, &forward, closes);
    }
    assert_split(forward.body, rest, split);
    assert_hyper_agrees(&forward, rest);
}

/// In an accepted head, every line ends in CRLF, and at most one header delimits the body.
fn assert_unambiguous(head: &[u8]) {
    let mut lines = head.split(|&byte| byte == b'\n').rev();
    assert_eq!((lines.next(), lines.next()), (Some(&b""[..]), Some(&b"\r"[..])));
    let lines: Vec<_> =
        lines.map(|line| line.strip_suffix(b"\r").expect("every line ends in CRLF")).collect();
    let sets_body_length = |line: &&[u8]| {
        let name = line.split(|&byte| byte == b':').next().unwrap_or_default().trim_ascii();
        name.eq_ignore_ascii_case(b"Content-Length") || name.eq_ignore_ascii_case(b"Transfer-Encoding")
    };
    assert!(lines.iter().copied().filter(sets_body_length).count() <= 1);
}

/// `httparse` finds in the written head what Tollgate intended.
fn assert_request_tokens(written: &[u8], head: &RequestHead<'_>, forward: &Forward<'_>) {
    let mut headers = [httparse::EMPTY_HEADER; WRITTEN_HEADERS_MAX];
    let mut oracle = httparse::Request::new(&mut headers);
    assert_eq!(oracle.parse(written), Ok(httparse::Status::Complete(written.len())));
    assert_eq!((oracle.method, oracle.version), (Some(head.method), Some(1)));
    let path = oracle.path.expect("a complete request has a target");
    assert!(path.starts_with('/') || (path, head.method) == ("*", "OPTIONS"), "{path}");
    assert!(path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#'), "{path}");
    let authority = values(oracle.headers, "Host").concat();
    assert_eq!(values(oracle.headers, "Host").len(), 1);
    assert_eq!(Target::parse_with_port(authority.as_bytes(), DEFAULT_PORT), Ok(forward.target));
    assert_headers(oracle.headers);
    assert_framing(oracle.headers, forward.body);
}

/// A written head is a request to an origin server. With the destination before its path it is a proxy
/// request again; forwarded once more, it differs only by one more `Via`.
fn assert_forwarded_again(written: &[u8], forward: &Forward<'_>, closes: bool) {
    let lines = written.split(|&byte| byte == b'\n').count() - 3;
    if lines > HEADERS_MAX {
        return;
    }
    let mut storage = HeaderStorage::new();
    let origin = RequestHead::parse(written, &mut storage).expect("a written head is valid");
    assert!(matches!(origin.uri_form(), UriForm::Origin | UriForm::Asterisk));
    assert!(Forward::read(&origin).is_err());
    let start = written.iter().position(|&byte| byte == b' ').expect("a request line has spaces") + 1;
    let path = written[start..].strip_prefix(b"*").unwrap_or(&written[start..]);
    let absolute = [&written[..start], format!("http://{}", forward.target).as_bytes(), path].concat();
    let mut storage = HeaderStorage::new();
    let again = RequestHead::parse(&absolute, &mut storage).expect("only the URL has changed");
    let again = Forward::read(&again).expect("a forwarded request can be forwarded again");
    assert!(again.was_forwarded_by(VIA));
    assert_eq!((again.target, again.body, again.authorization), (forward.target, forward.body, None));
    let mut forwarded_again = Vec::new();
    again.write(&mut forwarded_again, VIA, closes);
    let expected = [written, b"Via: 1.1 gate\r\n"].concat();
    assert_eq!(sorted_lines(&forwarded_again), sorted_lines(&expected));
}

/// The sorted lines of a head without `Max-Forwards`, which each hop decrements.
fn sorted_lines(head: &[u8]) -> Vec<&[u8]> {
    let lines = head.split(|&byte| byte == b'\n');
    let mut lines: Vec<_> = lines.filter(|line| !line.starts_with(b"Max-Forwards:")).collect();
    lines.sort_unstable();
    lines
}

/// `hyper` finds exactly one request, with all its headers and its body.
fn assert_hyper_agrees(forward: &Forward<'_>, rest: &[u8]) {
    let mut sent = rest.to_vec();
    match forward.body {
        Framing::Length(length) if length > BODY_BYTES_MAX => return,
        Framing::Length(length) => sent.resize(length as usize, b'x'),
        _ => {}
    }
    let Ok((forwarded, _)) = feed(Body::new(forward.body), &sent, sent.len()) else { return };
    let (data, _) =
        feed(Body::dechunked(forward.body), &sent, sent.len()).expect("the body was accepted before");
    let mut written = Vec::new();
    forward.write(&mut written, VIA, false);
    let mut headers = [httparse::EMPTY_HEADER; WRITTEN_HEADERS_MAX];
    let mut oracle = httparse::Request::new(&mut headers);
    assert!(oracle.parse(&written).is_ok());
    let mut expected: Vec<(String, Vec<u8>)> = oracle
        .headers
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec()))
        .collect();
    expected.sort_by(|one, other| one.0.cmp(&other.0));
    let requests =
        parse_with_hyper(&[&written[..], &forwarded].concat()).expect("hyper accepts the written request");
    assert_eq!(requests.len(), 1, "hyper finds exactly one request");
    assert_eq!((Some(&*requests[0].method), Some(&*requests[0].path)), (oracle.method, oracle.path));
    assert_eq!(requests[0].headers, expected);
    assert_eq!(requests[0].body, data);
}

/// One request of each kind to which a response is forwarded differently.
const REQUESTS: [&str; 5] = [
    "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://a/ HTTP/1.0\r\n\r\n",
    "HEAD http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://a/ HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "GET ws://a/ HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
];

fn request_traits(request: &str) -> RequestTraits {
    let mut storage = HeaderStorage::new();
    let head = RequestHead::parse(request.as_bytes(), &mut storage).expect("the request is well-formed");
    Forward::read(&head).expect("the request can be forwarded").traits()
}

/// Checks the same response to each kind of request.
fn assert_responses(head: &[u8], rest: &[u8], split: usize) {
    let mut storage = HeaderStorage::new();
    let bytes = head;
    let Ok(head) = ResponseHead::parse(bytes, &mut storage) else { return };
    for request in REQUESTS {
        let traits = request_traits(request);
        let Ok(kind) = ResponseKind::read(&head, &traits) else { continue };
        for closes in [false, true] {
            assert_response(&head, kind, &traits, closes);
        }
        if let ResponseKind::Final { body, .. } = kind {
            assert_unambiguous(bytes);
            assert_split(body, rest, split);
        }
    }
}

fn assert_response(head: &ResponseHead<'_>, kind: ResponseKind, traits: &RequestTraits, closes: bool) {
    let mut written = Vec::new();
    write_response(&mut written, head, kind, traits, ResponseHeaders { via: VIA, date: None, closes });
    if written.is_empty() {
        return assert_eq!((kind, traits.version), (ResponseKind::Interim, Version::Http10));
    }
    let mut headers = [httparse::EMPTY_HEADER; WRITTEN_HEADERS_MAX];
    let mut oracle = httparse::Response::new(&mut headers);
    assert_eq!(oracle.parse(&written), Ok(httparse::Status::Complete(written.len())));
    assert_eq!((oracle.code, oracle.version), (Some(head.status), Some(1)));
    assert_headers(oracle.headers);
    let closes = closes || kind.ends_with_connection(traits);
    let framing = match kind {
        ResponseKind::Final { body, .. } if body != Framing::None => body,
        // A response without a body may have a `Content-Length`.
        _ => return assert!(values(oracle.headers, "Transfer-Encoding").is_empty()),
    };
    let has_close = values(oracle.headers, "Connection") == ["close"];
    assert_eq!(has_close, closes);
    let framing = if kind.ends_with_connection(traits) { Framing::UntilClose } else { framing };
    assert_framing(oracle.headers, framing);
    if oracle.headers.len() <= HEADERS_MAX {
        let mut storage = HeaderStorage::new();
        let again = ResponseHead::parse(&written, &mut storage).expect("a written head is valid");
        let expected = ResponseKind::Final { body: framing, keeps_alive: !closes };
        assert_eq!(ResponseKind::read(&again, traits), Ok(expected));
    }
}

fn assert_headers(headers: &[Header<'_>]) {
    assert_eq!(headers.last().map(|header| header.name), Some("Via"));
    for name in FORBIDDEN_HEADERS {
        assert!(values(headers, name).is_empty(), "{name}");
    }
    assert!(values(headers, "Connection").len() <= 1);
    let options = values(headers, "Connection").concat();
    for option in options.split(", ").filter(|option| !option.is_empty()) {
        assert!(["Upgrade", "TE", "close"].contains(&option), "{option}");
    }
    for name in ["Upgrade", "TE"] {
        assert_eq!(values(headers, name).len(), usize::from(options.contains(name)), "{name}");
    }
}

/// The headers delimit the body as `framing` says, and in no other way.
fn assert_framing(headers: &[Header<'_>], framing: Framing) {
    let (length, coding) = match framing {
        Framing::Length(length) => (vec![length.to_string()], Vec::new()),
        Framing::Chunked => (Vec::new(), vec!["chunked".to_owned()]),
        Framing::None | Framing::UntilClose => (Vec::new(), Vec::new()),
    };
    assert_eq!(values(headers, "Content-Length"), length);
    assert_eq!(values(headers, "Transfer-Encoding"), coding);
}

fn values(headers: &[Header<'_>], name: &str) -> Vec<String> {
    let named = headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
    named.map(|header| String::from_utf8_lossy(header.value).into_owned()).collect()
}

/// A body gives the same result in one piece and in two, and its forwarded bytes are forwarded unchanged.
fn assert_split(framing: Framing, bytes: &[u8], split: usize) {
    let whole = feed(Body::new(framing), bytes, bytes.len());
    assert_eq!(whole, feed(Body::new(framing), bytes, split));
    let data = feed(Body::dechunked(framing), bytes, bytes.len());
    assert_eq!(data, feed(Body::dechunked(framing), bytes, split));
    assert_eq!(whole.as_ref().map(|(_, consumed)| consumed), data.as_ref().map(|(_, consumed)| consumed));
    if let (Ok((forwarded, consumed)), Ok((data, _))) = (whole, data) {
        assert!(data.len() <= forwarded.len() && consumed <= bytes.len());
        assert_eq!(feed(Body::new(framing), &forwarded, split), Ok((forwarded.clone(), forwarded.len())));
        assert_eq!(feed(Body::dechunked(framing), &forwarded, split), Ok((data, forwarded.len())));
    }
}

/// The forwarded bytes with the body's tail, and the number of bytes that belonged to the body.
fn feed(mut body: Body, bytes: &[u8], split: usize) -> Result<(Vec<u8>, usize), BodyError> {
    let (first, second) = bytes.split_at(split.min(bytes.len()));
    let (mut out, mut taken) = (Vec::new(), 0);
    for piece in [first, second] {
        let mut piece = piece.to_vec();
        let consumed = body.consume(&mut piece)?;
        assert!(consumed.forwarded <= consumed.consumed && consumed.consumed <= piece.len());
        assert!(consumed.consumed == piece.len() || body.is_complete());
        taken += consumed.consumed;
        out.extend_from_slice(&piece[..consumed.forwarded]);
        out.extend_from_slice(&body.take_trailers());
    }
    body.end()?;
    Ok((out, taken))
}
