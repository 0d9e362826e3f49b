//! A relay: two connected sockets, and the bytes from each to the other until both directions have ended.
//!
//! Guarantees: sent bytes are counted as the call returned them; one direction may end while the other goes
//! on (half-close), and RST is forwarded as RST; a slow receiver stops its sender, because nothing is read
//! while bytes wait to be written; an idle relay has no buffer and no pipe.
//!
//! ```text
//!   client --- client_rx --> [ up: scratch | pending | pipe ] --- upstream_tx --> upstream
//!   client <-- client_tx --- [ down:   the same             ] <-- upstream_rx --- upstream
//! ```
//!
//! A relay is a hand-written state machine and not a future, since a future never shrinks: a connection that
//! idles for hours keeps the 128 bytes below.

mod copy;
mod pace;
mod purse;
mod splice;
mod stalls;
mod table;
mod turns;
mod waiting;

use std::io;
use std::sync::Arc;

use engine::reactor::{Reactor, Registration};
use engine::slab::Key;
use engine::timer::wheel::TimerId;
use ledger::live_table::{FlowCounters, Received, Sent};
use ledger::record::CloseReason;
use sys::clock::Nanos;
use sys::epoll::{Readiness, StreamEnd};
use sys::socket::Socket;
use sys::splice::Pipe;

pub(crate) use table::{RelayStart, Relays};

use self::pace::{Pace, SUSTAINED_PAUSE_MAX};
use self::purse::{Purse, PurseOutcome};
use crate::credit::{CreditTime, FlowCredit};
use crate::flow::progress::Progress;
use crate::limits::{PASS_BYTES_MAX, SCRATCH_BYTES};
use crate::observe::stats::WorkerStats;

/// One side of a relay: a socket and its registration with the reactor.
#[derive(Debug)]
struct Peer {
    socket: Socket,
    registration: Registration,
}

/// Two connected sockets, and the state of both directions.
#[derive(Debug)]
pub(crate) struct Relay {
    client: Peer,
    upstream: Peer,
    up: Direction,
    down: Direction,
    /// The flow that is billed.
    flow: Key,
    timer: Option<TimerId>,
    /// When bytes last moved.
    progress: Progress,
    /// Whether it is in the table's run queue.
    queued: bool,
    /// Whether it is among the [`Stalls`](stalls::Stalls).
    is_stall_candidate: bool,
    /// Whether the client was sent many bytes before the relay, which it may not have acknowledged.
    sent_much: bool,
    /// Whether a quota is spent: nothing more is read, and the relay ends once all read bytes are written.
    is_exhausted: bool,
}

// The send audit of kill tests adds to a socket's size.
const _: () =
    assert!(sys::crash::ENABLED || size_of::<Relay>() <= 128, "an idle relay has at most 128 bytes");

/// Bytes on their way from a source to a sink. At most one of `pending` and `pipe` holds bytes.
#[derive(Debug)]
struct Direction {
    /// Bytes that were read and that the sink did not accept.
    pending: Option<Box<copy::Pending>>,
    /// The pipe of a fast stream; borrowed while bytes move.
    pipe: Option<Box<Pipe>>,
    /// The source may have bytes, or its end: true until a read would block.
    readable: bool,
    /// The sink may accept bytes: true until a write would block.
    writable: bool,
    /// The pipe had stalled when the relay became a candidate, and the sink has accepted nothing since.
    stalls: bool,
    /// What follows the source's bytes.
    end: StreamEnd,
    state: State,
    /// It waits for credit: the source is not read before.
    awaits_credit: bool,
    /// How fast the source has proved to be.
    pace: Pace,
    /// Writes so far, as far as they matter for TCP_NODELAY: 0, 1 or 2.
    writes: u8,
}

/// The state of a direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// The source is open.
    Flowing,
    /// The source has ended; read bytes are still to be written.
    Flushing,
    /// The end was forwarded to the sink.
    Ended,
}

/// Which end of a direction failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Failure {
    /// The source cannot be read.
    Source,
    /// The sink cannot be written.
    Sink,
}

/// How a run of a relay ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It waits for its sockets.
    Waits,
    /// Its budget is spent, and it has more to do.
    Yields,
    /// Both directions have ended, or a socket failed.
    Over(CloseReason),
}

/// A run of a relay.
struct Run {
    outcome: Outcome,
    /// When a direction that waits for credit has some; [`Nanos::NEVER`] if none has begun to wait.
    resumes_at: Nanos,
}

/// The purses of both directions.
struct Purses<'c> {
    up: Purse<'c>,
    down: Purse<'c>,
}

/// Buffers that the relays of a thread share, one at a time.
pub(crate) struct RelayBuffers {
    /// The read buffer of copying relays.
    scratch: Box<[u8]>,
    pending: copy::PendingCache,
    pipes: splice::PipeCache,
    /// When this pass began.
    now: Nanos,
    /// How often a direction changed from copying to splicing.
    promotions: u64,
}

impl RelayBuffers {
    fn new(stats: &Arc<WorkerStats>, now: Nanos) -> RelayBuffers {
        RelayBuffers {
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            pending: copy::PendingCache::new(stats),
            pipes: splice::PipeCache::begin(now),
            now,
            promotions: 0,
        }
    }
}

/// The sockets and counters of a direction, while it runs.
struct Endpoints<'r> {
    source: &'r Socket,
    sink: &'r Socket,
    /// Counts received bytes.
    received: Received<'r>,
    /// Counts sent bytes, before and after each call.
    sent: Sent<'r>,
}

/// How the end of the source is forwarded to the sink.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CloseMode {
    /// By a FIN: the other direction goes on.
    Shutdown,
    /// By the close that follows.
    Close,
}

impl Direction {
    /// A direction whose source is registered from now on: epoll reports everything.
    fn accepted() -> Direction {
        Direction {
            pending: None,
            pipe: None,
            readable: false,
            writable: true,
            stalls: false,
            end: StreamEnd::Open,
            state: State::Flowing,
            awaits_credit: false,
            pace: Pace::default(),
            writes: 0,
        }
    }

    /// A direction whose source had another registration: its earlier events are not repeated.
    fn reused() -> Direction {
        Direction { readable: true, end: StreamEnd::Unclear, ..Direction::accepted() }
    }

    /// Moves up to `budget` bytes, of which `purse` permits the read ones; leaves in `budget` what was not
    /// spent.
    fn pump(
        &mut self,
        mut endpoints: Endpoints<'_>,
        close_mode: CloseMode,
        (budget, purse): (&mut usize, &mut Purse<'_>),
        buffers: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        let fill_bytes_max = (*budget).max(PASS_BYTES_MAX);
        while *budget > 0 {
            if self.holds_bytes() {
                if !self.writable {
                    break;
                }
                self.write(&mut endpoints, budget, buffers)?;
            } else if self.state == State::Flushing {
                if close_mode == CloseMode::Shutdown {
                    // Fails if the peer is gone, and then has no effect.
                    let _ = endpoints.sink.shutdown_write();
                }
                self.state = State::Ended;
            } else if self.state == State::Ended || !self.readable || self.awaits_credit {
                break;
            } else if self.pace.is_fast() && self.end != StreamEnd::Urgent {
                let permitted = purse.permit(fill_bytes_max);
                if permitted == 0 {
                    break;
                }
                let moved = self.fill_pipe(endpoints.source, permitted, buffers)?;
                purse.note_read(moved);
                endpoints.received.add(moved);
            } else {
                let permitted = purse.permit(buffers.pending.read_bytes_max());
                if permitted == 0 {
                    break;
                }
                let read = self.read(endpoints.source, permitted, buffers)?;
                purse.note_read(read);
                endpoints.received.add(read);
                self.forward(read, &mut endpoints, buffers)?;
                *budget = budget.saturating_sub(read);
            }
        }
        if !self.holds_bytes() {
            self.return_pipe(buffers);
        }
        Ok(())
    }

    fn holds_bytes(&self) -> bool {
        self.pending.is_some() || self.pipe.as_ref().is_some_and(|pipe| pipe.buffered() > 0)
    }

    /// Writes the held bytes.
    fn write(
        &mut self,
        endpoints: &mut Endpoints<'_>,
        budget: &mut usize,
        buffers: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        if self.pending.is_some() {
            self.write_pending(endpoints, budget, buffers)
        } else {
            self.drain_pipe(endpoints, budget)
        }
    }

    /// Notes the readiness of the source.
    fn source_ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.end = self.end.max(readiness.end);
    }

    /// Notes the readiness of the sink.
    fn sink_ready(&mut self, readiness: Readiness) {
        self.writable |= readiness.writable;
        self.stalls &= !readiness.writable;
    }

    /// Notes that a read would block: the next bytes cause an event.
    fn source_empty(&mut self) {
        self.readable = false;
        self.end = StreamEnd::Open;
    }

    /// Waits for credit if `outcome` says so; returns until when, or [`Nanos::NEVER`].
    fn await_credit(&mut self, outcome: PurseOutcome) -> Nanos {
        match outcome {
            PurseOutcome::Waits(until) if self.state == State::Flowing => {
                self.awaits_credit = true;
                until
            }
            _ => Nanos::NEVER,
        }
    }

    /// Notes the end of the source.
    fn source_ended(&mut self) {
        self.readable = false;
        self.state = State::Flushing;
    }

    /// How the other direction forwards its end, given this direction's state.
    fn other_close_mode(&self) -> CloseMode {
        if self.state == State::Ended { CloseMode::Close } else { CloseMode::Shutdown }
    }

    /// Whether bytes may have arrived without an event.
    fn has_unreported_input(&self, source: &Socket) -> bool {
        self.state == State::Flowing && !self.holds_bytes() && source.has_arrived()
    }

    /// Whether bytes wait for the sink to accept more, or the source for credit. Only then is it muted.
    fn is_blocked(&self) -> bool {
        (!self.writable && self.holds_bytes()) || self.awaits_credit
    }

    /// Registers what the direction waits for: that a sink accepts more that accepted less than it was given,
    /// and that a muted source has bytes again.
    fn watch(&self, source: &mut Peer, sink: &mut Peer, reactor: &Reactor) -> io::Result<()> {
        if !self.writable {
            sink.registration.report_writable(reactor, &sink.socket)?;
        }
        if !self.readable && !self.is_blocked() {
            source.registration.report_readable(reactor, &source.socket)?;
        }
        Ok(())
    }

    /// Whether a run would find work.
    fn can_move(&self) -> bool {
        match self.state {
            State::Ended => false,
            State::Flushing => self.writable || !self.holds_bytes(),
            State::Flowing if self.holds_bytes() => self.writable,
            State::Flowing => self.readable && !self.awaits_credit,
        }
    }
}

impl Relay {
    /// Each peer comes with the direction of which it is the source.
    fn new(
        (client, up): (Peer, Direction),
        (upstream, down): (Peer, Direction),
        flow: Key,
        now: Nanos,
    ) -> Relay {
        Relay {
            client,
            upstream,
            up,
            down,
            flow,
            timer: None,
            progress: Progress::begin(now),
            queued: false,
            is_stall_candidate: false,
            sent_much: false,
            is_exhausted: false,
        }
    }

    /// Forwards bytes that were read before the relay: those that the client sent behind its request, and
    /// those that the destination sent behind a response's head, which counted as received there. Those for
    /// which there is no credit are dropped, and nothing more is read.
    fn forward_early(
        &mut self,
        client_bytes: &[u8],
        upstream_bytes: &[u8],
        counters: &mut FlowCounters<'_>,
        credit: Option<(&mut FlowCredit, CreditTime)>,
        buffers: &mut RelayBuffers,
    ) {
        let (client_bytes, upstream_bytes, is_exhausted) = match credit {
            Some((credit, time)) => credit.charge_early(client_bytes, upstream_bytes, time),
            None => (client_bytes, upstream_bytes, false),
        };
        let (mut received, sent) = counters.up();
        received.add(client_bytes.len());
        let (client, upstream) = (&self.client.socket, &self.upstream.socket);
        let mut endpoints = Endpoints { source: client, sink: upstream, received, sent };
        self.up.forward_early(client_bytes, &mut endpoints, buffers);
        let (received, sent) = counters.down();
        let mut endpoints = Endpoints { source: upstream, sink: client, received, sent };
        self.down.forward_early(upstream_bytes, &mut endpoints, buffers);
        if is_exhausted {
            self.stop_reading();
        }
    }

    /// Moves bytes in both directions, up to the budget of a turn, and counts them in `counters`. A sustained
    /// stream has a budget of `sustained_bytes`.
    fn run(
        &mut self,
        counters: &mut FlowCounters<'_>,
        credit: Option<(&mut FlowCredit, CreditTime)>,
        sustained_bytes: usize,
        buffers: &mut RelayBuffers,
    ) -> Run {
        let (up, down) = match credit {
            Some((credit, time)) => (Some((&mut credit.up, time)), Some((&mut credit.down, time))),
            None => (None, None),
        };
        let mut purses = Purses { up: Purse::new(up), down: Purse::new(down) };
        let outcome = self.run_with(&mut purses, counters, sustained_bytes, buffers);
        let up = purses.up.finish(!self.up.readable);
        let down = purses.down.finish(!self.down.readable);
        if up == PurseOutcome::Exhausted || down == PurseOutcome::Exhausted {
            self.stop_reading();
        }
        let resumes_at = self.up.await_credit(up).min(self.down.await_credit(down));
        Run { outcome: outcome.unwrap_or_else(|| self.outcome()), resumes_at }
    }

    /// Moves bytes in both directions; returns the outcome if a socket has failed.
    fn run_with(
        &mut self,
        purses: &mut Purses<'_>,
        counters: &mut FlowCounters<'_>,
        sustained_bytes: usize,
        buffers: &mut RelayBuffers,
    ) -> Option<Outcome> {
        let turn_bytes = |pace: Pace| if pace.is_sustained() { sustained_bytes } else { PASS_BYTES_MAX };
        let up_bytes = turn_bytes(self.up.pace);
        let mut budget = up_bytes;
        match self.pump_up(counters, (&mut budget, &mut purses.up), buffers) {
            Err(Failure::Source) => return Some(Outcome::Over(CloseReason::ClientReset)),
            Err(Failure::Sink) => {
                // The client gets what the destination sent before its failure, as far as it accepts that
                // now: many servers respond 413 and reset the rest of an upload. The end is not forwarded:
                // the rest is lost. No event may have reported those bytes yet.
                self.down.readable = true;
                let rest = (&mut { usize::MAX }, &mut purses.down);
                let _ = self.pump_down(counters, CloseMode::Close, rest, buffers);
                return Some(Outcome::Over(CloseReason::UpstreamReset));
            }
            Ok(()) => {}
        }
        // A direction that spends its budget leaves the other half, so that the acknowledgements of a fast
        // download do not wait for the upload to pause.
        let spent = up_bytes.saturating_sub(budget);
        // At the end of a quota of both directions, the other one needs what this one has not read.
        purses.up.settle();
        budget = turn_bytes(self.down.pace).saturating_sub(spent).max(PASS_BYTES_MAX / 2);
        let client_ended_first = self.up.state == State::Ended && self.down.state != State::Ended;
        let close_mode = self.up.other_close_mode();
        match self.pump_down(counters, close_mode, (&mut budget, &mut purses.down), buffers) {
            Err(Failure::Source) => return Some(Outcome::Over(CloseReason::UpstreamReset)),
            Err(Failure::Sink) => return Some(Outcome::Over(CloseReason::ClientReset)),
            Ok(()) => {}
        }
        let has_ended = self.up.state == State::Ended && self.down.state == State::Ended;
        let reason = match client_ended_first {
            _ if self.is_exhausted => CloseReason::QuotaExhausted,
            true => CloseReason::ClientClosed,
            false => CloseReason::UpstreamClosed,
        };
        has_ended.then_some(Outcome::Over(reason))
    }

    /// The outcome of a run in which no socket has failed, and a direction goes on.
    fn outcome(&self) -> Outcome {
        match () {
            () if self.up.can_move() || self.down.can_move() => Outcome::Yields,
            () if self.client_failed() => Outcome::Over(CloseReason::ClientReset),
            () => Outcome::Waits,
        }
    }

    /// Ends both directions as if their sources had ended: what was read is written, and the end follows.
    fn stop_reading(&mut self) {
        self.is_exhausted = true;
        for direction in [&mut self.up, &mut self.down] {
            if direction.state == State::Flowing {
                direction.source_ended();
            }
        }
    }

    fn pump_up(
        &mut self,
        counters: &mut FlowCounters<'_>,
        bounds: (&mut usize, &mut Purse<'_>),
        buffers: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        let (received, sent) = counters.up();
        let endpoints =
            Endpoints { source: &self.client.socket, sink: &self.upstream.socket, received, sent };
        self.up.pump(endpoints, self.down.other_close_mode(), bounds, buffers)
    }

    fn pump_down(
        &mut self,
        counters: &mut FlowCounters<'_>,
        close_mode: CloseMode,
        bounds: (&mut usize, &mut Purse<'_>),
        buffers: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        let (received, sent) = counters.down();
        let endpoints =
            Endpoints { source: &self.upstream.socket, sink: &self.client.socket, received, sent };
        self.down.pump(endpoints, close_mode, bounds, buffers)
    }

    /// Reads again from the sources that have waited for credit.
    fn resume(&mut self) {
        (self.up.awaits_credit, self.down.awaits_credit) = (false, false);
    }

    /// Whether it is a sustained stream.
    fn is_sustained(&self) -> bool {
        self.up.pace.is_sustained() || self.down.pace.is_sustained()
    }

    /// Notes that it runs at `now`: a stream that has paused is not sustained.
    fn note_pause(&mut self, now: Nanos) {
        if self.is_sustained() && self.progress.since_moved(now) > SUSTAINED_PAUSE_MAX {
            self.up.pace.paused();
            self.down.pace.paused();
        }
    }

    /// Whether a direction has work.
    fn can_run(&self) -> bool {
        self.up.can_move() || self.down.can_move() || self.client_failed()
    }

    /// Whether the client's connection has failed. While no direction can move, only this finds out: a
    /// destination that accepts and sends nothing would otherwise hold the relay until its deadline.
    fn client_failed(&self) -> bool {
        self.up.end == StreamEnd::Broken
    }

    /// Registers what the relay waits for: writability of the sockets that accepted less than they were
    /// given, and readability of the muted sources that have no more bytes.
    fn watch(&mut self, reactor: &Reactor) -> io::Result<()> {
        let Relay { client, upstream, up, down, .. } = self;
        up.watch(client, upstream, reactor)?;
        down.watch(upstream, client, reactor)
    }

    /// Mutes the sources whose bytes cannot be forwarded now: each segment that arrives would wake the thread
    /// in vain.
    fn mute_blocked(&mut self, reactor: &Reactor) {
        let directions =
            [(&self.up, &self.down, &mut self.client), (&self.down, &self.up, &mut self.upstream)];
        for (direction, other, source) in directions {
            if direction.is_blocked() && direction.readable {
                // A source that cannot be muted wakes the thread in vain, as before.
                let Peer { socket, registration } = source;
                let _ = registration.mute_readable(reactor, socket, !other.writable);
            }
        }
    }

    fn client_ready(&mut self, readiness: Readiness) {
        self.up.source_ready(readiness);
        self.down.sink_ready(readiness);
    }

    fn upstream_ready(&mut self, readiness: Readiness) {
        self.down.source_ready(readiness);
        self.up.sink_ready(readiness);
    }

    /// Whether one direction has ended and the other has not, or both end for lack of credit.
    fn is_half_closed(&self) -> bool {
        (self.up.state == State::Ended) != (self.down.state == State::Ended) || self.is_exhausted
    }
}

#[cfg(test)]
mod tests;
