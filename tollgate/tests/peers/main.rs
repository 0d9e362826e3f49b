//! Drives the built executable with real programs, and with more bytes and connections than unit tests move.
//! Promises: each test starts a gateway of its own in a folder of its own, and what the gateway billed is
//! compared with what the programs did. Leaves to others: the servers, which `cargo xtask services` starts.

mod browser;
mod bulk;
mod curl;
mod gateway;
mod git;
mod idle;
mod iperf;
mod postgres;
mod redis;
mod services;
mod ssh;
mod storm;
mod tunnel;
