//! Parsers and writers of the wire formats, without I/O: no socket, clock, file or random source.
//!
//! Guarantees: no input of a peer causes a panic, a message split at any byte gives the same result as the
//! whole, and secrets never appear in `Debug` output.
//!
//! Not handled here: which targets are allowed (`policy`); reading, writing and deadlines (`gateway`).
//!
//! ```text
//!                first byte
//!  client ----> [detect] --+--> socks5        greeting, user_password, request -> Target
//!                          +--> http_head     HeadScanner, RequestHead ---+--> http_connect  Connect
//!                               credentials   basic_credentials           '--> http_forward  Forward, Body
//!  client <---- write_* ------- replies (socks5, http_connect) and denials (denial), whole, ready to send
//! ```
//!
//! All protocols share `target`: a destination is parsed once, strictly, and carried as a
//! [`target::Target`].
//!
//! Modules, each above those that it may use:
//!
//! ```text
//!   http_connect http_forward
//!   http_head socks5
//!   credentials target
//!   denial limits
//! ```

#![forbid(unsafe_code)]

pub mod credentials;
pub mod denial;
pub mod http_connect;
pub mod http_forward;
pub mod http_head;
pub mod limits;
pub mod socks5;
pub mod target;

/// The protocol of a client, detected from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// An HTTP request: every method of RFC 9110 begins with an upper-case letter.
    Http,
    /// A SOCKS5 greeting (RFC 1928): version byte 5.
    Socks5,
    /// A SOCKS4 request: recognised, not served. Reply [`socks5::SOCKS4_REFUSED`] and close.
    Socks4,
    /// A TLS handshake record: recognised, not served in the clear. Close without a response: a TLS client
    /// shows no plain text.
    Tls,
}

impl Protocol {
    /// The remedy in one sentence, for a protocol that is recognised but not served.
    pub fn unsupported_remedy(self) -> Option<&'static str> {
        match self {
            Self::Http | Self::Socks5 => None,
            Self::Socks4 => Some("the client speaks SOCKS4; set it to SOCKS5 (curl: socks5h://)"),
            Self::Tls => {
                Some("the client speaks TLS to a plain port; set its proxy URL to http://, not https://")
            }
        }
    }
}

/// Detects the protocol from a connection's first byte; `None` if no known protocol begins with it. An HTTP
/// method is any token. An empty line before it counts as HTTP too: its response is 400.
pub fn detect(first_byte: u8) -> Option<Protocol> {
    match first_byte {
        b'\r' | b'\n' => Some(Protocol::Http),
        byte if http_head::is_token(&[byte]) => Some(Protocol::Http),
        0x05 => Some(Protocol::Socks5),
        0x04 => Some(Protocol::Socks4),
        0x16 => Some(Protocol::Tls),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_first_byte_selects_its_protocol() {
        for byte in 0..=u8::MAX {
            let expected = match byte {
                5 => Some(Protocol::Socks5),
                4 => Some(Protocol::Socks4),
                22 => Some(Protocol::Tls),
                b'\r' | b'\n' => Some(Protocol::Http),
                _ if byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte) => {
                    Some(Protocol::Http)
                }
                _ => None,
            };
            assert_eq!(detect(byte), expected, "first byte {byte:#04x}");
        }
    }

    #[test]
    fn unsupported_protocols_have_a_remedy() {
        assert_eq!(Protocol::Http.unsupported_remedy(), None);
        assert_eq!(Protocol::Socks5.unsupported_remedy(), None);
        assert!(Protocol::Socks4.unsupported_remedy().is_some_and(|remedy| remedy.contains("SOCKS5")));
        assert!(Protocol::Tls.unsupported_remedy().is_some_and(|remedy| remedy.contains("http://")));
    }
}
