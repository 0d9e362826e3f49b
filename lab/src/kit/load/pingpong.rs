//! Small messages at a fixed rate over one or many connections in turn, open loop: a message leaves when it
//! is due, whether or not the last one came back. Its latency counts from when it was due, so a stall is
//! charged to every message that it delayed.
//!
//! Guarantees: nothing is omitted; a message without its echo at the end is reported as lost; each connection
//! has carried a message before the first that counts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::{Value, json};

use super::{MESSAGE_BYTES, WAIT_MAX, latencies, nanoseconds};

/// How long after the last message its echo may arrive.
const LAST_ECHO_MAX: Duration = Duration::from_secs(2);

const EVENTS_MAX: usize = 256;

/// The destination, the number of connections, the rate and the number of messages.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PingPong {
    pub(crate) to: SocketAddr,
    pub(crate) connections: u32,
    pub(crate) rate_per_s: u32,
    #[arg(value_parser = super::milliseconds)]
    pub(crate) time: Duration,
}

/// Exchanges messages, and returns how many were `sent` and `lost`, and latency quantiles in nanoseconds.
///
/// # Errors
/// A connection failed.
pub(crate) fn run(ping_pong: &PingPong) -> Result<Value> {
    // The default slack of 50 us would be measured with every message.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let mut exchange = Exchange::new(ping_pong)?;
    exchange.warm_up()?;
    exchange.run()?;
    Ok(exchange.to_json())
}

struct Exchange {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    started: Instant,
    gap: Duration,
    messages: u32,
    /// Messages that were due so far. 0 <= begun <= messages
    begun: u32,
    returned: u32,
    latencies: hdrhistogram::Histogram<u64>,
    /// The buffer for the events of one epoll_wait(2).
    events: Vec<Event>,
}

/// One connection.
struct Connection {
    socket: OwnedFd,
    /// When the messages that the kernel has not wholly accepted were due, oldest first.
    waiting: VecDeque<Instant>,
    /// Accepted bytes of the first of them.
    partial_bytes: usize,
    /// When the messages without an echo were due, oldest first.
    outstanding: VecDeque<Instant>,
    returned_bytes: usize,
}

impl Exchange {
    fn new(ping_pong: &PingPong) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let connections: Result<Vec<Connection>> =
            (0..ping_pong.connections).map(|index| Connection::open(ping_pong.to, &epoll, index)).collect();
        let gap = Duration::from_secs(1) / ping_pong.rate_per_s.max(1);
        let messages = (ping_pong.time.as_nanos() / gap.as_nanos().max(1)) as u32;
        let (connections, started, latencies) = (connections?, Instant::now(), latencies());
        let events = Vec::with_capacity(EVENTS_MAX);
        Ok(Self { epoll, connections, started, gap, messages, begun: 0, returned: 0, latencies, events })
    }

    /// Exchanges one message on each connection, which does not count: a relay serves the last of a thousand
    /// connections some time after it was opened, and that is no part of a message's latency.
    fn warm_up(&mut self) -> Result<()> {
        let (now, wanted) = (Instant::now(), self.connections.len() as u32);
        for connection in &mut self.connections {
            connection.waiting.push_back(now);
            connection.send()?;
        }
        let end = now + WAIT_MAX;
        while self.returned < wanted {
            ensure!(
                Instant::now() < end,
                "{} of {wanted} connections returned no echo",
                wanted - self.returned
            );
            self.collect(end)?;
        }
        self.returned = 0;
        self.latencies.reset();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.started = Instant::now();
        let end = self.due(self.messages) + LAST_ECHO_MAX;
        while self.returned < self.messages {
            let now = Instant::now();
            if now >= end {
                break;
            }
            self.send_due(now)?;
            let until = if self.begun < self.messages { self.due(self.begun).min(end) } else { end };
            self.collect(until)?;
        }
        Ok(())
    }

    /// Waits for echoes, and reads those that have arrived.
    fn collect(&mut self, until: Instant) -> Result<()> {
        self.wait(until)?;
        let at_once = Timespec::default();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for messages"),
        }
        for event in self.events.drain(..) {
            let connection = &mut self.connections[event.data.u64() as usize];
            connection.send()?;
            self.returned += connection.receive(&mut self.latencies)?;
        }
        Ok(())
    }

    fn due(&self, message: u32) -> Instant {
        self.started + self.gap * message
    }

    /// Sends what is due, each message on the next connection.
    fn send_due(&mut self, now: Instant) -> Result<()> {
        while self.begun < self.messages && self.due(self.begun) <= now {
            let due = self.due(self.begun);
            let index = self.begun as usize % self.connections.len();
            self.begun += 1;
            self.connections[index].waiting.push_back(due);
            self.connections[index].send()?;
        }
        Ok(())
    }

    /// epoll_wait(2) counts in milliseconds; poll(2) takes nanoseconds, and can wait for an epoll descriptor.
    fn wait(&self, until: Instant) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("the wait does not fit a timespec")?;
        match rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for messages"),
        }
    }

    fn to_json(&self) -> Value {
        let unsent: usize = self.connections.iter().map(|connection| connection.waiting.len()).sum();
        json!({
            "sent": self.begun - unsent as u32,
            "lost": self.messages - self.returned,
            "p50_ns": self.latencies.value_at_quantile(0.50),
            "p99_ns": self.latencies.value_at_quantile(0.99),
            "p999_ns": self.latencies.value_at_quantile(0.999),
            "max_ns": self.latencies.max(),
        })
    }
}

impl Connection {
    fn open(to: SocketAddr, epoll: &OwnedFd, index: u32) -> Result<Self> {
        let stream = std::net::TcpStream::connect_timeout(&to, WAIT_MAX).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(epoll, &stream, EventData::new_u64(u64::from(index)), edges)?;
        Ok(Self {
            socket: stream.into(),
            waiting: VecDeque::new(),
            partial_bytes: 0,
            outstanding: VecDeque::new(),
            returned_bytes: 0,
        })
    }

    /// Sends the waiting messages, as far as the kernel accepts them; an edge reports when it accepts more.
    fn send(&mut self) -> Result<()> {
        while let Some(&due) = self.waiting.front() {
            let message = &[b'p'; MESSAGE_BYTES][self.partial_bytes..];
            match rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL) {
                Ok(taken) => self.partial_bytes += taken,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("sending a message"),
            }
            if self.partial_bytes == MESSAGE_BYTES {
                self.partial_bytes = 0;
                self.waiting.pop_front();
                self.outstanding.push_back(due);
            }
        }
        Ok(())
    }

    /// Reads the echoes; returns how many messages they complete.
    fn receive(&mut self, latencies: &mut hdrhistogram::Histogram<u64>) -> Result<u32> {
        let mut buffer = [0; 16 * 1_024];
        let mut returned = 0;
        loop {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => anyhow::bail!("a connection ended"),
                Ok((received, _)) => self.returned_bytes += received,
                Err(Errno::AGAIN) => return Ok(returned),
                Err(error) => return Err(error).context("receiving a message"),
            }
            let now = Instant::now();
            while self.returned_bytes >= MESSAGE_BYTES {
                self.returned_bytes -= MESSAGE_BYTES;
                let due = self.outstanding.pop_front().context("more bytes came back than were sent")?;
                latencies.saturating_record(nanoseconds(now.saturating_duration_since(due)));
                returned += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Role, servers};
    use super::*;

    fn exchanged(role: Role, connections: u32) -> Result<Value> {
        let to = servers::start(role).expect("loopback listens");
        run(&PingPong { to, connections, rate_per_s: 1_000, time: Duration::from_millis(50) })
    }

    #[test]
    fn every_message_is_echoed() {
        for connections in [1, 7, 100] {
            let reply = exchanged(Role::Echo, connections).expect("loopback echoes");
            assert_eq!((reply["sent"].as_u64(), reply["lost"].as_u64()), (Some(50), Some(0)));
            assert!(reply["p50_ns"].as_u64() <= reply["max_ns"].as_u64());
        }
    }

    #[test]
    fn closing_server_is_an_error() {
        assert!(exchanged(Role::Reply, 1).is_err());
    }
}
