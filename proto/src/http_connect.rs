//! HTTP/1.1 CONNECT as a proxy hears and answers it (RFC 9110, section 9.3.6; RFC 9112).
//! Promises: the head is bounded, one byte sequence has one reading, and what a response quotes cannot break
//! out of it. Leaves to others: plain HTTP requests, which are recognised as [`Request::Other`] and refused
//! with a reason ([`Request::refusal`]); a forwarder for them comes as another module.
//!
//! The way of a request, each step in a file of its own:
//! 1. `head`: [`HeadScanner`] finds where the head ends while bytes trickle in.
//! 2. `request`: [`parse_request`] reads the head; `httparse` tokenizes, framing and strictness are ours.
//! 3. `basic`: [`basic_credentials`] decodes the value of `Proxy-Authorization`.
//! 4. `response`: [`write_established`] or [`write_denial`].

mod basic;
mod head;
mod request;
mod response;

pub use basic::basic_credentials;
pub use head::{HeadScanner, HeadTooLarge};
pub use request::{Connect, Request, RequestError, UriForm, parse_request};
pub use response::{Denial, proxy_error, reason_phrase, write_denial, write_established};
