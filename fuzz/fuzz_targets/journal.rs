//! Fuzz target for segments of the journal; the invariants are in `fuzz::journal`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::journal(data));
