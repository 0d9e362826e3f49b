//! The data plane: admits, relays, times and meters flows.
//!
//! Guarantees: a reactor thread never waits for another thread, a file or a name server; every connection
//! takes the same path, whatever its protocol.
//!
//! ```text
//!   accept --> handshake --> tunnel --> relay --> closed           worker drives all of them, and owns
//!                  |            admission, dial, flow::meter        the queues between them; their tasks
//!                  '-------> http <--> idle                         share the services of context
//!   control side   config -> snapshot -> server: reload, drain  --commands--> worker
//!   a command      explain: the judgement of admission, without a connection
//! ```
//!
//! Modules, each above those that it may use:
//!
//! ```text
//!   simulation
//!   server
//!   worker
//!   handshake tunnel
//!   explain http
//!   admission
//!   client
//!   denial
//!   dial
//!   context
//!   idle
//!   authenticator connection relay
//!   flow snapshot
//!   buffers dns first_start identity observe
//!   budget config limits shares
//!   account credit date jobs numbers own_address source_network text_format token ttl_cache users
//! ```

#![forbid(unsafe_code)]

pub mod account;
mod admission;
pub mod authenticator;
mod budget;
mod buffers;
mod client;
pub mod config;
mod connection;
mod context;
pub mod credit;
mod date;
mod denial;
mod dial;
pub mod dns;
pub mod explain;
pub mod first_start;
mod flow;
mod handshake;
mod http;
pub mod identity;
mod idle;
pub mod jobs;
pub mod limits;
mod numbers;
pub mod observe;
mod own_address;
mod relay;
pub mod server;
mod shares;
#[cfg(test)]
mod simulation;
mod snapshot;
pub mod source_network;
mod text_format;
mod token;
mod ttl_cache;
mod tunnel;
pub mod users;
mod worker;
