//! Fuzz target for rules of the configuration; the invariants are in `fuzz::rule`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::rule(data));
