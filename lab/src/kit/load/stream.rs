//! Bulk streams through a relay, one or many at a time.
//!
//! Guarantees: the receiving side discards the bytes inside the kernel (`MSG_TRUNC`, tcp(7)), so that it
//! costs less than any relay; the counts of both ends are reported.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde_json::{Value, json};

use super::tunnel::Tunnel;
use super::{CHUNK_BYTES, Direction, WAIT_MAX, nanoseconds};

/// The most that one receiving call discards: a pipe's or a socket buffer's whole content.
const DISCARD_BYTES_MAX: usize = 1024 * 1024;

/// Runs `streams` at a time, each for `time`. Returns their `bytes`, `elapsed_ns` from the first connection's
/// start to the last byte's arrival, and whether one side's end left the other side open everywhere:
/// `half_closed`.
///
/// # Errors
/// A connection failed or stalled.
pub(crate) fn run(tunnel: &Tunnel, direction: Direction, time: Duration, streams: u32) -> Result<Value> {
    let started = Instant::now();
    let moved: Result<Vec<Moved>> = thread::scope(|scope| {
        let begin = |_| scope.spawn(|| one(tunnel, direction, time));
        let threads: Vec<_> = (0..streams).map(begin).collect();
        threads.into_iter().map(|thread| thread.join().expect("a stream does not panic")).collect()
    });
    let (moved, elapsed_ns) = (moved?, nanoseconds(started.elapsed()));
    Ok(json!({
        "bytes": moved.iter().map(|moved| moved.bytes).sum::<u64>(),
        "elapsed_ns": elapsed_ns,
        "half_closed": moved.iter().all(|moved| moved.is_half_closed),
    }))
}

/// The result of one stream.
struct Moved {
    bytes: u64,
    /// Whether one side's end left the other side open.
    is_half_closed: bool,
}

fn one(tunnel: &Tunnel, direction: Direction, time: Duration) -> Result<Moved> {
    let mut stream = tunnel.open(WAIT_MAX).context("connecting")?;
    match direction {
        Direction::Down => down(&mut stream, time).context("receiving"),
        Direction::Up => up(&mut stream, time).context("sending"),
    }
}

/// Receives until the peer's end, and reports the bytes of each piece.
///
/// # Errors
/// The connection failed or stalled.
pub(super) fn discard(stream: &TcpStream, mut count: impl FnMut(u64)) -> std::io::Result<()> {
    let mut buffer = vec![0; DISCARD_BYTES_MAX];
    loop {
        match rustix::net::recv(stream, &mut buffer[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => return Ok(()),
            Ok((_, bytes)) => count(bytes as u64),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn down(stream: &mut TcpStream, time: Duration) -> std::io::Result<Moved> {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    stream.write_all(&milliseconds.to_be_bytes())?;
    // The server's end comes first, and this side still sends its own.
    let mut bytes = 0;
    discard(stream, |piece| bytes += piece)?;
    Ok(Moved { bytes, is_half_closed: true })
}

/// Sends for `time`, ends, and returns the number of bytes, and whether the peer could still report its
/// count: a proxy that takes one side's end for both forwards what was sent, and no answer to it.
fn up(stream: &mut TcpStream, time: Duration) -> std::io::Result<Moved> {
    let chunk = vec![b'u'; CHUNK_BYTES];
    let (mut sent, started) = (0, Instant::now());
    while started.elapsed() < time {
        stream.write_all(&chunk)?;
        sent += chunk.len() as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    match stream.read_exact(&mut count) {
        Ok(()) => Ok(Moved { bytes: u64::from_be_bytes(count), is_half_closed: true }),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Ok(Moved { bytes: sent, is_half_closed: false })
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Role, servers};
    use super::*;

    #[test]
    fn streams_of_both_directions_are_complete() {
        for (role, direction) in [(Role::Source, Direction::Down), (Role::Sink, Direction::Up)] {
            let server = servers::start(role).expect("loopback listens");
            let count = || {
                let totals = servers::totals();
                let total = match direction {
                    Direction::Down => &totals["sent_bytes"],
                    Direction::Up => &totals["received_bytes"],
                };
                total.as_u64().expect("totals are numbers")
            };
            let before = count();
            let answer = run(&Tunnel::from(server), direction, Duration::from_millis(20), 3);
            let answer = answer.expect("loopback streams");
            let bytes = answer["bytes"].as_u64().expect("the answer counts bytes");
            assert!(bytes > 0 && answer["half_closed"] == true);
            // Servers of other tests count too.
            assert!(count() - before >= bytes, "{direction}");
        }
    }
}
