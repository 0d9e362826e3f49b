//! One direction of an exchange: a body that is passed on as it comes, and what waits to be written.
//!
//! Promises: nothing is read while something waits to be written, so that a slow receiver stops its sender;
//! what is billed is what outgoing calls returned; no buffer is held while nothing moves. Leaves to others:
//! heads, and what the two directions mean for each other (`exchange`).

use std::io;
use std::task::{Context, Poll, ready};

use engine::net::TcpStream;
use engine::slab::Key;
use proto::http_forward::{Body, BodyError};

use super::upstream::Upstream;
use crate::context::WorkerContext;
use crate::limits::CLIENT_BUFFER_BYTES_MAX;

/// Which end of a transfer failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It cannot be read, or ends too early.
    Source,
    /// What it sends is no body.
    Body(BodyError),
    /// It cannot be written.
    Sink,
}

/// From whom to whom.
#[derive(Clone, Copy)]
pub(crate) enum Endpoints<'l> {
    /// From the client to the destination.
    Up(&'l TcpStream, &'l Upstream),
    /// From the destination to the client.
    Down(&'l Upstream, &'l TcpStream),
}

/// See the file's header.
pub(crate) struct Transfer {
    body: Body,
    pending: Vec<u8>,
    /// 0 <= written <= pending.len()
    written: usize,
}

impl<'l> Endpoints<'l> {
    fn source(self) -> &'l TcpStream {
        match self {
            Endpoints::Up(client, _) => client,
            Endpoints::Down(upstream, _) => &upstream.stream,
        }
    }

    /// Sends what the sink takes of `bytes`, and counts it.
    fn poll_send(
        self,
        cx: &Context<'_>,
        bytes: &[u8],
        context: &WorkerContext,
        flow: Key,
    ) -> Poll<io::Result<usize>> {
        let send = |socket: &sys::socket::Socket| {
            let mut meter = context.meter.borrow_mut();
            let mut tally = meter.counters(flow).expect("an exchange's flow is open until the exchange ends");
            let (_, mut sent) = if matches!(self, Endpoints::Up(..)) { tally.up() } else { tally.down() };
            sent.around(bytes.len(), || socket.send(bytes))
        };
        match self {
            Endpoints::Up(_, upstream) => upstream.poll_write(cx, bytes.len(), send),
            Endpoints::Down(_, client) => client.poll_write(cx, bytes.len(), send),
        }
    }

    /// Counts what was received.
    pub(crate) fn received(self, count: usize, context: &WorkerContext, flow: Key) {
        let mut meter = context.meter.borrow_mut();
        let mut tally = meter.counters(flow).expect("an exchange's flow is open until the exchange ends");
        let (mut received, _) = if matches!(self, Endpoints::Up(..)) { tally.up() } else { tally.down() };
        received.add(count);
    }
}

impl Transfer {
    /// A transfer of `body`, ahead of which `first` goes.
    pub(crate) fn new(first: Vec<u8>, body: Body) -> Transfer {
        Transfer { body, pending: first, written: 0 }
    }

    /// What waits to be written.
    pub(crate) fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Memory of what waits to be written.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending.capacity() as u64
    }

    /// Begins again from the first byte: nothing of it has had an effect.
    pub(crate) fn rewind(&mut self) {
        self.written = 0;
    }

    /// Whether nothing more is to be read for it.
    pub(crate) fn is_fully_read(&self) -> bool {
        self.body.is_complete()
    }

    /// Whether everything was written, and nothing more is to come.
    pub(crate) fn is_complete(&self) -> bool {
        self.body.is_complete() && self.is_flushed()
    }

    /// Whether it goes on with what its source sends next.
    pub(crate) fn awaits_source(&self) -> bool {
        self.is_flushed() && !self.is_fully_read()
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.written == self.pending.len()
    }

    /// Lets `body` follow what has come so far.
    pub(crate) fn follow(&mut self, body: Body) {
        self.body = body;
    }

    /// Takes of `bytes`, which have been read already, what belongs to the body; returns how many.
    pub(crate) fn feed(&mut self, bytes: &mut [u8]) -> Result<usize, BodyError> {
        let taken = self.body.take(bytes)?;
        self.pending.extend_from_slice(&bytes[..taken.kept]);
        self.append_tail();
        Ok(taken.taken)
    }

    fn append_tail(&mut self) {
        if self.body.is_complete() {
            self.pending.append(&mut self.body.take_tail());
        }
    }

    /// Writes what waits.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &Context<'_>,
        lane: Endpoints<'_>,
        context: &WorkerContext,
        flow: Key,
    ) -> Poll<Result<(), Failure>> {
        while !self.is_flushed() {
            let sent = ready!(lane.poll_send(cx, &self.pending[self.written..], context, flow));
            self.written += sent.map_err(|_| Failure::Sink)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Forgets what was written.
    fn forget_written(&mut self) {
        assert!(self.is_flushed(), "only what was written is forgotten");
        self.pending = Vec::new();
        self.written = 0;
    }

    /// Passes the body on, up to `budget` bytes. What was read behind its end goes to `surplus`.
    pub(crate) fn poll(
        &mut self,
        cx: &Context<'_>,
        (lane, context, flow): (Endpoints<'_>, &WorkerContext, Key),
        budget: &mut usize,
        surplus: &mut dyn FnMut(&[u8]),
    ) -> Poll<Result<(), Failure>> {
        loop {
            ready!(self.poll_flush(cx, lane, context, flow))?;
            if self.body.is_complete() {
                return Poll::Ready(Ok(()));
            }
            self.forget_written();
            if *budget == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let scratch = &mut *context.scratch.borrow_mut();
            let most = match lane {
                // What is read behind the body waits where the next request is read into.
                Endpoints::Up(..) if self.body.is_chunked() => CLIENT_BUFFER_BYTES_MAX,
                _ => scratch.len(),
            };
            let room = self.body.room(most.min(context.stats.read_bytes_max()));
            let read = ready!(lane.source().poll_read_slice(cx, &mut scratch[..room]));
            let read = read.map_err(|_| Failure::Source)?;
            if read == 0 {
                self.body.end().map_err(|_| Failure::Source)?;
                continue;
            }
            *budget = budget.saturating_sub(read);
            let taken = self.body.take(&mut scratch[..read]).map_err(Failure::Body)?;
            lane.received(taken.taken, context, flow);
            surplus(&scratch[taken.taken..read]);
            self.forward(cx, (lane, context, flow), &scratch[..taken.kept])?;
            self.append_tail();
        }
    }

    /// Writes `bytes`, and keeps what the sink does not take.
    fn forward(
        &mut self,
        cx: &Context<'_>,
        (lane, context, flow): (Endpoints<'_>, &WorkerContext, Key),
        bytes: &[u8],
    ) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        let sent = match lane.poll_send(cx, bytes, context, flow) {
            Poll::Ready(sent) => sent.map_err(|_| Failure::Sink)?,
            Poll::Pending => 0,
        };
        self.pending.extend_from_slice(&bytes[sent..]);
        Ok(())
    }
}
