//! The data plane: admits, relays, times and meters flows.

#![forbid(unsafe_code)]
