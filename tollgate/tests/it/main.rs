//! Drives the built `tollgate serve` by clients, destinations and signals: every test has its own process,
//! directory and ports, on loopback alone.
//!
//! Guarantees: no test depends on the duration of an operation; only a failure reaches a time limit. Tests
//! that need more than this executable, or the whole machine, are `#[ignore]`d, in `programs` and `heavy`.
//! `tests/commands` has the other commands.

mod adversary;
mod bad_inputs;
mod breaks;
mod control;
mod deadlines;
mod denials;
mod drain;
mod explaining;
mod harness;
mod heavy;
mod log_lines;
mod name_server;
mod origin;
mod peers;
mod programs;
mod reasons;
mod reload;
mod requests;
mod slow_receivers;
mod storms;
mod tunnels;
