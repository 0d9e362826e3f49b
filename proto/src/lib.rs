//! Wire formats without I/O or clock: SOCKS5, HTTP CONNECT, targets.

#![forbid(unsafe_code)]
