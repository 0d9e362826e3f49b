//! Streams that begin together and go on until the relay ends them, no byte moves any more, or a time is
//! over; and how far each of them was after the first 100 ms, and after each second from then on.
//!
//! Guarantees: every tunnel is open before the first byte is sent; a stream that the client itself ended
//! counts as open.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::stream::discard;
use super::tunnel::Tunnel;
use super::{CHUNK_BYTES, Direction, WAIT_MAX, nanoseconds};

/// The first sample: until then a relay may use up what it has kept.
const FIRST_SAMPLE: Duration = Duration::from_millis(100);

/// The interval between two looks at the streams.
const POLL: Duration = Duration::from_millis(2);

/// How much longer than the client the server would stream.
const SERVER_MARGIN: Duration = Duration::from_secs(60);

/// The destination, the number of streams, and how long they go on.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchedStreams {
    pub(crate) tunnel: Tunnel,
    pub(crate) direction: Direction,
    pub(crate) streams: u32,
    /// All of them, at most.
    #[arg(value_parser = super::milliseconds)]
    pub(crate) time: Duration,
    /// Without a byte of any.
    #[arg(value_parser = super::milliseconds)]
    pub(crate) quiet: Duration,
}

/// Runs the streams. Returns the `bytes` that this end received or sent, how many streams the relay `ended`,
/// `elapsed_ns` until the last byte or end, and `samples`: the `ns` and the `bytes` of each stream.
///
/// # Errors
/// A tunnel could not be opened.
pub(crate) fn run(settings: &WatchedStreams) -> Result<Value> {
    let open = |number| settings.tunnel.open(WAIT_MAX).with_context(|| format!("opening tunnel {number}"));
    let streams: Result<Vec<Watched>> =
        (1..=settings.streams).map(|it| Ok(Watched::new(open(it)?))).collect();
    let (streams, begin) = (streams?, Barrier::new(settings.streams as usize + 1));
    let mut watch = Watch::new(&streams);
    thread::scope(|scope| {
        for stream in &streams {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                stream.run(settings);
            });
        }
        begin.wait();
        watch.run(settings);
    });
    Ok(watch.to_json())
}

/// One stream.
struct Watched {
    socket: TcpStream,
    bytes: AtomicU64,
    has_ended: AtomicBool,
}

// All accesses are Relaxed: the words guard no other memory, and the threads are joined before the last look.
impl Watched {
    fn new(socket: TcpStream) -> Self {
        Self { socket, bytes: AtomicU64::new(0), has_ended: AtomicBool::new(false) }
    }

    /// Streams until its end; an error is an end as well.
    fn run(&self, settings: &WatchedStreams) {
        let _ = match settings.direction {
            Direction::Down => self.receive(settings.time + SERVER_MARGIN),
            Direction::Up => self.send(),
        };
        self.has_ended.store(true, Ordering::Relaxed);
    }

    fn receive(&self, time: Duration) -> std::io::Result<()> {
        (&self.socket).write_all(&(time.as_millis() as u64).to_be_bytes())?;
        discard(&self.socket, |bytes| _ = self.bytes.fetch_add(bytes, Ordering::Relaxed))
    }

    fn send(&self) -> std::io::Result<()> {
        let chunk = vec![b'u'; CHUNK_BYTES];
        loop {
            let sent = (&self.socket).write(&chunk)?;
            self.bytes.fetch_add(sent as u64, Ordering::Relaxed);
        }
    }

    fn moved(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// What is seen of the streams.
struct Watch<'a> {
    streams: &'a [Watched],
    started: Instant,
    /// The sum of the bytes at the last look, and when it or the number of open streams changed.
    bytes: u64,
    changed: Duration,
    ended: usize,
    samples: Vec<Value>,
}

impl<'a> Watch<'a> {
    fn new(streams: &'a [Watched]) -> Self {
        let (started, changed, samples) = (Instant::now(), Duration::ZERO, Vec::new());
        Self { streams, started, bytes: 0, changed, ended: 0, samples }
    }

    /// Looks on until the streams are over, and ends those that are still open.
    fn run(&mut self, settings: &WatchedStreams) {
        self.started = Instant::now();
        let mut next_sample = FIRST_SAMPLE;
        loop {
            let now = self.started.elapsed();
            self.look(now);
            if now >= next_sample {
                self.sample(now);
                next_sample += Duration::from_secs(1);
            }
            let is_over = self.ended == self.streams.len() || now - self.changed >= settings.quiet;
            if is_over || now >= settings.time {
                break;
            }
            thread::sleep(POLL);
        }
        for stream in self.streams {
            // It fails where the relay was faster.
            let _ = stream.socket.shutdown(Shutdown::Both);
        }
    }

    fn look(&mut self, now: Duration) {
        let bytes = self.streams.iter().map(Watched::moved).sum();
        let ended = self.streams.iter().filter(|stream| stream.has_ended.load(Ordering::Relaxed)).count();
        if (bytes, ended) != (self.bytes, self.ended) {
            (self.bytes, self.ended, self.changed) = (bytes, ended, now);
        }
    }

    fn sample(&mut self, now: Duration) {
        let bytes: Vec<u64> = self.streams.iter().map(Watched::moved).collect();
        self.samples.push(json!({ "ns": nanoseconds(now), "bytes": bytes }));
    }

    fn to_json(&self) -> Value {
        json!({
            // Those that arrived after the last look, too.
            "bytes": self.streams.iter().map(Watched::moved).sum::<u64>(),
            "ended": self.ended,
            "elapsed_ns": nanoseconds(self.changed),
            "samples": self.samples,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Role, servers};
    use super::*;
    use std::net::TcpListener;

    fn streams(to: std::net::SocketAddr, direction: Direction, time: Duration) -> Value {
        let quiet = Duration::from_secs(5);
        let streams = WatchedStreams { tunnel: to.into(), direction, streams: 3, time, quiet };
        run(&streams).expect("loopback connects")
    }

    #[test]
    fn streams_without_an_end_are_ended_by_the_client() {
        for (role, direction) in [(Role::Source, Direction::Down), (Role::Sink, Direction::Up)] {
            let server = servers::start(role).expect("loopback listens");
            let answer = streams(server, direction, Duration::from_millis(150));
            assert!(answer["bytes"].as_u64() > Some(0), "{answer}");
            assert_eq!(answer["ended"], 0);
            let samples = answer["samples"].as_array().expect("there are samples");
            assert_eq!((samples.len(), samples[0]["bytes"].as_array().map(Vec::len)), (1, Some(3)));
        }
    }

    #[test]
    fn streams_that_the_peer_ends_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback binds");
        let address = listener.local_addr().expect("a bound socket has an address");
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                client.write_all(b"seven b").expect("the client reads");
            }
        });
        let answer = streams(address, Direction::Down, Duration::from_secs(60));
        assert_eq!((&answer["ended"], answer["bytes"].as_u64() <= Some(21)), (&json!(3), true));
    }
}
