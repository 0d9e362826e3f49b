//! The lab: proves the engine's claims beside the naive ways and the rivals.

fn main() {}
