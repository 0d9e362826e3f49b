//! The head of an HTTP/1.x request, found and read strictly (RFC 9112).
//! Promises: the head is bounded, and one byte sequence has one reading. Leaves to others: what is asked
//! (`http_connect`), who asks (`credentials`), and the answer (`denial`).
//!
//! 1. `scanner`: [`HeadScanner`] finds where the head ends while bytes trickle in.
//! 2. `request`: [`parse_request`] reads the head; `httparse` tokenizes, framing and strictness are ours.

mod request;
mod scanner;

pub use request::{Request, RequestError, UriForm, parse_request};
pub use scanner::{HeadScanner, HeadTooLarge};
