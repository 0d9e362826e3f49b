//! The head of an HTTP/1.x message, found and read strictly (RFC 9112).
//! Promises: the head is bounded, and one byte sequence has one reading. Leaves to others: what is asked
//! (`http_connect`, `http_forward`), who asks (`credentials`), and the answer (`denial`).
//!
//! 1. `scanner`: [`HeadScanner`] finds where the head ends while bytes trickle in.
//! 2. `request`, `response`: [`RequestHead`] and [`ResponseHead`] read the first line; `httparse` tokenizes,
//!    strictness is ours (`lines`).
//! 3. `fields`: what the header lines say about the connection and the body, and which of them end here.
//!
//! `httparse` is the tokenizer only. Alone it would accept bare LF, empty lines before the request, repeated
//! `Host` and any framing headers; all of that is refused here.

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

/// Room for the header lines of a head; lives on the stack of whoever reads one.
pub struct HeaderStorage<'a>([MaybeUninit<httparse::Header<'a>>; HEADERS_MAX]);

impl HeaderStorage<'_> {
    /// Empty room.
    pub const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; HEADERS_MAX])
    }
}

impl Default for HeaderStorage<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// The version that a message says it is written in. Ours are always written in 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: no chunks, no interim answers, one message a connection.
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

    /// As `Via` writes it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "1.0",
            Self::Http11 => "1.1",
        }
    }
}

/// How a message says where its body ends (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// After so many bytes, below 2^63.
    Length(u64),
    /// After a last chunk.
    Chunked,
    /// With the connection; of answers only.
    UntilClose,
}
