//! The HTTP/1.1 of the load: one request, one response of 1,024 bytes, a strict reader of each, and the
//! CONNECT request for a tunnel.
//!
//! Guarantees: the readers accept exactly what the writers wrote, whatever fields a proxy added on the way.
//!
//! Not handled here: chunks, trailers, bodies of requests, pipelining.

use std::net::SocketAddr;

use super::Persistence;
use super::clients::Failure;

/// About the response of a small API.
const BODY_BYTES: usize = 1_024;

/// The body of each response.
const BODY: [u8; BODY_BYTES] = {
    let mut body = [0; BODY_BYTES];
    let mut at = 0;
    while at < BODY_BYTES {
        // Of an odd period, so that a lost or repeated piece shows.
        body[at] = b'a' + (at % 25) as u8;
        at += 1;
    }
    body
};

/// The most bytes of a message before its body; proxies add some hundred.
pub(super) const HEAD_BYTES_MAX: usize = 4_096;

/// The most fields that a head may have.
const FIELDS_MAX: usize = 64;

/// A status line without a number.
const NO_STATUS: &str = "malformed status line";

/// The longest response.
pub(super) const RESPONSE_BYTES_MAX: usize = HEAD_BYTES_MAX + BODY_BYTES;

/// The requested path.
const PATH: &str = "/x";

/// An origin's response to any other request.
pub(super) const BAD_REQUEST: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

const KEPT_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n";
const CLOSED_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\nConnection: close\r\n\r\n";

static KEPT: [u8; KEPT_HEAD.len() + BODY_BYTES] = joined(KEPT_HEAD);
static CLOSED: [u8; CLOSED_HEAD.len() + BODY_BYTES] = joined(CLOSED_HEAD);

// The heads above state this length.
const _: () = assert!(BODY_BYTES == 1_024);

/// A head and the body.
const fn joined<const BYTES: usize>(head: &[u8]) -> [u8; BYTES] {
    assert!(BYTES == head.len() + BODY_BYTES);
    let mut message = [0; BYTES];
    let mut at = 0;
    while at < BYTES {
        message[at] = if at < head.len() { head[at] } else { BODY[at - head.len()] };
        at += 1;
    }
    message
}

/// The request, in absolute form, which a proxy needs and a server understands.
pub(super) fn request(origin: SocketAddr, persistence: Persistence) -> Vec<u8> {
    let connection = match persistence {
        Persistence::KeepAlive => "",
        Persistence::Close => "Connection: close\r\n",
    };
    let request = format!("GET http://{origin}{PATH} HTTP/1.1\r\nHost: {origin}\r\n");
    let fields = format!("User-Agent: lab\r\nAccept: */*\r\n{connection}\r\n");
    (request + &fields).into_bytes()
}

/// The CONNECT request for a tunnel.
pub(super) fn tunnel_request(to: SocketAddr) -> Vec<u8> {
    format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").into_bytes()
}

/// The length of a successful CONNECT response, which has no body (RFC 9110, 9.3.6); `None` while it is
/// incomplete.
pub(super) fn tunnel_response_bytes(bytes: &[u8]) -> Result<Option<usize>, Failure> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let Some(head_bytes) = head_bytes(response.parse(bytes), bytes)? else { return Ok(None) };
    persistence(response.version, response.headers)?;
    succeeded(response.code)?;
    Ok(Some(head_bytes))
}

/// The response to the request.
pub(super) fn response(persistence: Persistence) -> &'static [u8] {
    match persistence {
        Persistence::KeepAlive => &KEPT,
        Persistence::Close => &CLOSED,
    }
}

/// What a complete request wants of its connection; `None` while it is incomplete.
pub(super) fn read_request(bytes: &[u8]) -> Result<Option<Persistence>, Failure> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let Some(head_bytes) = head_bytes(request.parse(bytes), bytes)? else { return Ok(None) };
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("", |slash| &rest[slash..]),
        None => target,
    };
    if method != "GET" || path != PATH {
        return Err(format!("unexpected request {method} {path}"));
    }
    if field(request.headers, "Host")?.is_none() || field(request.headers, "Content-Length")?.is_some() {
        return Err("the request has no host, or a body".to_owned());
    }
    if bytes.len() > head_bytes {
        return Err("there are bytes after the request".to_owned());
    }
    persistence(request.version, request.headers).map(Some)
}

/// What a complete and correct response says about its connection; `None` while it is incomplete.
pub(super) fn read_response(bytes: &[u8]) -> Result<Option<Persistence>, Failure> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let Some(head_bytes) = head_bytes(response.parse(bytes), bytes)? else { return Ok(None) };
    let persistence = persistence(response.version, response.headers)?;
    succeeded(response.code)?;
    if field(response.headers, "Transfer-Encoding")?.is_some() {
        return Err("the answer is encoded".to_owned());
    }
    let length: Option<usize> =
        field(response.headers, "Content-Length")?.and_then(|length| length.parse().ok());
    if length != Some(BODY_BYTES) {
        return Err("the answer's length is wrong".to_owned());
    }
    let body = &bytes[head_bytes..];
    if !BODY.starts_with(&body[..body.len().min(BODY_BYTES)]) {
        return Err("the answer's body is wrong".to_owned());
    }
    match body.len() {
        BODY_BYTES => Ok(Some(persistence)),
        0..BODY_BYTES => Ok(None),
        _ => Err("there are bytes after the answer".to_owned()),
    }
}

fn succeeded(status: Option<u16>) -> Result<(), Failure> {
    match status {
        Some(200) => Ok(()),
        Some(status) => Err(format!("status {status}")),
        None => Err(NO_STATUS.to_owned()),
    }
}

/// The length of a complete head, with its empty line; `None` while it is incomplete.
fn head_bytes(parsed: httparse::Result<usize>, bytes: &[u8]) -> Result<Option<usize>, Failure> {
    match parsed {
        Ok(httparse::Status::Complete(head_bytes)) if head_bytes <= HEAD_BYTES_MAX => Ok(Some(head_bytes)),
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => Err("the head is too long".to_owned()),
        Err(httparse::Error::Version) => Err("it is not HTTP/1.1".to_owned()),
        Err(httparse::Error::Status) => Err(NO_STATUS.to_owned()),
        Err(error) => Err(format!("the head is malformed: {error}")),
    }
}

/// The value of a field that may occur once.
fn field<'a>(fields: &[httparse::Header<'a>], name: &str) -> Result<Option<&'a str>, Failure> {
    let mut values = fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
    let first = values.next();
    if values.next().is_some() {
        return Err(format!("{name} occurs twice"));
    }
    let text =
        |field: &httparse::Header<'a>| str::from_utf8(field.value).map_err(|_| format!("{name} is no text"));
    first.map(text).transpose()
}

/// The field `Connection`, or else the default of the minor version.
fn persistence(version: Option<u8>, fields: &[httparse::Header<'_>]) -> Result<Persistence, Failure> {
    let options = field(fields, "Connection")?.unwrap_or_default();
    let says = |word: &str| options.split(',').any(|option| option.trim().eq_ignore_ascii_case(word));
    Ok(match (says("close"), says("keep-alive"), version) {
        (true, ..) => Persistence::Close,
        (_, true, _) | (_, _, Some(1)) => Persistence::KeepAlive,
        _ => Persistence::Close,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Persistence::{Close, KeepAlive};

    #[test]
    fn message_is_read_once_it_is_complete() {
        let origin = SocketAddr::from(([127, 0, 0, 1], 21_000));
        for persistence in [KeepAlive, Close] {
            let request = request(origin, persistence);
            let response = response(persistence);
            assert_eq!(read_request(&request), Ok(Some(persistence)));
            assert_eq!(read_response(response), Ok(Some(persistence)));
            assert!((0..request.len()).all(|end| read_request(&request[..end]) == Ok(None)));
            assert!((0..response.len()).all(|end| read_response(&response[..end]) == Ok(None)));
        }
    }

    #[test]
    fn requests_with_proxy_fields_are_accepted() {
        let check =
            |text: &str, expected| assert_eq!(read_request(text.as_bytes()), Ok(expected), "{text:?}");
        check("GET /x HTTP/1.1\r\nHost: a\r\nVia: 1.1 p\r\n\r\n", Some(KeepAlive));
        check("GET /x HTTP/1.1\r\nhost: a\r\nconnection: x, CLOSE\r\n\r\n", Some(Close));
        check("GET /x HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n", Some(Close));
        check("GET /x HTTP/1.0\r\nHost: a\r\n\r\n", Some(Close));
        check("GET /x HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", Some(KeepAlive));
    }

    #[test]
    fn unexpected_requests_are_refused() {
        for text in [
            "GET /y HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nb",
            "GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            "GET /x HTTP/1.1\r\n\r\n",
            "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET /x HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
            "GET  /x HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /x HTTP/2\r\nHost: a\r\n\r\n",
            "GET /x HTTP/1.1\r\nHost: a\r\n\r\nGET",
        ] {
            assert!(read_request(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(read_request(&[b'a'; HEAD_BYTES_MAX]).is_err());
    }

    #[test]
    fn wrong_responses_are_named_failures() {
        let body = str::from_utf8(&BODY).expect("letters are text");
        let response = |first: &str, fields: &str, body: &str| format!("{first}\r\n{fields}\r\n{body}");
        let check = |text: String, expected: &str| {
            assert_eq!(read_response(text.as_bytes()), Err(expected.to_owned()), "{text:?}");
        };
        let (right, length) = ("HTTP/1.1 200 OK", "Content-Length: 1024\r\n");
        assert_eq!(read_response(response(right, length, body).as_bytes()), Ok(Some(KeepAlive)));
        check(response("HTTP/1.1 501 Not Implemented", length, ""), "status 501");
        check(response("HTTP/1.1 x", length, ""), "malformed status line");
        check(response("SSH-2.0", "", ""), "it is not HTTP/1.1");
        check(response(right, "Content-Length: 1023\r\n", body), "the answer's length is wrong");
        check(response(right, "", body), "the answer's length is wrong");
        check(response(right, "Transfer-Encoding: chunked\r\n", body), "the answer is encoded");
        check(response(right, length, &body.replace('y', "z")), "the answer's body is wrong");
        check(response(right, length, &format!("{body}a")), "there are bytes after the answer");
        check(response(right, &length.repeat(2), body), "Content-Length occurs twice");
    }
}
