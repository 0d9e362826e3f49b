//! Plain HTTP/1.x through a proxy: what a request asks for, and what of it and of its answer goes on
//! (RFC 9110, section 7; RFC 9112).
//! Promises: a message has one end; both heads are written anew from what was understood, so that nothing
//! travels that was not; what belongs to this hop stays here, above all a proxy's credentials. Leaves to
//! others: who may go there, and the connections.
//!
//! ```text
//!  client --- head ---> Forward::read --> Forward::write ---> destination     Asked: what its answer
//!         --- body ---> Body::take ------ as it is ---------> destination     is read by
//!  client <-- as it is ------ Body::take <------------------- destination
//!  client <-- write_answer  <- Answer::read <---------------- destination
//! ```
//!
//! A body is passed on as it is framed, byte for byte; of chunks only the extensions are cut out and the
//! trailers looked through, and for a client of HTTP/1.0, which knows no chunks, their frames too.

mod body;
mod request;
mod response;

pub use crate::http_head::Framing;
pub use body::{Body, BodyError, Consumed};
pub use request::{Forward, RequestTraits, write_own_options};
pub use response::{ResponseHeaders, ResponseKind, write_answer};
