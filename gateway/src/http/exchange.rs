//! One request on its way to the destination, and its response on the way back.
//!
//! Guarantees: both directions move at once, each with its backpressure and within the budget of a pass; a
//! response is forwarded once its head is parsed and tells where the body ends; a failure before the response
//! becomes a denial, a later one a reset; a repeatable request is sent once more if its kept connection was
//! closing.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use engine::deadline::within;
use ledger::record::{CloseReason, Legs};
use proto::http_forward::{
    Body, BodyError, Framing, RequestTraits, ResponseHeaders, ResponseKind, write_response,
};
use proto::http_head::{HeadScanner, HeaderStorage, ResponseError, ResponseHead, Version};
use sys::clock::Nanos;
use sys::epoll::StreamEnd;
use sys::socket::SpeaksFirst;
use zeroize::Zeroize;

use super::request::PendingRequest;
use super::transfer::{Endpoints, Failure, Transfer};
use super::upstream::Upstream;
use crate::client::Client;
use crate::context::Phase;
use crate::denial::Denial;
use crate::dial::dial_one;
use crate::flow::guard::FlowGuard;
use crate::flow::progress::{Age, Deadlines, Progress, SocketQueues, Verdict};
use crate::limits::{INTERIMS_MAX, PASS_BYTES_MAX};

/// Bytes that the gateway adds to a response's head.
const ADDED_HEAD_BYTES: usize = 128;

/// How an exchange ended.
pub(crate) enum Outcome {
    /// The response was forwarded, whole.
    Answered {
        /// The client can tell where the response ends, and the connection may serve another request.
        client_may_go_on: bool,
        /// The client has not sent all of its request.
        client_is_sending: bool,
        /// The destination can serve another request.
        upstream_lives_on: bool,
    },
    /// The response was 101: both peers change protocols.
    Upgraded {
        /// What the destination sent behind its response.
        rest: Vec<u8>,
    },
    /// No response was forwarded, and the client can be sent a denial.
    Unanswered {
        reason: CloseReason,
        denial: Box<Denial>,
        /// Whether the request was read to its end.
        sent_whole: bool,
    },
    /// A quota ended within the response. The client can tell that its rest is missing if the connection ends
    /// in order.
    Exhausted,
    /// It failed where no denial can be sent.
    Broken(CloseReason),
}

/// A request and its response, both in motion.
pub(crate) struct Exchange<'s> {
    client: &'s mut Client,
    flow: &'s FlowGuard,
    upstream: &'s mut Upstream,
    traits: RequestTraits,
    up: Transfer,
    /// The destination accepts no more bytes.
    up_failed: bool,
    down: Transfer,
    response: ResponseState,
    /// The counts that the statistics have.
    reported: Legs,
    /// The bytes for slow receivers that the statistics have.
    reported_pending: u64,
    progress: Progress,
    /// When the deadlines are to be checked next.
    check_at: Nanos,
    /// Whether the client has shut its direction down.
    is_half_closed: bool,
    /// Whether it ended in order. If not, both connections are reset, so that truncation is detectable.
    is_over: bool,
}

/// The state of the response.
enum ResponseState {
    /// The head is awaited; a part of it may have arrived.
    AwaitHead { bytes: Vec<u8>, scanner: HeadScanner, interims: u8 },
    /// The body is forwarded.
    Body { client_may_go_on: bool, upstream_lives_on: bool },
    /// It was 101.
    Upgraded { rest: Vec<u8> },
}

impl ResponseState {
    fn first() -> ResponseState {
        ResponseState::AwaitHead { bytes: Vec::new(), scanner: HeadScanner::default(), interims: 0 }
    }
}

/// How a poll ended.
enum PollOutcome {
    /// The response was forwarded.
    Done,
    /// No byte can move now, and the client has shut its direction down.
    HalfClosed,
}

/// Why an exchange stopped.
enum ExchangeError {
    /// The client's connection failed, or ended within the request.
    Client,
    /// The client's bytes are no valid body.
    ClientBody(BodyError),
    /// The destination's connection failed, or ended within the response.
    Upstream,
    /// The response cannot be forwarded.
    Response(ResponseError),
    /// The destination's bytes are no valid body.
    ResponseBody(BodyError),
    /// The user was removed or disabled.
    Revoked,
    /// A quota of the user or of a team is spent.
    Exhausted,
    /// No byte moved for too long, or the exchange took too long.
    Late(CloseReason),
}

impl<'s> Exchange<'s> {
    /// The exchange of `request`, whose head was consumed from the client's input, with `upstream`.
    pub(crate) fn new(
        client: &'s mut Client,
        request: PendingRequest,
        flow: &'s FlowGuard,
        upstream: &'s mut Upstream,
    ) -> Exchange<'s> {
        let now = client.context.reactor.now();
        let PendingRequest { traits, body, keeps_trailers, head, received, .. } = request;
        let mut exchange = Exchange {
            client,
            flow,
            upstream,
            traits,
            up: Transfer::new(head, with_trailers(Body::new(body), keeps_trailers)),
            up_failed: false,
            down: Transfer::new(Vec::new(), Body::new(Framing::None)),
            response: ResponseState::first(),
            reported: Legs::default(),
            reported_pending: 0,
            progress: Progress::begin(now),
            check_at: Nanos::NEVER,
            is_half_closed: false,
            is_over: false,
        };
        exchange.check_at = exchange.next_check();
        exchange.endpoints_up().received(received, &exchange.client.context, flow.key());
        exchange
    }

    /// Runs to the end.
    pub(crate) async fn run(&mut self) -> Outcome {
        if let Err(error) = self.take_unread() {
            self.report_counts();
            return self.stop(error);
        }
        loop {
            let error = match self.step().await {
                Ok(()) => return self.finish(),
                Err(error) => error,
            };
            let may_repeat = matches!(error, ExchangeError::Upstream) && self.may_repeat();
            if may_repeat && self.connect_again().await.is_ok() {
                continue;
            }
            return self.stop(error);
        }
    }

    /// Moves bytes until the response is complete or an error stops it.
    async fn step(&mut self) -> Result<(), ExchangeError> {
        let reactor = Rc::clone(&self.client.context.reactor);
        loop {
            // Progress moves the deadline, but the timer is re-armed only when it fires.
            match within(&reactor, self.check_at, poll_fn(|cx| self.poll(cx))).await {
                Ok(Ok(PollOutcome::Done)) => return Ok(()),
                Ok(Ok(PollOutcome::HalfClosed)) => {
                    self.progress.restart(reactor.now());
                    self.check_at = self.next_check();
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => self.check_deadlines()?,
            }
        }
    }

    /// Checks the idle and lifetime deadlines.
    fn check_deadlines(&mut self) -> Result<(), ExchangeError> {
        let (age, legs) = (self.age(), self.legs());
        let deadlines = Deadlines::from(&self.client.snapshot().config.timeouts);
        let (client, upstream) = (self.client.stream.socket(), self.upstream.stream.socket());
        let queues = || SocketQueues::read(client, upstream, &legs);
        let has_arrived = || {
            self.up.awaits_source() && client.has_arrived()
                || self.down.is_flushed() && upstream.has_arrived()
        };
        match deadlines.judge(&mut self.progress, age, queues, has_arrived) {
            Verdict::CheckAt(at) => {
                self.check_at = at;
                Ok(())
            }
            Verdict::Over(reason) => Err(ExchangeError::Late(reason)),
        }
    }

    fn next_check(&self) -> Nanos {
        let deadlines = Deadlines::from(&self.client.snapshot().config.timeouts);
        deadlines.next_check(&self.progress, self.age())
    }

    fn age(&self) -> Age {
        let context = &self.client.context;
        let opened = context.meter.borrow().opened(self.flow.key());
        Age { opened, is_half_closed: self.is_half_closed, now: context.reactor.now() }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<PollOutcome, ExchangeError>> {
        let polled = self.poll_both(cx);
        self.report_counts();
        polled
    }

    /// Reports new counts to the statistics and the ledger.
    fn report_counts(&mut self) {
        let counted = self.legs();
        if counted != self.reported {
            let context = &self.client.context;
            self.progress.moved(context.reactor.now());
            context.stats.bytes.add(&self.reported, &counted);
            context.meter.borrow_mut().counted(self.flow.key());
            self.reported = counted;
        }
        self.report_pending(self.up.pending_bytes() + self.down.pending_bytes());
    }

    /// Reports the memory that waits for slow receivers.
    fn report_pending(&mut self, pending_bytes: u64) {
        let before = std::mem::replace(&mut self.reported_pending, pending_bytes);
        let counter = &self.client.context.stats.pending_bytes;
        counter.sub(before);
        counter.add(pending_bytes);
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<Result<PollOutcome, ExchangeError>> {
        if self.upstream.key.is_revoked() {
            return Poll::Ready(Err(ExchangeError::Revoked));
        }
        let mut budget = PASS_BYTES_MAX;
        self.poll_up(cx, &mut budget)?;
        budget = budget.max(PASS_BYTES_MAX / 2);
        if let Poll::Ready(down) = self.poll_down(cx, &mut budget) {
            return Poll::Ready(down.map(|()| PollOutcome::Done));
        }
        // While nothing is read from the client, only epoll reports its end or failure.
        let watched = self.client.stream.watch(cx);
        match self.client.stream.readiness().end {
            StreamEnd::Broken => Poll::Ready(Err(ExchangeError::Client)),
            _ if watched.is_err() => Poll::Ready(Err(ExchangeError::Client)),
            StreamEnd::Ended if !self.is_half_closed => {
                self.is_half_closed = true;
                Poll::Ready(Ok(PollOutcome::HalfClosed))
            }
            _ => Poll::Pending,
        }
    }

    /// Sends the request. A destination that accepts no more may still have responded: many servers send 413
    /// and reset the rest of an upload.
    fn poll_up(&mut self, cx: &mut Context<'_>, budget: &mut usize) -> Result<(), ExchangeError> {
        if self.up_failed || self.up.is_complete() {
            return Ok(());
        }
        let Exchange { client, flow, upstream, up, .. } = self;
        let mut surplus = Vec::new();
        let endpoints = (Endpoints::Up(&client.stream, upstream), &*client.context, flow.key());
        let polled = up.poll(cx, endpoints, budget, &mut |bytes| surplus.extend_from_slice(bytes));
        if !surplus.is_empty() {
            client.input.replace(&surplus);
            surplus.zeroize();
        }
        match polled {
            Poll::Ready(Err(Failure::Source)) => Err(ExchangeError::Client),
            Poll::Ready(Err(Failure::Body(error))) => Err(ExchangeError::ClientBody(error)),
            Poll::Ready(Err(Failure::Exhausted)) => Err(ExchangeError::Exhausted),
            Poll::Ready(Err(Failure::Sink)) => {
                self.up_failed = true;
                Ok(())
            }
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// Forwards the body bytes that were read with the head. Nothing is sent without credit for all of it.
    fn take_unread(&mut self) -> Result<(), ExchangeError> {
        let taken = self.up.feed(self.client.input.unread_mut()).map_err(ExchangeError::ClientBody)?;
        self.client.input.consume(taken);
        self.endpoints_up().received(taken, &self.client.context, self.flow.key());
        let bytes = self.up.pending().len();
        self.charge_up(bytes)
    }

    /// Charges bytes that are about to be sent to the destination.
    fn charge_up(&mut self, bytes: usize) -> Result<(), ExchangeError> {
        let is_charged = self.endpoints_up().charge(bytes, &self.client.context, self.flow.key());
        is_charged.then_some(()).ok_or(ExchangeError::Exhausted)
    }

    /// Charges the head of `head_bytes`, and the bytes of the body behind it, that wait to be sent to the
    /// client. The head is charged whole, or taken back.
    fn charge_down(&mut self, head_bytes: usize) -> Result<(), ExchangeError> {
        let (context, flow) = (&self.client.context, self.flow.key());
        let endpoints = Endpoints::Down(self.upstream, &self.client.stream);
        let waiting = self.down.waiting();
        if !endpoints.charge(head_bytes, context, flow) {
            self.down.cut(0);
            return Err(ExchangeError::Exhausted);
        }
        let body_bytes = waiting - head_bytes;
        let charged = endpoints.charge_up_to(body_bytes, context, flow);
        if charged < body_bytes {
            self.down.cut(head_bytes + charged);
        }
        Ok(())
    }

    fn poll_down(&mut self, cx: &mut Context<'_>, budget: &mut usize) -> Poll<Result<(), ExchangeError>> {
        loop {
            if matches!(self.response, ResponseState::AwaitHead { .. }) {
                // An interim response is written before the next head is parsed.
                ready!(self.poll_flush_down(cx))?;
                ready!(self.poll_head(cx))?;
                continue;
            }
            if let ResponseState::Upgraded { .. } = self.response {
                return self.poll_flush_down(cx);
            }
            let Exchange { client, flow, upstream, down, .. } = self;
            let mut has_surplus = false;
            let endpoints = (Endpoints::Down(upstream, &client.stream), &*client.context, flow.key());
            let polled = down.poll(cx, endpoints, budget, &mut |bytes| has_surplus |= !bytes.is_empty());
            if let (true, ResponseState::Body { upstream_lives_on, .. }) = (has_surplus, &mut self.response) {
                *upstream_lives_on = false;
            }
            return polled.map_err(|failure| match failure {
                Failure::Source => ExchangeError::Upstream,
                Failure::Body(error) => ExchangeError::ResponseBody(error),
                Failure::Sink => ExchangeError::Client,
                Failure::Exhausted => ExchangeError::Exhausted,
            });
        }
    }

    fn poll_flush_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let Exchange { client, flow, upstream, down, .. } = self;
        let endpoints = Endpoints::Down(upstream, &client.stream);
        down.poll_flush(cx, endpoints, &client.context, flow.key()).map_err(|_| ExchangeError::Client)
    }

    /// Reads until a head is complete, and forwards it.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let ResponseState::AwaitHead { bytes, scanner, .. } = &mut self.response else {
            return Poll::Ready(Ok(()));
        };
        let context = &self.client.context;
        loop {
            let found = scanner
                .find(bytes)
                .map_err(|error| ExchangeError::Response(ResponseError::Head(error.into())))?;
            if let Some(length) = found {
                return Poll::Ready(self.forward_head(length));
            }
            if bytes.capacity() == 0 {
                // Waiting for a response needs no buffer.
                ready!(self.upstream.stream.poll_readable(cx)).map_err(|_| ExchangeError::Upstream)?;
                *bytes = context.write_buffers.take();
            }
            let read =
                ready!(self.upstream.stream.poll_read(cx, bytes)).map_err(|_| ExchangeError::Upstream)?;
            if read == 0 {
                return Poll::Ready(Err(ExchangeError::Upstream));
            }
            Endpoints::Down(self.upstream, &self.client.stream).received(read, context, self.flow.key());
        }
    }

    /// Writes the head of `length` bytes for the client, and the bytes behind it.
    fn forward_head(&mut self, length: usize) -> Result<(), ExchangeError> {
        let ResponseState::AwaitHead { bytes, interims, .. } = &mut self.response else { return Ok(()) };
        let (mut bytes, interims) = (std::mem::take(bytes), *interims);
        let mut storage = HeaderStorage::new();
        let (head_bytes, rest) = bytes.split_at_mut(length);
        let head = ResponseHead::parse(head_bytes, &mut storage).map_err(ExchangeError::Response)?;
        let response_kind = ResponseKind::read(&head, &self.traits).map_err(ExchangeError::Response)?;
        if response_kind != ResponseKind::Interim {
            self.client.context.meter.borrow_mut().set_status(self.flow.key(), head.status);
        }
        if response_kind == ResponseKind::Interim && interims == INTERIMS_MAX {
            return Err(ExchangeError::Response(ResponseError::InterimsTooMany));
        }
        let client_may_go_on = self.client_may_go_on(response_kind);
        let context = &self.client.context;
        let headers = ResponseHeaders { via: &context.via, date: None, closes: !client_may_go_on };
        let (out, traits) = (self.down.pending(), &self.traits);
        let before = out.len();
        out.reserve(length + ADDED_HEAD_BYTES + rest.len());
        if head.has_date() {
            write_response(out, &head, response_kind, traits, headers);
        } else {
            context.date.with(|now| {
                write_response(
                    out,
                    &head,
                    response_kind,
                    traits,
                    ResponseHeaders { date: Some(now), ..headers },
                )
            });
        }
        let head_bytes = out.len() - before;
        self.response = match response_kind {
            ResponseKind::Interim => {
                self.charge_down(head_bytes)?;
                bytes.drain(..length);
                if bytes.is_empty() {
                    self.client.context.write_buffers.put(std::mem::take(&mut bytes));
                }
                ResponseState::AwaitHead { bytes, scanner: HeadScanner::default(), interims: interims + 1 }
            }
            ResponseKind::Upgraded => {
                self.charge_down(head_bytes)?;
                ResponseState::Upgraded { rest: rest.to_vec() }
            }
            ResponseKind::Final { body, keeps_alive } => {
                let body = match self.traits.version {
                    Version::Http11 => Body::new(body),
                    Version::Http10 => Body::dechunked(body),
                };
                let body = with_trailers(body, head.may_forward_trailers());
                self.down.follow(body);
                let taken = self.down.feed(rest).map_err(ExchangeError::ResponseBody)?;
                self.charge_down(head_bytes)?;
                let upstream_lives_on = keeps_alive && taken == rest.len();
                self.client.context.write_buffers.put(bytes);
                ResponseState::Body { client_may_go_on, upstream_lives_on }
            }
        };
        Ok(())
    }

    /// Whether the client can tell where this response ends, and send another request.
    fn client_may_go_on(&self, response_kind: ResponseKind) -> bool {
        let has_end = !response_kind.ends_with_connection(&self.traits);
        // A client that was not sent `100 Continue` may send the body or not: its next bytes are ambiguous.
        let awaits_body = self.traits.expects_continue && !self.up.is_fully_read();
        let is_serving = self.client.context.phase.get() == Phase::Serving;
        self.traits.keeps_alive
            && has_end
            && is_serving
            && (response_kind == ResponseKind::Interim || !awaits_body)
    }

    /// Whether the request may be sent again: the connection was reused, so its close may have crossed the
    /// request, and no byte of a response has arrived (RFC 9112, section 9.3.1).
    fn may_repeat(&self) -> bool {
        let is_unanswered =
            matches!(&self.response, ResponseState::AwaitHead { bytes, interims: 0, .. } if bytes.is_empty());
        self.upstream.is_used() && self.traits.is_repeatable && is_unanswered
    }

    /// Connects to the same address again. The flow goes on: it is the same request.
    async fn connect_again(&mut self) -> Result<(), ()> {
        let address = self.upstream.key.address;
        let dialled =
            dial_one(&self.client.context, address, SpeaksFirst::Us, self.client.connect_deadline());
        let stream = dialled.await.map_err(drop)?;
        // What was sent over the failed connection is sent once more.
        self.charge_up(self.up.written()).map_err(drop)?;
        *self.upstream = self.upstream.reconnected(stream);
        self.up.rewind();
        self.up_failed = false;
        self.response = ResponseState::first();
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        self.is_over = true;
        let sent_whole = self.up.is_complete() && !self.up_failed;
        match std::mem::replace(&mut self.response, ResponseState::first()) {
            ResponseState::Upgraded { rest } => Outcome::Upgraded { rest },
            ResponseState::Body { client_may_go_on, upstream_lives_on } => Outcome::Answered {
                client_may_go_on,
                client_is_sending: !self.up.is_fully_read(),
                upstream_lives_on: upstream_lives_on && sent_whole,
            },
            ResponseState::AwaitHead { .. } => unreachable!("an exchange ends behind a head"),
        }
    }

    fn stop(&mut self, error: ExchangeError) -> Outcome {
        // A partly sent response cannot be replaced by a denial.
        let awaits_head = matches!(self.response, ResponseState::AwaitHead { .. });
        let may_send_denial = self.legs().client_tx == 0 || awaits_head && self.down.is_complete();
        let (reason, denial) = match error {
            ExchangeError::Client => return Outcome::Broken(CloseReason::ClientReset),
            ExchangeError::Revoked => return Outcome::Broken(CloseReason::PolicyChanged),
            ExchangeError::ClientBody(error) => (CloseReason::ClientReset, Denial::body_malformed(error)),
            ExchangeError::Upstream => (CloseReason::UpstreamReset, Denial::no_response()),
            ExchangeError::ResponseBody(error) => {
                (CloseReason::UpstreamReset, Denial::response_body_malformed(error))
            }
            ExchangeError::Response(error) => (CloseReason::UpstreamReset, Denial::response_malformed(error)),
            ExchangeError::Exhausted if may_send_denial || !self.down.body_ends_with_connection() => {
                return self.stop_exhausted(may_send_denial);
            }
            // A client that takes the end of the connection for that of the body must see a reset.
            ExchangeError::Exhausted => return Outcome::Broken(CloseReason::QuotaExhausted),
            ExchangeError::Late(reason) if self.up.is_fully_read() => (reason, Denial::response_timeout()),
            ExchangeError::Late(reason) => (reason, Denial::greeting_timeout()),
        };
        if !may_send_denial {
            return Outcome::Broken(reason);
        }
        self.upstream.stream.socket().reset_on_close();
        self.is_over = true;
        Outcome::Unanswered { reason, denial: Box::new(denial), sent_whole: self.up.is_fully_read() }
    }

    /// Ends for lack of credit. Both connections end in order: what was read is delivered.
    fn stop_exhausted(&mut self, may_send_denial: bool) -> Outcome {
        self.is_over = true;
        if !may_send_denial {
            return Outcome::Exhausted;
        }
        let denial = {
            let mut meter = self.client.context.meter.borrow_mut();
            let credit = meter.credit(self.flow.key());
            let quota = credit.and_then(|(credit, now)| Some((credit.spent_quota()?, now.wall)));
            quota.map_or_else(Denial::quota_busy, |(quota, now)| Denial::quota(quota, now))
        };
        let sent_whole = self.up.is_fully_read();
        Outcome::Unanswered { reason: CloseReason::QuotaExhausted, denial: Box::new(denial), sent_whole }
    }

    /// The counts of the request so far.
    pub(crate) fn legs(&self) -> Legs {
        self.client.context.meter.borrow_mut().request_legs(self.flow.key())
    }

    fn endpoints_up(&self) -> Endpoints<'_> {
        Endpoints::Up(&self.client.stream, self.upstream)
    }
}

fn with_trailers(body: Body, keeps_trailers: bool) -> Body {
    if keeps_trailers { body } else { body.without_trailers() }
}

impl Drop for Exchange<'_> {
    /// Also after a panic: neither peer may take a part for the whole.
    fn drop(&mut self) {
        self.report_pending(0);
        if !self.is_over {
            self.client.stream.socket().reset_on_close();
            self.upstream.stream.socket().reset_on_close();
        }
    }
}
