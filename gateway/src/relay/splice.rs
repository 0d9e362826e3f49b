//! Relaying by splicing: the pages of a fast stream move through a pipe and are not copied.
//!
//! Guarantees: a pipe is borrowed while bytes move, and returns to the thread's cache once it is empty and
//! the source has nothing, or once its sink has accepted nothing for a second; a thread has at most
//! [`PIPES_PER_THREAD_MAX`]; without a pipe the stream is copied.
//!
//! Splicing costs 0.10-0.14 s of CPU per GB where copying costs 0.23-0.35 s, if segments have 1.4 KB or more;
//! for 200-byte writes it costs twice as much as copying. So a stream must prove fast first.

use std::io::ErrorKind;

use sys::socket::Socket;
use sys::splice::Pipe;

use super::copy::FULL_READS_MAX;
use super::{Direction, Endpoints, Failure, RelayBuffers};
use crate::limits::{PIPE_BYTES, PIPES_PER_THREAD_MAX, SPLICE_BYTES_MAX};

/// An event of the source with fewer bytes speaks against splicing.
const FAST_BYTES_MIN: usize = 4 * 1024;

/// The free pipes of a thread, and the count of all its pipes.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "the boxes move to relays and back, so that a relay stays small")]
pub(super) struct PipeCache {
    empty: Vec<Box<Pipe>>,
    /// Pipes, free or borrowed. 0 <= held <= PIPES_PER_THREAD_MAX
    held: usize,
    /// Pipes created so far.
    pub(super) created: u64,
    /// How often a direction got a pipe.
    pub(super) lent: u64,
    /// Pipes emptied so far because their sink accepted nothing.
    pub(super) emptied: u64,
}

impl PipeCache {
    fn take(&mut self) -> Option<Box<Pipe>> {
        let pipe = self.empty.pop().or_else(|| self.create())?;
        self.lent += 1;
        Some(pipe)
    }

    fn create(&mut self) -> Option<Box<Pipe>> {
        if self.held == PIPES_PER_THREAD_MAX {
            return None;
        }
        // Fails when descriptors are exhausted: then the stream is copied.
        let pipe = Pipe::new(PIPE_BYTES).ok()?;
        self.held += 1;
        self.created += 1;
        Some(Box::new(pipe))
    }

    /// Returns a pipe. A pipe with bytes is closed: another stream must not get them.
    fn put(&mut self, pipe: Box<Pipe>) {
        if pipe.buffered() == 0 {
            self.empty.push(pipe);
        } else {
            self.held -= 1;
        }
    }

    /// Pipes, free or borrowed.
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

impl Direction {
    /// Whether the stream has proved to be fast.
    pub(super) fn is_fast(&self) -> bool {
        self.full_reads == FULL_READS_MAX
    }

    /// Moves bytes from the source into a pipe; returns their number.
    pub(super) fn fill_pipe(
        &mut self,
        source: &Socket,
        buffers: &mut RelayBuffers,
    ) -> Result<usize, Failure> {
        if self.pipe.is_none() {
            self.pipe = buffers.pipes.take();
        }
        let Some(pipe) = self.pipe.as_mut() else {
            // No pipe is free: the stream is copied, and must prove fast again.
            self.full_reads = 0;
            return Ok(0);
        };
        match pipe.fill_from(source, SPLICE_BYTES_MAX) {
            Ok(0) => {
                // The end, or an urgent byte in front of it: a read distinguishes them.
                self.full_reads = 0;
                Ok(0)
            }
            Ok(moved) => {
                if moved < FAST_BYTES_MIN {
                    self.full_reads = 0;
                }
                Ok(moved)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // The pipe is empty whenever it is filled, so the source has nothing.
                self.source_empty();
                Ok(0)
            }
            Err(_) => Err(Failure::Source),
        }
    }

    /// Moves bytes from the pipe to the sink.
    pub(super) fn drain_pipe(
        &mut self,
        endpoints: &mut Endpoints<'_>,
        budget: &mut usize,
    ) -> Result<(), Failure> {
        let Some(pipe) = self.pipe.as_mut() else { return Ok(()) };
        let (sink, held) = (endpoints.sink, pipe.buffered() as usize);
        match endpoints.sent.around(held, || sink.send_from(pipe)) {
            Ok(moved) => {
                *budget = budget.saturating_sub(moved);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.writable = false;
                Ok(())
            }
            Err(_) => Err(Failure::Sink),
        }
    }

    /// Whether the sink accepts none of the pipe's bytes.
    pub(super) fn has_stalled_pipe(&self) -> bool {
        !self.writable && self.pipe.as_ref().is_some_and(|pipe| pipe.buffered() > 0)
    }

    /// Moves the pipe's bytes to a buffer and returns the pipe: its sink accepts nothing, and another stream
    /// can use it.
    pub(super) fn empty_pipe(&mut self, buffers: &mut RelayBuffers) {
        let Some(pipe) = self.pipe.as_mut() else { return };
        self.pending = Some(buffers.pending.take(|buffer| pipe.drain_into(buffer)));
        self.full_reads = 0;
        buffers.pipes.emptied += 1;
        // Bytes that could not be read stay in the pipe, and are written after the buffer.
        if pipe.buffered() == 0 {
            self.return_pipe(buffers);
        }
    }

    /// Returns the pipe.
    pub(super) fn return_pipe(&mut self, buffers: &mut RelayBuffers) {
        if let Some(pipe) = self.pipe.take() {
            buffers.pipes.put(pipe);
        }
    }
}
