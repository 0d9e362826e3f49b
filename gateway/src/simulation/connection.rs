//! A connection of a simulated HTTP program: bytes to send, bytes received, and pauses.

use std::io::ErrorKind;
use std::time::Duration;

use ledger::simulation::Random;
use sys::socket::Socket;

use super::peer::{PAUSES_MAX, Seen};

/// How fast a program acts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) bytes_per_call_max: u64,
    pub(super) pause_max: Duration,
}

/// An open connection, and what waits to be sent.
pub(super) struct Connection {
    socket: Socket,
    pace: Pace,
    to_send: Vec<u8>,
    pub(super) received: Vec<u8>,
    pub(super) seen: Seen,
    /// Whether a send call returned the connection's error: a read then returns the end in its place.
    has_failed: bool,
    next_act: Duration,
    pauses: u32,
}

impl Connection {
    /// A connection that sends and receives at that pace.
    pub(super) fn new(socket: Socket, pace: Pace) -> Connection {
        Connection {
            socket,
            pace,
            to_send: Vec::new(),
            received: Vec::new(),
            seen: Seen::Open,
            has_failed: false,
            next_act: Duration::ZERO,
            pauses: 0,
        }
    }

    /// Adds bytes to send.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.to_send.extend_from_slice(bytes);
    }

    /// Whether all bytes were sent.
    pub(super) fn is_sent(&self) -> bool {
        self.to_send.is_empty()
    }

    /// When it acts next, unless bytes arrive before.
    pub(super) fn next_act(&self, now: Duration) -> Option<Duration> {
        (self.next_act > now).then_some(self.next_act)
    }

    /// Sends and receives once each. Returns whether anything moved.
    pub(super) fn act(&mut self, now: Duration, random: &mut Random) -> bool {
        if self.next_act > now || self.seen == Seen::Failure {
            return false;
        }
        let did = self.send(random) | self.receive();
        let pause_max = self.pace.pause_max.as_micros() as u64;
        if did && pause_max > 0 && self.pauses < PAUSES_MAX && random.chance(20) {
            self.pauses += 1;
            self.next_act = now + Duration::from_micros(random.below(pause_max));
        }
        did
    }

    /// Closes by a reset.
    pub(super) fn reset(self) {
        self.socket.reset();
    }

    fn send(&mut self, random: &mut Random) -> bool {
        if self.to_send.is_empty() {
            return false;
        }
        let most = 1 + random.below(self.pace.bytes_per_call_max) as usize;
        match self.socket.send(&self.to_send[..most.min(self.to_send.len())]) {
            Ok(count) => drop(self.to_send.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => {
                self.has_failed = true;
                self.to_send.clear();
            }
        }
        true
    }

    fn receive(&mut self) -> bool {
        if self.seen != Seen::Open {
            return false;
        }
        let mut buffer = vec![0; self.pace.bytes_per_call_max as usize];
        match self.socket.recv(&mut buffer) {
            Ok(0) if self.has_failed => self.seen = Seen::Failure,
            Ok(0) => self.seen = Seen::End,
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => self.seen = Seen::Failure,
        }
        true
    }
}
