//! One request on its way to its destination, and the answer on its way back.
//!
//! Promises: both directions move at once, each with its backpressure and within the turn's budget; an
//! answer is passed on once its head was understood, and the head says where the body ends; what breaks
//! before the answer has begun is told to the client, what breaks later ends his connection with a reset;
//! a request that may be repeated is, once, if the connection that it went over was ending. Leaves to
//! others: who may send it (`session`), bodies (`transfer`).

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use engine::timer::within;
use ledger::record::{CloseReason, Legs};
use proto::http_forward::{
    Body, BodyError, Framing, RequestTraits, ResponseHeaders, ResponseKind, write_answer,
};
use proto::http_head::{HeadScanner, HeaderStorage, ResponseError, ResponseHead, Version};
use sys::clock::Nanos;
use sys::epoll::StreamEnd;
use sys::socket::SpeaksFirst;

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

/// Room for what we add to an answer's head.
const ADDED_HEAD_BYTES: usize = 128;

/// What an exchange came to.
pub(crate) enum Outcome {
    /// The answer was passed on, whole.
    Answered {
        /// Whether the client can find the next answer behind this one.
        client_may_go_on: bool,
        /// The client has not sent all of its request.
        client_is_sending: bool,
        /// Whether the destination can be sent another request.
        upstream_lives_on: bool,
    },
    /// The two have agreed to speak something else.
    Upgraded {
        /// What the destination sent behind its answer.
        rest: Vec<u8>,
    },
    /// There is no answer, and the client has to be told.
    Unanswered {
        reason: CloseReason,
        denial: Box<Denial>,
        /// Whether the request was taken from the client's connection to its end.
        sent_whole: bool,
    },
    /// It broke where nobody can be told.
    Broken(CloseReason),
}

/// See the file's header.
pub(crate) struct Exchange<'s> {
    client: &'s mut Client,
    flow: &'s FlowGuard,
    upstream: &'s mut Upstream,
    traits: RequestTraits,
    up: Transfer,
    /// The destination takes no more.
    up_failed: bool,
    down: Transfer,
    response: ResponseState,
    /// What the statistics have been told of.
    reported: Legs,
    /// What the statistics have been told to wait for slow receivers.
    reported_pending: u64,
    progress: Progress,
    /// When the deadlines are to be looked at next.
    check_at: Nanos,
    /// Whether the client has ended its direction.
    is_half_closed: bool,
    /// Whether it has come to an end in order: if not, neither side may take what it got for whole.
    is_over: bool,
}

/// How far the answer has come.
enum ResponseState {
    /// Its head is awaited; some of it may be there.
    AwaitHead { bytes: Vec<u8>, scanner: HeadScanner, interims: u8 },
    /// Its body follows.
    Body { client_may_go_on: bool, upstream_lives_on: bool },
    /// It was 101.
    Upgraded { rest: Vec<u8> },
}

impl ResponseState {
    fn first() -> ResponseState {
        ResponseState::AwaitHead { bytes: Vec::new(), scanner: HeadScanner::default(), interims: 0 }
    }
}

/// What a turn came to.
enum PollOutcome {
    /// The answer was passed on.
    Done,
    /// Nothing is left to do for now, and the client has ended its direction.
    HalfClosed,
}

/// Why an exchange stops.
enum ExchangeError {
    /// The client's connection failed, or it ended within its request.
    Client,
    /// What the client sends is no body.
    ClientBody(BodyError),
    /// The destination's connection failed, or it ended within its answer.
    Upstream,
    /// The answer cannot be passed on.
    Answer(ResponseError),
    /// What the destination sends is no body.
    AnswerBody(BodyError),
    /// The user was removed or disabled.
    Revoked,
    /// Nothing moved for too long, or it all took too long.
    Late(CloseReason),
}

impl<'s> Exchange<'s> {
    /// The exchange of what is `wanted`, whose head has been taken from the client's bytes, with `upstream`.
    pub(crate) fn new(
        client: &'s mut Client,
        wanted: PendingRequest,
        flow: &'s FlowGuard,
        upstream: &'s mut Upstream,
    ) -> Exchange<'s> {
        let now = client.context.reactor.now();
        let PendingRequest { traits: asked, body, keeps_trailers, head, received, .. } = wanted;
        let mut exchange = Exchange {
            client,
            flow,
            upstream,
            traits: asked,
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

    /// Runs it to its end.
    pub(crate) async fn run(&mut self) -> Outcome {
        if let Err(stop) = self.take_unread() {
            self.report_counts();
            return self.stop(stop);
        }
        loop {
            let stop = match self.step().await {
                Ok(()) => return self.finish(),
                Err(stop) => stop,
            };
            let may_repeat = matches!(stop, ExchangeError::Upstream) && self.may_repeat();
            if may_repeat && self.connect_again().await.is_ok() {
                continue;
            }
            return self.stop(stop);
        }
    }

    /// Moves bytes until the answer is whole, or something stops it.
    async fn step(&mut self) -> Result<(), ExchangeError> {
        let reactor = Rc::clone(&self.client.context.reactor);
        loop {
            // What moves takes the deadline along, but the timer stays where it is until it comes.
            match within(&reactor, self.check_at, poll_fn(|cx| self.poll(cx))).await {
                Ok(Ok(PollOutcome::Done)) => return Ok(()),
                Ok(Ok(PollOutcome::HalfClosed)) => {
                    self.progress.restart(reactor.now());
                    self.check_at = self.next_check();
                }
                Ok(Err(stop)) => return Err(stop),
                Err(_) => self.check_deadlines()?,
            }
        }
    }

    /// Looks whether it has stood still, or lived, for too long.
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
            Verdict::LookAt(at) => {
                self.check_at = at;
                Ok(())
            }
            Verdict::Over(reason) => Err(ExchangeError::Late(reason)),
        }
    }

    fn next_check(&self) -> Nanos {
        let deadlines = Deadlines::from(&self.client.snapshot().config.timeouts);
        deadlines.next_look(&self.progress, self.age())
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

    /// Tells the statistics and the ledger of what was counted since it did so last.
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

    /// Tells the statistics how much memory waits for slow receivers.
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
        // Where nothing is read from the client, nobody would see it end or fail.
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

    /// Sends the request on. A destination that takes no more may have answered all the same: many a server
    /// says 413 and resets the rest of an upload.
    fn poll_up(&mut self, cx: &mut Context<'_>, budget: &mut usize) -> Result<(), ExchangeError> {
        if self.up_failed || self.up.is_complete() {
            return Ok(());
        }
        let Exchange { client, flow, upstream, up, .. } = self;
        let mut surplus = Vec::new();
        let lane = (Endpoints::Up(&client.stream, upstream), &*client.context, flow.key());
        let polled = up.poll(cx, lane, budget, &mut |bytes| surplus.extend_from_slice(bytes));
        if !surplus.is_empty() {
            client.input.replace(&surplus);
        }
        match polled {
            Poll::Ready(Err(Failure::Source)) => Err(ExchangeError::Client),
            Poll::Ready(Err(Failure::Body(error))) => Err(ExchangeError::ClientBody(error)),
            Poll::Ready(Err(Failure::Sink)) => {
                self.up_failed = true;
                Ok(())
            }
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// Lets what was read together with the head go with it.
    fn take_unread(&mut self) -> Result<(), ExchangeError> {
        let taken = self.up.feed(self.client.input.unread_mut()).map_err(ExchangeError::ClientBody)?;
        self.client.input.consume(taken);
        self.endpoints_up().received(taken, &self.client.context, self.flow.key());
        Ok(())
    }

    fn poll_down(&mut self, cx: &mut Context<'_>, budget: &mut usize) -> Poll<Result<(), ExchangeError>> {
        loop {
            if matches!(self.response, ResponseState::AwaitHead { .. }) {
                // An interim answer goes before the next head is looked for.
                ready!(self.poll_flush_down(cx))?;
                ready!(self.poll_head(cx))?;
                continue;
            }
            if let ResponseState::Upgraded { .. } = self.response {
                return self.poll_flush_down(cx);
            }
            let Exchange { client, flow, upstream, down, .. } = self;
            let mut has_surplus = false;
            let lane = (Endpoints::Down(upstream, &client.stream), &*client.context, flow.key());
            let polled = down.poll(cx, lane, budget, &mut |bytes| has_surplus |= !bytes.is_empty());
            if let (true, ResponseState::Body { upstream_lives_on, .. }) = (has_surplus, &mut self.response) {
                *upstream_lives_on = false;
            }
            return polled.map_err(|failure| match failure {
                Failure::Source => ExchangeError::Upstream,
                Failure::Body(error) => ExchangeError::AnswerBody(error),
                Failure::Sink => ExchangeError::Client,
            });
        }
    }

    fn poll_flush_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let Exchange { client, flow, upstream, down, .. } = self;
        let lane = Endpoints::Down(upstream, &client.stream);
        down.poll_flush(cx, lane, &client.context, flow.key()).map_err(|_| ExchangeError::Client)
    }

    /// Reads on until a head is whole, and passes it on.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let ResponseState::AwaitHead { bytes, scanner, .. } = &mut self.response else {
            return Poll::Ready(Ok(()));
        };
        let context = &self.client.context;
        loop {
            let found = scanner
                .find(bytes)
                .map_err(|error| ExchangeError::Answer(ResponseError::Head(error.into())))?;
            if let Some(length) = found {
                return Poll::Ready(self.forward_head(length));
            }
            if bytes.capacity() == 0 {
                // Waiting for an answer needs no buffer.
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

    /// Writes the head of `length` bytes anew for the client, with what came behind it.
    fn forward_head(&mut self, length: usize) -> Result<(), ExchangeError> {
        let ResponseState::AwaitHead { bytes, interims, .. } = &mut self.response else { return Ok(()) };
        let (mut bytes, interims) = (std::mem::take(bytes), *interims);
        let mut room = HeaderStorage::new();
        let (head_bytes, rest) = bytes.split_at_mut(length);
        let head = ResponseHead::parse(head_bytes, &mut room).map_err(ExchangeError::Answer)?;
        let answer = ResponseKind::read(&head, &self.traits).map_err(ExchangeError::Answer)?;
        if answer != ResponseKind::Interim {
            self.client.context.meter.borrow_mut().set_status(self.flow.key(), head.status);
        }
        if answer == ResponseKind::Interim && interims == INTERIMS_MAX {
            return Err(ExchangeError::Answer(ResponseError::InterimsTooMany));
        }
        let may_go_on = self.client_may_go_on(answer);
        let context = &self.client.context;
        let ours = ResponseHeaders { via: &context.via, date: None, closes: !may_go_on };
        let (out, asked) = (self.down.pending(), &self.traits);
        out.reserve(length + ADDED_HEAD_BYTES + rest.len());
        if head.is_dated() {
            write_answer(out, &head, answer, asked, ours);
        } else {
            context.date.with(|now| {
                write_answer(out, &head, answer, asked, ResponseHeaders { date: Some(now), ..ours })
            });
        }
        self.response = match answer {
            ResponseKind::Interim => {
                bytes.drain(..length);
                if bytes.is_empty() {
                    context.write_buffers.put(std::mem::take(&mut bytes));
                }
                ResponseState::AwaitHead { bytes, scanner: HeadScanner::default(), interims: interims + 1 }
            }
            ResponseKind::Upgraded => ResponseState::Upgraded { rest: rest.to_vec() },
            ResponseKind::Final { body, keeps_alive } => {
                let followed = match self.traits.version {
                    Version::Http11 => Body::new(body),
                    Version::Http10 => Body::unwrapped(body),
                };
                let followed = with_trailers(followed, head.keeps_trailers());
                self.down.follow(followed);
                let taken = self.down.feed(rest).map_err(ExchangeError::AnswerBody)?;
                let upstream_lives_on = keeps_alive && taken == rest.len();
                self.client.context.write_buffers.put(bytes);
                ResponseState::Body { client_may_go_on: may_go_on, upstream_lives_on }
            }
        };
        Ok(())
    }

    /// Whether the client could find another answer behind this one.
    fn client_may_go_on(&self, answer: ResponseKind) -> bool {
        let has_end = !answer.ends_with_connection(&self.traits);
        // Who was not told to go on may send the body or not: what he sends next could be either.
        let awaits_body = self.traits.expects_continue && !self.up.is_fully_read();
        let is_serving = self.client.context.phase.get() == Phase::Serving;
        self.traits.keeps_alive && has_end && is_serving && (answer == ResponseKind::Interim || !awaits_body)
    }

    /// Whether the request may be sent again: the connection had served before, so its end may have crossed
    /// our request, and nothing of an answer has come (RFC 9112, section 9.3.1).
    fn may_repeat(&self) -> bool {
        let is_unanswered =
            matches!(&self.response, ResponseState::AwaitHead { bytes, interims: 0, .. } if bytes.is_empty());
        self.upstream.is_used() && self.traits.is_repeatable && is_unanswered
    }

    /// Connects to the same address anew. The flow goes on: it is the same request.
    async fn connect_again(&mut self) -> Result<(), ()> {
        let address = self.upstream.key.address;
        let dialled =
            dial_one(&self.client.context, address, SpeaksFirst::Us, self.client.connect_deadline());
        let stream = dialled.await.map_err(drop)?;
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

    fn stop(&mut self, stop: ExchangeError) -> Outcome {
        // A half-sent interim answer, or more, cannot be taken back.
        let awaits_head = matches!(self.response, ResponseState::AwaitHead { .. });
        let may_be_told = self.legs().client_tx == 0 || awaits_head && self.down.is_complete();
        let (reason, denial) = match stop {
            ExchangeError::Client => return Outcome::Broken(CloseReason::ClientReset),
            ExchangeError::Revoked => return Outcome::Broken(CloseReason::PolicyChanged),
            ExchangeError::ClientBody(error) => (CloseReason::ClientReset, Denial::body_malformed(error)),
            ExchangeError::Upstream => (CloseReason::UpstreamReset, Denial::no_response()),
            ExchangeError::AnswerBody(error) => {
                (CloseReason::UpstreamReset, Denial::response_body_malformed(error))
            }
            ExchangeError::Answer(error) => (CloseReason::UpstreamReset, Denial::response_malformed(error)),
            ExchangeError::Late(reason) if self.up.is_fully_read() => (reason, Denial::response_timeout()),
            ExchangeError::Late(reason) => (reason, Denial::greeting_timeout()),
        };
        if !may_be_told {
            return Outcome::Broken(reason);
        }
        self.upstream.stream.socket().reset_on_close();
        self.is_over = true;
        Outcome::Unanswered { reason, denial: Box::new(denial), sent_whole: self.up.is_fully_read() }
    }

    /// What was counted so far.
    pub(crate) fn legs(&self) -> Legs {
        let mut meter = self.client.context.meter.borrow_mut();
        meter.counters(self.flow.key()).map_or_else(Legs::default, |tally| tally.legs())
    }

    fn endpoints_up(&self) -> Endpoints<'_> {
        Endpoints::Up(&self.client.stream, self.upstream)
    }
}

fn with_trailers(body: Body, keeps_trailers: bool) -> Body {
    if keeps_trailers { body } else { body.without_trailers() }
}

impl Drop for Exchange<'_> {
    /// Whatever ended it early, a fault of ours too: nobody shall take a part for the whole.
    fn drop(&mut self) {
        self.report_pending(0);
        if !self.is_over {
            self.client.stream.socket().reset_on_close();
            self.upstream.stream.socket().reset_on_close();
        }
    }
}
