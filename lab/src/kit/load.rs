//! The load: servers behind a relay and clients in front of it, which share no code with the engine that they
//! measure.
//!
//! Guarantees: loopback only; every run is bounded in connections and in time; few threads and few system
//! calls, so that the relay and not the load saturates.

mod arrivals;
mod clients;
pub(crate) mod handshake;
mod http;
pub(crate) mod idle;
pub(crate) mod pingpong;
pub(crate) mod requests;
pub(crate) mod servers;
pub(crate) mod short;
pub(crate) mod stream;
pub(crate) mod tunnel;
pub(crate) mod watched_streams;

use std::fmt;
use std::num::ParseIntError;
use std::time::Duration;

/// The payload of a short connection's request.
pub(crate) const REQUEST_BYTES: usize = 100;

/// The payload of the reply, after which the server closes, as HTTP/1.0 does.
pub(crate) const REPLY_BYTES: usize = 200;

/// One ping-pong message, the size of a small RPC or a key stroke's echo.
pub(crate) const MESSAGE_BYTES: usize = 200;

/// One write of a stream.
const CHUNK_BYTES: usize = 256 * 1024;

/// The longest single wait of a client or server, after which the connection counts as failed.
const WAIT_MAX: Duration = Duration::from_secs(10);

// A message is sent by one call and echoed from one buffer.
const _: () = assert!(MESSAGE_BYTES <= CHUNK_BYTES && REPLY_BYTES <= CHUNK_BYTES);

/// The protocol of a server.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Receives one request, sends one reply, closes.
    Reply,
    /// Sends back what it receives.
    Echo,
    /// Streams for as long as the client requests.
    Source,
    /// Discards a stream, then sends its length.
    Sink,
    /// Answers HTTP requests, and keeps or closes the connection as each requests.
    Origin,
}

/// The direction of a stream, seen from the client.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Client to server.
    Up,
    /// Server to client.
    Down,
}

/// Whether a connection survives an HTTP response.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// The connection is kept for the next request.
    KeepAlive,
    /// The connection is closed.
    Close,
}

impl fmt::Display for Role {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, text)
    }
}

impl fmt::Display for Persistence {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, text)
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, text)
    }
}

/// Writes a value as the command line has it.
fn write_name(value: &impl clap::ValueEnum, text: &mut fmt::Formatter<'_>) -> fmt::Result {
    text.write_str(value.to_possible_value().ok_or(fmt::Error)?.get_name())
}

/// Milliseconds, as the command line has a time.
///
/// # Errors
/// The word is not a whole number.
pub(crate) fn milliseconds(word: &str) -> Result<Duration, ParseIntError> {
    word.parse().map(Duration::from_millis)
}

/// An empty histogram of latencies in nanoseconds, up to a minute, to three digits.
fn latencies() -> hdrhistogram::Histogram<u64> {
    hdrhistogram::Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the histogram's bounds are valid")
}

/// A duration in nanoseconds; durations above 580 years saturate.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
