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
use proto::http_forward::{Answer, Asked, Body, BodyError, Framing, Ours, write_answer};
use proto::http_head::{HeadScanner, ResponseError, ResponseHead, Room, Version};
use sys::clock::Nanos;
use sys::epoll::Tail;
use sys::socket::FirstWord;

use super::held_flow::HeldFlow;
use super::request::Wanted;
use super::transfer::{Failure, Lane, Transfer};
use super::upstream::Upstream;
use crate::client::Client;
use crate::dial::dial_one;
use crate::limits::{INTERIMS_MAX, TURN_BYTES_MAX};
use crate::local::Phase;
use crate::progress::{Age, Deadlines, Progress, Queues, Verdict};
use crate::refusal::Refusal;

/// Room for what we add to an answer's head.
const OURS_BYTES: usize = 128;

/// What an exchange came to.
pub(super) enum Outcome {
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
        refusal: Box<Refusal>,
        /// Whether the request was taken from the client's connection to its end.
        sent_whole: bool,
    },
    /// It broke where nobody can be told.
    Broken(CloseReason),
}

/// See the file's header.
pub(super) struct Exchange<'s> {
    client: &'s mut Client,
    flow: &'s HeldFlow,
    upstream: &'s mut Upstream,
    asked: Asked,
    up: Transfer,
    /// The destination takes no more.
    up_failed: bool,
    down: Transfer,
    stage: Stage,
    /// What the statistics have been told of.
    told: Legs,
    /// What the statistics have been told to wait for slow receivers.
    told_pending: u64,
    progress: Progress,
    /// When the deadlines are to be looked at next.
    look_at: Nanos,
    /// Whether the client has ended its direction.
    is_half_closed: bool,
    /// Whether it has come to an end in order: if not, neither side may take what it got for whole.
    is_over: bool,
}

/// How far the answer has come.
enum Stage {
    /// Its head is awaited; some of it may be there.
    AwaitHead { bytes: Vec<u8>, scanner: HeadScanner, interims: u8 },
    /// Its body follows.
    Body { client_may_go_on: bool, upstream_lives_on: bool },
    /// It was 101.
    Upgraded { rest: Vec<u8> },
}

impl Stage {
    fn first() -> Stage {
        Stage::AwaitHead { bytes: Vec::new(), scanner: HeadScanner::default(), interims: 0 }
    }
}

/// What a turn came to.
enum Turn {
    /// The answer was passed on.
    Done,
    /// Nothing is left to do for now, and the client has ended its direction.
    HalfClosed,
}

/// Why an exchange stops.
enum Stop {
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
    pub(super) fn new(
        client: &'s mut Client,
        wanted: Wanted,
        flow: &'s HeldFlow,
        upstream: &'s mut Upstream,
    ) -> Exchange<'s> {
        let now = client.local.reactor.now();
        let Wanted { asked, body, keeps_trailers, head, received, .. } = wanted;
        let mut exchange = Exchange {
            client,
            flow,
            upstream,
            asked,
            up: Transfer::new(head, with_trailers(Body::new(body), keeps_trailers)),
            up_failed: false,
            down: Transfer::new(Vec::new(), Body::new(Framing::None)),
            stage: Stage::first(),
            told: Legs::default(),
            told_pending: 0,
            progress: Progress::begun(now),
            look_at: Nanos::NEVER,
            is_half_closed: false,
            is_over: false,
        };
        exchange.look_at = exchange.next_look();
        exchange.lane_up().received(received, &exchange.client.local, flow.key());
        exchange
    }

    /// Runs it to its end.
    pub(super) async fn run(&mut self) -> Outcome {
        if let Err(stop) = self.take_unread() {
            self.tell_counts();
            return self.stop(stop);
        }
        loop {
            let stop = match self.step().await {
                Ok(()) => return self.finish(),
                Err(stop) => stop,
            };
            let may_repeat = matches!(stop, Stop::Upstream) && self.may_repeat();
            if may_repeat && self.connect_again().await.is_ok() {
                continue;
            }
            return self.stop(stop);
        }
    }

    /// Moves bytes until the answer is whole, or something stops it.
    async fn step(&mut self) -> Result<(), Stop> {
        let reactor = Rc::clone(&self.client.local.reactor);
        loop {
            // What moves takes the deadline along, but the timer stays where it is until it comes.
            match within(&reactor, self.look_at, poll_fn(|context| self.poll(context))).await {
                Ok(Ok(Turn::Done)) => return Ok(()),
                Ok(Ok(Turn::HalfClosed)) => {
                    self.progress.restart(reactor.now());
                    self.look_at = self.next_look();
                }
                Ok(Err(stop)) => return Err(stop),
                Err(_) => self.look()?,
            }
        }
    }

    /// Looks whether it has stood still, or lived, for too long.
    fn look(&mut self) -> Result<(), Stop> {
        let (age, legs) = (self.age(), self.legs());
        let deadlines = Deadlines::from(&self.client.snapshot().config.timeouts);
        let (client, upstream) = (self.client.stream.socket(), self.upstream.stream.socket());
        let queues = || Queues::read(client, upstream, &legs);
        let has_arrived = || {
            self.up.awaits_source() && client.has_arrived()
                || self.down.is_flushed() && upstream.has_arrived()
        };
        match deadlines.judge(&mut self.progress, age, queues, has_arrived) {
            Verdict::LookAt(at) => {
                self.look_at = at;
                Ok(())
            }
            Verdict::Over(reason) => Err(Stop::Late(reason)),
        }
    }

    fn next_look(&self) -> Nanos {
        let deadlines = Deadlines::from(&self.client.snapshot().config.timeouts);
        deadlines.next_look(&self.progress, self.age())
    }

    fn age(&self) -> Age {
        let local = &self.client.local;
        let opened = local.meter.borrow().opened(self.flow.key());
        Age { opened, is_half_closed: self.is_half_closed, now: local.reactor.now() }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Turn, Stop>> {
        let polled = self.poll_both(context);
        self.tell_counts();
        polled
    }

    /// Tells the statistics and the ledger of what was counted since it did so last.
    fn tell_counts(&mut self) {
        let counted = self.legs();
        if counted != self.told {
            let local = &self.client.local;
            self.progress.moved(local.reactor.now());
            local.stats.bytes.add(&self.told, &counted);
            local.meter.borrow_mut().counted(self.flow.key());
            self.told = counted;
        }
        self.tell_pending(self.up.pending_bytes() + self.down.pending_bytes());
    }

    /// Tells the statistics how much memory waits for slow receivers.
    fn tell_pending(&mut self, pending_bytes: u64) {
        let before = std::mem::replace(&mut self.told_pending, pending_bytes);
        let counter = &self.client.local.stats.pending_bytes;
        counter.sub(before);
        counter.add(pending_bytes);
    }

    fn poll_both(&mut self, context: &mut Context<'_>) -> Poll<Result<Turn, Stop>> {
        if self.upstream.purpose.is_revoked() {
            return Poll::Ready(Err(Stop::Revoked));
        }
        let mut budget = TURN_BYTES_MAX;
        self.poll_up(context, &mut budget)?;
        budget = budget.max(TURN_BYTES_MAX / 2);
        if let Poll::Ready(down) = self.poll_down(context, &mut budget) {
            return Poll::Ready(down.map(|()| Turn::Done));
        }
        // Where nothing is read from the client, nobody would see it end or fail.
        let watched = self.client.stream.watch(context);
        match self.client.stream.readiness().tail {
            Tail::Broken => Poll::Ready(Err(Stop::Client)),
            _ if watched.is_err() => Poll::Ready(Err(Stop::Client)),
            Tail::Ended if !self.is_half_closed => {
                self.is_half_closed = true;
                Poll::Ready(Ok(Turn::HalfClosed))
            }
            _ => Poll::Pending,
        }
    }

    /// Sends the request on. A destination that takes no more may have answered all the same: many a server
    /// says 413 and resets the rest of an upload.
    fn poll_up(&mut self, context: &mut Context<'_>, budget: &mut usize) -> Result<(), Stop> {
        if self.up_failed || self.up.is_complete() {
            return Ok(());
        }
        let Exchange { client, flow, upstream, up, .. } = self;
        let mut surplus = Vec::new();
        let lane = (Lane::Up(&client.stream, upstream), &*client.local, flow.key());
        let polled = up.poll(context, lane, budget, &mut |bytes| surplus.extend_from_slice(bytes));
        if !surplus.is_empty() {
            client.keep(&surplus);
        }
        match polled {
            Poll::Ready(Err(Failure::Source)) => Err(Stop::Client),
            Poll::Ready(Err(Failure::Body(error))) => Err(Stop::ClientBody(error)),
            Poll::Ready(Err(Failure::Sink)) => {
                self.up_failed = true;
                Ok(())
            }
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// Lets what was read together with the head go with it.
    fn take_unread(&mut self) -> Result<(), Stop> {
        let taken = self.up.feed(self.client.unread_mut()).map_err(Stop::ClientBody)?;
        self.client.consume(taken);
        self.lane_up().received(taken, &self.client.local, self.flow.key());
        Ok(())
    }

    fn poll_down(&mut self, context: &mut Context<'_>, budget: &mut usize) -> Poll<Result<(), Stop>> {
        loop {
            if matches!(self.stage, Stage::AwaitHead { .. }) {
                // An interim answer goes before the next head is looked for.
                ready!(self.poll_flush_down(context))?;
                ready!(self.poll_head(context))?;
                continue;
            }
            if let Stage::Upgraded { .. } = self.stage {
                return self.poll_flush_down(context);
            }
            let Exchange { client, flow, upstream, down, .. } = self;
            let mut has_surplus = false;
            let lane = (Lane::Down(upstream, &client.stream), &*client.local, flow.key());
            let polled = down.poll(context, lane, budget, &mut |bytes| has_surplus |= !bytes.is_empty());
            if let (true, Stage::Body { upstream_lives_on, .. }) = (has_surplus, &mut self.stage) {
                *upstream_lives_on = false;
            }
            return polled.map_err(|failure| match failure {
                Failure::Source => Stop::Upstream,
                Failure::Body(error) => Stop::AnswerBody(error),
                Failure::Sink => Stop::Client,
            });
        }
    }

    fn poll_flush_down(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Exchange { client, flow, upstream, down, .. } = self;
        let lane = Lane::Down(upstream, &client.stream);
        down.poll_flush(context, lane, &client.local, flow.key()).map_err(|_| Stop::Client)
    }

    /// Reads on until a head is whole, and passes it on.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Stage::AwaitHead { bytes, scanner, .. } = &mut self.stage else { return Poll::Ready(Ok(())) };
        let local = &self.client.local;
        loop {
            let found =
                scanner.find(bytes).map_err(|error| Stop::Answer(ResponseError::Head(error.into())))?;
            if let Some(length) = found {
                return Poll::Ready(self.pass_head_on(length));
            }
            if bytes.capacity() == 0 {
                // Waiting for an answer needs no buffer.
                ready!(self.upstream.stream.poll_readable(context)).map_err(|_| Stop::Upstream)?;
                *bytes = local.answers.take();
            }
            let read = ready!(self.upstream.stream.poll_read(context, bytes)).map_err(|_| Stop::Upstream)?;
            if read == 0 {
                return Poll::Ready(Err(Stop::Upstream));
            }
            Lane::Down(self.upstream, &self.client.stream).received(read, local, self.flow.key());
        }
    }

    /// Writes the head of `length` bytes anew for the client, with what came behind it.
    fn pass_head_on(&mut self, length: usize) -> Result<(), Stop> {
        let Stage::AwaitHead { bytes, interims, .. } = &mut self.stage else { return Ok(()) };
        let (mut bytes, interims) = (std::mem::take(bytes), *interims);
        let mut room = Room::new();
        let (head_bytes, rest) = bytes.split_at_mut(length);
        let head = ResponseHead::parse(head_bytes, &mut room).map_err(Stop::Answer)?;
        let answer = Answer::read(&head, &self.asked).map_err(Stop::Answer)?;
        if answer != Answer::Interim {
            self.client.local.meter.borrow_mut().note_status(self.flow.key(), head.status);
        }
        if answer == Answer::Interim && interims == INTERIMS_MAX {
            return Err(Stop::Answer(ResponseError::InterimsTooMany));
        }
        let may_go_on = self.client_may_go_on(answer);
        let local = &self.client.local;
        let ours = Ours { via: &local.via, date: None, closes: !may_go_on };
        let (out, asked) = (self.down.pending(), &self.asked);
        out.reserve(length + OURS_BYTES + rest.len());
        if head.is_dated() {
            write_answer(out, &head, answer, asked, ours);
        } else {
            local.date.with(|now| write_answer(out, &head, answer, asked, Ours { date: Some(now), ..ours }));
        }
        self.stage = match answer {
            Answer::Interim => {
                bytes.drain(..length);
                if bytes.is_empty() {
                    local.answers.put(std::mem::take(&mut bytes));
                }
                Stage::AwaitHead { bytes, scanner: HeadScanner::default(), interims: interims + 1 }
            }
            Answer::Upgraded => Stage::Upgraded { rest: rest.to_vec() },
            Answer::Final { body, keeps_alive } => {
                let followed = match self.asked.version {
                    Version::Http11 => Body::new(body),
                    Version::Http10 => Body::unwrapped(body),
                };
                let followed = with_trailers(followed, head.keeps_trailers());
                self.down.follow(followed);
                let taken = self.down.feed(rest).map_err(Stop::AnswerBody)?;
                let upstream_lives_on = keeps_alive && taken == rest.len();
                self.client.local.answers.put(bytes);
                Stage::Body { client_may_go_on: may_go_on, upstream_lives_on }
            }
        };
        Ok(())
    }

    /// Whether the client could find another answer behind this one.
    fn client_may_go_on(&self, answer: Answer) -> bool {
        let has_end = !answer.ends_with_connection(&self.asked);
        // Who was not told to go on may send the body or not: what he sends next could be either.
        let awaits_body = self.asked.expects_continue && !self.up.is_taken();
        let is_serving = self.client.local.phase.get() == Phase::Serving;
        self.asked.keeps_alive && has_end && is_serving && (answer == Answer::Interim || !awaits_body)
    }

    /// Whether the request may be sent again: the connection had served before, so its end may have crossed
    /// our request, and nothing of an answer has come (RFC 9112, section 9.3.1).
    fn may_repeat(&self) -> bool {
        let is_unanswered =
            matches!(&self.stage, Stage::AwaitHead { bytes, interims: 0, .. } if bytes.is_empty());
        self.upstream.is_used() && self.asked.is_repeatable && is_unanswered
    }

    /// Connects to the same address anew. The flow goes on: it is the same request.
    async fn connect_again(&mut self) -> Result<(), ()> {
        let address = self.upstream.purpose.address;
        let dialled = dial_one(&self.client.local, address, FirstWord::Ours, self.client.dial_by());
        let stream = dialled.await.map_err(drop)?;
        *self.upstream = self.upstream.connected_again(stream);
        self.up.rewind();
        self.up_failed = false;
        self.stage = Stage::first();
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        self.is_over = true;
        let sent_whole = self.up.is_complete() && !self.up_failed;
        match std::mem::replace(&mut self.stage, Stage::first()) {
            Stage::Upgraded { rest } => Outcome::Upgraded { rest },
            Stage::Body { client_may_go_on, upstream_lives_on } => Outcome::Answered {
                client_may_go_on,
                client_is_sending: !self.up.is_taken(),
                upstream_lives_on: upstream_lives_on && sent_whole,
            },
            Stage::AwaitHead { .. } => unreachable!("an exchange ends behind a head"),
        }
    }

    fn stop(&mut self, stop: Stop) -> Outcome {
        // A half-sent interim answer, or more, cannot be taken back.
        let awaits_head = matches!(self.stage, Stage::AwaitHead { .. });
        let may_be_told = self.legs().client_tx == 0 || awaits_head && self.down.is_complete();
        let (reason, refusal) = match stop {
            Stop::Client => return Outcome::Broken(CloseReason::ClientReset),
            Stop::Revoked => return Outcome::Broken(CloseReason::PolicyChanged),
            Stop::ClientBody(error) => (CloseReason::ClientReset, Refusal::body_malformed(error)),
            Stop::Upstream => (CloseReason::UpstreamReset, Refusal::unanswered()),
            Stop::AnswerBody(error) => (CloseReason::UpstreamReset, Refusal::answer_body_malformed(error)),
            Stop::Answer(error) => (CloseReason::UpstreamReset, Refusal::answer_malformed(error)),
            Stop::Late(reason) if self.up.is_taken() => (reason, Refusal::answer_timeout()),
            Stop::Late(reason) => (reason, Refusal::greeting_timeout()),
        };
        if !may_be_told {
            return Outcome::Broken(reason);
        }
        self.upstream.stream.socket().reset_on_close();
        self.is_over = true;
        Outcome::Unanswered { reason, refusal: Box::new(refusal), sent_whole: self.up.is_taken() }
    }

    /// What was counted so far.
    pub(super) fn legs(&self) -> Legs {
        let mut meter = self.client.local.meter.borrow_mut();
        meter.tally(self.flow.key()).map_or_else(Legs::default, |tally| tally.legs())
    }

    fn lane_up(&self) -> Lane<'_> {
        Lane::Up(&self.client.stream, self.upstream)
    }
}

fn with_trailers(body: Body, keeps_trailers: bool) -> Body {
    if keeps_trailers { body } else { body.without_trailers() }
}

impl Drop for Exchange<'_> {
    /// Whatever ended it early, a fault of ours too: nobody shall take a part for the whole.
    fn drop(&mut self) {
        self.tell_pending(0);
        if !self.is_over {
            self.client.stream.socket().reset_on_close();
            self.upstream.stream.socket().reset_on_close();
        }
    }
}
