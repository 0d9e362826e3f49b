//! The HTTP/1.1 of the load: one request, one answer of 1,024 bytes, and a strict reader of each; and the
//! wish for a tunnel. Promises: what the readers accept is what the writers meant, whatever fields a proxy
//! added on the way. Leaves to others: everything that these messages do not need (chunks, trailers, bodies
//! of requests, pipelining).

use std::net::SocketAddr;

use super::Persistence;
use super::clients::Failure;

/// As long as the answer of a small API.
const BODY_BYTES: usize = 1_024;

/// The body of each answer.
const BODY: [u8; BODY_BYTES] = {
    let mut body = [0; BODY_BYTES];
    let mut at = 0;
    while at < BODY_BYTES {
        // Of an odd period, so that a piece that is lost or repeated shows.
        body[at] = b'a' + (at % 25) as u8;
        at += 1;
    }
    body
};

/// The most that a message may have in front of its body; proxies add some hundred bytes.
pub(super) const HEAD_BYTES_MAX: usize = 4_096;

/// The most that an answer may have.
pub(super) const RESPONSE_BYTES_MAX: usize = HEAD_BYTES_MAX + BODY_BYTES;

/// What is asked for.
const PATH: &str = "/x";

/// What an origin says to anything else.
pub(super) const BAD_REQUEST: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

const KEPT_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n";
const CLOSED_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\nConnection: close\r\n\r\n";

static KEPT: [u8; KEPT_HEAD.len() + BODY_BYTES] = joined(KEPT_HEAD);
static CLOSED: [u8; CLOSED_HEAD.len() + BODY_BYTES] = joined(CLOSED_HEAD);

// The heads above say so.
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

/// The request, in the form that a proxy needs and a server understands.
pub(super) fn request(origin: SocketAddr, persistence: Persistence) -> Vec<u8> {
    let connection = match persistence {
        Persistence::KeepAlive => "",
        Persistence::Close => "Connection: close\r\n",
    };
    let request = format!("GET http://{origin}{PATH} HTTP/1.1\r\nHost: {origin}\r\n");
    let fields = format!("User-Agent: lab\r\nAccept: */*\r\n{connection}\r\n");
    (request + &fields).into_bytes()
}

/// Asks a proxy for a tunnel.
pub(super) fn tunnel_request(to: SocketAddr) -> Vec<u8> {
    format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").into_bytes()
}

/// How long a proxy's consent is, which has no body (RFC 9110, 9.3.6); `None` where more has to come.
pub(super) fn tunnel_response_bytes(bytes: &[u8]) -> Result<Option<usize>, Failure> {
    let Some(head) = Head::read(bytes)? else { return Ok(None) };
    let (version, status) = head.version_and_status();
    head.persistence(version)?;
    succeeded(status)?;
    Ok(Some(head.bytes))
}

/// The answer to the request.
pub(super) fn response(persistence: Persistence) -> &'static [u8] {
    match persistence {
        Persistence::KeepAlive => &KEPT,
        Persistence::Close => &CLOSED,
    }
}

/// What a request that is whole asks for; `None` where more has to come.
pub(super) fn read_request(bytes: &[u8]) -> Result<Option<Persistence>, Failure> {
    let Some(head) = Head::read(bytes)? else { return Ok(None) };
    let words: Vec<&str> = head.first_line.split(' ').collect();
    let &[method, target, version] = words.as_slice() else {
        return Err("the request line has not three words".to_owned());
    };
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("", |slash| &rest[slash..]),
        None => target,
    };
    if method != "GET" || path != PATH {
        return Err(format!("nobody asks to {method} {path}"));
    }
    if head.field("Host")?.is_none() || head.field("Content-Length")?.is_some() {
        return Err("the request has no host, or a body".to_owned());
    }
    if bytes.len() > head.bytes {
        return Err("there are bytes after the request".to_owned());
    }
    head.persistence(version).map(Some)
}

/// What becomes of the connection after an answer that is whole and right; `None` where more has to come.
pub(super) fn read_response(bytes: &[u8]) -> Result<Option<Persistence>, Failure> {
    let Some(head) = Head::read(bytes)? else { return Ok(None) };
    let (version, status) = head.version_and_status();
    let persistence = head.persistence(version)?;
    succeeded(status)?;
    if head.field("Transfer-Encoding")?.is_some() {
        return Err("the answer is encoded".to_owned());
    }
    let length: Option<usize> = head.field("Content-Length")?.and_then(|length| length.parse().ok());
    if length != Some(BODY_BYTES) {
        return Err("the answer's length is wrong".to_owned());
    }
    let body = &bytes[head.bytes..];
    if !BODY.starts_with(&body[..body.len().min(BODY_BYTES)]) {
        return Err("the answer's body is wrong".to_owned());
    }
    match body.len() {
        BODY_BYTES => Ok(Some(persistence)),
        0..BODY_BYTES => Ok(None),
        _ => Err("there are bytes after the answer".to_owned()),
    }
}

fn succeeded(status: &str) -> Result<(), Failure> {
    if status == "200" {
        return Ok(());
    }
    let is_status = status.len() == 3 && status.bytes().all(|byte| byte.is_ascii_digit());
    Err(format!("status {}", if is_status { status } else { "that is none" }))
}

/// What stands in front of a body.
struct Head<'a> {
    first_line: &'a str,
    fields: &'a str,
    /// With the empty line.
    bytes: usize,
}

impl<'a> Head<'a> {
    const END: &'static [u8] = b"\r\n\r\n";

    /// `None` where its end has not come yet.
    fn read(bytes: &'a [u8]) -> Result<Option<Self>, Failure> {
        let front = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
        let Some(end) = front.windows(Self::END.len()).position(|window| window == Self::END) else {
            let is_too_long = bytes.len() >= HEAD_BYTES_MAX;
            return if is_too_long { Err("the head is too long".to_owned()) } else { Ok(None) };
        };
        let text = str::from_utf8(&bytes[..end]).map_err(|_| "the head is no text".to_owned())?;
        let (first_line, fields) = text.split_once("\r\n").unwrap_or((text, ""));
        if fields.split("\r\n").any(|line| !fields.is_empty() && !is_field(line)) {
            return Err("a line of the head is no field".to_owned());
        }
        Ok(Some(Self { first_line, fields, bytes: end + Self::END.len() }))
    }

    /// The first two words of an answer.
    fn version_and_status(&self) -> (&'a str, &'a str) {
        let mut words = self.first_line.splitn(3, ' ');
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    }

    /// A field's value, which may stand there once.
    fn field(&self, name: &str) -> Result<Option<&'a str>, Failure> {
        let value = |line: &'a str| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim_matches([' ', '\t']))
        };
        let mut values = self.fields.split("\r\n").filter_map(value);
        let first = values.next();
        if values.next().is_some() { Err(format!("there are two of {name}")) } else { Ok(first) }
    }

    /// What the field `Connection` says, or else the version.
    fn persistence(&self, version: &str) -> Result<Persistence, Failure> {
        let usual = match version {
            "HTTP/1.1" => Persistence::KeepAlive,
            "HTTP/1.0" => Persistence::Close,
            _ => return Err("it is not HTTP/1.1".to_owned()),
        };
        let says = |word: &str| -> Result<bool, Failure> {
            let value = self.field("Connection")?.unwrap_or_default();
            Ok(value.split(',').any(|option| option.trim().eq_ignore_ascii_case(word)))
        };
        Ok(match (says("close")?, says("keep-alive")?) {
            (true, _) => Persistence::Close,
            (_, true) => Persistence::KeepAlive,
            _ => usual,
        })
    }
}

/// A name without blanks, and a colon. A line that continues the one before begins with a blank.
fn is_field(line: &str) -> bool {
    let Some((name, _)) = line.split_once(':') else { return false };
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Persistence::{Close, KeepAlive};

    #[test]
    fn what_is_written_is_read_once_it_is_whole() {
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
    fn proxies_requests_are_understood() {
        let check =
            |text: &str, expected| assert_eq!(read_request(text.as_bytes()), Ok(expected), "{text:?}");
        check("GET /x HTTP/1.1\r\nHost: a\r\nVia: 1.1 p\r\n\r\n", Some(KeepAlive));
        check("GET /x HTTP/1.1\r\nhost: a\r\nconnection: x, CLOSE\r\n\r\n", Some(Close));
        check("GET /x HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n", Some(Close));
        check("GET /x HTTP/1.0\r\nHost: a\r\n\r\n", Some(Close));
        check("GET /x HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", Some(KeepAlive));
    }

    #[test]
    fn other_requests_are_refused() {
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
    fn wrong_answers_have_a_name() {
        let body = str::from_utf8(&BODY).expect("letters are text");
        let response = |first: &str, fields: &str, body: &str| format!("{first}\r\n{fields}\r\n{body}");
        let check = |text: String, expected: &str| {
            assert_eq!(read_response(text.as_bytes()), Err(expected.to_owned()), "{text:?}");
        };
        let (right, length) = ("HTTP/1.1 200 OK", "Content-Length: 1024\r\n");
        assert_eq!(read_response(response(right, length, body).as_bytes()), Ok(Some(KeepAlive)));
        check(response("HTTP/1.1 501 Not Implemented", length, ""), "status 501");
        check(response("HTTP/1.1 x", length, ""), "status that is none");
        check(response("SSH-2.0", "", ""), "it is not HTTP/1.1");
        check(response(right, "Content-Length: 1023\r\n", body), "the answer's length is wrong");
        check(response(right, "", body), "the answer's length is wrong");
        check(response(right, "Transfer-Encoding: chunked\r\n", body), "the answer is encoded");
        check(response(right, length, &body.replace('y', "z")), "the answer's body is wrong");
        check(response(right, length, &format!("{body}a")), "there are bytes after the answer");
        check(response(right, &length.repeat(2), body), "there are two of Content-Length");
    }
}
