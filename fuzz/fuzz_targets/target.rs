//! Fuzz target for hosts and ports; the invariants are in `fuzz::target`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::target(data));
