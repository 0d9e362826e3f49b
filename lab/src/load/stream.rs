//! One bulk stream through a relay. Promises: the receiving side throws the bytes away inside the kernel
//! (`MSG_TRUNC`, tcp(7)), so that it costs less than any relay; both ends' counts are reported.
//! Leaves to others: comparing the counts.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde_json::{Value, json};

use super::tunnel::Tunnel;
use super::{CHUNK_BYTES, Direction, WAIT_MAX, nanoseconds};

/// What one receiving call may throw away; a pipe's or a socket buffer's whole content.
const SWALLOW_BYTES_MAX: usize = 1024 * 1024;

/// Streams for `time` and answers `bytes`, `elapsed_ns` from the connection's start to the last byte's
/// arrival, and whether one side's end left the other side open: `half_closed`.
///
/// # Errors
/// The connection failed or stalled.
pub(crate) fn run(tunnel: &Tunnel, direction: Direction, time: Duration) -> Result<Value> {
    let started = Instant::now();
    let mut stream = tunnel.open(WAIT_MAX).context("connecting")?;
    let (bytes, is_half_closed) = match direction {
        Direction::Down => (down(&mut stream, time).context("receiving")?, true),
        Direction::Up => up(&mut stream, time).context("sending")?,
    };
    let elapsed_ns = nanoseconds(started.elapsed());
    Ok(json!({ "bytes": bytes, "elapsed_ns": elapsed_ns, "half_closed": is_half_closed }))
}

/// Receives until the peer's end, and returns how much it was.
///
/// # Errors
/// The connection failed or stalled.
pub(super) fn swallow(stream: &TcpStream) -> std::io::Result<u64> {
    let mut buffer = vec![0; SWALLOW_BYTES_MAX];
    let mut received = 0;
    loop {
        match rustix::net::recv(stream, &mut buffer[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => return Ok(received),
            Ok((_, count)) => received += count as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn down(stream: &mut TcpStream, time: Duration) -> std::io::Result<u64> {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    stream.write_all(&milliseconds.to_be_bytes())?;
    swallow(stream)
}

/// Sends for `time`, ends, and returns how much it was, and whether the peer could still say so: a proxy that
/// takes one side's end for both passes on what was sent, and no answer to it.
fn up(stream: &mut TcpStream, time: Duration) -> std::io::Result<(u64, bool)> {
    let chunk = vec![b'u'; CHUNK_BYTES];
    let (mut sent, started) = (0, Instant::now());
    while started.elapsed() < time {
        stream.write_all(&chunk)?;
        sent += chunk.len() as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    match stream.read_exact(&mut count) {
        Ok(()) => Ok((u64::from_be_bytes(count), true)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok((sent, false)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Role, serve};
    use super::*;

    #[test]
    fn both_directions_arrive_whole() {
        for (role, direction) in [(Role::Source, Direction::Down), (Role::Sink, Direction::Up)] {
            let server = serve::start(role).expect("loopback listens");
            let answer =
                run(&Tunnel::from(server), direction, Duration::from_millis(20)).expect("loopback streams");
            let bytes = answer["bytes"].as_u64().expect("the answer counts bytes");
            let totals = serve::totals();
            let counted = match direction {
                Direction::Down => &totals["sent_bytes"],
                Direction::Up => &totals["received_bytes"],
            };
            assert!(bytes > 0 && answer["half_closed"] == true);
            assert_eq!(counted.as_u64(), Some(bytes), "{direction}");
        }
    }
}
