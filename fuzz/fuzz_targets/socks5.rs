//! Fuzz target for the SOCKS5 messages; the invariants are in `fuzz::socks5`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::socks5(data));
