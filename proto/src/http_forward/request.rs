//! A request to be forwarded: read strictly, and written anew for its destination.
//! Promises: the destination is the URL's, and `Host` says the same; the URL holds nothing that readers take
//! differently; what is written has the `Host`, the framing and the `Via` of our own making, and nothing that
//! was meant for us. Leaves to others: the body (`body`).

use std::fmt;
use std::io::Write;
use std::num::NonZeroU16;

use crate::denial::ALLOWED_METHODS;
use crate::http_head::{Fields, Framing, KnownHeader, RequestError, RequestHead, UriForm, Version, is_token};
use crate::target::Target;

/// The port of an `http://` or `ws://` URL that names none.
const DEFAULT_PORT: NonZeroU16 = NonZeroU16::new(80).expect("80 is not 0");

/// A request for one resource, in absolute form.
pub struct Forward<'a> {
    /// Where to.
    pub target: Target,
    /// The value of `Proxy-Authorization`, undecoded. Not printed by `Debug`.
    pub authorization: Option<&'a [u8]>,
    /// Where its body ends; never [`Framing::UntilClose`].
    pub body: Framing,
    head: &'a RequestHead<'a>,
    /// As the destination is to read it: `/path?query`, or `*`.
    path: &'a str,
    /// `Max-Forwards` of a method that heeds it.
    forwards_left: Option<u32>,
    upgrade: Option<&'a [u8]>,
}

/// What the answer to a request depends on, once the request is gone.
#[derive(Clone, Debug)]
pub struct RequestTraits {
    /// The client's version.
    pub version: Version,
    /// The method; `OTHER` for one that RFC 9110 and RFC 5789 do not name.
    pub method: &'static str,
    /// Whether the client wants the connection to live on.
    pub keeps_alive: bool,
    /// Whether it may be sent a second time if nobody answered the first: an idempotent method and no body
    /// (RFC 9110, section 9.2.2).
    pub is_repeatable: bool,
    /// The protocol that the connection may change to.
    pub upgrade: Option<Box<[u8]>>,
    /// Whether the client waits to be told to send the body.
    pub expects_continue: bool,
}

impl RequestTraits {
    /// HEAD: the answer has no body, whatever its head says.
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

impl<'a> Forward<'a> {
    /// What a request that is not CONNECT asks for.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(head: &'a RequestHead<'a>) -> Result<Self, RequestError> {
        check_form(head)?;
        let fields = &head.fields;
        let (scheme, target, path) = parse_url(head.uri)?;
        match fields.host {
            Some(host) if Target::parse_with_port(host, DEFAULT_PORT) == Ok(target) => {}
            Some(_) => return Err(RequestError::HostDisagrees),
            None if head.version == Version::Http11 => return Err(RequestError::HostMissing),
            None => {}
        }
        if fields.expect.is_some_and(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
            return Err(RequestError::ExpectationUnknown);
        }
        let body = fields.framing(head.version)?.unwrap_or(Framing::None);
        let forwards_left = match fields.max_forwards {
            Some(value) if head.method == "OPTIONS" => Some(parse_forwards(value)?),
            _ => None,
        };
        let is_whole_server = head.method == "OPTIONS" && path.is_empty();
        let path = if is_whole_server { "*" } else { path };
        let upgrade = upgrade(head, body);
        let is_websocket = upgrade.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
        if scheme == Scheme::WebSocket && !is_websocket {
            return Err(RequestError::WebSocketUnasked);
        }
        let authorization = fields.proxy_authorization;
        Ok(Self { target, authorization, body, head, path, forwards_left, upgrade })
    }

    /// What the answer will depend on.
    pub fn traits(&self) -> RequestTraits {
        let head = self.head;
        RequestTraits {
            version: head.version,
            method: ALLOWED_METHODS.split(", ").find(|named| *named == head.method).unwrap_or("OTHER"),
            keeps_alive: head.version == Version::Http11 && !head.fields.closes,
            is_repeatable: ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"].contains(&head.method)
                && self.body == Framing::None
                && self.upgrade.is_none(),
            upgrade: self.upgrade.map(Box::from),
            expects_continue: head.version == Version::Http11 && head.fields.expect.is_some(),
        }
    }

    /// Whether trailers behind its body may go on.
    pub fn keeps_trailers(&self) -> bool {
        self.head.fields.keeps_trailers()
    }

    /// Whether the client counted us as the last to forward to: we answer by ourselves
    /// ([`write_own_options`]; RFC 9110, section 7.6.2).
    pub fn is_for_us(&self) -> bool {
        self.forwards_left == Some(0)
    }

    /// The path without the query, which may carry secrets; `*` where the request is for the server itself.
    pub fn path(&self) -> &str {
        let path = self.path.split('?').next().unwrap_or_default();
        if path.is_empty() { "/" } else { path }
    }

    /// Whether a gateway of this name, as it stands in `Via`, has forwarded it already.
    pub fn has_passed(&self, via: &str) -> bool {
        if !self.head.fields.has_via {
            return false;
        }
        let entries =
            self.head.fields.values(KnownHeader::Via).flat_map(|value| value.split(|&byte| byte == b','));
        entries.into_iter().any(|entry| {
            let mut words = entry.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            words.nth(1) == Some(via.as_bytes())
        })
    }

    /// Appends the head for the destination, in HTTP/1.1. `via` is our own name in `Via`; `closes` asks the
    /// destination to end the connection with its answer.
    pub fn write(&self, out: &mut Vec<u8>, via: &str, closes: bool) {
        let (head, fields) = (self.head, &self.head.fields);
        // Behind an authority nothing else can begin with an asterisk.
        let slash = if self.path.starts_with(['/', '*']) { "" } else { "/" };
        let host = HostHeader(&self.target);
        write(out, format_args!("{} {slash}{} HTTP/1.1\r\nHost: {host}\r\n", head.method, self.path));
        write_forwarded_lines(out, fields);
        write_framing(out, self.body);
        if head.version == Version::Http11 && fields.expect.is_some() {
            write(out, format_args!("Expect: 100-continue\r\n"));
        }
        match (self.forwards_left, fields.max_forwards) {
            (Some(left), _) => write(out, format_args!("Max-Forwards: {}\r\n", left.saturating_sub(1))),
            (None, Some(value)) => write_line(out, "Max-Forwards", value),
            (None, None) => {}
        }
        if let Some(protocol) = self.upgrade {
            write_line(out, "Upgrade", protocol);
        }
        self.write_connection(out, closes);
        write_via(out, head.version, via);
        out.extend_from_slice(b"\r\n");
    }

    fn write_connection(&self, out: &mut Vec<u8>, closes: bool) {
        // Of chunks that are unwrapped for HTTP/1.0 no trailers remain.
        let takes_trailers = self.head.fields.takes_trailers && self.head.version == Version::Http11;
        let options = [
            (self.upgrade.is_some(), "Upgrade"),
            (takes_trailers, "TE"),
            (closes && self.upgrade.is_none(), "close"),
        ];
        if takes_trailers {
            write(out, format_args!("TE: trailers\r\n"));
        }
        let mut before = "Connection: ";
        for (_, option) in options.into_iter().filter(|(applies, _)| *applies) {
            write(out, format_args!("{before}{option}"));
            before = ", ";
        }
        if before == ", " {
            out.extend_from_slice(b"\r\n");
        }
    }
}

impl fmt::Debug for Forward<'_> {
    /// Without the path, whose query may hold credentials.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Forward")
            .field("method", &self.head.method)
            .field("target", &self.target)
            .field("body", &self.body)
            .field("authorization", &self.authorization.map(|_| format_args!("..")))
            .finish_non_exhaustive()
    }
}

/// The value of `Host`: without the port that everybody assumes.
struct HostHeader<'a>(&'a Target);

impl fmt::Display for HostHeader<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.0;
        if target.port != DEFAULT_PORT {
            return target.fmt(formatter);
        }
        match target.host {
            crate::target::Host::Address(std::net::IpAddr::V6(address)) => write!(formatter, "[{address}]"),
            host => host.fmt(formatter),
        }
    }
}

/// Appends our own answer to a request that [`Forward::is_for_us`], made at `date` (RFC 9110, section 5.6.7).
pub fn write_own_options(out: &mut Vec<u8>, date: &str, closes: bool) {
    let connection = if closes { "Connection: close\r\n" } else { "" };
    write(out, format_args!("HTTP/1.1 200 OK\r\nAllow: {ALLOWED_METHODS}\r\nContent-Length: 0\r\n"));
    write(out, format_args!("{connection}Date: {date}\r\n\r\n"));
}

/// Absolute form is what a proxy is asked in; each other one gets a reason.
fn check_form(head: &RequestHead<'_>) -> Result<(), RequestError> {
    // In any case of letters: a server that does not tell `connect` from `CONNECT` would open a tunnel.
    let is_method = |name: &str| head.method.eq_ignore_ascii_case(name);
    match head.uri_form() {
        _ if is_method("TRACE") => Err(RequestError::MethodNotAllowed),
        UriForm::Absolute if is_method("CONNECT") => Err(RequestError::MethodNotAllowed),
        UriForm::Absolute => Ok(()),
        UriForm::Asterisk if head.method == "OPTIONS" => Err(RequestError::MethodNotAllowed),
        UriForm::Asterisk => Err(RequestError::AsteriskWithoutOptions),
        UriForm::Origin => Err(RequestError::NotProxyRequest),
        UriForm::Authority => Err(RequestError::AuthorityWithoutConnect),
    }
}

/// The schemes whose resources are asked for by a request without TLS.
#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Http,
    /// `ws://`: by an HTTP request that asks to change to WebSocket (RFC 6455, section 4.1).
    WebSocket,
}

/// Splits `http://authority/path?query`; the path may be empty.
fn parse_url(url: &str) -> Result<(Scheme, Target, &str), RequestError> {
    let (scheme, rest) = url.split_once("://").ok_or(RequestError::RequestLineMalformed)?;
    let is = |name: &str| scheme.eq_ignore_ascii_case(name);
    let scheme = match () {
        () if is("http") => Scheme::Http,
        () if is("ws") => Scheme::WebSocket,
        () if is("https") => return Err(RequestError::SchemeNeedsTunnel),
        () => return Err(RequestError::SchemeUnknown),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let mut is_query = false;
    for byte in path.bytes() {
        is_query |= byte == b'?';
        // What browsers encode, and what some readers take for a slash or an end.
        let is_forbidden = match byte {
            b'"' | b'#' | b'<' | b'>' => true,
            b'\\' | b'^' | b'`' => !is_query,
            byte => !byte.is_ascii_graphic(),
        };
        if is_forbidden {
            return Err(RequestError::UriMalformed(byte));
        }
    }
    Ok((scheme, Target::parse_with_port(authority.as_bytes(), DEFAULT_PORT)?, path))
}

fn parse_forwards(value: &[u8]) -> Result<u32, RequestError> {
    let digits = str::from_utf8(value).unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RequestError::MaxForwardsMalformed);
    }
    // What exceeds our greatest number is counted from there (RFC 9110, section 7.6.2).
    Ok(digits.parse().unwrap_or(u32::MAX))
}

/// The one protocol that the client would change to, if the destination agrees. A request with a body does
/// not get that far here; HTTP/2 would carry requests that nobody judges, and TLS belongs into a tunnel:
/// those offers are left out, which RFC 9110, section 7.8, lets a server do too.
fn upgrade<'a>(head: &RequestHead<'a>, body: Framing) -> Option<&'a [u8]> {
    let fields = &head.fields;
    let offered = fields.upgrade.filter(|_| fields.upgrades && head.version == Version::Http11)?;
    let mut parts = offered.splitn(2, |&byte| byte == b'/');
    let name = parts.next().unwrap_or_default();
    let is_one = is_token(name) && parts.next().is_none_or(is_token);
    let is_refused = [&b"h2c"[..], b"h2", b"TLS", b"HTTP"].iter().any(|no| name.eq_ignore_ascii_case(no));
    let has_body = !matches!(body, Framing::None | Framing::Length(0));
    (is_one && !is_refused && !has_body).then_some(offered)
}

/// Appends the lines that go on.
pub(super) fn write_forwarded_lines(out: &mut Vec<u8>, fields: &Fields<'_>) {
    for line in fields.forwarded_lines() {
        write_line(out, line.name, line.value);
    }
}

pub(super) fn write_framing(out: &mut Vec<u8>, framing: Framing) {
    match framing {
        Framing::Length(length) => write(out, format_args!("Content-Length: {length}\r\n")),
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Framing::None | Framing::UntilClose => {}
    }
}

/// Adds us behind those whom `Via` names already (RFC 9110, section 7.6.3).
pub(super) fn write_via(out: &mut Vec<u8>, received: Version, via: &str) {
    write(out, format_args!("Via: {} {via}\r\n", received.as_str()));
}

pub(super) fn write_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn write(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes every write");
}
