//! One end of a flow: a non-blocking socket, what it sends, and what it has received.
//!
//! Guarantees: reads to the end of the stream or a reset; a write that fails ends its writes and not its
//! reads.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use crate::plan::Side;

/// Received bytes that are kept: the head of a message.
const HEAD_BYTES_MAX: usize = 4_096;

/// The most that one call writes or reads.
pub(crate) const CALL_BYTES_MAX: usize = 256 * 1024;

/// One end of a flow.
pub(crate) struct End {
    /// `None` once it is over.
    stream: Option<TcpStream>,
    side: Side,
    /// What is sent before the payload, as far as it is not sent.
    head: Vec<u8>,
    /// Payload that is not sent.
    left: u64,
    /// Whether the payload may follow now.
    pub(crate) may_send: bool,
    next_write: Instant,
    read_from: Instant,
    /// All received bytes, and the first of them.
    pub(crate) received: u64,
    pub(crate) first: Vec<u8>,
    reads: bool,
    writes: bool,
}

impl End {
    /// An end of a connected stream that sends `head`, and its payload behind that if it `may_send`.
    pub(crate) fn new(stream: TcpStream, side: Side, head: Vec<u8>, may_send: bool) -> End {
        stream.set_nonblocking(true).unwrap();
        let now = Instant::now();
        End {
            stream: Some(stream),
            head,
            left: side.bytes,
            may_send,
            next_write: now,
            read_from: now + side.read_after,
            side,
            received: 0,
            first: Vec::new(),
            reads: true,
            writes: true,
        }
    }

    pub(crate) fn stream(&self) -> Option<&TcpStream> {
        self.stream.as_ref()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stream.is_none()
    }

    /// Whether the peer has ended, or reset the connection.
    pub(crate) fn has_read_all(&self) -> bool {
        !self.reads
    }

    /// Whether it would read, and whether it would write, at `now`.
    pub(crate) fn wants(&self, now: Instant) -> (bool, bool) {
        let has_bytes = !self.head.is_empty() || self.may_send;
        (self.reads && self.read_from <= now, self.writes && has_bytes && self.next_write <= now)
    }

    /// Sends `head` and the payload from now on.
    pub(crate) fn send(&mut self, head: Vec<u8>) {
        (self.head, self.may_send) = (head, true);
    }

    /// Sends nothing more.
    pub(crate) fn stop_writing(&mut self) {
        if let (true, Some(stream)) = (self.writes, &self.stream) {
            // Fails if the peer is gone.
            let _ = stream.shutdown(Shutdown::Write);
        }
        self.writes = false;
        self.close_if_over();
    }

    /// Reads what has arrived.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) {
        let Some(stream) = self.stream.as_mut().filter(|_| self.reads) else { return };
        match stream.read(scratch) {
            Ok(0) => self.reads = false,
            Ok(count) => {
                let kept = count.min(HEAD_BYTES_MAX.saturating_sub(self.first.len()));
                self.first.extend_from_slice(&scratch[..kept]);
                self.received += count as u64;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.reads = false,
        }
        self.close_if_over();
    }

    /// Writes once, and forwards the end of its bytes.
    pub(crate) fn write(&mut self, payload: &[u8], now: Instant) {
        let Some(stream) = self.stream.as_mut().filter(|_| self.writes) else { return };
        let is_head = !self.head.is_empty();
        let count = (self.side.write_bytes as u64).min(self.left) as usize;
        let bytes = if is_head { &self.head[..] } else { &payload[..count] };
        let written = match (bytes.is_empty(), stream.write(bytes)) {
            (true, _) => 0,
            (false, Ok(written)) => written,
            (false, Err(error)) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return;
            }
            (false, Err(_)) => return self.stop_writing(),
        };
        if is_head {
            drop(self.head.drain(..written));
        } else {
            self.left -= written as u64;
            self.next_write = now + self.side.write_pause;
        }
        if self.head.is_empty() && self.left == 0 && self.may_send {
            self.stop_writing();
        }
    }

    /// Closes the stream once nothing moves any more: before that a close could reset it.
    fn close_if_over(&mut self) {
        if !self.reads && !self.writes {
            self.stream = None;
        }
    }
}
