//! Plain HTTP: sessions of requests, each forwarded to its destination.

mod exchange;
mod request;
mod session;
mod transfer;
pub(crate) mod upstream;

pub(crate) use request::PendingRequest;
pub(crate) use session::Session;
