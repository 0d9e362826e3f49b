//! One side of a simulated tunnel: what it sends, how fast, how it ends, and what it has received.

use std::io::ErrorKind;
use std::time::Duration;

use ledger::simulation::Random;
use sys::socket::Socket;

/// How a peer ends its connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ending {
    /// It sends everything, ends its direction, reads to the end, and closes.
    InOrder,
    /// It resets the connection after so many acts.
    Reset { after: u32 },
    /// It closes the connection after so many acts, and reads nothing more.
    Close { after: u32 },
    /// It does nothing more after so many acts, and keeps the connection open.
    Stall { after: u32 },
}

/// What a peer does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    /// Identifies the stream that it sends.
    pub(super) key: u64,
    /// Bytes of the stream.
    pub(super) bytes: u64,
    /// The most bytes of one call.
    pub(super) bytes_per_call_max: u64,
    /// The longest pause between two acts.
    pub(super) pause_max: Duration,
    pub(super) ending: Ending,
}

/// How a peer's connection is, as far as the peer knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Seen {
    Open,
    /// The stream of the other side has ended.
    End,
    /// The connection was reset, or failed otherwise.
    Failure,
}

/// A peer with its socket.
pub(super) struct Peer {
    /// `None` once it is closed.
    socket: Option<Socket>,
    script: Script,
    /// Bytes in front of the stream: a request.
    head: Vec<u8>,
    head_sent: usize,
    /// Whether the stream may follow the head.
    may_send: bool,
    sent: u64,
    /// Bytes received that are not checked yet: a reply, at first.
    pub(super) unchecked: Vec<u8>,
    /// The stream of the other side, once it is known to follow: its key, and the bytes received of it.
    expects: Option<u64>,
    pub(super) received: u64,
    has_ended: bool,
    pub(super) seen: Seen,
    acts: u32,
    /// It does not act before.
    next_act: Duration,
    pauses: u32,
}

/// Pauses of a connection. Together they are shorter than each deadline: while a peer reads from its own
/// kernel, the gateway sees no progress.
pub(super) const PAUSES_MAX: u32 = 4;

impl Peer {
    /// A peer that sends `head`, and its stream once it may.
    pub(super) fn new(socket: Socket, script: Script, head: Vec<u8>) -> Peer {
        Peer {
            socket: Some(socket),
            script,
            head,
            head_sent: 0,
            may_send: false,
            sent: 0,
            unchecked: Vec::new(),
            expects: None,
            received: 0,
            has_ended: false,
            seen: Seen::Open,
            acts: 0,
            next_act: Duration::ZERO,
            pauses: 0,
        }
    }

    /// From now on it sends its stream.
    pub(super) fn allow_stream(&mut self) {
        self.may_send = true;
    }

    /// From now on it receives the stream `key`.
    pub(super) fn expect_stream(&mut self, key: u64) {
        self.expects = Some(key);
    }

    /// The script.
    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    /// Whether it has closed its connection, or will never act again.
    pub(super) fn is_over(&self) -> bool {
        self.socket.is_none() || self.is_stalled()
    }

    /// When it acts next, unless bytes arrive before; `None` for never.
    pub(super) fn next_act(&self, now: Duration) -> Option<Duration> {
        (!self.is_over() && self.next_act > now).then_some(self.next_act)
    }

    /// Sends, receives, ends or closes, one of them. Returns whether it did anything.
    ///
    /// # Errors
    /// It has received bytes that the other side has not sent.
    pub(super) fn act(&mut self, now: Duration, random: &mut Random) -> Result<bool, String> {
        if self.is_over() || self.next_act > now {
            return Ok(false);
        }
        let did = self.end_early() || self.send(random) || self.receive()? || self.close_in_order();
        if did {
            self.acts += 1;
            let pause_max = self.script.pause_max.as_micros() as u64;
            if pause_max > 0 && self.pauses < PAUSES_MAX && random.chance(20) {
                self.pauses += 1;
                self.next_act = now + Duration::from_micros(random.below(pause_max));
            }
        }
        Ok(did)
    }

    /// Its state, for a message about a fault.
    pub(super) fn state(&self) -> String {
        let state = if self.socket.is_none() { "closed" } else { "open" };
        let (head, acts) = (self.head_sent, self.acts);
        format!(
            "{state} after {acts} acts, sent {head} + {}, ended: {}, received {}, {:?}",
            self.sent, self.has_ended, self.received, self.seen
        )
    }

    fn is_stalled(&self) -> bool {
        matches!(self.script.ending, Ending::Stall { after } if self.acts >= after)
    }

    fn end_early(&mut self) -> bool {
        let (after, resets) = match self.script.ending {
            Ending::Reset { after } => (after, true),
            Ending::Close { after } => (after, false),
            Ending::InOrder | Ending::Stall { .. } => return false,
        };
        if self.acts < after {
            return false;
        }
        match self.socket.take() {
            Some(socket) if resets => socket.reset(),
            closed => drop(closed),
        }
        true
    }

    fn send(&mut self, random: &mut Random) -> bool {
        let Some(socket) = &self.socket else { return false };
        if self.has_ended || self.seen == Seen::Failure {
            return false;
        }
        let most = 1 + random.below(self.script.bytes_per_call_max) as usize;
        let head = &self.head[self.head_sent..];
        let bytes: Vec<u8> = if !head.is_empty() {
            head[..most.min(head.len())].to_vec()
        } else if !self.may_send {
            return false;
        } else {
            let end = self.script.bytes.min(self.sent + most as u64);
            (self.sent..end).map(|at| stream_byte(self.script.key, at)).collect()
        };
        if bytes.is_empty() {
            self.has_ended = true;
            // Fails on a connection that was reset, which a read finds out.
            let _ = socket.shutdown_write();
            return true;
        }
        match socket.send(&bytes) {
            Ok(count) if self.head_sent < self.head.len() => self.head_sent += count,
            Ok(count) => self.sent += count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => self.seen = Seen::Failure,
        }
        true
    }

    fn receive(&mut self) -> Result<bool, String> {
        let Some(socket) = &self.socket else { return Ok(false) };
        if self.seen != Seen::Open {
            return Ok(false);
        }
        let mut buffer = vec![0; self.script.bytes_per_call_max as usize];
        match socket.recv(&mut buffer) {
            Ok(0) => self.seen = Seen::End,
            Ok(count) => self.unchecked.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(_) => self.seen = Seen::Failure,
        }
        self.check()?;
        Ok(true)
    }

    /// Compares what was received with the stream that is expected.
    ///
    /// # Errors
    /// They differ.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let Some(key) = self.expects else { return Ok(()) };
        for byte in self.unchecked.drain(..) {
            if byte != stream_byte(key, self.received) {
                return Err(format!("byte {} of stream {key:x} differs", self.received));
            }
            self.received += 1;
        }
        Ok(())
    }

    fn close_in_order(&mut self) -> bool {
        // A peer that may not send yet and has seen the end gives up.
        let is_done =
            self.seen == Seen::Failure || self.seen == Seen::End && (self.has_ended || !self.may_send);
        is_done && self.socket.take().is_some()
    }
}

/// The byte at a position of a stream: by SplitMix64's finalizer, so that neither a shift nor an exchange of
/// two streams goes unnoticed.
pub(super) fn stream_byte(key: u64, at: u64) -> u8 {
    let mut mixed = (key ^ (at >> 3)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> (8 * (at & 7))) as u8
}
