//! The data plane: admits, relays, times and meters flows.
//!
//! Promises: a reactor thread never waits for another thread, a file or a name server; every connection
//! takes the path of `connection.rs`, whatever it speaks. Leaves to others: signals and commands
//! (`tollgate`), health and metrics (`admin`), what is allowed (`policy`), what bytes mean (`proto`), what is
//! kept (`ledger`).
//!
//! ```text
//!   control side    settings -> config -> snapshot -> server: reload, drain
//!                                                       | orders
//!   reactor thread  worker: accept -> connection -> relay -> meter --ring--> ledger
//!                             client  auth  resolve  dial      |      --ring--> log
//!                             refusal (in the client's words)  account, budget (shared, atomic)
//!   a command       explain: the judgement of admission, without a connection
//! ```

#![forbid(unsafe_code)]

pub mod account;
mod admission;
pub mod auth;
mod budget;
mod client;
pub mod config;
mod context;
mod date;
mod denial;
pub mod drain;
pub mod explain;
mod flow;
mod handshake;
mod http;
mod idle;
pub mod jobs;
mod judgement;
pub mod limits;
pub mod log;
mod own;
pub mod pressure;
mod relay;
pub mod reload;
pub mod resolve;
pub mod server;
pub mod settings;
mod shares;
mod snapshot;
pub mod stats;
mod text;
pub mod throttle;
mod token;
mod ttl_cache;
pub mod users;
mod worker;
