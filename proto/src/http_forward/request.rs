//! A forwarded request: parsed strictly, and generated anew for its destination.
//!
//! Guarantees: the destination is the URL's, and `Host` agrees. The URL contains no byte that parsers treat
//! differently. The generated head has our own `Host`, framing and `Via`, and no header that was meant for
//! the proxy.

use std::fmt;
use std::io::Write;
use std::num::NonZeroU16;

use crate::denial::ALLOWED_METHODS;
use crate::http_head::{Fields, Framing, KnownHeader, RequestError, RequestHead, UriForm, Version, is_token};
use crate::target::Target;

/// The default port of an `http://` or `ws://` URL.
const DEFAULT_PORT: NonZeroU16 = NonZeroU16::new(80).expect("80 is not 0");

/// A request for one resource, in absolute form.
pub struct Forward<'a> {
    /// The destination.
    pub target: Target,
    /// The value of `Proxy-Authorization`, undecoded. Not printed by `Debug`.
    pub authorization: Option<&'a [u8]>,
    /// Where its body ends; never [`Framing::UntilClose`].
    pub body: Framing,
    head: &'a RequestHead<'a>,
    /// The request target for the destination: `/path?query`, or `*`.
    path: &'a str,
    /// `Max-Forwards`, for OPTIONS.
    forwards_left: Option<u32>,
    upgrade: Option<&'a [u8]>,
}

/// What the response to a request depends on, kept after the request is sent.
#[derive(Clone, Debug)]
pub struct RequestTraits {
    /// The client's version.
    pub version: Version,
    /// The method; `OTHER` for one that RFC 9110 and RFC 5789 do not name.
    pub method: &'static str,
    /// Whether the client keeps the connection alive.
    pub keeps_alive: bool,
    /// Whether it may be sent a second time if the first got no response: an idempotent method and no body
    /// (RFC 9110, section 9.2.2).
    pub is_repeatable: bool,
    /// The offered protocol of an upgrade.
    pub upgrade: Option<Box<[u8]>>,
    /// Whether the client waits for 100 (Continue) before it sends the body.
    pub expects_continue: bool,
}

impl RequestTraits {
    /// HEAD: the response has no body, regardless of its head.
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

impl<'a> Forward<'a> {
    /// Reads a request other than CONNECT from its head.
    ///
    /// # Errors
    /// Why the request is refused.
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

    /// What the response will depend on.
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

    /// Whether the trailers of its body may be forwarded.
    pub fn may_forward_trailers(&self) -> bool {
        self.head.fields.may_forward_trailers()
    }

    /// Whether `Max-Forwards` makes this proxy the recipient: it responds itself ([`write_options_response`];
    /// RFC 9110, section 7.6.2).
    pub fn targets_proxy(&self) -> bool {
        self.forwards_left == Some(0)
    }

    /// The path without the query, which may contain secrets; `*` for a request about the server itself.
    pub fn path(&self) -> &str {
        let path = self.path.split('?').next().unwrap_or_default();
        if path.is_empty() { "/" } else { path }
    }

    /// Whether `Via` says that a gateway of this name has forwarded it already.
    pub fn was_forwarded_by(&self, via: &str) -> bool {
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

    /// Appends the head for the destination, in HTTP/1.1. `via` is our own name in `Via`; `closes` requests
    /// that the destination closes the connection after its response.
    pub fn write(&self, out: &mut Vec<u8>, via: &str, closes: bool) {
        let (head, fields) = (self.head, &self.head.fields);
        // A path never begins with an asterisk, so this is the `*` of OPTIONS.
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
        // For HTTP/1.0 the chunk frames are removed, and the trailers with them.
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
    /// Without the path, whose query may contain credentials.
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

/// The value of `Host`: without the default port.
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

/// Appends our own response to a request that [`Forward::targets_proxy`], with `date` as its `Date` (RFC
/// 9110, section 5.6.7).
pub fn write_options_response(out: &mut Vec<u8>, date: &str, closes: bool) {
    let connection = if closes { "Connection: close\r\n" } else { "" };
    write(out, format_args!("HTTP/1.1 200 OK\r\nAllow: {ALLOWED_METHODS}\r\nContent-Length: 0\r\n"));
    write(out, format_args!("{connection}Date: {date}\r\n\r\n"));
}

/// Accepts the absolute form, which requests to a proxy have; each other form gets its own error.
fn check_form(head: &RequestHead<'_>) -> Result<(), RequestError> {
    // Case-insensitive: a server that treats `connect` as `CONNECT` would open a tunnel.
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

/// The schemes of requests without TLS.
#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Http,
    /// `ws://`: an HTTP request with an upgrade to WebSocket (RFC 6455, section 4.1).
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
        // Bytes that browsers encode, and bytes that some parsers treat as a slash or an end.
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
    // A greater number counts down from our maximum (RFC 9110, section 7.6.2).
    Ok(digits.parse().unwrap_or(u32::MAX))
}

/// The one protocol that the client offers to change to. Offers with a request body are dropped, and so are
/// HTTP/2, whose requests would bypass the policy, and TLS, which needs a tunnel. RFC 9110, section 7.8, lets
/// a server ignore an offer.
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

/// Appends the forwarded lines.
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

/// Appends a `Via` line for this proxy after the existing ones (RFC 9110, section 7.6.3).
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
