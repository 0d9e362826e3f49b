//! HTTP CONNECT as a proxy hears and answers it (RFC 9110, section 9.3.6).
//! Promises: what is accepted has one target, one `Host` that agrees with it, and no body. Leaves to others:
//! the head's syntax (`http_head`), credentials (`credentials`), denials (`denial`).

use std::fmt;

use crate::http_head::{RequestError, RequestHead};
use crate::target::Target;

/// A request for a tunnel.
pub struct Connect<'a> {
    /// Where to.
    pub target: Target,
    /// The value of `Proxy-Authorization`, undecoded. Not printed by `Debug`.
    pub authorization: Option<&'a [u8]>,
}

impl<'a> Connect<'a> {
    /// What a CONNECT request asks for.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(head: &RequestHead<'a>) -> Result<Self, RequestError> {
        let fields = &head.fields;
        // Windows' own client sends `Content-Length: 0` with every CONNECT; it can be read in one way only.
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

/// A `Host` without a port agrees too: several clients leave it out. No `Host` at all is accepted even from
/// HTTP/1.1 (against RFC 9112, section 3.2), because small tunnel helpers send none and the target stands
/// above it.
fn host_agrees(host: &[u8], target: &Target) -> bool {
    Target::parse_with_port(host, target.port) == Ok(*target)
}

/// Appends the answer that opens a tunnel. It has no body and no framing headers (RFC 9110, section 9.3.6).
pub fn write_established(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 Connection established\r\n\r\n");
}
