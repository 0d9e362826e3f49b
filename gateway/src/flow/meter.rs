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
use engine::timer::wheel::TimerId;
use ledger::live_table::FlowCounters;
use ledger::record::{CloseReason, Protocol, Record};
use ledger::{FlowWriter, LiveFlow};
use sys::clock::{self, Nanos, WallNanos};

use crate::account::{Account, ConnectionPermit};
use crate::budget::FlowPermit;
use crate::config::settings::Log;
use crate::flow::closing::HeldPermits;
use crate::limits::FLOWS_PER_THREAD_MAX;
use crate::observe::log::{
    Decision, Details, Event, EventKind, LeftOutBy, LineLimiter, LineSelector, LineSubject, LogSender,
    RequestOutcome, Selection,
};
use crate::observe::stats::WorkerStats;
use crate::token;

/// How long log lines are suppressed before their count is logged.
const SUPPRESSION_SPAN: Duration = Duration::from_secs(10);

/// The reason of a decision by which a flow begins.
const ALLOWED: &str = "allowed";

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
    dns: Micros,
    connect: Micros,
    selection: Selection,
    /// Until its decision is logged because it is a long flow.
    long_timer: Option<TimerId>,
    /// For a plain HTTP request.
    request: Option<Box<RequestInfo>>,
}

/// Log fields of a flow that is one request.
struct RequestInfo {
    outcome: RequestOutcome,
    path: Option<Box<str>>,
}

/// Microseconds, if known, in half the space of an option: each open flow has two.
#[derive(Clone, Copy)]
struct Micros(u32);

impl Micros {
    fn new(us: Option<u32>) -> Micros {
        Micros(us.unwrap_or(u32::MAX))
    }

    fn get(self) -> Option<u32> {
        Some(self.0).filter(|us| *us < u32::MAX)
    }
}

impl OpenFlow {
    /// The event of its line of that `kind`, `sample` being the line's factor.
    fn event(
        &self,
        (kind, reason): (EventKind, &'static str),
        at: WallNanos,
        record: &Record,
        sample: u32,
    ) -> Event {
        Event {
            kind,
            at,
            record: *record,
            is_claimed: false,
            protocol: Some(self.protocol),
            listener: self.listener,
            decision: Decision::Allow,
            reason,
            dns_us: self.dns.get(),
            connect_us: self.connect.get(),
            request: self.request.as_ref().map(|request| request.outcome),
            sample,
        }
    }
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
    selector: LineSelector,
    /// Flows that have ended without a line, by setting, until the count is logged.
    left_out: [u64; LeftOutBy::ALL.len()],
    /// Whether the timer runs that logs the suppressed counts.
    suppressed_armed: bool,
    stats: Arc<WorkerStats>,
    /// Whether the thread ends.
    is_stopping: bool,
}

impl Meter {
    /// A meter without flows, for one of `threads`. Its lines are selected by `log_settings`.
    pub(crate) fn new(
        reactor: &Rc<Reactor>,
        writer: FlowWriter,
        (log, log_settings): (LogSender, &Log),
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
            selector: LineSelector::new(log_settings),
            left_out: Default::default(),
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

    /// Selects lines by these settings from now on.
    pub(crate) fn configure_log(&mut self, settings: &Log) {
        self.selector.configure(settings);
    }

    /// Opens a flow, and logs its decision if that is selected; from now on bytes can be counted. `None` if
    /// its slot is damaged.
    pub(crate) fn open(&mut self, start: FlowStart) -> Option<Key> {
        let FlowStart { record, at, protocol, permit, global_permit, listener, method, path, .. } = start;
        drop(start.reservation);
        let mut live = self.writer.open(record.identity())?;
        if method.is_some() {
            self.writer.count_request(&mut live);
        }
        self.stats.opened(protocol);
        let request = method.map(|method| {
            let outcome = RequestOutcome { method, status: None };
            Box::new(RequestInfo { outcome, path })
        });
        let mut flow = OpenFlow {
            live,
            protocol,
            permit,
            global_permit,
            opened: self.reactor.now(),
            listener,
            dns: Micros::new(start.dns_us),
            connect: Micros::new(start.connect_us),
            selection: self.selector.begin(record.identity().id()),
            long_timer: None,
            request,
        };
        if flow.request.is_none() {
            self.log_decision(&mut flow, at, &record);
        }
        Some(self.flows.insert(flow))
    }

    /// Logs the decision of a flow that is about to be inserted, or arms the timer that does so.
    fn log_decision(&mut self, flow: &mut OpenFlow, at: WallNanos, record: &Record) {
        if let Some(sample) = self.selector.decision(&mut flow.selection) {
            let event = flow.event((EventKind::Decision, ALLOWED), at, record, sample);
            self.log.push(&event, &Details::default());
        } else if self.selector.awaits_long(&flow.selection) {
            flow.long_timer = Some(self.arm_long(flow.opened, self.flows.next_index()));
        }
    }

    fn arm_long(&self, opened: Nanos, index: u32) -> TimerId {
        let deadline = opened + self.selector.long();
        self.reactor.arm(deadline, WakeTarget::Token(token::Token::LongFlowTimer(index).to_raw()))
    }

    /// Logs the decision of the flow in slot `index`, whose timer has fired.
    pub(crate) fn log_late_decision(&mut self, index: u32) {
        let now = self.reactor.now();
        let Some((key, flow)) = self.flows.at(index) else { return };
        // If the timer was that of an earlier flow in the slot, this flow has its own.
        let Some(timer) = flow.long_timer.take() else { return };
        self.reactor.cancel(timer);
        let opened = flow.opened;
        if now.since(opened) < self.selector.long() {
            let timer = self.arm_long(opened, index);
            if let Some(flow) = self.flows.get_mut(key) {
                flow.long_timer = Some(timer);
            }
            return;
        }
        let Some(sample) = self.selector.late_decision(&mut flow.selection) else { return };
        let at = clock::steady_wall();
        // The reason is that of a flow that is open, and is not logged.
        if let Some(record) = self.writer.record(&flow.live, at, CloseReason::Fault) {
            let event = flow.event((EventKind::LateDecision, ALLOWED), at, &record, sample);
            self.log.push(&event, &Details::default());
        }
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

    /// Logs the counts of suppressed lines and of flows without a line.
    pub(crate) fn log_suppressed(&mut self) {
        self.suppressed_armed = false;
        if self.report_suppressed() > 0 {
            self.arm_suppressed();
        }
    }

    /// The same at the thread's end: counts that do not fit into the log's queue are lost.
    pub(crate) fn log_suppressed_at_end(&mut self) {
        let lost = self.report_suppressed();
        self.stats.log_dropped.add(lost);
    }

    /// Returns what stays counted.
    fn report_suppressed(&mut self) -> u64 {
        let Meter { line_limiter, log, reactor, left_out, .. } = self;
        let unreported =
            line_limiter.report_suppressed(reactor.now(), |suppressed| log.try_push_suppressed(suppressed));
        for (by, flows) in LeftOutBy::ALL.into_iter().zip(&mut *left_out) {
            if *flows > 0 && log.try_push_flows_left_out(by, *flows) {
                *flows = 0;
            }
        }
        unreported + left_out.iter().sum::<u64>()
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

    /// Closes a flow: logs its end if that is selected, gives its slot to the committer, and returns its
    /// permits.
    pub(crate) fn close(&mut self, key: Key, reason: CloseReason) -> Option<HeldPermits> {
        let flow = self.flows.remove(key)?;
        if let Some(timer) = flow.long_timer {
            self.reactor.cancel(timer);
        }
        let at = clock::steady_wall();
        self.stats.closed(reason);
        self.log_close(&flow, at, reason);
        self.writer.close(flow.live, at, reason);
        Some(HeldPermits::of_flow(flow.permit, flow.global_permit))
    }

    fn log_close(&mut self, flow: &OpenFlow, at: WallNanos, reason: CloseReason) {
        let age = self.reactor.now().since(flow.opened);
        match self.selector.close(flow.selection, age) {
            Ok(sample) => {
                // A damaged slot has no identity any more; the ledger reports it.
                let Some(record) = self.writer.record(&flow.live, at, reason) else { return };
                let path = flow.request.as_ref().and_then(|request| request.path.as_deref());
                let details = Details { path: path.unwrap_or_default(), ..Details::default() };
                self.log
                    .push(&flow.event((EventKind::Close, reason.as_str()), at, &record, sample), &details);
            }
            Err(Some(setting)) => {
                self.left_out[setting as usize] += 1;
                self.stats.log_flows_left_out.add(1);
                self.arm_suppressed();
            }
            Err(None) => {}
        }
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
