//! A relay: two connected sockets, and bytes that go from each to the other until both have ended.
//!
//! Promises: what is billed is what outgoing calls returned; one direction may end while the other goes on
//! (half-close), and a reset is passed on as a reset; a slow receiver stops its sender, because nothing is
//! read while something waits to be written; an idle relay owns no buffer and no pipe. Leaves to others:
//! who may open one (`connection`), the loop that runs it (`relay/table.rs`), the record (`meter`).
//!
//! ```text
//!   client --- client_rx --> [ up: scratch | pending | pipe ] --- upstream_tx --> upstream
//!   client <-- client_tx --- [ down:   the same             ] <-- upstream_rx --- upstream
//! ```
//!
//! A relay is a hand-written state machine and not a future, since a future never shrinks: a connection
//! that idles for hours keeps the 128 bytes below.

mod copy;
mod splice;
mod stalls;
mod table;

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

use crate::flow::progress::Progress;
use crate::limits::{PASS_BYTES_MAX, SCRATCH_BYTES};
use crate::stats::WorkerStats;

/// One side of a relay: a socket and its registration with the reactor.
#[derive(Debug)]
struct Peer {
    socket: Socket,
    registration: Registration,
}

/// See the file's header.
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
    /// Whether it waits in the table's queue to be run.
    queued: bool,
    /// Whether it is among the [`Stalls`](stalls::Stalls).
    is_stall_candidate: bool,
    /// Whether the client was sent answers before, some of which it may not have taken.
    sent_much: bool,
}

// With what a kill test notes of a socket it is larger.
const _: () = assert!(
    sys::crash::ENABLED || size_of::<Relay>() <= 128,
    "nine thousand of these idle in the memory promised"
);

/// Bytes on their way from a source to a sink. At most one of `pending` and `pipe` holds bytes.
#[derive(Debug)]
struct Direction {
    /// Bytes that were read and that the sink did not take.
    pending: Option<Box<copy::Pending>>,
    /// The way of a fast stream; borrowed while bytes move.
    pipe: Option<Box<Pipe>>,
    /// The source may have bytes, or its end: true until a read would block.
    readable: bool,
    /// The sink may take bytes: true until a write would block.
    writable: bool,
    /// The pipe had stalled when the relay was noted for that, and the sink has taken nothing since.
    stalls: bool,
    /// What waits behind the source's bytes.
    end: StreamEnd,
    state: State,
    /// Recent reads that filled the whole buffer; 0 <= streak <= copy::FULL_READS_MAX.
    full_reads: u8,
    /// Writes so far, as far as they matter for TCP_NODELAY: 0, 1 or 2.
    writes: u8,
}

/// How far a direction has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// The source is open.
    Flowing,
    /// The source has ended; what was read is still to be written.
    Flushing,
    /// The sink was told of the end.
    Ended,
}

/// Which end of a direction failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Failure {
    /// It cannot be read.
    Source,
    /// It cannot be written.
    Sink,
}

/// What a run of a relay came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It waits for its sockets.
    Waits,
    /// Its budget is spent; it has more to do.
    Yields,
    /// It is over: both directions have ended, or a socket failed.
    Over(CloseReason),
}

/// What the relays of a thread share while one of them runs.
pub(crate) struct RelayBuffers {
    /// Where every copying relay reads into.
    scratch: Box<[u8]>,
    pending: copy::PendingCache,
    pipes: splice::PipeCache,
    /// Times a direction went over from copying to splicing.
    promotions: u64,
}

impl RelayBuffers {
    fn new(stats: &Arc<WorkerStats>) -> RelayBuffers {
        RelayBuffers {
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            pending: copy::PendingCache::new(stats),
            pipes: splice::PipeCache::default(),
            promotions: 0,
        }
    }
}

/// The sockets of a direction, and what is counted of them, while it runs.
struct Endpoints<'r> {
    source: &'r Socket,
    sink: &'r Socket,
    /// Counts what calls took from the source.
    received: Received<'r>,
    /// Counts what calls took toward the sink, each call before and behind it.
    sent: Sent<'r>,
}

/// How the sink is told that the source has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CloseMode {
    /// By a FIN of its own: the other direction goes on.
    Shutdown,
    /// By the close that follows, of whichever kind.
    Close,
}

impl Direction {
    /// A direction whose source is watched from now on: an event tells all.
    fn accepted() -> Direction {
        Direction {
            pending: None,
            pipe: None,
            readable: false,
            writable: true,
            stalls: false,
            end: StreamEnd::Open,
            state: State::Flowing,
            full_reads: 0,
            writes: 0,
        }
    }

    /// A direction whose source somebody else watched, and was told what is not told again.
    fn reused() -> Direction {
        Direction { readable: true, end: StreamEnd::Unclear, ..Direction::accepted() }
    }

    /// Moves up to `budget` bytes; leaves in `budget` what was not spent.
    fn pump(
        &mut self,
        mut lane: Endpoints<'_>,
        end_by: CloseMode,
        budget: &mut usize,
        tools: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        while *budget > 0 {
            if self.holds_bytes() {
                if !self.writable {
                    break;
                }
                self.write(&mut lane, budget, tools)?;
            } else if self.state == State::Flushing {
                if end_by == CloseMode::Shutdown {
                    // It fails when the peer is gone already, and then needs not be told.
                    let _ = lane.sink.shutdown_write();
                }
                self.state = State::Ended;
            } else if self.state == State::Ended || !self.readable {
                break;
            } else if self.is_fast() && self.end != StreamEnd::Urgent {
                let moved = self.fill_pipe(lane.source, tools)?;
                lane.received.add(moved);
            } else {
                let read = self.read(lane.source, tools)?;
                lane.received.add(read);
                self.forward(read, &mut lane, tools)?;
                *budget = budget.saturating_sub(read);
            }
        }
        if !self.holds_bytes() {
            self.return_pipe(tools);
        }
        Ok(())
    }

    fn holds_bytes(&self) -> bool {
        self.pending.is_some() || self.pipe.as_ref().is_some_and(|pipe| pipe.held() > 0)
    }

    /// Writes what is held.
    fn write(
        &mut self,
        lane: &mut Endpoints<'_>,
        budget: &mut usize,
        tools: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        if self.pending.is_some() {
            self.write_pending(lane, budget, tools)
        } else {
            self.drain_pipe(lane, budget)
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

    /// Notes that a read would block: whatever comes next is reported by an event.
    fn source_empty(&mut self) {
        self.readable = false;
        self.end = StreamEnd::Open;
    }

    /// Notes the end of the source.
    fn source_ended(&mut self) {
        self.readable = false;
        self.state = State::Flushing;
    }

    /// How the other direction's sink is told of its end, as far as this direction stands.
    fn other_ends_by(&self) -> CloseMode {
        if self.state == State::Ended { CloseMode::Close } else { CloseMode::Shutdown }
    }

    /// Whether something for it has arrived of which no event has told yet.
    fn has_news(&self, source: &Socket) -> bool {
        self.state == State::Flowing && !self.holds_bytes() && source.has_arrived()
    }

    /// Whether a run would find something to do.
    fn can_move(&self) -> bool {
        match self.state {
            State::Ended => false,
            State::Flushing => self.writable || !self.holds_bytes(),
            State::Flowing if self.holds_bytes() => self.writable,
            State::Flowing => self.readable,
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
        }
    }

    /// Passes on what was read before the relay began: what the client sent behind its request, and what the
    /// destination sent behind an answer's head, which was counted as received there.
    fn forward_early(
        &mut self,
        sent: &[u8],
        answered: &[u8],
        tally: &mut FlowCounters<'_>,
        tools: &mut RelayBuffers,
    ) {
        let (mut received, to_upstream) = tally.up();
        received.add(sent.len());
        let (client, upstream) = (&self.client.socket, &self.upstream.socket);
        let mut lane = Endpoints { source: client, sink: upstream, received, sent: to_upstream };
        self.up.forward_early(sent, &mut lane, tools);
        let (received, to_client) = tally.down();
        let mut lane = Endpoints { source: upstream, sink: client, received, sent: to_client };
        self.down.forward_early(answered, &mut lane, tools);
    }

    /// Moves bytes in both directions, up to the budget of a turn, and counts them in `tally`.
    fn run(&mut self, tally: &mut FlowCounters<'_>, tools: &mut RelayBuffers) -> Outcome {
        let mut budget = PASS_BYTES_MAX;
        match self.pump_up(tally, &mut budget, tools) {
            Err(Failure::Source) => return Outcome::Over(CloseReason::ClientReset),
            Err(Failure::Sink) => {
                // What the destination said before it broke is the client's, as far as he takes it now: many
                // a server answers "413" and resets the rest of an upload. Its end is not: the rest is lost.
                // No event may have told of it yet.
                self.down.readable = true;
                let _ = self.pump_down(tally, CloseMode::Close, &mut { usize::MAX }, tools);
                return Outcome::Over(CloseReason::UpstreamReset);
            }
            Ok(()) => {}
        }
        // A direction that spends all leaves the other its own half, so that acknowledgements of a fast
        // download do not wait for the upload to pause.
        budget = budget.max(PASS_BYTES_MAX / 2);
        let client_was_first = self.up.state == State::Ended && self.down.state != State::Ended;
        match self.pump_down(tally, self.up.other_ends_by(), &mut budget, tools) {
            Err(Failure::Source) => return Outcome::Over(CloseReason::UpstreamReset),
            Err(Failure::Sink) => return Outcome::Over(CloseReason::ClientReset),
            Ok(()) => {}
        }
        match (self.up.state, self.down.state) {
            (State::Ended, State::Ended) if client_was_first => Outcome::Over(CloseReason::ClientClosed),
            (State::Ended, State::Ended) => Outcome::Over(CloseReason::UpstreamClosed),
            _ if self.up.can_move() || self.down.can_move() => Outcome::Yields,
            _ if self.client_failed() => Outcome::Over(CloseReason::ClientReset),
            _ => Outcome::Waits,
        }
    }

    fn pump_up(
        &mut self,
        tally: &mut FlowCounters<'_>,
        budget: &mut usize,
        tools: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        let (received, sent) = tally.up();
        let lane = Endpoints { source: &self.client.socket, sink: &self.upstream.socket, received, sent };
        self.up.pump(lane, self.down.other_ends_by(), budget, tools)
    }

    fn pump_down(
        &mut self,
        tally: &mut FlowCounters<'_>,
        end_by: CloseMode,
        budget: &mut usize,
        tools: &mut RelayBuffers,
    ) -> Result<(), Failure> {
        let (received, sent) = tally.down();
        let lane = Endpoints { source: &self.upstream.socket, sink: &self.client.socket, received, sent };
        self.down.pump(lane, end_by, budget, tools)
    }

    /// Whether there is something to do.
    fn can_run(&self) -> bool {
        self.up.can_move() || self.down.can_move() || self.client_failed()
    }

    /// Whether the client's connection has failed. Where no direction can move nobody would find that out: a
    /// destination that takes nothing and says nothing would hold the relay until its deadline.
    fn client_failed(&self) -> bool {
        self.up.end == StreamEnd::Broken
    }

    /// Has the sockets that took less than they were given report when they take more.
    fn watch_writable(&mut self, reactor: &Reactor) -> io::Result<()> {
        for (direction, sink) in [(&self.up, &mut self.upstream), (&self.down, &mut self.client)] {
            if !direction.writable {
                sink.registration.report_room(reactor, &sink.socket)?;
            }
        }
        Ok(())
    }

    fn client_ready(&mut self, readiness: Readiness) {
        self.up.source_ready(readiness);
        self.down.sink_ready(readiness);
    }

    fn upstream_ready(&mut self, readiness: Readiness) {
        self.down.source_ready(readiness);
        self.up.sink_ready(readiness);
    }

    /// Whether one direction has ended and the other has not.
    fn is_half_closed(&self) -> bool {
        (self.up.state == State::Ended) != (self.down.state == State::Ended)
    }
}
