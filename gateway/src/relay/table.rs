//! The relays of one thread: their table, run queue, deadlines and ends.
//!
//! Guarantees: a relay with bytes to move runs once per pass, in the order of events, so that a fast stream
//! waits for all others; deadlines are re-armed lazily: progress is one store, and a timer that fires early
//! re-arms itself.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use engine::net::Parts;
use engine::reactor::{Interest, Reactor, Registration, WakeTarget};
use engine::slab::{Key, Slab};
use ledger::record::CloseReason;
use sys::clock::Nanos;
use sys::epoll::Readiness;

use super::stalls::Stalls;
use super::turns::Turns;
use super::waiting::WaitingRelays;
use super::{Direction, Outcome, Peer, Relay, RelayBuffers, Run, State};
use crate::buffers::{ReadBuffer, ReadBufferPool};
use crate::flow::closing::{ClosingConnections, has_unacknowledged};
use crate::flow::guard::FlowGuard;
use crate::flow::meter::Meter;
use crate::flow::progress::{Age, Deadlines, SocketQueues, Verdict};
use crate::limits::{PIPES_EMPTIED_PER_PASS_MAX, QUEUE_STALL_MAX, QUEUED_BYTES_MIN};
use crate::observe::stats::WorkerStats;
use crate::token::{Side, Token};

/// Two connected sockets, and what the relay between them starts with.
pub(crate) struct RelayStart {
    pub(crate) client: Parts,
    /// Bytes that the client sent ahead, to be sent to the upstream first.
    pub(crate) client_bytes: ReadBuffer,
    /// Whether the client was sent many bytes before, which it may not have acknowledged.
    pub(crate) sent_much: bool,
    pub(crate) upstream: Parts,
    /// Bytes that the upstream sent ahead.
    pub(crate) upstream_bytes: Vec<u8>,
    pub(crate) flow: FlowGuard,
}

/// The relays of one thread.
pub(crate) struct Relays {
    reactor: Rc<Reactor>,
    slab: Slab<Relay>,
    queue: VecDeque<Key>,
    stalls: Stalls,
    turns: Turns,
    waiting: WaitingRelays,
    buffers: RelayBuffers,
    deadlines: Deadlines,
    stats: Arc<WorkerStats>,
    closing: Rc<ClosingConnections>,
}

impl Relays {
    /// An empty table on the thread of `reactor`.
    pub(crate) fn new(
        reactor: &Rc<Reactor>,
        deadlines: Deadlines,
        stats: &Arc<WorkerStats>,
        closing: &Rc<ClosingConnections>,
    ) -> Relays {
        Relays {
            reactor: Rc::clone(reactor),
            slab: Slab::new(),
            queue: VecDeque::new(),
            stalls: Stalls::default(),
            turns: Turns::begin(reactor.now()),
            waiting: WaitingRelays::default(),
            buffers: RelayBuffers::new(stats, reactor.now()),
            deadlines,
            stats: Arc::clone(stats),
            closing: Rc::clone(closing),
        }
    }

    /// The number of relays.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether a relay is queued.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Sets the deadlines of all relays, live ones too.
    pub(crate) fn set_deadlines(&mut self, deadlines: Deadlines, meter: &Meter) {
        let is_earlier = deadlines.are_earlier_than(&self.deadlines);
        self.deadlines = deadlines;
        // Later deadlines are found when the present timers fire.
        if is_earlier {
            let keys: Vec<Key> = self.slab.keys().collect();
            keys.into_iter().for_each(|key| self.rearm_earlier(key, meter));
        }
    }

    /// Starts a relay, which runs in this pass. If a socket cannot be registered, closes the flow with
    /// [`CloseReason::Overload`].
    pub(crate) fn start(&mut self, start: RelayStart, meter: &mut Meter, buffers: &ReadBufferPool) {
        let RelayStart { client, client_bytes, sent_much, upstream, upstream_bytes, flow } = start;
        let flow = flow.release();
        // The index is known before the relay exists, so that the registrations can carry it.
        let index = self.slab.next_index();
        let client = self.register(client, index, Side::Client);
        let upstream = self.register(upstream, index, Side::Upstream);
        let (client, upstream) = match (client, upstream) {
            (Ok(client), Ok(upstream)) => (client, upstream),
            // The kernel has no memory for a registration.
            (client, upstream) => {
                [client, upstream].into_iter().flatten().for_each(|(peer, _direction)| self.reset(peer));
                meter.close(flow, CloseReason::Overload);
                buffers.put(client_bytes.into_bytes());
                return;
            }
        };
        let mut relay = Relay::new(client, upstream, flow, self.reactor.now());
        if let Some((mut counters, credit)) = meter.counters_and_credit(flow) {
            let before = counters.legs();
            let (client_bytes, buffers) = (client_bytes.unread(), &mut self.buffers);
            relay.forward_early(client_bytes, &upstream_bytes, &mut counters, credit, buffers);
            let after = counters.legs();
            self.stats.bytes.add(&before, &after);
            meter.counted(flow);
        }
        (relay.queued, relay.sent_much) = (true, sent_much);
        buffers.put(client_bytes.into_bytes());
        let key = self.slab.insert(relay);
        assert_eq!(key.index(), index, "the slab gives the slot that it announced");
        self.turns.note_start(key);
        self.queue.push_back(key);
        self.rearm_earlier(key, meter);
    }

    /// Notes the readiness of a socket of relay `index`, and queues the relay if it has work.
    pub(crate) fn ready(&mut self, index: u32, side: Side, readiness: Readiness) {
        let Some((key, relay)) = self.slab.at(index) else { return };
        match side {
            Side::Client => relay.client_ready(readiness),
            Side::Upstream => relay.upstream_ready(readiness),
        }
        if !relay.queued && relay.can_run() {
            relay.queued = true;
            self.queue.push_back(key);
        } else if !relay.queued && readiness.readable {
            relay.mute_blocked(&self.reactor);
        }
    }

    /// Notes that the thread has run connections without a relay: the turns of relays are short for a while.
    pub(crate) fn note_connections(&mut self) {
        self.turns.note_connections(self.reactor.now());
    }

    /// Runs every queued relay once.
    pub(crate) fn run(&mut self, meter: &mut Meter) {
        // Freed first: relays that run now may use these pipes.
        self.free_stalled_pipes();
        self.buffers.now = self.reactor.now();
        self.buffers.pipes.shrink_unused(self.buffers.now);
        let queued = self.queue.len();
        for _ in 0..queued {
            let Some(key) = self.queue.pop_front() else { break };
            self.run_one(key, queued, meter);
        }
        let stats = &self.stats;
        stats.pipes_held.set(self.buffers.pipes.held() as u64);
        stats.pipes_created.set(self.buffers.pipes.created);
        stats.pipes_lent.set(self.buffers.pipes.lent);
        stats.pipes_emptied.set(self.buffers.pipes.emptied);
        stats.splice_promotions.set(self.buffers.promotions);
    }

    /// Checks the deadlines of relay `index`, whose timer fired.
    pub(crate) fn due(&mut self, index: u32, meter: &mut Meter) {
        let Some((key, relay)) = self.slab.at(index) else { return };
        relay.timer = None;
        let age = age(relay, self.reactor.now(), meter);
        let legs = meter.counters(relay.flow).expect(OPEN).legs();
        let Relay { client, upstream, up, down, progress, queued, .. } = relay;
        let (client, upstream) = (&client.socket, &upstream.socket);
        let has_arrived =
            || *queued || up.has_unreported_input(client) || down.has_unreported_input(upstream);
        let queues = || SocketQueues::read(client, upstream, &legs);
        let verdict = self.deadlines.judge(progress, age, queues, has_arrived);
        match verdict {
            Verdict::CheckAt(at) => {
                relay.timer =
                    Some(self.reactor.arm(at, WakeTarget::Token(Token::RelayTimer(index).to_raw())));
            }
            // A quota ended it, and its last bytes were not taken in time.
            Verdict::Over(_) if relay.is_exhausted => self.close(key, CloseReason::QuotaExhausted, meter),
            Verdict::Over(reason) => self.close(key, reason, meter),
        }
    }

    /// Queues the relays that have waited for credit until now.
    pub(crate) fn resume_waiting(&mut self) {
        let now = self.reactor.now();
        while let Some(key) = self.waiting.take_due(now) {
            let Some(relay) = self.slab.get_mut(key) else { continue };
            relay.resume();
            if !relay.queued && relay.can_run() {
                relay.queued = true;
                self.queue.push_back(key);
            }
        }
        self.waiting.rearm(&self.reactor);
    }

    /// Ends every relay for which `close_reason` returns one.
    pub(crate) fn close_where(
        &mut self,
        meter: &mut Meter,
        close_reason: impl Fn(&Meter, Key) -> Option<CloseReason>,
    ) {
        let keys: Vec<Key> = self.slab.keys().collect();
        for key in keys {
            let flow = self.slab.get(key).map(|relay| relay.flow);
            if let Some(reason) = flow.and_then(|flow| close_reason(meter, flow)) {
                self.close(key, reason, meter);
            }
        }
    }

    fn free_stalled_pipes(&mut self) {
        let now = self.reactor.now();
        for _ in 0..PIPES_EMPTIED_PER_PASS_MAX {
            let Some(key) = self.stalls.next_due(now) else { break };
            let Some(relay) = self.slab.get_mut(key) else { continue };
            relay.free_pipes(&mut self.buffers);
            self.stalls.note(key, relay, now);
        }
    }

    /// Runs a relay in a pass of `queued`.
    fn run_one(&mut self, key: Key, queued: usize, meter: &mut Meter) {
        let Some(relay) = self.slab.get_mut(key) else { return };
        relay.queued = false;
        relay.note_pause(self.reactor.now());
        let (mut counters, credit) = meter.counters_and_credit(relay.flow).expect(OPEN);
        let before = counters.legs();
        let was_half_closed = relay.is_half_closed();
        let sustained_bytes = self.turns.sustained_bytes(key, queued, self.buffers.now);
        let Run { mut outcome, resumes_at } =
            relay.run(&mut counters, credit, sustained_bytes, &mut self.buffers);
        if !relay.is_sustained() {
            self.turns.note_relay(key, self.reactor.now());
        }
        let after = counters.legs();
        if after != before {
            relay.progress.moved(self.reactor.now());
            self.stats.bytes.add(&before, &after);
            meter.counted(relay.flow);
        }
        if !matches!(outcome, Outcome::Over(_)) && relay.watch(&self.reactor).is_err() {
            outcome = Outcome::Over(CloseReason::Fault);
        }
        let became_half_closed = relay.is_half_closed() && !was_half_closed;
        match outcome {
            Outcome::Waits => {}
            Outcome::Yields => {
                relay.queued = true;
                self.queue.push_back(key);
            }
            Outcome::Over(reason) => return self.close(key, reason, meter),
        }
        if resumes_at < Nanos::NEVER {
            relay.mute_blocked(&self.reactor);
            self.waiting.add(key, resumes_at, &self.reactor);
        }
        self.stalls.note(key, relay, self.reactor.now());
        if became_half_closed {
            // The span of a half-closed relay begins with the end, however long no byte had moved before.
            relay.progress.restart(self.reactor.now());
            self.rearm_earlier(key, meter);
        }
    }

    /// Re-arms the timer of a relay whose deadline is now earlier.
    fn rearm_earlier(&mut self, key: Key, meter: &Meter) {
        let Some(relay) = self.slab.get_mut(key) else { return };
        if let Some(timer) = relay.timer.take() {
            self.reactor.cancel(timer);
        }
        let check_at = self.deadlines.next_check(&relay.progress, age(relay, self.reactor.now(), meter));
        relay.timer =
            Some(self.reactor.arm(check_at, WakeTarget::Token(Token::RelayTimer(key.index()).to_raw())));
    }

    /// Ends a relay. A side to which the end was forwarded has a whole stream, of which the kernel may hold a
    /// part: it is closed in order. Any other side is reset, so that truncation is detectable.
    fn close(&mut self, key: Key, reason: CloseReason, meter: &mut Meter) {
        let Some(mut relay) = self.slab.remove(key) else { return };
        for direction in [&mut relay.up, &mut relay.down] {
            direction.return_pipe(&mut self.buffers);
            if let Some(pending) = direction.pending.take() {
                self.buffers.pending.put(pending);
            }
        }
        if let Some(timer) = relay.timer {
            self.reactor.cancel(timer);
        }
        let is_in_order = matches!(reason, CloseReason::ClientClosed | CloseReason::UpstreamClosed);
        let sent = meter.counters(relay.flow).map(|counters| counters.legs()).unwrap_or_default();
        // Where a quota ended the relay, a peer may go on sending: the close that answers with RST must wait
        // until the peer has all bytes, few or many.
        let ends_early = |sent: u64| if relay.is_exhausted { sent.max(QUEUED_BYTES_MIN) } else { sent };
        let to_client = ends_early(if relay.sent_much { QUEUED_BYTES_MIN } else { sent.client_tx });
        let to_upstream = ends_early(sent.upstream_tx);
        let permits = meter.close(relay.flow, reason);
        let queued = [
            self.close_side(relay.client, relay.down.state, to_client, is_in_order),
            self.close_side(relay.upstream, relay.up.state, to_upstream, is_in_order),
        ];
        if let (true, Some(permits)) = (queued.iter().any(Option::is_some), permits) {
            let permits = Rc::new(permits);
            queued.into_iter().flatten().for_each(|parts| self.closing.add(parts, &permits));
        }
    }

    /// Ends a side to which `sent` bytes were sent; `toward` is the state of the direction toward it. Returns
    /// the side if its peer has to acknowledge bytes of a whole stream.
    fn close_side(&self, peer: Peer, toward: State, sent: u64, is_in_order: bool) -> Option<Parts> {
        let Peer { socket, mut registration } = peer;
        if toward == State::Ended && has_unacknowledged(&socket, sent) {
            // Without its events, a timer checks the closing connection.
            let _ = registration.report_readable(&self.reactor, &socket);
            return Some((socket, Some(registration)));
        }
        self.reactor.forget(registration.key());
        match toward {
            // Both directions have ended, so that no byte is left to be read.
            _ if is_in_order => drop(socket),
            State::Ended => socket.close_after_flush(QUEUE_STALL_MAX),
            State::Flowing | State::Flushing => socket.reset(),
        }
        None
    }

    fn reset(&self, peer: Peer) {
        self.reactor.forget(peer.registration.key());
        peer.socket.reset();
    }

    /// Registers one side of relay `index`; returns it with the direction of which it is the source. Resets a
    /// socket that cannot be registered.
    fn register(
        &self,
        (socket, registration): Parts,
        index: u32,
        side: Side,
    ) -> io::Result<(Peer, Direction)> {
        let wake_target = WakeTarget::Token(Token::Relay(index, side).to_raw());
        if let Some(registration) = registration {
            self.reactor.set_wake_target(registration.key(), wake_target);
            return Ok((Peer { socket, registration }, Direction::reused()));
        }
        match Registration::new(&self.reactor, &socket, Interest::Read, wake_target) {
            Ok(registration) => Ok((Peer { socket, registration }, Direction::accepted())),
            Err(error) => {
                socket.reset();
                Err(error)
            }
        }
    }
}

/// The flow of each relay.
const OPEN: &str = "a relay's flow is open until the relay closes it";

fn age(relay: &Relay, now: Nanos, meter: &Meter) -> Age {
    Age { opened: meter.opened(relay.flow), is_half_closed: relay.is_half_closed(), now }
}
