//! The protocol of a response of the gateway's own.

use proto::denial::{DenialResponse, reason_phrase, write_denial};
use proto::socks5;

use crate::denial::Denial;

/// How a denial is encoded for a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReplyProtocol {
    /// No known protocol: the connection is closed without a reply.
    None,
    /// HTTP.
    Http {
        /// The request accepts JSON.
        json: bool,
        /// The request's method is HEAD: the response has no body.
        is_head: bool,
        /// The connection closes behind the response.
        closes: bool,
    },
    /// SOCKS5, before a method was selected.
    Socks5Greeting,
    /// SOCKS5, while the password is verified.
    Socks5Password,
    /// SOCKS5, from its request on.
    Socks5Request,
}

impl ReplyProtocol {
    /// HTTP, before a head was parsed.
    pub(crate) const HTTP: ReplyProtocol = ReplyProtocol::Http { json: false, is_head: false, closes: true };

    /// Whether the connection closes behind a response.
    pub(crate) fn closes(&self) -> bool {
        !matches!(self, ReplyProtocol::Http { closes: false, .. })
    }

    /// The connection is to close behind a response.
    pub(crate) fn set_close(&mut self) {
        if let ReplyProtocol::Http { closes, .. } = self {
            *closes = true;
        }
    }

    /// The request's method is HEAD.
    pub(super) fn set_head(&mut self) {
        if let ReplyProtocol::Http { is_head, .. } = self {
            *is_head = true;
        }
    }

    /// Whether the request accepts JSON.
    pub(crate) fn set_json(&mut self, accepts: bool) {
        if let ReplyProtocol::Http { json, .. } = self {
            *json = accepts;
        }
    }

    /// The bytes of a denial. `request_id` is the id of log and ledger, `date` the current `Date` header.
    pub(crate) fn encode(&self, denial: &Denial, request_id: u128, realm: &str, date: &str) -> Vec<u8> {
        let mut response = Vec::new();
        match *self {
            ReplyProtocol::None => {}
            ReplyProtocol::Http { json, is_head, closes } => {
                let denial = DenialResponse {
                    status: denial.status,
                    title: reason_phrase(denial.status),
                    reason: &denial.text,
                    proxy_status_error: Some(denial.proxy_status),
                    rule: denial.rule.as_deref(),
                    request_id: &format!("{request_id:032x}"),
                    retry_after_s: denial.retry_after_s,
                    challenge: (denial.status == 407).then_some(realm),
                    json,
                    closes,
                    head_only: is_head,
                    date: Some(date),
                };
                write_denial(&mut response, &denial);
            }
            ReplyProtocol::Socks5Greeting => {
                socks5::write_method(&mut response, socks5::Method::Unacceptable);
            }
            ReplyProtocol::Socks5Password => socks5::write_password_status(&mut response, false),
            ReplyProtocol::Socks5Request => socks5::write_reply(&mut response, denial.reply, None),
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_is_encoded_in_the_clients_protocol() {
        let denial = Denial::credentials_missing();
        let encode = |protocol: ReplyProtocol| protocol.encode(&denial, 7, "here", "now");
        assert_eq!(encode(ReplyProtocol::None), b"");
        assert_eq!(encode(ReplyProtocol::Socks5Greeting), [5, 0xff]);
        assert_eq!(encode(ReplyProtocol::Socks5Password), [1, 1]);
        assert_eq!(encode(ReplyProtocol::Socks5Request)[..2], [5, 2]);
        let text = String::from_utf8(encode(ReplyProtocol::HTTP)).unwrap();
        assert!(text.starts_with("HTTP/1.1 407 ") && text.contains("realm=\"here\""), "{text}");
        let head_only = ReplyProtocol::Http { json: true, is_head: true, closes: false };
        let text = String::from_utf8(encode(head_only)).unwrap();
        assert!(text.ends_with("\r\n\r\n") && !text.contains("Connection: close"), "{text}");
    }
}
