//! One direction of an exchange: a body that is forwarded as it arrives, and the bytes that wait to be
//! written.
//!
//! Guarantees: nothing is read while bytes wait to be written, so that a slow receiver stops its sender; sent
//! bytes are counted as the call returned them; no buffer is held while nothing moves.

use std::io;
use std::task::{Context, Poll, ready};

use engine::net::TcpStream;
use engine::reactor::WakeTarget;
use engine::slab::Key;
use proto::http_forward::{Body, BodyError, Consumed};
use sys::clock::Nanos;
use zeroize::Zeroize;

use super::upstream::Upstream;
use crate::context::WorkerContext;
use crate::credit::{CreditTime, DirectionCredit, Grant};
use crate::limits::CLIENT_BUFFER_BYTES_MAX;

/// Which end of a transfer failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It failed, or ended before the body did.
    Source,
    /// Its bytes are no valid body.
    Body(BodyError),
    /// Its connection failed.
    Sink,
    /// A quota is spent, and all that was read is written.
    Exhausted,
}

/// The source and the sink.
#[derive(Clone, Copy)]
pub(crate) enum Endpoints<'l> {
    /// Client to destination.
    Up(&'l TcpStream, &'l Upstream),
    /// Destination to client.
    Down(&'l Upstream, &'l TcpStream),
}

/// A body on its way, behind a head.
pub(crate) struct Transfer {
    body: Body,
    pending: Vec<u8>,
    /// 0 <= written <= pending.len()
    written: usize,
    /// Nothing is read before, for lack of credit.
    waits_until: Nanos,
    /// A quota is spent: nothing more is read.
    is_exhausted: bool,
}

impl<'l> Endpoints<'l> {
    fn source(self) -> &'l TcpStream {
        match self {
            Endpoints::Up(client, _) => client,
            Endpoints::Down(upstream, _) => &upstream.stream,
        }
    }

    /// Sends as much of `bytes` as the sink accepts, and counts it.
    fn poll_send(
        self,
        cx: &Context<'_>,
        bytes: &[u8],
        context: &WorkerContext,
        flow: Key,
    ) -> Poll<io::Result<usize>> {
        let send = |socket: &sys::socket::Socket| {
            let mut meter = context.meter.borrow_mut();
            let mut counters =
                meter.counters(flow).expect("an exchange's flow is open until the exchange ends");
            let (_, mut sent) =
                if matches!(self, Endpoints::Up(..)) { counters.up() } else { counters.down() };
            sent.around(bytes.len(), || socket.send(bytes))
        };
        match self {
            Endpoints::Up(_, upstream) => upstream.poll_write(cx, bytes.len(), send),
            Endpoints::Down(_, client) => client.poll_write(cx, bytes.len(), send),
        }
    }

    /// What `use_credit` returns of the direction's credit; `None` if nothing limits it.
    fn with_credit<T>(
        self,
        context: &WorkerContext,
        flow: Key,
        use_credit: impl FnOnce(&mut DirectionCredit, CreditTime) -> T,
    ) -> Option<T> {
        let mut meter = context.meter.borrow_mut();
        let (credit, time) = meter.credit(flow)?;
        let direction = if matches!(self, Endpoints::Up(..)) { &mut credit.up } else { &mut credit.down };
        (!direction.is_unlimited()).then(|| use_credit(direction, time))
    }

    /// Charges bytes that were read outside of a body's transfer; returns how many of them may be sent.
    pub(crate) fn charge_up_to(self, bytes: usize, context: &WorkerContext, flow: Key) -> usize {
        let charge = |credit: &mut DirectionCredit, time| credit.charge_up_to(bytes as u64, time) as usize;
        self.with_credit(context, flow, charge).unwrap_or(bytes)
    }

    /// The same for all of the bytes or none; returns whether they may be sent.
    pub(crate) fn charge(self, bytes: usize, context: &WorkerContext, flow: Key) -> bool {
        let charge = |credit: &mut DirectionCredit, time| credit.charge(bytes as u64, time);
        self.with_credit(context, flow, charge).unwrap_or(true)
    }

    /// Counts received bytes.
    pub(crate) fn received(self, count: usize, context: &WorkerContext, flow: Key) {
        let mut meter = context.meter.borrow_mut();
        let mut counters = meter.counters(flow).expect("an exchange's flow is open until the exchange ends");
        let (mut received, _) =
            if matches!(self, Endpoints::Up(..)) { counters.up() } else { counters.down() };
        received.add(count);
    }
}

impl Transfer {
    /// A transfer of `first`, followed by `body`.
    pub(crate) fn new(first: Vec<u8>, body: Body) -> Transfer {
        Transfer { body, pending: first, written: 0, waits_until: Nanos(0), is_exhausted: false }
    }

    /// The bytes that wait to be written.
    pub(crate) fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// The memory of the bytes that wait to be written.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending.capacity() as u64
    }

    /// Restarts from the first byte; only while no byte had an effect.
    pub(crate) fn rewind(&mut self) {
        self.written = 0;
    }

    /// Whether the body is read to its end.
    pub(crate) fn is_fully_read(&self) -> bool {
        self.body.is_complete()
    }

    /// Whether the body is read to its end, and written.
    pub(crate) fn is_complete(&self) -> bool {
        self.body.is_complete() && self.is_flushed()
    }

    /// Whether its next step is a read.
    pub(crate) fn awaits_source(&self) -> bool {
        self.is_flushed() && !self.is_fully_read()
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.written == self.pending.len()
    }

    /// Written bytes that are still held.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Bytes that wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len() - self.written
    }

    /// Whether the end of the body is that of its connection.
    pub(crate) fn body_ends_with_connection(&self) -> bool {
        self.body.ends_with_connection()
    }

    /// Drops what waits to be written beyond `bytes` of it, and reads nothing more: a quota is spent.
    pub(crate) fn cut(&mut self, bytes: usize) {
        self.pending.truncate(self.written + bytes);
        self.is_exhausted = true;
    }

    /// Continues with `body`.
    pub(crate) fn follow(&mut self, body: Body) {
        self.body = body;
    }

    /// Takes the body's part of `bytes`, which were read before; returns its length.
    pub(crate) fn feed(&mut self, bytes: &mut [u8]) -> Result<usize, BodyError> {
        let taken = self.body.consume(bytes)?;
        self.pending.extend_from_slice(&bytes[..taken.forwarded]);
        self.append_trailers();
        Ok(taken.consumed)
    }

    fn append_trailers(&mut self) {
        if self.body.is_complete() {
            self.pending.append(&mut self.body.take_trailers());
        }
    }

    /// Writes the waiting bytes.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &Context<'_>,
        endpoints: Endpoints<'_>,
        context: &WorkerContext,
        flow: Key,
    ) -> Poll<Result<(), Failure>> {
        while !self.is_flushed() {
            let sent = ready!(endpoints.poll_send(cx, &self.pending[self.written..], context, flow));
            self.written += sent.map_err(|_| Failure::Sink)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Frees the written bytes.
    fn free_written(&mut self) {
        assert!(self.is_flushed(), "only what was written is forgotten");
        self.pending = Vec::new();
        self.written = 0;
    }

    /// Forwards up to `budget` bytes of the body. Bytes behind its end go to `surplus`.
    pub(crate) fn poll(
        &mut self,
        cx: &Context<'_>,
        (endpoints, context, flow): (Endpoints<'_>, &WorkerContext, Key),
        budget: &mut usize,
        surplus: &mut dyn FnMut(&[u8]),
    ) -> Poll<Result<(), Failure>> {
        loop {
            ready!(self.poll_flush(cx, endpoints, context, flow))?;
            if self.is_exhausted {
                return Poll::Ready(Err(Failure::Exhausted));
            }
            if self.body.is_complete() {
                return Poll::Ready(Ok(()));
            }
            self.free_written();
            if *budget == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let scratch = &mut *context.scratch.borrow_mut();
            let read_max = match endpoints {
                // Bytes behind the body go to the client's read buffer, which bounds this read.
                Endpoints::Up(..) if self.body.is_chunked() => CLIENT_BUFFER_BYTES_MAX,
                _ => scratch.len(),
            };
            let limit = self.body.read_limit(read_max.min(context.stats.read_bytes_max()));
            let Some(limit) = self.reserve(cx, (endpoints, context, flow), limit) else {
                if self.is_exhausted {
                    continue;
                }
                return Poll::Pending;
            };
            let read = endpoints.source().poll_read_slice(cx, &mut scratch[..limit]);
            let taken = match &read {
                Poll::Ready(Ok(read @ 1..)) => self.body.consume(&mut scratch[..*read]),
                _ => Ok(Consumed::default()),
            };
            let forwarded = taken.as_ref().map_or(0, |taken| taken.forwarded);
            endpoints.with_credit(context, flow, |credit, _| {
                credit.settle(forwarded as u64);
                if read.is_pending() {
                    credit.release_admitted();
                }
            });
            let read = ready!(read).map_err(|_| Failure::Source)?;
            if read == 0 {
                self.body.end().map_err(|_| Failure::Source)?;
                continue;
            }
            *budget = budget.saturating_sub(read);
            let taken = taken.map_err(Failure::Body)?;
            endpoints.received(taken.consumed, context, flow);
            surplus(&scratch[taken.consumed..read]);
            // The next request's head: it may hold a password.
            scratch[taken.consumed..read].zeroize();
            self.forward(cx, (endpoints, context, flow), &scratch[..taken.forwarded])?;
            self.append_charged_trailers(endpoints, context, flow);
        }
    }

    /// Reserves credit for a read of up to `bytes`; `None` if there is none before a wake, or no more.
    fn reserve(
        &mut self,
        cx: &Context<'_>,
        (endpoints, context, flow): (Endpoints<'_>, &WorkerContext, Key),
        bytes: usize,
    ) -> Option<usize> {
        if self.waits_until > context.reactor.now() {
            return None;
        }
        let reserve = |credit: &mut DirectionCredit, time| credit.reserve(bytes as u64, time);
        match endpoints.with_credit(context, flow, reserve) {
            None => Some(bytes),
            Some(Grant::Bytes(granted)) => Some(granted as usize),
            Some(Grant::Wait(until)) => {
                self.waits_until = until;
                context.reactor.arm(until, WakeTarget::Task(cx.waker().clone()));
                None
            }
            Some(Grant::Exhausted) => {
                self.is_exhausted = true;
                None
            }
        }
    }

    /// Appends the trailers of a body that ends, as far as there is credit.
    fn append_charged_trailers(&mut self, endpoints: Endpoints<'_>, context: &WorkerContext, flow: Key) {
        let before = self.pending.len() - self.written;
        self.append_trailers();
        let trailers = self.pending.len() - self.written - before;
        let charged = endpoints.charge_up_to(trailers, context, flow);
        if charged < trailers {
            self.cut(before + charged);
        }
    }

    /// Writes `bytes`, and keeps the rest that the sink does not accept.
    fn forward(
        &mut self,
        cx: &Context<'_>,
        (endpoints, context, flow): (Endpoints<'_>, &WorkerContext, Key),
        bytes: &[u8],
    ) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        let sent = match endpoints.poll_send(cx, bytes, context, flow) {
            Poll::Ready(sent) => sent.map_err(|_| Failure::Sink)?,
            Poll::Pending => 0,
        };
        self.pending.extend_from_slice(&bytes[sent..]);
        Ok(())
    }
}
