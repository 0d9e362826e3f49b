//! Plain HTTP/1.x through a proxy: parsing requests and responses, and writing what is forwarded of them
//! (RFC 9110, section 7; RFC 9112).
//!
//! Guarantees: each message has an unambiguous end. Both heads are generated from the parsed head, so nothing
//! unparsed is forwarded. Headers of this hop are not forwarded, above all a proxy's credentials.
//!
//! ```text
//!  client --- head ---> Forward::read --> Forward::write ---> destination     RequestTraits: what the
//!         --- body ---> Body::consume --- unchanged --------> destination     response depends on
//!  client <-- unchanged ----- Body::consume <---------------- destination
//!  client <-- write_response <- ResponseKind::read <--------- destination
//! ```
//!
//! A body is forwarded with its framing, byte for byte, except that chunk extensions are removed and trailers
//! are checked. For a client of HTTP/1.0, which has no chunks, the chunk frames are removed too.

mod body;
mod request;
mod response;

pub use crate::http_head::Framing;
pub use body::{Body, BodyError, Consumed};
pub use request::{Forward, RequestTraits, write_options_response};
pub use response::{ResponseHeaders, ResponseKind, write_response};
