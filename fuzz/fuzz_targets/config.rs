//! Fuzz target for configuration files; the invariants are in `fuzz::config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::config(data));
