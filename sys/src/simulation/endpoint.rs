//! One end of a simulated TCP connection.

use std::collections::VecDeque;
use std::net::SocketAddr;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, Result};

use super::SentStream;

/// An endpoint's queues and states.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Whether the simulated process has it; else a peer.
    pub(super) is_of_process: bool,
    pub(super) was_accepted: bool,
    pub(super) local: SocketAddr,
    pub(super) peer: Option<SocketAddr>,
    /// The number of the other end, once the handshake has reached it.
    pub(super) other: Option<usize>,
    pub(super) phase: Phase,
    /// Bytes that the program has not read.
    pub(super) received: VecDeque<u8>,
    pub(super) received_max: usize,
    /// Sent bytes that the other end has not acknowledged.
    pub(super) queue: VecDeque<u8>,
    pub(super) queue_max: usize,
    /// Bytes that send calls took.
    pub(super) sent: u64,
    pub(super) fin: Fin,
    pub(super) fin_received: bool,
    /// The error that the next call returns.
    pub(super) error: Option<Errno>,
    /// The last send call found too little space.
    pub(super) lacks_space: bool,
    /// Whether the next bytes are on their way.
    pub(super) is_sending: bool,
    pub(super) resets_on_close: bool,
    pub(super) is_closed: bool,
    /// In nanoseconds; 0 for none.
    pub(super) user_timeout: u64,
    /// When the other end last acknowledged bytes.
    pub(super) acknowledged_at: u64,
}

/// How far an endpoint's connection is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    New,
    Connecting,
    Established,
    /// Reset, refused or timed out.
    Failed,
}

/// How far the end of an endpoint's own direction is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fin {
    No,
    Queued,
    Acknowledged,
}

impl Endpoint {
    /// An endpoint that is not connected, with queues of these sizes.
    pub(super) fn new(is_of_process: bool, local: SocketAddr, sizes: (usize, usize), now: u64) -> Endpoint {
        Endpoint {
            is_of_process,
            was_accepted: false,
            local,
            peer: None,
            other: None,
            phase: Phase::New,
            received: VecDeque::new(),
            received_max: sizes.0,
            queue: VecDeque::new(),
            queue_max: sizes.1,
            sent: 0,
            fin: Fin::No,
            fin_received: false,
            error: None,
            lacks_space: false,
            is_sending: false,
            resets_on_close: false,
            is_closed: false,
            user_timeout: 0,
            acknowledged_at: now,
        }
    }

    /// What epoll and poll report, as `tcp_poll` does (net/ipv4/tcp.c).
    pub(super) fn readiness(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        let (is_shut, has_failed) = (self.fin != Fin::No, self.phase == Phase::Failed);
        if self.phase == Phase::New {
            return EventFlags::OUT | EventFlags::HUP;
        }
        if has_failed || (is_shut && self.fin_received) {
            flags |= EventFlags::HUP;
        }
        if has_failed || self.fin_received {
            flags |= EventFlags::IN | EventFlags::RDHUP;
        }
        if self.phase == Phase::Connecting {
            return flags;
        }
        if !self.received.is_empty() {
            flags |= EventFlags::IN;
        }
        if has_failed || is_shut || self.has_space() {
            flags |= EventFlags::OUT;
        }
        if self.error.is_some() {
            flags |= EventFlags::ERR;
        }
        flags
    }

    /// Whether a third of the send queue is free: only then the kernel reports it as writable.
    pub(super) fn has_space(&self) -> bool {
        3 * self.queue.len() <= 2 * self.queue_max
    }

    /// Whether a read returns at once, and how: a number of bytes, or the end.
    pub(super) fn readable(&mut self) -> Result<usize> {
        if !self.received.is_empty() {
            return Ok(self.received.len());
        }
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match self.phase {
            Phase::New => Err(Errno::NOTCONN),
            Phase::Failed => Ok(0),
            Phase::Connecting | Phase::Established if self.fin_received => Ok(0),
            Phase::Connecting | Phase::Established => Err(Errno::AGAIN),
        }
    }

    /// The free bytes of the send queue, of which there is at least one.
    pub(super) fn writable(&mut self) -> Result<usize> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.fin != Fin::No || matches!(self.phase, Phase::New | Phase::Failed) {
            return Err(Errno::PIPE);
        }
        let free = self.queue_max - self.queue.len();
        if self.phase == Phase::Connecting || free == 0 {
            self.lacks_space = true;
            return Err(Errno::AGAIN);
        }
        Ok(free)
    }

    /// Fails the connection: the program gets `error` once.
    pub(super) fn fail(&mut self, error: Errno) {
        self.phase = Phase::Failed;
        self.error = Some(error);
        self.queue.clear();
    }

    /// The stream's entry in the audit, if the process has a connection on it.
    pub(super) fn sent_stream(&self) -> Option<SentStream> {
        let peer = self.peer.filter(|_| self.is_of_process)?;
        let (local, was_accepted, sent) = (self.local, self.was_accepted, self.sent);
        Some(SentStream { local, peer, was_accepted, sent })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Endpoint { local, phase, fin, fin_received, .. } = self;
        let peer = self.peer.map(|peer| peer.to_string()).unwrap_or_default();
        let (received, queued) = (self.received.len(), self.queue.len());
        write!(
            out,
            "{local} to {peer}: {phase:?}, {received} bytes unread, end received: {fin_received}, \
             {queued} bytes unacknowledged, own end: {fin:?}"
        )
    }
}
