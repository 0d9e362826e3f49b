//! A whole request head, read strictly.
//! Promises: what is accepted as CONNECT has one target, one `Host` that agrees with it, no body and no line
//! that another parser could read differently. Leaves to others: finding the head's end (`scanner`), and
//! credentials.
//!
//! `httparse` is the tokenizer only. Alone it would accept bare LF, empty lines before the request, repeated
//! `Host` and any framing headers; all of that is refused here.

use std::mem::MaybeUninit;

use super::scanner::HeadTooLarge;
use crate::denial::proxy_error;
use crate::http_connect::Connect;
use crate::limits::HEADERS_MAX;
use crate::target::{Host, Target, TargetError};

/// What a client asks of the proxy.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives once on the stack of a handshake; a box would allocate")]
pub enum Request<'a> {
    /// A tunnel.
    Connect(Connect<'a>),
    /// Anything else. Nothing of it is served; [`Request::refusal`] says why and with which status.
    Other {
        /// The method as sent: any token.
        method: &'a str,
        /// How the request names what it wants.
        uri_form: UriForm,
        /// Whether the answer's body should be JSON.
        accepts_json: bool,
    },
}

impl Request<'_> {
    /// Why a request that is not CONNECT cannot be served; `None` for CONNECT.
    pub fn refusal(&self) -> Option<RequestError> {
        let Self::Other { method, uri_form, .. } = self else { return None };
        let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"].contains(method);
        Some(match uri_form {
            _ if *method == "TRACE" => RequestError::MethodNotAllowed,
            UriForm::Absolute => RequestError::NotForwarded,
            UriForm::Asterisk => RequestError::MethodNotAllowed,
            _ if !known => RequestError::MethodUnknown,
            UriForm::Origin => RequestError::NotProxyRequest,
            UriForm::Authority => RequestError::AuthorityWithoutConnect,
        })
    }
}

/// The four forms of a request target (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriForm {
    /// `/path`: the client takes us for a web server.
    Origin,
    /// `http://host/path`: a plain request to be forwarded.
    Absolute,
    /// `host:port`, or whatever has no form of its own.
    Authority,
    /// `*`
    Asterisk,
}

/// Why a request is refused. All but [`RequestError::NotOneHead`] are the client's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// See [`HeadTooLarge`].
    #[error(transparent)]
    HeadTooLarge(#[from] HeadTooLarge),
    /// More than `HEADERS_MAX` header lines.
    #[error("the request has more than {HEADERS_MAX} headers")]
    TooManyHeaders,
    /// An empty line where the request line belongs.
    #[error("the request begins with an empty line")]
    RequestLineEmpty,
    /// Not `METHOD SP target SP HTTP/1.x`.
    #[error(
        "the request line is malformed: it must be a method, a target and a version, with one space between"
    )]
    RequestLineMalformed,
    /// A request line of two words: HTTP/0.9.
    #[error("the request line has no HTTP version: HTTP/0.9 is not served, send HTTP/1.1")]
    VersionMissing,
    /// A version other than 1.0 and 1.1.
    #[error("this HTTP version is not served: send HTTP/1.1")]
    VersionUnsupported,
    /// A line that ends in LF alone.
    #[error("a line of the request ends in LF alone: end each line with CRLF")]
    LineFeedBare,
    /// A CR that no LF follows.
    #[error("the request holds a CR that is not part of a line end")]
    CarriageReturnBare,
    /// A header continued on the next line (obs-fold; RFC 9112, section 5.2).
    #[error("a header line begins with a space: folded headers are not accepted")]
    HeaderFolded,
    /// Not a token before the colon, no colon, or a space before it.
    #[error("a header name is malformed: it must be a token, followed by ':' without a space between")]
    HeaderNameMalformed,
    /// A control character in a header's value.
    #[error("a header value holds a control character")]
    HeaderValueMalformed,
    /// A header of which two would contradict each other.
    #[error("the request has more than one {0} header")]
    HeaderRepeated(&'static str),
    /// CONNECT with `Content-Length` other than 0, or with `Transfer-Encoding`.
    #[error("a CONNECT request carries no body: remove Content-Length and Transfer-Encoding")]
    BodyForbidden,
    /// `Host` and the request target name different places.
    #[error("the Host header does not agree with the destination of the CONNECT request")]
    HostDisagrees,
    /// The destination of a CONNECT request cannot be used.
    #[error("the destination of the CONNECT request is refused: {0}")]
    Target(#[from] TargetError),
    /// `GET /path`: a request for a web server.
    #[error(
        "this is a proxy, not a web server: set it as the proxy of your client (curl: -x http://HOST:PORT) \
         and ask for the full URL"
    )]
    NotProxyRequest,
    /// `GET host:port`.
    #[error("only CONNECT takes a bare host:port as its target")]
    AuthorityWithoutConnect,
    /// TRACE, and `OPTIONS *`.
    #[error("this method is not allowed here: only CONNECT is served")]
    MethodNotAllowed,
    /// A method that RFC 9110 does not know.
    #[error("this method is not implemented: only CONNECT is served")]
    MethodUnknown,
    /// `GET http://...`
    #[error(
        "plain HTTP requests are not forwarded, only CONNECT tunnels are: use an https:// URL, \
         or make the client tunnel (curl: -p), or use SOCKS5"
    )]
    NotForwarded,
    /// The caller's mistake: what was passed is not exactly the head that the scanner delimited.
    #[error("the gateway did not delimit the request correctly")]
    NotOneHead,
}

impl RequestError {
    /// The HTTP status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::HeadTooLarge(error) => error.status(),
            Self::TooManyHeaders => 431,
            Self::Target(error) => error.status(),
            Self::MethodNotAllowed => 405,
            Self::MethodUnknown | Self::NotForwarded => 501,
            Self::VersionUnsupported => 505,
            Self::NotOneHead => 500,
            Self::RequestLineEmpty
            | Self::RequestLineMalformed
            | Self::VersionMissing
            | Self::LineFeedBare
            | Self::CarriageReturnBare
            | Self::HeaderFolded
            | Self::HeaderNameMalformed
            | Self::HeaderValueMalformed
            | Self::HeaderRepeated(_)
            | Self::BodyForbidden
            | Self::HostDisagrees
            | Self::NotProxyRequest
            | Self::AuthorityWithoutConnect => 400,
        }
    }

    /// The error type for `Proxy-Status` (RFC 9209, section 2.3).
    pub fn proxy_status_error(&self) -> &'static str {
        match self.status() {
            500 => proxy_error::PROXY_INTERNAL_ERROR,
            400..500 => proxy_error::HTTP_REQUEST_ERROR,
            _ => proxy_error::PROXY_INTERNAL_RESPONSE,
        }
    }
}

/// Reads one request head: exactly the bytes that [`super::HeadScanner`] delimited, closing empty line
/// included.
pub fn parse_request(head: &[u8]) -> Result<Request<'_>, RequestError> {
    check_lines(head)?;
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut tokens = httparse::Request::new(&mut []);
    match tokens.parse_with_uninit_headers(head, &mut headers) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        Ok(_) => return Err(RequestError::NotOneHead),
        Err(error) => return Err(explain(error, head)),
    }
    let (Some(method), Some(uri)) = (tokens.method, tokens.path) else {
        return Err(RequestError::NotOneHead);
    };
    let fields = Fields::collect(tokens.headers)?;
    if method == "CONNECT" {
        return connect(uri, &fields).map(Request::Connect);
    }
    Ok(Request::Other { method, uri_form: uri_form(uri), accepts_json: fields.accepts_json })
}

fn connect<'a>(uri: &str, fields: &Fields<'a>) -> Result<Connect<'a>, RequestError> {
    // Windows' own client sends `Content-Length: 0` with every CONNECT; it can be read in one way only.
    if fields.transfer_encoding.is_some() || fields.content_length.is_some_and(|length| length != b"0") {
        return Err(RequestError::BodyForbidden);
    }
    let target = Target::parse_authority(uri.as_bytes())?;
    if fields.host.is_some_and(|host| !host_agrees(host, uri, &target)) {
        return Err(RequestError::HostDisagrees);
    }
    Ok(Connect { target, authorization: fields.authorization, accepts_json: fields.accepts_json })
}

/// A `Host` without a port agrees too: several clients leave it out. No `Host` at all is accepted even from
/// HTTP/1.1 (against RFC 9112, section 3.2), because small tunnel helpers send none and the target stands
/// above it.
fn host_agrees(host: &[u8], authority: &str, target: &Target) -> bool {
    if host.eq_ignore_ascii_case(authority.as_bytes()) {
        return true;
    }
    match Target::parse_authority(host) {
        Ok(named) => named == *target,
        Err(_) => Host::parse(host) == Ok(target.host),
    }
}

/// The few headers that matter to a proxy; all others are ignored, since a tunnel passes none on.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
    content_length: Option<&'a [u8]>,
    transfer_encoding: Option<&'a [u8]>,
    accepts_json: bool,
}

impl<'a> Fields<'a> {
    fn collect(headers: &[httparse::Header<'a>]) -> Result<Self, RequestError> {
        let mut fields = Self::default();
        for header in headers {
            let is = |name: &'static str| header.name.eq_ignore_ascii_case(name).then_some(name);
            // By length first: the usual header costs one comparison of integers.
            let (slot, name) = match header.name.len() {
                4 => (&mut fields.host, is("Host")),
                14 => (&mut fields.content_length, is("Content-Length")),
                17 => (&mut fields.transfer_encoding, is("Transfer-Encoding")),
                19 => (&mut fields.authorization, is("Proxy-Authorization")),
                6 if is("Accept").is_some() => {
                    fields.accepts_json |= names_json(header.value);
                    continue;
                }
                _ => continue,
            };
            let Some(name) = name else { continue };
            if slot.replace(header.value).is_some() {
                return Err(RequestError::HeaderRepeated(name));
            }
        }
        Ok(fields)
    }
}

/// Whether an `Accept` value lists `application/json` with a weight above zero (RFC 9110, section 12.5.1).
fn names_json(accept: &[u8]) -> bool {
    accept.split(|&byte| byte == b',').any(|range| {
        let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let is_json = parts.next().is_some_and(|media| media.eq_ignore_ascii_case(b"application/json"));
        is_json && !parts.any(is_weight_zero)
    })
}

fn is_weight_zero(parameter: &[u8]) -> bool {
    let [b'q' | b'Q', b'=', weight @ ..] = parameter else { return false };
    weight.first() == Some(&b'0') && weight.iter().all(|byte| matches!(byte, b'0' | b'.'))
}

fn uri_form(uri: &str) -> UriForm {
    match uri.as_bytes() {
        b"*" => UriForm::Asterisk,
        [b'/', ..] => UriForm::Origin,
        _ if uri.contains("://") => UriForm::Absolute,
        _ => UriForm::Authority,
    }
}

/// Every line must end in CRLF and stand alone, and the only empty one must be the last.
fn check_lines(head: &[u8]) -> Result<(), RequestError> {
    let mut rest = head;
    while let Some(line_feed) = rest.iter().position(|&byte| byte == b'\n') {
        let (line, after) = rest.split_at(line_feed + 1);
        let is_first = rest.len() == head.len();
        match line {
            [b'\r', b'\n'] if is_first => return Err(RequestError::RequestLineEmpty),
            [b'\r', b'\n'] if after.is_empty() => return Ok(()),
            [b'\r', b'\n'] => return Err(RequestError::NotOneHead),
            [b' ' | b'\t', ..] if !is_first => return Err(RequestError::HeaderFolded),
            [.., b'\r', b'\n'] => {}
            _ => return Err(RequestError::LineFeedBare),
        }
        rest = after;
    }
    Err(RequestError::NotOneHead)
}

/// Turns the tokenizer's complaint into one that names what to change.
fn explain(error: httparse::Error, head: &[u8]) -> RequestError {
    if error == httparse::Error::TooManyHeaders {
        return RequestError::TooManyHeaders;
    }
    if head.windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n') {
        return RequestError::CarriageReturnBare;
    }
    match error {
        httparse::Error::HeaderName => RequestError::HeaderNameMalformed,
        httparse::Error::HeaderValue => RequestError::HeaderValueMalformed,
        _ => explain_request_line(head),
    }
}

fn explain_request_line(head: &[u8]) -> RequestError {
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    match (words.nth(1), words.next(), words.next()) {
        (Some(_), None, None) => RequestError::VersionMissing,
        (Some(_), Some(b"HTTP/1.0" | b"HTTP/1.1"), None) => RequestError::RequestLineMalformed,
        (Some(_), Some(version), None) if version.starts_with(b"HTTP/") => RequestError::VersionUnsupported,
        _ => RequestError::RequestLineMalformed,
    }
}
