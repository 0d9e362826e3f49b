//! Small messages on one connection at a fixed rate, open loop: a message leaves when it is due, whether or
//! not the last one came back, and its latency counts from when it was due, so a stall is charged to all it
//! delayed. Promises: nothing is omitted; what has not come back at the end is reported as lost.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::{Value, json};

use super::{MESSAGE_BYTES, WAIT_MAX, latencies, nanoseconds};

/// How long after the last message its echo may come.
const TAIL: Duration = Duration::from_secs(2);

/// Exchanges messages for `time` and answers `sent`, `lost`, and latency quantiles in nanoseconds.
///
/// # Errors
/// The connection failed.
pub(crate) fn run(to: SocketAddr, rate_per_s: u32, time: Duration) -> Result<Value> {
    // The default slack of 50 us would be measured with every message.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let stream = std::net::TcpStream::connect_timeout(&to, WAIT_MAX).context("connecting")?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut exchange = Exchange::new(stream.into(), rate_per_s, time);
    exchange.run()?;
    Ok(exchange.answer())
}

struct Exchange {
    socket: OwnedFd,
    started: Instant,
    gap: Duration,
    messages: u32,
    sent: u32,
    /// Bytes of message number `sent` that the kernel has taken.
    partial_bytes: usize,
    /// When the messages that are out were due, oldest first.
    outstanding: VecDeque<Instant>,
    returned_bytes: usize,
    latencies: hdrhistogram::Histogram<u64>,
}

impl Exchange {
    fn new(socket: OwnedFd, rate_per_s: u32, time: Duration) -> Self {
        let gap = Duration::from_secs(1) / rate_per_s.max(1);
        let messages = (time.as_nanos() / gap.as_nanos().max(1)) as u32;
        Self {
            socket,
            started: Instant::now(),
            gap,
            messages,
            sent: 0,
            partial_bytes: 0,
            outstanding: VecDeque::new(),
            returned_bytes: 0,
            latencies: latencies(),
        }
    }

    fn run(&mut self) -> Result<()> {
        let end = self.due(self.messages) + TAIL;
        while self.sent < self.messages || !self.outstanding.is_empty() {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let blocked = self.send_due(now)?;
            let until = if self.sent < self.messages { self.due(self.sent).min(end) } else { end };
            self.wait(if blocked { end } else { until }, blocked)?;
            self.receive()?;
        }
        Ok(())
    }

    fn due(&self, message: u32) -> Instant {
        self.started + self.gap * message
    }

    /// Sends what is due; returns whether the kernel takes no more for now.
    fn send_due(&mut self, now: Instant) -> Result<bool> {
        while self.sent < self.messages && self.due(self.sent) <= now {
            let message = &[b'p'; MESSAGE_BYTES][self.partial_bytes..];
            match rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL) {
                Ok(taken) => self.partial_bytes += taken,
                Err(Errno::AGAIN) => return Ok(true),
                Err(error) => return Err(error).context("sending a message"),
            }
            if self.partial_bytes == MESSAGE_BYTES {
                self.partial_bytes = 0;
                self.outstanding.push_back(self.due(self.sent));
                self.sent += 1;
            }
        }
        Ok(false)
    }

    fn wait(&self, until: Instant, for_room: bool) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("a wait of seconds fits")?;
        let interest = if for_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        match rustix::event::poll(&mut [PollFd::new(&self.socket, interest)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for messages"),
        }
    }

    fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; 16 * 1_024];
        loop {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => anyhow::bail!("the connection ended after {} messages", self.sent),
                Ok((received, _)) => self.note(received),
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("receiving a message"),
            }
        }
    }

    fn note(&mut self, received_bytes: usize) {
        let now = Instant::now();
        self.returned_bytes += received_bytes;
        while self.returned_bytes >= MESSAGE_BYTES {
            self.returned_bytes -= MESSAGE_BYTES;
            let Some(due) = self.outstanding.pop_front() else { return };
            self.latencies.saturating_record(nanoseconds(now.saturating_duration_since(due)));
        }
    }

    fn answer(&self) -> Value {
        json!({
            "sent": self.sent,
            "lost": self.messages - self.sent + self.outstanding.len() as u32,
            "p50_ns": self.latencies.value_at_quantile(0.50),
            "p99_ns": self.latencies.value_at_quantile(0.99),
            "p999_ns": self.latencies.value_at_quantile(0.999),
            "max_ns": self.latencies.max(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Role, serve};
    use super::*;

    #[test]
    fn every_message_is_sent_and_comes_back() {
        let server = serve::start(Role::Echo).expect("loopback listens");
        let answer = run(server, 1_000, Duration::from_millis(50)).expect("loopback echoes");
        assert_eq!((answer["sent"].as_u64(), answer["lost"].as_u64()), (Some(50), Some(0)));
        assert!(answer["p50_ns"].as_u64() <= answer["max_ns"].as_u64());
    }

    #[test]
    fn a_server_that_hangs_up_is_an_error() {
        let server = serve::start(Role::Reply).expect("loopback listens");
        assert!(run(server, 1_000, Duration::from_millis(50)).is_err());
    }
}
