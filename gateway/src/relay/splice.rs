//! Relaying by splicing: a fast stream's pages go through a pipe and are never copied.
//!
//! Promises: a pipe is borrowed while bytes move and goes back to the thread's cache as soon as it is empty
//! and the source has nothing, or its sink has taken nothing for a second; a thread holds at most
//! [`PIPES_PER_THREAD_MAX`]; without a pipe the stream is copied. Leaves to others: streams of small
//! messages, for which copying is cheaper, and when a pipe stalls (`stalls`).
//!
//! Splicing costs 0.10-0.14 s of CPU per GB where copying costs 0.23-0.35 s, if segments are of 1.4 KB or
//! more; for 200-byte writes it costs twice as much as copying, so a stream has to prove itself first.

use std::io::ErrorKind;

use sys::socket::Socket;
use sys::splice::Pipe;

use super::copy::FULL_READS_MAX;
use super::{Direction, Endpoints, Failure, RelayBuffers};
use crate::limits::{PIPE_BYTES, PIPES_PER_THREAD_MAX, SPLICE_BYTES_MAX};

/// A wake of the source that brings less than this speaks against splicing.
const FAST_BYTES_MIN: usize = 4 * 1024;

/// The empty pipes of a thread, and the count of all its pipes.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "the boxes move to relays and back, so that a relay stays small")]
pub(super) struct PipeCache {
    empty: Vec<Box<Pipe>>,
    /// Pipes in the cache and on loan. 0 <= held <= PIPES_PER_THREAD_MAX
    held: usize,
    /// Pipes made so far.
    pub(super) created: u64,
    /// Times a direction has got a pipe.
    pub(super) lent: u64,
    /// Pipes emptied so far because their sink took nothing.
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
        // Fails when descriptors are used up: then the stream is copied.
        let pipe = Pipe::new(PIPE_BYTES).ok()?;
        self.held += 1;
        self.created += 1;
        Some(Box::new(pipe))
    }

    /// Takes a pipe back; one with bytes inside is closed, its next borrower must not get them.
    fn put(&mut self, pipe: Box<Pipe>) {
        if pipe.held() == 0 {
            self.empty.push(pipe);
        } else {
            self.held -= 1;
        }
    }

    /// Pipes that exist, in the cache or on loan.
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

impl Direction {
    /// Whether the stream has proved to be fast.
    pub(super) fn is_fast(&self) -> bool {
        self.full_reads == FULL_READS_MAX
    }

    /// Moves bytes from the source into a pipe; returns how many.
    pub(super) fn fill_pipe(&mut self, source: &Socket, tools: &mut RelayBuffers) -> Result<usize, Failure> {
        if self.pipe.is_none() {
            self.pipe = tools.pipes.take();
        }
        let Some(pipe) = self.pipe.as_mut() else {
            // All pipes are lent out: prove yourself again by copying.
            self.full_reads = 0;
            return Ok(0);
        };
        match pipe.fill_from(source, SPLICE_BYTES_MAX) {
            Ok(0) => {
                // The end, or an urgent byte with the end somewhere behind it: a read tells which.
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
                // The pipe is empty whenever it is filled, so it is the source that has nothing.
                self.source_empty();
                Ok(0)
            }
            Err(_) => Err(Failure::Source),
        }
    }

    /// Moves bytes from the pipe to the sink.
    pub(super) fn drain_pipe(&mut self, lane: &mut Endpoints<'_>, budget: &mut usize) -> Result<(), Failure> {
        let Some(pipe) = self.pipe.as_mut() else { return Ok(()) };
        let (sink, held) = (lane.sink, pipe.held() as usize);
        match lane.sent.around(held, || sink.send_from(pipe)) {
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

    /// Whether the sink takes nothing of what the pipe holds.
    pub(super) fn has_stalled_pipe(&self) -> bool {
        !self.writable && self.pipe.as_ref().is_some_and(|pipe| pipe.held() > 0)
    }

    /// Moves what the pipe holds to a buffer and gives the pipe back: its sink takes nothing, and a stream
    /// that moves has more use for it.
    pub(super) fn empty_pipe(&mut self, tools: &mut RelayBuffers) {
        let Some(pipe) = self.pipe.as_mut() else { return };
        self.pending = Some(tools.pending.take(|room| pipe.empty_into(room)));
        self.full_reads = 0;
        tools.pipes.emptied += 1;
        // What could not be read stays in there, and is written behind the buffer.
        if pipe.held() == 0 {
            self.return_pipe(tools);
        }
    }

    /// Gives the pipe back.
    pub(super) fn return_pipe(&mut self, tools: &mut RelayBuffers) {
        if let Some(pipe) = self.pipe.take() {
            tools.pipes.put(pipe);
        }
    }
}
