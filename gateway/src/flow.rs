//! Flows: what is metered of an open one, and how its sockets close.

pub(crate) mod closing;
pub(crate) mod guard;
pub(crate) mod meter;
pub(crate) mod progress;
pub(crate) mod request;
