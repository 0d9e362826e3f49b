//! The open flows of one thread: their slots in the live table, and their log lines.
//!
//! Guarantees: an open flow is closed exactly once, and then its slot belongs to the committer; nothing here
//! waits.

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
use crate::observe::log::{
    Decision, Details, Event, EventKind, LineLimiter, LineSubject, LogSender, RequestOutcome,
};
use crate::observe::stats::WorkerStats;
use crate::token;

/// How long log lines are suppressed before their count is logged.
const SUPPRESSION_SPAN: Duration = Duration::from_secs(10);

/// What opens a flow.
pub(crate) struct FlowStart {
    /// The record, without end and bytes.
    pub record: Record,
    /// When the request was admitted.
    pub at: WallNanos,
    /// The protocol of the request.
    pub protocol: Protocol,
    /// One of the user's connections.
    pub permit: ConnectionPermit,
    /// One of all users' flows.
    pub global_permit: FlowPermit,
    /// The reserved slot.
    pub reservation: Reservation,
    /// The listener's address.
    pub listener: SocketAddr,
    /// How long the lookup of the name took, in microseconds, if there was one.
    pub dns_us: Option<u32>,
    /// How long the dial took, in microseconds, if there was one.
    pub connect_us: Option<u32>,
    /// The method of a plain HTTP request. Such a flow is short: its only log line is the one at its end.
    pub method: Option<&'static str>,
    /// The path of the request, if the configuration has it logged.
    pub path: Option<Box<str>>,
}

/// An open flow.
struct OpenFlow {
    live: LiveFlow,
    protocol: Protocol,
    permit: ConnectionPermit,
    /// Held until the flow ends and its peers have acknowledged all bytes.
    global_permit: FlowPermit,
    opened: Nanos,
    listener: SocketAddr,
    /// For a plain HTTP request.
    request: Option<Box<RequestInfo>>,
}

/// Log fields of a flow that is one request.
struct RequestInfo {
    outcome: RequestOutcome,
    dns_us: Option<u32>,
    connect_us: Option<u32>,
    path: Option<Box<str>>,
}

/// A slot reserved for a flow that is about to open; the drop returns it.
#[derive(Debug)]
pub(crate) struct Reservation(Rc<Cell<u32>>);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The open flows of one thread.
pub(crate) struct Meter {
    reactor: Rc<Reactor>,
    flows: Slab<OpenFlow>,
    writer: FlowWriter,
    /// The number of reserved slots.
    reserved: Rc<Cell<u32>>,
    log: LogSender,
    line_limiter: LineLimiter,
    /// Whether the timer runs that logs the suppressed counts.
    suppressed_armed: bool,
    stats: Arc<WorkerStats>,
    /// Whether the thread ends.
    is_stopping: bool,
}

impl Meter {
    /// A meter without flows, for one of `threads`.
    pub(crate) fn new(
        reactor: &Rc<Reactor>,
        writer: FlowWriter,
        log: LogSender,
        stats: &Arc<WorkerStats>,
        threads: usize,
    ) -> Meter {
        Meter {
            reactor: Rc::clone(reactor),
            flows: Slab::new(),
            writer,
            reserved: Rc::default(),
            log,
            line_limiter: LineLimiter::new(threads),
            suppressed_armed: false,
            stats: Arc::clone(stats),
            is_stopping: false,
        }
    }

    /// Reserves a slot; `None` if no slot is free, or the ledger cannot journal.
    pub(crate) fn reserve(&mut self) -> Option<Reservation> {
        let count = self.reserved.get() + 1;
        let has_slot = self.flows.len() + count as usize <= FLOWS_PER_THREAD_MAX;
        if !has_slot || !self.writer.has_capacity_for(count) {
            self.stats.ledger_full.add(1);
            return None;
        }
        self.reserved.set(count);
        Some(Reservation(Rc::clone(&self.reserved)))
    }

    /// Opens a flow and logs its decision; from now on bytes can be counted. `None` if its slot is damaged.
    pub(crate) fn open(&mut self, start: FlowStart) -> Option<Key> {
        let FlowStart {
            record,
            at,
            protocol,
            permit,
            global_permit,
            reservation,
            listener,
            dns_us,
            connect_us,
            method,
            path,
        } = start;
        drop(reservation);
        let mut live = self.writer.open(record.identity())?;
        if method.is_some() {
            self.writer.count_request(&mut live);
        }
        self.stats.opened(protocol);
        let request = method.map(|method| {
            let outcome = RequestOutcome { method, status: None };
            Box::new(RequestInfo { outcome, dns_us, connect_us, path })
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
                request: None,
            };
            self.log.push(&event, &Details::default());
        }
        let opened = self.reactor.now();
        Some(self.flows.insert(OpenFlow { live, protocol, permit, global_permit, opened, listener, request }))
    }

    /// Whether a denial or failure with that `reason` is logged. If not, it is counted, and the count is
    /// logged within [`SUPPRESSION_SPAN`].
    pub(crate) fn admits_line(&mut self, subject: LineSubject<'_>, reason: &'static str) -> bool {
        let is_admitted = self.line_limiter.admits(subject, reason, self.reactor.now());
        if !is_admitted {
            self.stats.log_suppressed.add(1);
            self.arm_suppressed();
        }
        is_admitted
    }

    /// Logs the suppressed counts.
    pub(crate) fn log_suppressed(&mut self) {
        self.suppressed_armed = false;
        let Meter { line_limiter, log, reactor, .. } = self;
        if line_limiter.report_suppressed(reactor.now(), |suppressed| log.try_push_suppressed(suppressed)) > 0
        {
            self.arm_suppressed();
        }
    }

    /// The same at the thread's end: counts that do not fit into the log's queue are lost.
    pub(crate) fn log_suppressed_at_end(&mut self) {
        let Meter { line_limiter, log, reactor, .. } = self;
        let lost =
            line_limiter.report_suppressed(reactor.now(), |suppressed| log.try_push_suppressed(suppressed));
        self.stats.log_dropped.add(lost);
    }

    fn arm_suppressed(&mut self) {
        if !std::mem::replace(&mut self.suppressed_armed, true) {
            let deadline = self.reactor.now() + SUPPRESSION_SPAN;
            self.reactor.arm(deadline, WakeTarget::Token(token::Token::SuppressedTimer.to_raw()));
        }
    }

    /// Logs a denial.
    pub(crate) fn deny(&mut self, event: &Event, details: &Details<'_>) {
        self.log.push(event, details);
    }

    /// The counters of an open flow.
    pub(crate) fn counters(&mut self, flow: Key) -> Option<FlowCounters<'_>> {
        let Meter { flows, writer, .. } = self;
        flows.get_mut(flow).map(|flow| writer.counters(&mut flow.live))
    }

    /// Notes that an open flow has new counts.
    pub(crate) fn counted(&mut self, flow: Key) {
        if let Some(flow) = self.flows.get_mut(flow) {
            self.writer.request_interim_if_due(&mut flow.live);
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

    /// Notes the status of the response to an open flow's request.
    pub(crate) fn set_status(&mut self, flow: Key, status: u16) {
        if let Some(request) = self.flows.get_mut(flow).and_then(|flow| flow.request.as_mut()) {
            request.outcome.status = Some(status);
        }
    }

    /// Closes a flow: logs its end, gives its slot to the committer, and returns its permits.
    pub(crate) fn close(&mut self, key: Key, reason: CloseReason) -> Option<HeldPermits> {
        let flow = self.flows.remove(key)?;
        let at = clock::steady_wall();
        self.stats.closed(reason);
        // A damaged slot has no identity any more; the ledger reports it.
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
                request: flow.request.as_ref().map(|request| request.outcome),
            };
            let path = flow.request.as_ref().and_then(|request| request.path.as_deref()).unwrap_or_default();
            self.log.push(&event, &Details { path, ..Details::default() });
        }
        self.writer.close(flow.live, at, reason);
        Some(HeldPermits::of_flow(flow.permit, flow.global_permit))
    }

    /// From now on, flows of dropped tasks close as drained, and not as faults.
    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Closes the flow of a dropped task: at the thread's end, or after a panic.
    pub(crate) fn close_abandoned(&mut self, key: Key) {
        let reason = if self.is_stopping { CloseReason::Drained } else { CloseReason::Fault };
        self.close(key, reason);
    }

    /// Whether no flow is open.
    pub(crate) fn is_settled(&self) -> bool {
        self.flows.is_empty()
    }
}
