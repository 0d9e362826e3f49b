//! The errors of a head, and the HTTP status of each.
//!
//! Guarantees: each text names the remedy; a destination's fault never becomes a client error (4xx).

use crate::denial::proxy_error;
use crate::limits::{CONNECTION_OPTIONS_MAX, HEAD_BYTES_MAX, HEADERS_MAX};
use crate::target::TargetError;

/// The head does not end within `HEAD_BYTES_MAX` bytes; its sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the head is longer than {HEAD_BYTES_MAX} bytes")]
pub struct HeadTooLarge;

impl HeadTooLarge {
    /// The HTTP status: 431.
    pub fn status(&self) -> u16 {
        431
    }
}

/// A fault in the head of a request or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// See [`HeadTooLarge`].
    #[error(transparent)]
    HeadTooLarge(#[from] HeadTooLarge),
    /// More than `HEADERS_MAX` header lines.
    #[error("there are more than {HEADERS_MAX} headers")]
    TooManyHeaders,
    /// An empty line instead of the first line.
    #[error("it begins with an empty line")]
    FirstLineEmpty,
    /// A line that ends in LF alone.
    #[error("a line ends in LF alone: end each line with CRLF")]
    LineFeedBare,
    /// A CR without a following LF.
    #[error("it contains a CR that is not part of a line end")]
    CarriageReturnBare,
    /// A header continued on the next line (obs-fold; RFC 9112, section 5.2).
    #[error("a header line begins with a space: folded headers are not accepted")]
    HeaderFolded,
    /// Not a token before the colon, no colon, or a space before it.
    #[error("a header name is malformed: it must be a token, followed by ':' without a space between")]
    HeaderNameMalformed,
    /// A control character in a header's value.
    #[error("a header value contains a control character")]
    HeaderValueMalformed,
    /// A second line of a header that must be unique.
    #[error("there is more than one {0} header")]
    HeaderRepeated(&'static str),
    /// `Connection` is not a list of tokens, or names a header that the message needs.
    #[error("the Connection header must list tokens, and no header that the message needs")]
    ConnectionMalformed,
    /// More than `CONNECTION_OPTIONS_MAX` items in the `Connection` headers.
    #[error("the Connection header lists more than {CONNECTION_OPTIONS_MAX} names")]
    ConnectionTooLong,
    /// `Content-Length` is not one decimal number below 2^63.
    #[error("the Content-Length must be one decimal number, without sign, list or leading zeros")]
    LengthMalformed,
    /// `Content-Length` beside `Transfer-Encoding`: two parsers may find two ends of the body.
    #[error("Content-Length and Transfer-Encoding contradict each other: send one of them")]
    FramingConflict,
    /// A last transfer coding other than `chunked`: the end of the body is unknown (RFC 9112, section 6.3).
    #[error("the last transfer coding must be chunked: send chunked alone")]
    ChunkedNotLast,
    /// A transfer coding before `chunked`.
    #[error("this transfer coding is not implemented: send chunked alone")]
    CodingUnknown,
    /// `Transfer-Encoding` in a message of HTTP/1.0, which has none.
    #[error("HTTP/1.0 has no Transfer-Encoding: send HTTP/1.1, or a Content-Length")]
    CodingInHttp10,
    /// The caller's mistake: the input is not exactly the head that the scanner delimited.
    #[error("the gateway did not delimit it correctly")]
    NotOneHead,
}

/// Why a request is refused. All but [`HeadError::NotOneHead`] are the client's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// See [`HeadError`].
    #[error("the request is malformed: {0}")]
    Head(#[from] HeadError),
    /// Not `METHOD SP target SP HTTP/1.x`.
    #[error(
        "the request line is malformed: it must be a method, a target and a version, with single spaces \
         between"
    )]
    RequestLineMalformed,
    /// A method that is longer than a whole head may be.
    #[error("the method is too long: a head has {HEAD_BYTES_MAX} bytes at most")]
    MethodTooLong,
    /// A method and a URL that are longer than a whole head may be.
    #[error("the URL is too long: a head has {HEAD_BYTES_MAX} bytes at most")]
    UriTooLong,
    /// A request line of two words: HTTP/0.9.
    #[error("the request line has no HTTP version: HTTP/0.9 is not served, send HTTP/1.1")]
    VersionMissing,
    /// A version other than 1.0 and 1.1.
    #[error("this HTTP version is not served: send HTTP/1.1")]
    VersionUnsupported,
    /// CONNECT with `Content-Length` other than 0, or with `Transfer-Encoding`.
    #[error("a CONNECT request carries no body: remove Content-Length and Transfer-Encoding")]
    BodyForbidden,
    /// HTTP/1.1 without `Host` (RFC 9112, section 3.2).
    #[error("the Host header is missing")]
    HostMissing,
    /// `Host` and the request target name different destinations.
    #[error("the Host header does not agree with the destination of the request")]
    HostDisagrees,
    /// The destination cannot be used.
    #[error("the destination of the request is refused: {0}")]
    Target(#[from] TargetError),
    /// A byte that is forbidden in URIs, or a fragment.
    #[error("the URL contains the byte '{}': percent-encode it, and leave a fragment out", .0.escape_ascii())]
    UriMalformed(u8),
    /// `GET https://...`
    #[error("an https:// URL is asked for by CONNECT: set this proxy for HTTPS in the client, too")]
    SchemeNeedsTunnel,
    /// `GET ftp://...`
    #[error("only http:// URLs are forwarded, and ws:// ones")]
    SchemeUnknown,
    /// `GET ws://...` without `Upgrade: websocket`, or in HTTP/1.0, or with a body.
    #[error("a ws:// URL needs HTTP/1.1, `Upgrade: websocket` and no body")]
    WebSocketUnasked,
    /// `GET /path`: a request for a web server.
    #[error(
        "this is a proxy, not a web server: set it as the proxy of your client (curl: -x http://HOST:PORT) \
         and request the full URL"
    )]
    NotProxyRequest,
    /// `GET host:port`.
    #[error("only CONNECT takes a bare host:port as its target")]
    AuthorityWithoutConnect,
    /// `GET *`.
    #[error("only OPTIONS takes * as its target")]
    AsteriskWithoutOptions,
    /// TRACE, which would return our own headers, `OPTIONS *`, and CONNECT with a URL.
    #[error("this method is not allowed here")]
    MethodNotAllowed,
    /// An `Expect` that is not `100-continue`.
    #[error("the Expect header may only be 100-continue")]
    ExpectationUnknown,
    /// `Max-Forwards` is not a decimal number.
    #[error("the Max-Forwards header must be a decimal number")]
    MaxForwardsMalformed,
    /// `Via` contains our own name.
    #[error("the request has passed this gateway already: forwarding it would loop")]
    Looped,
}

impl RequestError {
    /// The HTTP status of the response.
    pub fn status(&self) -> u16 {
        match self {
            Self::Head(HeadError::HeadTooLarge(error)) => error.status(),
            Self::Head(HeadError::TooManyHeaders | HeadError::ConnectionTooLong) => 431,
            Self::Head(HeadError::CodingUnknown)
            | Self::SchemeNeedsTunnel
            | Self::SchemeUnknown
            | Self::MethodTooLong => 501,
            Self::Head(HeadError::NotOneHead) => 500,
            Self::Target(error) => error.status(),
            Self::MethodNotAllowed => 405,
            Self::UriTooLong => 414,
            Self::ExpectationUnknown => 417,
            Self::VersionUnsupported => 505,
            Self::Looped => 508,
            Self::Head(_)
            | Self::RequestLineMalformed
            | Self::WebSocketUnasked
            | Self::VersionMissing
            | Self::BodyForbidden
            | Self::HostMissing
            | Self::HostDisagrees
            | Self::UriMalformed(_)
            | Self::NotProxyRequest
            | Self::AuthorityWithoutConnect
            | Self::AsteriskWithoutOptions
            | Self::MaxForwardsMalformed => 400,
        }
    }

    /// The error type for `Proxy-Status` (RFC 9209, section 2.3).
    pub fn proxy_status_error(&self) -> &'static str {
        match self.status() {
            500 => proxy_error::PROXY_INTERNAL_ERROR,
            508 => proxy_error::PROXY_LOOP_DETECTED,
            400..500 => proxy_error::HTTP_REQUEST_ERROR,
            _ => proxy_error::PROXY_INTERNAL_RESPONSE,
        }
    }
}

/// Why a destination's response cannot be forwarded: the client gets 502.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// See [`HeadError`].
    #[error("the destination's response is malformed: {0}")]
    Head(#[from] HeadError),
    /// Not `HTTP/1.x SP status`, such as the banner of another protocol.
    #[error("the destination does not respond in HTTP/1.x")]
    StatusLineMalformed,
    /// 101 without an upgrade in the request, or to another protocol than the requested one.
    #[error("the destination changes to a protocol that the request did not offer")]
    UpgradeUnasked,
    /// More 1xx responses than a destination has reason to send.
    #[error("the destination sends too many interim responses")]
    InterimsTooMany,
    /// 407: only this gateway requests proxy credentials, and a client must not send them to a destination.
    #[error("the destination requests credentials that belong to a proxy")]
    ProxyCredentialsAsked,
}

impl ResponseError {
    /// The error type for `Proxy-Status` (RFC 9209, section 2.3).
    pub fn proxy_status_error(&self) -> &'static str {
        match self {
            Self::Head(
                HeadError::HeadTooLarge(_) | HeadError::TooManyHeaders | HeadError::ConnectionTooLong,
            ) => proxy_error::HTTP_RESPONSE_HEADER_SECTION_SIZE,
            Self::Head(HeadError::CodingUnknown | HeadError::ChunkedNotLast) => {
                proxy_error::HTTP_RESPONSE_TRANSFER_CODING
            }
            Self::UpgradeUnasked => proxy_error::HTTP_UPGRADE_FAILED,
            Self::Head(_)
            | Self::StatusLineMalformed
            | Self::InterimsTooMany
            | Self::ProxyCredentialsAsked => proxy_error::HTTP_PROTOCOL_ERROR,
        }
    }
}
