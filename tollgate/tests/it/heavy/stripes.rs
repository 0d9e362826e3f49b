//! A stream of ten gigabytes, made of stripes that differ only in their number. A stripe's length is odd, and
//! so no multiple of a buffer or page: a lost, repeated or swapped piece shifts a stripe.

use std::io::{Read, Write};

use crate::peers::pattern;

const BYTES: u64 = 10_000_000_000;
const STRIPE_BYTES: usize = 262_139;
const NUMBER_BYTES: usize = 8;

/// The length of the stream; the variable `BULK_BYTES` shortens it, to search for a fault.
pub(super) fn bytes() -> u64 {
    std::env::var("BULK_BYTES").map_or(BYTES, |text| text.parse().expect("BULK_BYTES is a number"))
}

/// Sends the whole stream, a stripe at a time; returns the number of bytes sent.
pub(super) fn send(mut sink: impl Write, kind: u64) -> u64 {
    let mut stripe = pattern(kind, STRIPE_BYTES);
    let mut sent = 0;
    for (number, length) in stripes() {
        stripe[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        sink.write_all(&stripe[..length]).unwrap();
        sent += length as u64;
    }
    sent
}

/// Receives until the stream's end and compares; returns the number of bytes received.
pub(super) fn receive(mut source: impl Read, kind: u64) -> u64 {
    let mut expected = pattern(kind, STRIPE_BYTES);
    let mut stripe = vec![0; STRIPE_BYTES];
    let mut received = 0;
    for (number, length) in stripes() {
        expected[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        source.read_exact(&mut stripe[..length]).unwrap();
        assert!(stripe[..length] == expected[..length], "kind {kind}: stripe {number} is damaged");
        received += length as u64;
    }
    received + source.read(&mut stripe).unwrap() as u64
}

/// The number and the length of each stripe.
fn stripes() -> impl Iterator<Item = (u64, usize)> {
    let bytes = bytes();
    let stripe = STRIPE_BYTES as u64;
    (0..bytes.div_ceil(stripe)).map(move |number| (number, (bytes - number * stripe).min(stripe) as usize))
}
