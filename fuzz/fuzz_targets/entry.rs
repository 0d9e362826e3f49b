//! Fuzz target for entries of the journal; the invariants are in `fuzz::entry`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::entry(data));
