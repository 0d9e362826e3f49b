//! HTTP CONNECT as a proxy hears and answers it (RFC 9110, section 9.3.6).
//! Promises: what is accepted has one target, one `Host` that agrees with it, and no body. Leaves to others:
//! the head's syntax (`http_head`), credentials (`credentials`), denials (`denial`).

use std::fmt;

use crate::target::Target;

/// A request for a tunnel.
pub struct Connect<'a> {
    /// Where to.
    pub target: Target,
    /// The value of `Proxy-Authorization`, undecoded. Not printed by `Debug`.
    pub authorization: Option<&'a [u8]>,
    /// Whether a denial's body should be JSON: the client's `Accept` names `application/json`.
    pub accepts_json: bool,
}

impl fmt::Debug for Connect<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connect")
            .field("target", &self.target)
            .field("authorization", &self.authorization.map(|_| format_args!("..")))
            .field("accepts_json", &self.accepts_json)
            .finish()
    }
}

/// Appends the answer that opens a tunnel. It has no body and no framing headers (RFC 9110, section 9.3.6).
pub fn write_established(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 Connection established\r\n\r\n");
}
