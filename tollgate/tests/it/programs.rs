//! Drives the built executable with real programs.
//! Promises: each test starts a gateway of its own in a folder of its own, and what the gateway billed is
//! compared with what the programs did. Leaves to others: the servers, which `cargo xtask services` starts.

mod browser;
mod curl;
pub(crate) mod gateway;
mod git;
mod iperf;
mod postgres;
mod redis;
mod services;
mod ssh;
