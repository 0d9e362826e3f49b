//! HTTP CONNECT on the proxy's side (RFC 9110, section 9.3.6).
//!
//! Guarantees: an accepted request has one target, a `Host` that agrees with it or none, and no body.

use std::fmt;

use crate::http_head::{RequestError, RequestHead};
use crate::target::Target;

/// A CONNECT request.
pub struct Connect<'a> {
    /// The target of the tunnel.
    pub target: Target,
    /// The value of `Proxy-Authorization`, undecoded. Not printed by `Debug`.
    pub authorization: Option<&'a [u8]>,
}

impl<'a> Connect<'a> {
    /// Reads a CONNECT request from its head.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn read(head: &RequestHead<'a>) -> Result<Self, RequestError> {
        let fields = &head.fields;
        // The client library of Windows sends `Content-Length: 0` with every CONNECT; that is unambiguous.
        if fields.transfer_encoding.is_some() || fields.content_length.is_some_and(|length| length != b"0") {
            return Err(RequestError::BodyForbidden);
        }
        let target = Target::parse_authority(head.uri.as_bytes())?;
        if fields.host.is_some_and(|host| !host_agrees(host, &target)) {
            return Err(RequestError::HostDisagrees);
        }
        Ok(Self { target, authorization: fields.proxy_authorization })
    }
}

impl fmt::Debug for Connect<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connect")
            .field("target", &self.target)
            .field("authorization", &self.authorization.map(|_| format_args!("..")))
            .finish()
    }
}

/// Whether `Host` names the target. A `Host` without a port agrees too: several clients omit it. A missing
/// `Host` is accepted even in HTTP/1.1 (against RFC 9112, section 3.2), because small tunnel helpers send
/// none and the target takes precedence over it.
fn host_agrees(host: &[u8], target: &Target) -> bool {
    Target::parse_with_port(host, target.port) == Ok(*target)
}

/// Appends the response that opens a tunnel. It has no body and no framing headers (RFC 9110, section 9.3.6).
pub fn write_established(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 Connection established\r\n\r\n");
}
