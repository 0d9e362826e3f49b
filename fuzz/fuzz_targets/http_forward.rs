//! Fuzz target for plain requests, responses and bodies; the invariants are in `fuzz::http_forward`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::http_forward(data));
