//! A destination's response: parsed strictly, and generated anew for the client.
//!
//! Guarantees: the end of the body follows RFC 9112, section 6.3. An ambiguous response is an error. The
//! generated head closes the connection where the client could not find the end otherwise.

use super::request::{RequestTraits, write, write_forwarded_lines, write_framing, write_line, write_via};
use crate::http_head::{Framing, ResponseError, ResponseHead, Version};

/// The kind of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// 1xx: another response follows.
    Interim,
    /// 101: the connection now carries the requested protocol.
    Upgraded,
    /// The final response.
    Final {
        /// Where its body ends.
        body: Framing,
        /// Whether the destination keeps the connection open after it.
        keeps_alive: bool,
    },
}

impl ResponseKind {
    /// Reads a response's head, given the traits of its request.
    ///
    /// # Errors
    /// Why the response cannot be forwarded.
    pub fn read(head: &ResponseHead<'_>, request: &RequestTraits) -> Result<Self, ResponseError> {
        let fields = &head.fields;
        match head.status {
            101 => match (&request.upgrade, fields.upgrade) {
                (Some(requested), Some(offered))
                    if fields.upgrades && offered.eq_ignore_ascii_case(requested) =>
                {
                    return Ok(Self::Upgraded);
                }
                _ => return Err(ResponseError::UpgradeUnasked),
            },
            100..200 => return Ok(Self::Interim),
            407 => return Err(ResponseError::ProxyCredentialsAsked),
            _ => {}
        }
        let framing = fields.framing(head.version)?;
        let keeps_alive = match head.version {
            Version::Http11 => !fields.closes,
            Version::Http10 => fields.keeps_alive && !fields.closes,
        };
        Ok(match (request.is_head() || matches!(head.status, 204 | 304), framing) {
            // A length contradicts 204, and a destination that sends one may send a body too: the connection
            // is not reused for a next response.
            (true, framing) => {
                let is_sound = head.status != 204 || matches!(framing, None | Some(Framing::Length(0)));
                Self::Final { body: Framing::None, keeps_alive: keeps_alive && is_sound }
            }
            (false, None) => Self::Final { body: Framing::UntilClose, keeps_alive: false },
            (false, Some(body)) => Self::Final { body, keeps_alive },
        })
    }

    /// Whether only the end of the connection shows the client the body's end.
    pub fn ends_with_connection(self, request: &RequestTraits) -> bool {
        match self {
            Self::Final { body: Framing::UntilClose, .. } => true,
            Self::Final { body: Framing::Chunked, .. } => request.version == Version::Http10,
            Self::Final { .. } | Self::Interim | Self::Upgraded => false,
        }
    }
}

/// Appends the head for the client, in HTTP/1.1. Interim responses are not written for HTTP/1.0, which has
/// none. With [`ResponseHeaders::closes`], or if [`ResponseKind::ends_with_connection`], the head announces
/// that the connection ends after the response.
pub fn write_response(
    out: &mut Vec<u8>,
    head: &ResponseHead<'_>,
    kind: ResponseKind,
    request: &RequestTraits,
    ResponseHeaders { via, date, closes }: ResponseHeaders<'_>,
) {
    if kind == ResponseKind::Interim && request.version == Version::Http10 {
        return;
    }
    let fields = &head.fields;
    let closes = closes || kind.ends_with_connection(request);
    write(out, format_args!("HTTP/1.1 {} {}\r\n", head.status, head.reason));
    write_forwarded_lines(out, fields);
    match kind {
        ResponseKind::Upgraded => write_line(out, "Upgrade", fields.upgrade.unwrap_or_default()),
        ResponseKind::Final { body: Framing::None, .. } => {
            // The length that the body would have, for HEAD and 304; never for 204 (RFC 9110, section 8.6).
            let has_length = head.status == 304 || request.is_head() && head.status != 204;
            if let Some(length) = fields.content_length.filter(|_| has_length) {
                write_line(out, "Content-Length", length);
            }
        }
        ResponseKind::Final { body: Framing::Chunked, .. } if request.version == Version::Http10 => {}
        ResponseKind::Final { body, .. } => write_framing(out, body),
        ResponseKind::Interim => {}
    }
    match kind {
        ResponseKind::Upgraded => out.extend_from_slice(b"Connection: Upgrade\r\n"),
        ResponseKind::Final { .. } if closes => out.extend_from_slice(b"Connection: close\r\n"),
        ResponseKind::Final { .. } | ResponseKind::Interim => {}
    }
    if let (ResponseKind::Final { .. }, Some(date)) = (kind, date) {
        write_line(out, "Date", date.as_bytes());
    }
    write_via(out, head.version, via);
    out.extend_from_slice(b"\r\n");
}

/// The headers that the proxy adds to a response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHeaders<'a> {
    /// Our own name in `Via`.
    pub via: &'a str,
    /// The time (RFC 9110, section 5.6.7), for a response without a `Date`.
    pub date: Option<&'a str>,
    /// Whether the connection ends after the response.
    pub closes: bool,
}
