//! How a client understands an answer of the gateway's own: its protocol, and what of HTTP it asked for.
//!
//! Leaves out the bytes of the answers (crate `proto`) and which refusal it is (`refusal`).

/// In which words the client understands a refusal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReplyProtocol {
    /// None that we know: it is only cut off.
    None,
    /// HTTP.
    Http {
        /// It asked for JSON.
        json: bool,
        /// It asked by HEAD: an answer of ours has no body either.
        is_head: bool,
        /// The connection ends behind an answer of ours.
        closes: bool,
    },
    /// SOCKS5, before its methods were answered.
    Socks5Greeting,
    /// SOCKS5, while its password is looked at.
    Socks5Password,
    /// SOCKS5, at or behind its request.
    Socks5Request,
}

impl ReplyProtocol {
    /// HTTP, of which no more is known yet.
    pub(crate) const HTTP: ReplyProtocol = ReplyProtocol::Http { json: false, is_head: false, closes: true };

    /// Whether the connection ends behind an answer of ours.
    pub(crate) fn closes(&self) -> bool {
        !matches!(self, ReplyProtocol::Http { closes: false, .. })
    }

    /// Notes that the connection ends behind an answer of ours.
    pub(crate) fn close(&mut self) {
        if let ReplyProtocol::Http { closes, .. } = self {
            *closes = true;
        }
    }

    /// Notes that an HTTP client asks by HEAD.
    pub(super) fn ask_head(&mut self) {
        if let ReplyProtocol::Http { is_head, .. } = self {
            *is_head = true;
        }
    }

    /// Notes whether an HTTP client wants JSON.
    pub(crate) fn accept_json(&mut self, wanted: bool) {
        if let ReplyProtocol::Http { json, .. } = self {
            *json = wanted;
        }
    }
}
