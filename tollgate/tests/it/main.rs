//! Drives the built `tollgate serve` as clients, destinations and an operator meet it: every test has its own
//! process, directory and ports, on loopback alone.
//!
//! Promises: nothing here depends on how long something takes; what is awaited has a limit that only a
//! failure reaches. What needs more than this executable, or the whole machine, is `#[ignore]`d and lies in
//! `programs` and `heavy`. Leaves to others: the other commands (`tests/commands`).

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
