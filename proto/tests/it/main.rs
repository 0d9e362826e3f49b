//! The parsers and writers driven through the crate's public face: tables of good and bad inputs, heads and
//! messages split at every byte, and properties compared with simple models. Leaves coverage-guided search to
//! the fuzz targets.

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

/// The same cases on every run and every machine.
fn seeded(cases: u32) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(0x7011_6a7e), failure_persistence: None, ..Config::default() }
}
