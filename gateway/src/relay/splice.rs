//! Relaying by splicing: the pages of a fast stream move through a pipe and are not copied.
//!
//! Guarantees: a pipe is borrowed while bytes move, and returns to the thread's cache once it is empty and
//! the source has nothing, or once its sink has accepted nothing for a second; a thread has at most
//! [`PIPES_PER_THREAD_MAX`], of [`PIPES_BYTES_PER_THREAD_MAX`] together; without a pipe the stream is copied.
//! A sustained stream borrows a grown pipe. Grown pipes shrink once no stream wants them, or another stream
//! finds no pipe.
//!
//! Splicing costs 0.10-0.14 s of CPU per GB where copying costs 0.23-0.35 s, if segments have 1.4 KB or more;
//! for 200-byte writes it costs twice as much as copying. So a stream must prove fast first.

use std::io::ErrorKind;

use sys::clock::Nanos;
use sys::socket::Socket;
use sys::splice::Pipe;

use super::pace::LARGE_FILL_BYTES_MIN;
use super::{Direction, Endpoints, Failure, RelayBuffers};
use crate::limits::{
    GROWN_PIPE_BYTES, GROWN_PIPE_PAUSE, GROWN_PIPES_PER_THREAD_MAX, PIPE_BYTES, PIPES_BYTES_PER_THREAD_MAX,
    PIPES_PER_THREAD_MAX, SEND_BYTES_MAX,
};

/// What a pipe takes when it grows.
const GROWTH_BYTES: u64 = (GROWN_PIPE_BYTES - PIPE_BYTES) as u64;

/// The free pipes of a thread, and the count of all its pipes.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "the boxes move to relays and back, so that a relay stays small")]
pub(super) struct PipeCache {
    empty: Vec<Box<Pipe>>,
    /// Free pipes that are grown.
    empty_grown: Vec<Box<Pipe>>,
    /// Pipes, free or borrowed. 0 <= held <= PIPES_PER_THREAD_MAX
    held: usize,
    /// Grown pipes, free or borrowed. 0 <= grown <= GROWN_PIPES_PER_THREAD_MAX, grown <= held
    grown: usize,
    /// When a sustained stream last wanted a pipe.
    wanted_at: Nanos,
    /// No pipe grows before this, and grown ones shrink as they return.
    grows_from: Nanos,
    /// Pipes created so far.
    pub(super) created: u64,
    /// How often a direction got a pipe.
    pub(super) lent: u64,
    /// Pipes emptied so far because their sink accepted nothing.
    pub(super) emptied: u64,
}

impl PipeCache {
    /// A cache without pipes, at `now`.
    pub(super) fn begin(now: Nanos) -> PipeCache {
        PipeCache {
            empty: Vec::new(),
            empty_grown: Vec::new(),
            held: 0,
            grown: 0,
            wanted_at: now,
            grows_from: now,
            created: 0,
            lent: 0,
            emptied: 0,
        }
    }

    /// A pipe for a stream; for a sustained one a grown pipe if there is one.
    fn take(&mut self, is_sustained: bool, now: Nanos) -> Option<Box<Pipe>> {
        let pipe = if is_sustained { self.take_grown(now) } else { self.take_small(now) }?;
        self.lent += 1;
        Some(pipe)
    }

    fn take_small(&mut self, now: Nanos) -> Option<Box<Pipe>> {
        if let Some(pipe) = self.empty.pop() {
            return Some(pipe);
        }
        if self.held < PIPES_PER_THREAD_MAX && self.bytes_free() >= u64::from(PIPE_BYTES) {
            return self.create();
        }
        // Grown pipes have the bytes of other streams' pipes: those that are free shrink now, and the others
        // once they are.
        self.grows_from = now + GROWN_PIPE_PAUSE;
        let pipe = self.empty_grown.pop()?;
        self.shrink(pipe);
        self.empty.pop()
    }

    fn take_grown(&mut self, now: Nanos) -> Option<Box<Pipe>> {
        self.wanted_at = now;
        if let Some(grown) = self.empty_grown.pop() {
            return Some(grown);
        }
        let mut pipe = self.take_small(now)?;
        let has_room = self.grown < GROWN_PIPES_PER_THREAD_MAX && self.bytes_free() >= GROWTH_BYTES;
        if has_room && self.grows_from <= now {
            match pipe.resize(GROWN_PIPE_BYTES) {
                Ok(()) => self.grown += 1,
                // The user's pages are spent, or the maximum is smaller: the pipe stays as it is.
                Err(_) => self.grows_from = now + GROWN_PIPE_PAUSE,
            }
        }
        Some(pipe)
    }

    fn create(&mut self) -> Option<Box<Pipe>> {
        // Fails when descriptors are exhausted: then the stream is copied.
        let pipe = Pipe::new(PIPE_BYTES).ok()?;
        self.held += 1;
        self.created += 1;
        Some(Box::new(pipe))
    }

    /// Returns a pipe. A pipe with bytes is closed: another stream must not get them.
    fn put(&mut self, pipe: Box<Pipe>, now: Nanos) {
        let is_grown = pipe.capacity() > PIPE_BYTES;
        if pipe.buffered() > 0 {
            self.held -= 1;
            self.grown -= usize::from(is_grown);
        } else if !is_grown {
            self.empty.push(pipe);
        } else if self.grows_from <= now {
            self.empty_grown.push(pipe);
        } else {
            self.shrink(pipe);
        }
    }

    /// Shrinks a free pipe that no stream has wanted for a while: its pages count among the user's.
    pub(super) fn shrink_unused(&mut self, now: Nanos) {
        if now.since(self.wanted_at) >= GROWN_PIPE_PAUSE {
            self.empty_grown.pop().into_iter().for_each(|pipe| self.shrink(pipe));
        }
    }

    /// Makes a free grown pipe a small one.
    fn shrink(&mut self, mut pipe: Box<Pipe>) {
        match pipe.resize(PIPE_BYTES) {
            Ok(()) => self.empty.push(pipe),
            // The kernel has no memory for the smaller one: the pipe is closed.
            Err(_) => self.held -= 1,
        }
        self.grown -= 1;
    }

    /// Bytes of the thread's bound that no pipe has.
    fn bytes_free(&self) -> u64 {
        let taken = self.held as u64 * u64::from(PIPE_BYTES) + self.grown as u64 * GROWTH_BYTES;
        PIPES_BYTES_PER_THREAD_MAX - taken
    }

    /// Pipes, free or borrowed.
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

impl Direction {
    /// Moves up to `bytes_max` bytes from the source into a pipe; returns their number.
    pub(super) fn fill_pipe(
        &mut self,
        source: &Socket,
        bytes_max: usize,
        buffers: &mut RelayBuffers,
    ) -> Result<usize, Failure> {
        if self.pipe.is_none() {
            self.pipe = buffers.pipes.take(self.pace.is_sustained(), buffers.now);
        }
        let Some(pipe) = self.pipe.as_mut() else {
            // No pipe is free: the stream is copied, and must prove fast again.
            self.pace.reset();
            return Ok(0);
        };
        let bytes_max = bytes_max.min(pipe.capacity() as usize);
        match pipe.fill_from(source, bytes_max) {
            Ok(0) => {
                // The end, or an urgent byte in front of it: a read distinguishes them.
                self.pace.reset();
                Ok(0)
            }
            Ok(moved) => {
                // A full fill of fewer bytes, for lack of credit, tells nothing about the source.
                if moved < bytes_max || bytes_max >= LARGE_FILL_BYTES_MIN {
                    self.pace.filled(moved);
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

    /// Moves bytes from the pipe to the sink, [`SEND_BYTES_MAX`] at most.
    pub(super) fn drain_pipe(
        &mut self,
        endpoints: &mut Endpoints<'_>,
        budget: &mut usize,
    ) -> Result<(), Failure> {
        let Some(pipe) = self.pipe.as_mut() else { return Ok(()) };
        let (sink, held) = (endpoints.sink, (pipe.buffered() as usize).min(SEND_BYTES_MAX));
        match endpoints.sent.around(held, || sink.send_from(pipe, held)) {
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
        self.pace.reset();
        buffers.pipes.emptied += 1;
        // Bytes that could not be read stay in the pipe, and are written after the buffer.
        if pipe.buffered() == 0 {
            self.return_pipe(buffers);
        }
    }

    /// Returns the pipe.
    pub(super) fn return_pipe(&mut self, buffers: &mut RelayBuffers) {
        if let Some(pipe) = self.pipe.take() {
            buffers.pipes.put(pipe, buffers.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use sys::simulation::{Entered, Simulation};

    use super::*;

    const BEGIN: Nanos = Nanos(1_000_000_000);

    /// A cache whose kernel refuses nothing: the pages that a user may have in pipes are those of all its
    /// processes.
    fn cache() -> (Entered, PipeCache) {
        let address = [192, 0, 2, 1].into();
        (Simulation::enter(address, |bound| bound - 1), PipeCache::begin(BEGIN))
    }

    fn capacities(pipes: &[Box<Pipe>]) -> Vec<u32> {
        pipes.iter().map(|pipe| pipe.capacity()).collect()
    }

    #[expect(clippy::vec_box, reason = "the cache has boxes")]
    fn taken(cache: &mut PipeCache, is_sustained: bool, count: usize) -> Vec<Box<Pipe>> {
        (0..count).map_while(|_| cache.take(is_sustained, BEGIN)).collect()
    }

    #[test]
    fn sustained_streams_get_grown_pipes_within_the_bound() {
        let (_kernel, mut cache) = cache();
        let borrowed = taken(&mut cache, true, PIPES_PER_THREAD_MAX);
        let small = borrowed.len() - GROWN_PIPES_PER_THREAD_MAX;
        let mut expected = vec![GROWN_PIPE_BYTES; GROWN_PIPES_PER_THREAD_MAX];
        expected.resize(borrowed.len(), PIPE_BYTES);
        assert_eq!((capacities(&borrowed), small), (expected, 32));
        assert_eq!(cache.bytes_free(), 0);
        // A stream that gets none is copied, and then the grown ones shrink as they return.
        borrowed.into_iter().for_each(|pipe| cache.put(pipe, BEGIN));
        assert_eq!((cache.grown, cache.held()), (0, 40));
        let all = taken(&mut cache, false, PIPES_PER_THREAD_MAX + 1);
        assert_eq!(capacities(&all), vec![PIPE_BYTES; PIPES_PER_THREAD_MAX]);
    }

    #[test]
    fn free_grown_pipe_serves_the_next_sustained_stream() {
        let (_kernel, mut cache) = cache();
        for _ in 0..3 {
            let pipes = taken(&mut cache, true, 1);
            assert_eq!(capacities(&pipes), [GROWN_PIPE_BYTES]);
            pipes.into_iter().for_each(|pipe| cache.put(pipe, BEGIN));
            let pipes = taken(&mut cache, false, 1);
            assert_eq!(capacities(&pipes), [PIPE_BYTES]);
            pipes.into_iter().for_each(|pipe| cache.put(pipe, BEGIN));
        }
        assert_eq!((cache.held(), cache.grown, cache.created), (2, 1, 2));
    }

    #[test]
    fn free_grown_pipes_shrink_for_other_streams() {
        let (_kernel, mut cache) = cache();
        let grown = taken(&mut cache, true, GROWN_PIPES_PER_THREAD_MAX);
        grown.into_iter().for_each(|pipe| cache.put(pipe, BEGIN));
        let others = taken(&mut cache, false, PIPES_PER_THREAD_MAX);
        assert_eq!(capacities(&others), vec![PIPE_BYTES; PIPES_PER_THREAD_MAX]);
        assert_eq!((cache.grown, cache.held(), cache.bytes_free()), (0, PIPES_PER_THREAD_MAX, 0));
    }

    #[test]
    fn unused_grown_pipes_shrink() {
        let (_kernel, mut cache) = cache();
        taken(&mut cache, true, 2).into_iter().for_each(|pipe| cache.put(pipe, BEGIN));
        cache.shrink_unused(BEGIN + GROWN_PIPE_PAUSE / 2);
        assert_eq!((cache.grown, cache.empty_grown.len()), (2, 2));
        for left in [1, 0, 0] {
            cache.shrink_unused(BEGIN + GROWN_PIPE_PAUSE);
            assert_eq!((cache.grown, cache.empty_grown.len()), (left, left));
        }
        assert_eq!((capacities(&cache.empty), cache.held()), (vec![PIPE_BYTES; 2], 2));
    }

    #[test]
    fn no_pipe_grows_for_a_while_after_a_refusal() {
        let (_kernel, mut cache) = cache();
        cache.grows_from = BEGIN + GROWN_PIPE_PAUSE;
        let mut capacity_at = |now| {
            let pipe = cache.take(true, now).expect("it is free");
            let capacity = pipe.capacity();
            cache.put(pipe, now);
            capacity
        };
        assert_eq!(capacity_at(BEGIN), PIPE_BYTES);
        assert_eq!(capacity_at(BEGIN + GROWN_PIPE_PAUSE), GROWN_PIPE_BYTES);
    }
}
