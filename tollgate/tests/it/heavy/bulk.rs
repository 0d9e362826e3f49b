//! Ten gigabytes in each direction at the same time: every byte is where it was, and what was billed is what
//! the two peers counted.
//!
//! The stream is made of stripes that differ in their number alone. A stripe's length is odd, and so no whole
//! number of buffers or pages: whatever a relay might lose, repeat or swap shifts a stripe.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use super::{CONNECT, SOCKS5};
use crate::harness::{EVERY_CPU, Gateway};
use crate::peers::{Way, pattern};

/// In each direction.
const BYTES: u64 = 10_000_000_000;
const STRIPE_BYTES: usize = 262_139;
const NUMBER_BYTES: usize = 8;

#[test]
#[ignore = "takes a minute or more: cargo xtask services"]
fn ten_gigabytes_each_way_through_forward() {
    check_bulk(Way::Forward);
}

#[test]
#[ignore = "takes a minute or more: cargo xtask services"]
fn ten_gigabytes_each_way_through_connect() {
    check_bulk(CONNECT);
}

#[test]
#[ignore = "takes a minute or more: cargo xtask services"]
fn ten_gigabytes_each_way_through_socks5() {
    check_bulk(SOCKS5);
}

fn check_bulk(way: Way) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let mut gateway = Gateway::forwarding(server, EVERY_CPU);
    let client = way.open(&gateway, server);
    let (upstream, _) = listener.accept().unwrap();
    let [up, down] = thread::scope(|scope| {
        let sources = [(&client, 1), (&upstream, 2)];
        let sources = sources.map(|(stream, kind)| scope.spawn(move || send(stream, kind)));
        let sinks = [(&upstream, 1), (&client, 2)];
        let sinks = sinks.map(|(stream, kind)| scope.spawn(move || receive(stream, kind)));
        let sent = sources.map(|source| source.join().unwrap());
        assert_eq!(sinks.map(|sink| sink.join().unwrap()), sent, "{way:?}");
        sent
    });
    assert_eq!([up, down], [bytes(); 2]);
    gateway.stop();
    assert_eq!(gateway.usage_of("me"), (1, up, down), "{way:?}");
}

/// Fewer for somebody who looks for a fault: `BULK_BYTES` in the environment.
fn bytes() -> u64 {
    std::env::var("BULK_BYTES").map_or(BYTES, |text| text.parse().expect("BULK_BYTES is a number"))
}

/// Sends the whole stream and its end; returns how many bytes the socket took.
fn send(mut stream: &TcpStream, kind: u64) -> u64 {
    let mut stripe = pattern(kind, STRIPE_BYTES);
    let mut sent = 0;
    for (number, length) in stripes() {
        stripe[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        stream.write_all(&stripe[..length]).unwrap();
        sent += length as u64;
    }
    stream.shutdown(Shutdown::Write).unwrap();
    sent
}

/// Receives up to the stream's end and compares; returns how many bytes the socket gave.
fn receive(mut stream: &TcpStream, kind: u64) -> u64 {
    let mut expected = pattern(kind, STRIPE_BYTES);
    let mut stripe = vec![0; STRIPE_BYTES];
    let mut received = 0;
    for (number, length) in stripes() {
        expected[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        stream.read_exact(&mut stripe[..length]).unwrap();
        assert!(stripe[..length] == expected[..length], "kind {kind}: stripe {number} is damaged");
        received += length as u64;
    }
    received + stream.read(&mut stripe).unwrap() as u64
}

/// The number and the length of each stripe.
fn stripes() -> impl Iterator<Item = (u64, usize)> {
    let bytes = bytes();
    let stripe = STRIPE_BYTES as u64;
    (0..bytes.div_ceil(stripe)).map(move |number| (number, (bytes - number * stripe).min(stripe) as usize))
}
