//! The head of an HTTP/1.x message, delimited and parsed strictly (RFC 9112).
//!
//! Guarantees: the head is bounded, and a byte sequence has one meaning.
//!
//! 1. `scanner`: [`HeadScanner`] finds the end of the head while bytes arrive.
//! 2. `request`, `response`: [`RequestHead`] and [`ResponseHead`] parse the first line. `httparse` tokenizes;
//!    `lines` adds the strictness.
//! 3. `fields`: the headers about the connection and the body, and which headers are forwarded.
//!
//! `httparse` is the tokenizer only. Alone it would accept bare LF, empty lines before the request, repeated
//! `Host` and any framing headers; this module refuses all of these.

mod error;
mod fields;
mod lines;
mod request;
mod response;
mod scanner;

use std::mem::MaybeUninit;

pub use error::{HeadError, HeadTooLarge, RequestError, ResponseError};
pub(crate) use fields::{Fields, KnownHeader, is_token};
pub(crate) use lines::parse_lines;
pub use request::{RequestHead, UriForm};
pub use response::ResponseHead;
pub use scanner::HeadScanner;

use crate::limits::HEADERS_MAX;

/// Storage for the header lines of a head, on the stack of the caller that parses it.
pub struct HeaderStorage<'a>([MaybeUninit<httparse::Header<'a>>; HEADERS_MAX]);

impl HeaderStorage<'_> {
    /// Empty storage.
    pub const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; HEADERS_MAX])
    }
}

impl Default for HeaderStorage<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// The HTTP version of a message. The gateway always writes 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: no chunks, no interim responses, one message per connection.
    Http10,
    /// HTTP/1.1
    Http11,
}

impl Version {
    fn from_minor(minor: Option<u8>) -> Option<Self> {
        match minor? {
            0 => Some(Self::Http10),
            1 => Some(Self::Http11),
            _ => None,
        }
    }

    /// Its form in `Via`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "1.0",
            Self::Http11 => "1.1",
        }
    }
}

/// How the end of a message's body is determined (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// After this many bytes, below 2^63.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// At the end of the connection; for responses only.
    UntilClose,
}
