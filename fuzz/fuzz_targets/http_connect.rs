//! Fuzz target for HTTP request heads; the invariants are in `fuzz::http_connect`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::http_connect(data));
