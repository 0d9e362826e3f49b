//! Tests through the crate's public interface: tables of good and bad inputs, heads and messages split at
//! every byte, and properties compared with simple models. The fuzz targets search by coverage.

mod basic;
mod denial;
mod forward_body;
mod forward_model;
mod forward_request;
mod forward_response;
mod head;
mod mutation;
mod request;
mod request_model;
mod server;
mod socks5;
mod target;

use proptest::test_runner::{Config, RngSeed};

/// A configuration that gives the same cases in every run and on every machine.
fn seeded(cases: u32) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(0x7011_6a7e), failure_persistence: None, ..Config::default() }
}
