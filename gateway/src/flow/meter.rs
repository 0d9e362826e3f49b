//! The meter: the open flows of one thread, their slots in the live table, and what the log is told of them.
//!
//! Promises: a flow that was opened is closed exactly once, and from then on its slot is the ledger's;
//! nothing here waits. Leaves to others: counting (`relay` makes its calls inside the tally), and
//! durability (crate `ledger`).

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::reactor::{Reactor, WakeTarget};
use engine::slab::{Key, Slab};
use ledger::live_table::FlowCounters;
use ledger::record::{CloseReason, Protocol, Record};
use ledger::{FlowWriter, LiveFlow};
use sys::clock::{self, Nanos, WallNanos};

use crate::account::{Account, ConnectionPermit};
use crate::budget::FlowPermit;
use crate::flow::closing::HeldPermits;
use crate::limits::FLOWS_PER_THREAD_MAX;
use crate::log::{Decision, Details, Event, EventKind, LineLimiter, LogSender, RequestOutcome, Subject};
use crate::stats::WorkerStats;
use crate::token;

/// How long lines are left out before the log is told how many.
const SUPPRESSION_SPAN: Duration = Duration::from_secs(10);

/// What is known of a flow when it opens.
pub(crate) struct FlowStart {
    /// The record, but for its end and its bytes.
    pub record: Record,
    /// When it was admitted.
    pub at: WallNanos,
    /// How the client asked.
    pub protocol: Protocol,
    /// The flow's place in its user's account.
    pub permit: ConnectionPermit,
    /// The flow's place in the budget of all users.
    pub global_permit: FlowPermit,
    /// The slot that was kept for it.
    pub reservation: Reservation,
    /// The listener that took the connection.
    pub listener: SocketAddr,
    /// How long the lookup of the name took, in microseconds, if there was one.
    pub dns_us: Option<u32>,
    /// How long it took to reach the destination, in microseconds.
    pub connect_us: Option<u32>,
    /// The method of a plain HTTP request. Such a flow is short: it has one line in the log, at its end.
    pub method: Option<&'static str>,
    /// Its path, where the log is to have it.
    pub path: Option<Box<str>>,
}

/// A flow that is open.
struct OpenFlow {
    live: LiveFlow,
    protocol: Protocol,
    permit: ConnectionPermit,
    /// Held until the flow ends, and its peers have taken all.
    global_permit: FlowPermit,
    opened: Nanos,
    listener: SocketAddr,
    /// Of a plain HTTP request.
    request: Option<Box<RequestInfo>>,
}

/// What the log tells at the end of a flow that is one request.
struct RequestInfo {
    answered: RequestOutcome,
    dns_us: Option<u32>,
    connect_us: Option<u32>,
    path: Option<Box<str>>,
}

/// A slot that is kept for a flow until it begins, or does not.
#[derive(Debug)]
pub(crate) struct Reservation(Rc<Cell<u32>>);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// See the file's header.
pub(crate) struct Meter {
    reactor: Rc<Reactor>,
    flows: Slab<OpenFlow>,
    writer: FlowWriter,
    /// Slots that are kept for flows which are about to begin.
    reserved: Rc<Cell<u32>>,
    log: LogSender,
    line_limiter: LineLimiter,
    /// Whether the log will be told what was left out.
    suppressed_armed: bool,
    stats: Arc<WorkerStats>,
    /// Whether the thread ends.
    is_stopping: bool,
}

impl Meter {
    /// A meter without flows, for one of `threads`.
    pub(crate) fn new(
        reactor: &Rc<Reactor>,
        inlet: FlowWriter,
        log: LogSender,
        stats: &Arc<WorkerStats>,
        threads: usize,
    ) -> Meter {
        Meter {
            reactor: Rc::clone(reactor),
            flows: Slab::new(),
            writer: inlet,
            reserved: Rc::default(),
            log,
            line_limiter: LineLimiter::new(threads),
            suppressed_armed: false,
            stats: Arc::clone(stats),
            is_stopping: false,
        }
    }

    /// Keeps a slot for a flow that is about to begin; `None` without a free slot, or while the ledger can
    /// journal nothing.
    pub(crate) fn reserve(&mut self) -> Option<Reservation> {
        let wanted = self.reserved.get() + 1;
        let has_room = self.flows.len() + wanted as usize <= FLOWS_PER_THREAD_MAX;
        if !has_room || !self.writer.has_room_for(wanted) {
            self.stats.ledger_full.add(1);
            return None;
        }
        self.reserved.set(wanted);
        Some(Reservation(Rc::clone(&self.reserved)))
    }

    /// Opens a flow: its decision is logged, from now on bytes may be counted. `None` if its slot turns out
    /// to be damaged.
    pub(crate) fn open(&mut self, opening: FlowStart) -> Option<Key> {
        let FlowStart {
            record,
            at,
            protocol,
            permit: seat,
            global_permit: place,
            reservation,
            listener,
            dns_us,
            connect_us,
            method,
            path,
        } = opening;
        drop(reservation);
        let live = self.writer.open(record.identity())?;
        self.stats.opened(protocol);
        let request = method.map(|method| {
            let answered = RequestOutcome { method, status: None };
            Box::new(RequestInfo { answered, dns_us, connect_us, path })
        });
        if request.is_none() {
            let event = Event {
                kind: EventKind::Decision,
                at,
                record,
                is_claimed: false,
                protocol: Some(protocol),
                listener,
                decision: Decision::Allow,
                reason: "allowed",
                dns_us,
                connect_us,
                answered: None,
            };
            self.log.push(&event, &Details::default());
        }
        let opened = self.reactor.now();
        Some(self.flows.insert(OpenFlow {
            live,
            protocol,
            permit: seat,
            global_permit: place,
            opened,
            listener,
            request,
        }))
    }

    /// Whether the log is to be told that a client was refused, or failed, with that `reason`; if not, it is
    /// counted, and the log is told the count within [`SUPPRESSION_SPAN`].
    pub(crate) fn admits_line(&mut self, of: Subject<'_>, reason: &'static str) -> bool {
        let is_admitted = self.line_limiter.admits(of, reason, self.reactor.now());
        if !is_admitted {
            self.stats.log_left_out.add(1);
            self.arm_suppressed();
        }
        is_admitted
    }

    /// Tells the log what was left out.
    pub(crate) fn log_suppressed(&mut self) {
        self.suppressed_armed = false;
        let Meter { line_limiter: samples, log, reactor, .. } = self;
        if samples.tell(reactor.now(), |left_out| log.offer_left_out(left_out)) > 0 {
            self.arm_suppressed();
        }
    }

    /// The same, at the thread's end: what finds no room is lost like any other line.
    pub(crate) fn log_suppressed_at_end(&mut self) {
        let Meter { line_limiter: samples, log, reactor, .. } = self;
        let lost = samples.tell(reactor.now(), |left_out| log.offer_left_out(left_out));
        self.stats.log_dropped.add(lost);
    }

    fn arm_suppressed(&mut self) {
        if !std::mem::replace(&mut self.suppressed_armed, true) {
            let when = self.reactor.now() + SUPPRESSION_SPAN;
            self.reactor.arm(when, WakeTarget::Tag(token::Token::SuppressedTimer.to_raw()));
        }
    }

    /// Logs why a connection or request never becomes a flow.
    pub(crate) fn deny(&mut self, event: &Event, details: &Details<'_>) {
        self.log.push(event, details);
    }

    /// The counts of an open flow.
    pub(crate) fn counters(&mut self, flow: Key) -> Option<FlowCounters<'_>> {
        let Meter { flows, writer: inlet, .. } = self;
        flows.get_mut(flow).map(|flow| inlet.tally(&mut flow.live))
    }

    /// Notes that an open flow has counted something.
    pub(crate) fn counted(&mut self, flow: Key) {
        if let Some(flow) = self.flows.get_mut(flow) {
            self.writer.counted(&mut flow.live);
        }
    }

    /// When a flow was opened; [`Nanos::NEVER`] if there is no such flow.
    pub(crate) fn opened(&self, flow: Key) -> Nanos {
        self.flows.get(flow).map_or(Nanos::NEVER, |flow| flow.opened)
    }

    /// The account of an open flow.
    pub(crate) fn account(&self, flow: Key) -> Option<&Arc<Account>> {
        self.flows.get(flow).map(|flow| flow.permit.account())
    }

    /// Notes the status that the client of an open flow is answered with.
    pub(crate) fn set_status(&mut self, flow: Key, status: u16) {
        if let Some(request) = self.flows.get_mut(flow).and_then(|flow| flow.request.as_mut()) {
            request.answered.status = Some(status);
        }
    }

    /// Closes a flow: it gives its places back, its end is logged, and its slot is the ledger's.
    pub(crate) fn close(&mut self, key: Key, reason: CloseReason) -> Option<HeldPermits> {
        let flow = self.flows.remove(key)?;
        let at = clock::steady_wall();
        self.stats.closed(reason);
        // A damaged slot has no identity any more; the ledger tells of it.
        if let Some(record) = self.writer.record(&flow.live, at, reason) {
            let event = Event {
                kind: EventKind::Close,
                at,
                record,
                is_claimed: false,
                protocol: Some(flow.protocol),
                listener: flow.listener,
                decision: Decision::Allow,
                reason: reason.as_str(),
                dns_us: flow.request.as_ref().and_then(|request| request.dns_us),
                connect_us: flow.request.as_ref().and_then(|request| request.connect_us),
                answered: flow.request.as_ref().map(|request| request.answered),
            };
            let path = flow.request.as_ref().and_then(|request| request.path.as_deref()).unwrap_or_default();
            self.log.push(&event, &Details { path, ..Details::default() });
        }
        self.writer.close(flow.live, at, reason);
        Some(HeldPermits::of_flow(flow.permit, flow.global_permit))
    }

    /// Has flows that a task abandons from now on close as drained, and no longer as faults.
    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Closes a flow whose task was dropped: at the end of the thread, or by a panic.
    pub(crate) fn close_abandoned(&mut self, key: Key) {
        let reason = if self.is_stopping { CloseReason::Drained } else { CloseReason::Fault };
        self.close(key, reason);
    }

    /// Whether every flow has ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.flows.is_empty()
    }
}
