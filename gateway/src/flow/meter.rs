//! The open flows of one thread: their slots in the live table, and their log lines.
//!
//! Guarantees: an open flow is closed exactly once, and then its slot belongs to the committer; nothing here
//! waits; a flow between two requests has no permit, and a thread has at most [`IDLE_RUNS_PER_THREAD_MAX`] of
//! them.
//!
//! ```text
//!   tunnel    open -------------------------------------------------> close
//!   requests  open --> end_request --> begin_request --> end_request --> close
//!                            '-------- an idle run ---------'
//! ```

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::reactor::{Reactor, WakeTarget};
use engine::slab::{Key, Slab};
use engine::timer::wheel::TimerId;
use ledger::live_table::FlowCounters;
use ledger::record::{CloseReason, Legs, Protocol, Record};
use ledger::{FlowWriter, LiveFlow};
use sys::clock::{self, Nanos, WallNanos};

use crate::account::Account;
use crate::config::settings::Log;
use crate::credit::{CreditTime, Destination, FlowCredit, Limits};
use crate::flow::closing::HeldPermits;
use crate::flow::request::{Admitted, LastRequest, Permits, RequestStart};
use crate::limits::{FLOWS_PER_THREAD_MAX, IDLE_RUNS_PER_THREAD_MAX};
use crate::observe::log::{
    Decision, Details, Event, EventKind, LeftOutBy, LineLimiter, LineSelector, LineSubject, LogSender,
    Selection,
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
    pub admitted: Admitted,
    /// The reserved slot.
    pub reservation: Reservation,
    /// The listener's address.
    pub listener: SocketAddr,
    /// The first request, of plain HTTP.
    pub request: Option<RequestStart>,
    /// What quotas see of the destination.
    pub destination: Destination,
    /// What the flow draws on; `None` if nothing limits it.
    pub credit: Option<Box<FlowCredit>>,
}

/// An open flow.
struct OpenFlow {
    live: LiveFlow,
    protocol: Protocol,
    /// `None` between two requests.
    permits: Option<Permits>,
    /// When the tunnel was opened, or the last request began.
    opened: Nanos,
    listener: SocketAddr,
    dns: Micros,
    connect: Micros,
    selection: Selection,
    /// Until its decision is logged because it is a long flow.
    long_timer: Option<TimerId>,
    destination: Destination,
    /// `None` if nothing limits the flow.
    credit: Option<Box<FlowCredit>>,
    /// For plain HTTP.
    request: Option<Box<LastRequest>>,
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

/// The wall clock of a thread's credit, which is read once in a pass.
#[derive(Default)]
struct CreditClock(Option<CreditTime>);

impl CreditClock {
    fn at(&mut self, now: Nanos) -> CreditTime {
        let known = self.0.filter(|time| time.monotonic == now);
        let read = || CreditTime { monotonic: now, wall: clock::steady_wall() };
        *self.0.insert(known.unwrap_or_else(read))
    }
}

/// The open flows of one thread.
pub(crate) struct Meter {
    reactor: Rc<Reactor>,
    flows: Slab<OpenFlow>,
    writer: FlowWriter,
    /// The number of reserved slots.
    reserved: Rc<Cell<u32>>,
    /// The number of flows between two requests.
    idle_runs: usize,
    log: LogSender,
    line_limiter: LineLimiter,
    selector: LineSelector,
    /// Flows that have ended without a line, by setting, until the count is logged.
    left_out: [u64; LeftOutBy::ALL.len()],
    /// Whether the timer runs that logs the suppressed counts.
    suppressed_armed: bool,
    stats: Arc<WorkerStats>,
    credit_time: CreditClock,
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
            idle_runs: 0,
            log,
            line_limiter: LineLimiter::new(threads),
            selector: LineSelector::new(log_settings),
            left_out: Default::default(),
            suppressed_armed: false,
            credit_time: CreditClock::default(),
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
        let FlowStart { record, at, protocol, admitted, reservation, listener, request, .. } = start;
        let (destination, credit) = (start.destination, start.credit);
        drop(reservation);
        let mut live = self.writer.open(record.identity())?;
        if let Some(request) = &request {
            self.writer.count_request(&mut live);
            self.stats.requested(request.method);
        }
        self.stats.opened(protocol);
        let Admitted { permit, global_permit, dns_us, connect_us } = admitted;
        let mut flow = OpenFlow {
            live,
            protocol,
            permits: Some(Permits { user: permit, global: global_permit }),
            opened: self.reactor.now(),
            listener,
            dns: Micros::new(dns_us),
            connect: Micros::new(connect_us),
            selection: self.selector.begin(record.identity().id()),
            long_timer: None,
            destination,
            credit,
            request: request.map(|start| Box::new(LastRequest::first(record.identity(), start))),
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

    /// The counters of an open flow, and its credit at this moment.
    pub(crate) fn counters_and_credit(
        &mut self,
        flow: Key,
    ) -> Option<(FlowCounters<'_>, Option<(&mut FlowCredit, CreditTime)>)> {
        let Meter { flows, writer, reactor, credit_time, .. } = self;
        let flow = flows.get_mut(flow)?;
        let credit = flow.credit.as_mut().map(|credit| (&mut **credit, credit_time.at(reactor.now())));
        Some((writer.counters(&mut flow.live), credit))
    }

    /// The credit of an open flow at this moment; `None` if nothing limits it.
    pub(crate) fn credit(&mut self, flow: Key) -> Option<(&mut FlowCredit, CreditTime)> {
        self.counters_and_credit(flow)?.1
    }

    /// The time by which credit is reserved.
    pub(crate) fn credit_time(&mut self) -> CreditTime {
        self.credit_time.at(self.reactor.now())
    }

    /// Has all open flows draw on the limits that `limits_of` returns for their account.
    pub(crate) fn adopt_limits<'l>(&mut self, limits_of: impl Fn(&Account) -> Option<&'l Limits>) {
        let now = self.credit_time().wall;
        let Meter { flows, writer, .. } = self;
        for flow in flows.values_mut() {
            let Some(permits) = &flow.permits else { continue };
            match (limits_of(permits.user.account()), &mut flow.credit) {
                (Some(limits), Some(credit)) => credit.adopt(limits, now),
                (None, Some(credit)) => credit.adopt(&Limits::default(), now),
                (Some(limits), None) => {
                    let sent = writer.counters(&mut flow.live).legs();
                    flow.credit = FlowCredit::new(limits, flow.destination, now)
                        .map(|credit| credit.begun_at(sent.upstream_tx, sent.client_tx));
                }
                (None, None) => {}
            }
        }
    }

    /// Begins the next request of an idle run.
    pub(crate) fn begin_request(&mut self, flow: Key, admitted: Admitted, start: RequestStart) {
        let Meter { flows, writer, selector, stats, .. } = self;
        let Some(flow) = flows.get_mut(flow) else { return };
        let Some(request) = &mut flow.request else { return };
        writer.count_request(&mut flow.live);
        stats.requested(start.method);
        let Admitted { permit, global_permit, dns_us, connect_us } = admitted;
        if flow.permits.replace(Permits { user: permit, global: global_permit }).is_none() {
            self.idle_runs -= 1;
            stats.resumed();
        }
        (flow.dns, flow.connect) = (Micros::new(dns_us), Micros::new(connect_us));
        flow.selection = selector.begin(start.id);
        flow.opened = self.reactor.now();
        request.follow(start, writer.counters(&mut flow.live).legs());
    }

    /// Whether a run may stay open between two requests. If not, it ends with its request.
    pub(crate) fn may_idle(&self) -> bool {
        self.idle_runs < IDLE_RUNS_PER_THREAD_MAX
    }

    /// Ends a request whose response is complete: logs its end if that is selected, and returns its permits.
    /// The flow stays open.
    pub(crate) fn end_request(&mut self, key: Key) -> Option<HeldPermits> {
        self.refund_unsent(key);
        let permits = self.flows.get_mut(key)?.permits.take()?;
        self.log_close(key, clock::steady_wall(), CloseReason::Completed);
        self.idle_runs += 1;
        self.stats.paused();
        Some(permits.held())
    }

    /// What the last request of an open flow has moved.
    pub(crate) fn request_legs(&mut self, flow: Key) -> Legs {
        let Meter { flows, writer, .. } = self;
        let Some(flow) = flows.get_mut(flow) else { return Legs::default() };
        let counts = writer.counters(&mut flow.live).legs();
        flow.request.as_ref().map_or(counts, |request| request.legs(&counts))
    }

    /// Notes that an open flow has new counts.
    pub(crate) fn counted(&mut self, flow: Key) {
        if let Some(flow) = self.flows.get_mut(flow) {
            self.writer.request_interim_if_due(&mut flow.live);
        }
    }

    /// When a tunnel was opened, or the last request of a flow began; [`Nanos::NEVER`] if there is no such
    /// flow.
    pub(crate) fn opened(&self, flow: Key) -> Nanos {
        self.flows.get(flow).map_or(Nanos::NEVER, |flow| flow.opened)
    }

    /// The account of an open flow; none between two requests.
    pub(crate) fn account(&self, flow: Key) -> Option<&Arc<Account>> {
        self.flows.get(flow)?.permits.as_ref().map(|permits| permits.user.account())
    }

    /// Notes the status of the response to an open flow's request.
    pub(crate) fn set_status(&mut self, flow: Key, status: u16) {
        if let Some(request) = self.flows.get_mut(flow).and_then(|flow| flow.request.as_mut()) {
            request.outcome.status = Some(status);
        }
    }

    /// Counts the response to an open flow's request, whose connections become a tunnel.
    pub(crate) fn count_response(&mut self, flow: Key) {
        let Meter { flows, stats, .. } = self;
        if let Some(request) = flows.get_mut(flow).and_then(|flow| flow.request.as_mut()) {
            request.count_response(stats);
        }
    }

    /// Closes a flow: logs its end if that is selected, gives its slot to the committer, and returns its
    /// permits. An idle run has none, and its requests have their lines.
    pub(crate) fn close(&mut self, key: Key, reason: CloseReason) -> Option<HeldPermits> {
        let at = clock::steady_wall();
        if self.flows.get(key)?.permits.is_some() {
            self.log_close(key, at, reason);
        } else {
            self.idle_runs -= 1;
            self.stats.resumed();
        }
        self.refund_unsent(key);
        let flow = self.flows.remove(key)?;
        if let Some(timer) = flow.long_timer {
            self.reactor.cancel(timer);
        }
        self.stats.closed(reason);
        self.writer.close(flow.live, at, reason);
        flow.permits.map(Permits::held)
    }

    /// Returns the credit of bytes that were read and never sent.
    fn refund_unsent(&mut self, key: Key) {
        let Meter { flows, writer, .. } = self;
        let Some(flow) = flows.get_mut(key) else { return };
        if let Some(credit) = &mut flow.credit {
            let sent = writer.counters(&mut flow.live).legs();
            credit.refund_unsent(sent.upstream_tx, sent.client_tx);
        }
    }

    /// Logs the end of a tunnel or a request, if that is selected.
    fn log_close(&mut self, key: Key, at: WallNanos, reason: CloseReason) {
        let Meter { flows, writer, .. } = self;
        let Some(flow) = flows.get_mut(key) else { return };
        let age = self.reactor.now().since(flow.opened);
        if let Some(request) = &mut flow.request {
            request.count_response(&self.stats);
        }
        match self.selector.close(flow.selection, age) {
            Ok(sample) => {
                let counts = writer.counters(&mut flow.live).legs();
                let record = match &flow.request {
                    Some(request) => Some(request.record(&counts, at, reason)),
                    None => writer.record(&flow.live, at, reason),
                };
                // A damaged slot has no identity any more; the ledger reports it.
                let Some(record) = record else { return };
                let path = flow.request.as_ref().and_then(|request| request.path.as_deref());
                let details = Details { path: path.unwrap_or_default(), ..Details::default() };
                let event = flow.event((EventKind::Close, reason.as_str()), at, &record, sample);
                self.log.push(&event, &details);
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

    /// Closes the flow of a dropped task: at the thread's end, or after a panic; or an idle run, whose last
    /// response was complete.
    pub(crate) fn close_abandoned(&mut self, key: Key) {
        let is_idle = self.flows.get(key).is_some_and(|flow| flow.permits.is_none());
        let reason = match self.is_stopping {
            _ if is_idle => CloseReason::Completed,
            true => CloseReason::Drained,
            false => CloseReason::Fault,
        };
        self.close(key, reason);
    }

    /// Whether no flow is open.
    pub(crate) fn is_settled(&self) -> bool {
        self.flows.is_empty()
    }
}
