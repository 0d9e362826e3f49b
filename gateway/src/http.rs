//! Plain HTTP: sessions of requests, each forwarded to its destination.
//!
//! ```text
//!   session.rs   a connection's requests, one after another; what happens to it behind each
//!   request.rs   a parsed request             connect.rs    a CONNECT head
//!   exchange.rs  one request and its response, both directions at once
//!   transfer.rs  one direction of these       upstream.rs   the connection to the destination
//! ```

mod connect;
mod exchange;
mod request;
mod session;
mod transfer;
mod upstream;

pub(crate) use self::connect::read_connect;
pub(crate) use self::request::PendingRequest;
pub(crate) use self::session::{NextStep, Session};

#[cfg(test)]
mod tests;
