//! Relaying by copying: from the source into the thread's scratch buffer, and at once to the sink.
//!
//! Guarantees: bytes that the sink accepts at once are never stored; the rest moves to a buffer of the relay
//! until it is written, and nothing is read meanwhile. Those buffers are counted, and while they are many,
//! reads are smaller.

use std::io::ErrorKind;
use std::sync::Arc;

use sys::epoll::StreamEnd;
use sys::socket::Socket;

use super::{Direction, Endpoints, Failure, RelayBuffers, State};
use crate::limits::{PENDING_BYTES_MAX, PENDING_CACHED_MAX, SCRATCH_BYTES, SEND_BYTES_MAX};
use crate::observe::stats::WorkerStats;

/// Bytes that were read and not yet written.
#[derive(Debug, Default)]
pub(super) struct Pending {
    bytes: Vec<u8>,
    /// 0 <= written <= bytes.len()
    written: usize,
}

/// Free buffers for slow sinks, and the count of the memory of all.
#[expect(clippy::vec_box, reason = "the boxes move to relays and back, so that a relay stays small")]
pub(super) struct PendingCache {
    empty: Vec<Box<Pending>>,
    stats: Arc<WorkerStats>,
}

impl PendingCache {
    pub(super) fn new(stats: &Arc<WorkerStats>) -> PendingCache {
        PendingCache { empty: Vec::new(), stats: Arc::clone(stats) }
    }

    /// A buffer with what `fill` appends.
    pub(super) fn take(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Box<Pending> {
        let mut pending = self.empty.pop().unwrap_or_default();
        let before = pending.bytes.capacity();
        pending.bytes.clear();
        pending.written = 0;
        fill(&mut pending.bytes);
        self.stats.pending_bytes.add((pending.bytes.capacity() - before) as u64);
        pending
    }

    /// Returns a buffer. A large one is freed.
    pub(super) fn put(&mut self, pending: Box<Pending>) {
        if self.empty.len() < PENDING_CACHED_MAX && pending.bytes.capacity() <= SCRATCH_BYTES {
            self.empty.push(pending);
        } else {
            self.stats.pending_bytes.sub(pending.bytes.capacity() as u64);
        }
    }

    /// The size of a read.
    pub(super) fn read_bytes_max(&self) -> usize {
        self.stats.read_bytes_max()
    }

    /// Whether there is memory for the bytes of a pipe.
    pub(super) fn has_capacity(&self) -> bool {
        self.stats.pending_bytes.value() < PENDING_BYTES_MAX
    }
}

impl Direction {
    /// Reads once, at most `permitted` bytes, into the scratch buffer; returns the number of bytes.
    pub(super) fn read(
        &mut self,
        source: &Socket,
        permitted: usize,
        buffers: &mut RelayBuffers,
    ) -> Result<usize, Failure> {
        let wanted = buffers.pending.read_bytes_max();
        let read_max = wanted.min(permitted);
        let read = match source.recv(&mut buffers.scratch[..read_max]) {
            Ok(0) => {
                self.source_ended();
                return Ok(0);
            }
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.source_empty();
                return Ok(0);
            }
            Err(_) => return Err(Failure::Source),
        };
        // A full read of fewer bytes, for lack of credit, tells nothing about the source.
        if read < read_max || read_max == wanted {
            buffers.promotions += u64::from(self.pace.read(read, read_max));
        }
        if read < read_max {
            // A short read: the source is empty for now, or has ended.
            match self.end {
                StreamEnd::Open => self.readable = false,
                StreamEnd::Ended => self.source_ended(),
                StreamEnd::Unclear | StreamEnd::Urgent | StreamEnd::Broken => {}
            }
        }
        Ok(read)
    }

    /// Writes the `read` bytes of the scratch buffer, and keeps the rest that the sink does not accept.
    pub(super) fn forward(
        &mut self,
        read: usize,
        endpoints: &mut Endpoints<'_>,
        buffers: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        if read == 0 {
            return Ok(());
        }
        let written = self.send(endpoints, &buffers.scratch[..read])?;
        if written < read {
            self.pending = Some(
                buffers.pending.take(|buffer| buffer.extend_from_slice(&buffers.scratch[written..read])),
            );
        }
        Ok(())
    }

    /// Writes `bytes` that were read before the relay, and keeps the rest that the sink does not accept.
    pub(super) fn forward_early(
        &mut self,
        bytes: &[u8],
        endpoints: &mut Endpoints<'_>,
        buffers: &mut RelayBuffers,
    ) {
        if bytes.is_empty() {
            return;
        }
        // A failed sink fails again in the relay's run, which then ends.
        let written = self.send(endpoints, bytes).unwrap_or(0);
        if written < bytes.len() {
            self.pending = Some(buffers.pending.take(|buffer| buffer.extend_from_slice(&bytes[written..])));
        }
    }

    /// Writes the rest of an earlier write.
    pub(super) fn write_pending(
        &mut self,
        endpoints: &mut Endpoints<'_>,
        budget: &mut usize,
        buffers: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        // A grown pipe leaves more than one call may send.
        let end = pending.bytes.len().min(pending.written + SEND_BYTES_MAX);
        let written = match self.send(endpoints, &pending.bytes[pending.written..end]) {
            Ok(written) => written,
            Err(failure) => {
                buffers.pending.put(pending);
                return Err(failure);
            }
        };
        *budget = budget.saturating_sub(written);
        pending.written += written;
        if pending.written < pending.bytes.len() {
            self.pending = Some(pending);
        } else {
            buffers.pending.put(pending);
        }
        Ok(())
    }

    fn send(&mut self, endpoints: &mut Endpoints<'_>, bytes: &[u8]) -> Result<usize, Failure> {
        if !self.writable {
            return Ok(0);
        }
        let (sink, state) = (endpoints.sink, self.state);
        let sent = endpoints.sent.around(bytes.len(), || match state {
            // The end follows at once, in the same packet.
            State::Flushing => sink.send_before_more(bytes),
            State::Flowing | State::Ended => sink.send(bytes),
        });
        match sent {
            Ok(written) => {
                // A short write: the kernel's buffer is full.
                self.writable = written == bytes.len();
                self.note_write(sink);
                Ok(written)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.writable = false;
                Ok(0)
            }
            Err(_) => Err(Failure::Sink),
        }
    }

    /// Sets TCP_NODELAY at the second write: Nagle's algorithm never delays the first, and a connection of
    /// one request saves the call. Accepted sockets inherit it from the listener.
    fn note_write(&mut self, sink: &Socket) {
        if self.writes < 2 {
            self.writes += 1;
            // If the end follows, there is no further write, and the option would send these bytes at once.
            if self.writes == 2 && self.state == State::Flowing {
                // A socket that refuses the option has failed; the next read or write returns the error.
                let _ = sink.set_nodelay();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::READ_BYTES_UNDER_PRESSURE;
    use sys::clock::Nanos;
    use sys::socket::{ListenOptions, Listener, SpeaksFirst};

    fn pair() -> (Socket, Socket) {
        let options = ListenOptions::plain(1);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let sender = Socket::connect(listener.local().unwrap(), SpeaksFirst::Unknown).unwrap();
        (sender, listener.accept().unwrap().0)
    }

    #[test]
    fn pending_bytes_are_counted_and_bound_reads() {
        let (sender, source) = pair();
        let stats: Arc<WorkerStats> = Arc::default();
        let mut buffers = RelayBuffers::new(&stats, Nanos::default());
        let mut held = Vec::new();
        while stats.pending_bytes.value() < PENDING_BYTES_MAX {
            held.push(buffers.pending.take(|buffer| buffer.extend_from_slice(&[0; SCRATCH_BYTES])));
        }
        assert_eq!(held.len() * SCRATCH_BYTES, PENDING_BYTES_MAX as usize);
        assert!(!buffers.pending.has_capacity());
        let mut direction = Direction::reused();
        // Reads that fill the smaller size also prove a stream fast.
        while !direction.pace.is_fast() {
            while sender.send(&[0; SCRATCH_BYTES]).is_ok() {}
            let read = direction.read(&source, usize::MAX, &mut buffers).unwrap();
            assert!(read <= READ_BYTES_UNDER_PRESSURE);
        }
        held.into_iter().for_each(|pending| buffers.pending.put(pending));
        assert_eq!(stats.pending_bytes.value(), (PENDING_CACHED_MAX * SCRATCH_BYTES) as u64);
        assert!(buffers.pending.has_capacity());
    }
}
