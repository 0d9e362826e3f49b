//! The log: the lines of flows and denials, and the messages of the control side, as JSON lines on standard
//! error or in a file.
//!
//! Guarantees: [`LogSender::push`] never waits. It makes a system call only to wake a sleeping log thread. A
//! line is never torn and contains only printable ASCII, whatever a client sent. An event for which the ring
//! has no slot is dropped and counted, and a line reports the count. A destination that fails is tried again,
//! and delays no connection.
//!
//! Not handled here: what is billed (crate `ledger`). The log may lose lines, the ledger may not.
//!
//! ```text
//!   reactor thread --ring of events--.
//!   reactor thread --ring of events---+--> log thread: lines (line.rs) --> one write per batch (writer.rs)
//!   control side   --queue of lines--'
//! ```
//!
//! After a batch the log thread sleeps for a fixed delay instead of waiting for a wake-up, so under load no
//! thread pays for one. Only if that delay brought nothing does it sleep until it is woken.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use ledger::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};
use sys::clock::{self, WallNanos};
use sys::park_flag::ParkFlag;
use sys::ring::{self, Consumer, Producer};

#[cfg(test)]
pub(crate) use memory::{LoggedFlow, MemoryLog};

use crate::config::settings::{self, LogTarget};
use crate::observe::stats::{Stats, WorkerStats};

mod details;
mod disk_reserve;
mod line;
mod line_limiter;
#[cfg(test)]
mod memory;
mod rotation;
mod selection;
mod writer;

pub use details::Details;
pub(crate) use details::PATH_BYTES_MAX;
pub use line::{Level, Value};
pub(crate) use line_limiter::{LineLimiter, LineSubject, SuppressedLines};
pub(crate) use selection::{LeftOutBy, LineSelector, NO_SAMPLING, Selection};

use details::PackedDetails;
use line::LineWriter;
use rotation::Rotation;
use writer::{LogThread, Output};

/// Events of one reactor thread that may be queued: with a delay of 10 ms, 50,000 a second. The slots are
/// used round robin, however few events are queued, so more of them would occupy more of the CPU's caches.
const RING_EVENTS: usize = 512;
/// Bound on a slot of the ring.
const SLOT_BYTES_MAX: usize = 1024;
/// Lines of the control side that may be queued.
const MESSAGES_MAX: usize = 256;
/// How long [`Log::close`] waits for a destination that accepts nothing: a stopped reader of our standard
/// error must not keep the process from ending.
const CLOSE_SPAN_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(size_of::<Slot>() <= SLOT_BYTES_MAX);
const _: () = assert!(RING_EVENTS.is_power_of_two());

/// Stands for no address.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Stands for a flow of which nothing is known.
const NO_FLOW: Flow<'_> = Flow {
    id: 0,
    opened: WallNanos(0),
    closed: WallNanos(0),
    account: 0,
    policy: 0,
    set: 0,
    user: "",
    host: "",
    port: 0,
    address: None,
    client: SocketAddr::new(NO_ADDRESS, 0),
    class: Class::External,
    protocol: Protocol::Forward,
    rule: "",
    reason: CloseReason::Fault,
    requests: 0,
    legs: Legs { client_rx: 0, upstream_tx: 0, upstream_rx: 0, client_tx: 0 },
    uncertain: Uncertain { up: 0, down: 0 },
};

/// What a line reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EventKind {
    /// The flow was admitted, denied, or failed before it began.
    Decision,
    /// The flow was admitted some time ago, and is open.
    LateDecision,
    /// The flow ended.
    Close,
    /// This many lines were suppressed: of the record's user, else of its client's network, else of several.
    Suppressed(u64),
    /// This many flows have ended without a line.
    FlowsLeftOut(u64),
}

impl EventKind {
    fn as_str(self) -> &'static str {
        match self {
            EventKind::Decision | EventKind::LateDecision => "decision",
            EventKind::Close => "close",
            EventKind::Suppressed(_) | EventKind::FlowsLeftOut(_) => "left_out",
        }
    }
}

/// The outcome of a request for a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Decision {
    /// The flow began.
    Allow,
    /// The gateway denied it.
    Deny,
    /// Nothing denied it, and it failed: the name, the destination or the client.
    Failed,
}

impl Decision {
    fn as_str(self) -> &'static str {
        match self {
            Decision::Allow => "allow",
            Decision::Deny => "deny",
            Decision::Failed => "failed",
        }
    }
}

/// One line of the log, before it is text.
#[derive(Clone, Copy)]
pub struct Event {
    /// What it reports.
    pub kind: EventKind,
    /// When it happened.
    pub at: WallNanos,
    /// The flow, as far as it is known; empty texts, port 0 and a missing address are omitted from the line.
    pub record: Record,
    /// Whether the record's user is unproven: the client only claims to be this user.
    pub is_claimed: bool,
    /// The client's protocol, once it is known; the record's own protocol is ignored.
    pub protocol: Option<Protocol>,
    /// The listener that accepted the connection.
    pub listener: SocketAddr,
    /// The outcome.
    pub decision: Decision,
    /// The reason: a code in snake case.
    pub reason: &'static str,
    /// How long the lookup of the name took, in microseconds, if there was one.
    pub dns_us: Option<u32>,
    /// How long it took to reach the destination, in microseconds, if it was dialled.
    pub connect_us: Option<u32>,
    /// Of a plain HTTP request that was admitted.
    pub request: Option<RequestOutcome>,
    /// The line stands for this many.
    pub sample: u32,
}

impl Event {
    /// Copies `other`. Most of an event is space for the longest texts, and unused space is not touched: a
    /// ring of events is larger than the nearer caches of a CPU.
    fn copy_from(&mut self, other: &Event) {
        let Event { kind, at, record, is_claimed, protocol, listener, .. } = other;
        let Event { decision, reason, dns_us, connect_us, request, sample, .. } = other;
        self.record.copy_from(record);
        (self.kind, self.at, self.is_claimed) = (*kind, *at, *is_claimed);
        (self.protocol, self.listener) = (*protocol, *listener);
        (self.decision, self.reason, self.request) = (*decision, *reason, *request);
        (self.dns_us, self.connect_us, self.sample) = (*dns_us, *connect_us, *sample);
    }

    /// The number of lines about unknown clients that it represents.
    fn anonymous_lines(&self) -> u64 {
        let is_known = !self.is_claimed && !self.record.flow().user.is_empty();
        match self.kind {
            _ if is_known => 0,
            EventKind::FlowsLeftOut(_) => 0,
            EventKind::Suppressed(count) => count,
            EventKind::Decision | EventKind::LateDecision | EventKind::Close => 1,
        }
    }

    /// The initial contents of a ring's slots.
    fn blank() -> Event {
        Event {
            kind: EventKind::Decision,
            at: WallNanos(0),
            record: Record::new(&NO_FLOW),
            is_claimed: false,
            protocol: None,
            listener: NO_FLOW.client,
            decision: Decision::Deny,
            reason: "",
            dns_us: None,
            connect_us: None,
            request: None,
            sample: NO_SAMPLING,
        }
    }
}

/// An event and its details, as queued for the log thread.
#[derive(Clone, Copy)]
struct Slot {
    event: Event,
    details: PackedDetails,
}

impl Slot {
    /// The initial contents of a ring's slots.
    fn blank() -> Slot {
        Slot { event: Event::blank(), details: PackedDetails::blank() }
    }
}

/// A plain HTTP request and its outcome. The event's record has the identity of its flow, and its own counts.
#[derive(Clone, Copy)]
pub struct RequestOutcome {
    /// The request's id; that of a run's first request is the flow's.
    pub id: u128,
    /// When the request, or for the first one its connection, arrived.
    pub begun: WallNanos,
    /// The request's number in its run, from 1 on.
    pub number: u64,
    /// The method; `OTHER` for one that RFC 9110 does not name.
    pub method: &'static str,
    /// The response's status, if there was a response; the gateway's own if the destination sent none.
    pub status: Option<u16>,
}

/// The control side's handle. Dropping it closes the log.
pub struct Log {
    to: LogTarget,
    signals: Arc<LogThreadSignals>,
    messages: Sender<Box<[u8]>>,
    stats: Arc<Stats>,
    /// Disconnected once the log thread has ended. Taken by the first [`Log::close`].
    ended: Mutex<Option<Receiver<()>>>,
}

impl Log {
    /// Opens the destination, starts the log thread, and returns a sender for each of `stats.workers`, in
    /// their order.
    ///
    /// # Errors
    /// The file cannot be opened or created (with mode 0640), or no thread can be started.
    pub fn start(settings: &settings::Log, stats: &Arc<Stats>) -> io::Result<(Log, Vec<LogSender>)> {
        let output = Output::open(&settings.to)?;
        let signals = Arc::new(LogThreadSignals::default());
        signals.rotation.set(settings);
        let (messages, lines) = bounded(MESSAGES_MAX);
        let (alive, ended) = bounded(0);
        let (senders, rings) = stats.workers.iter().map(|worker| log_sender(&signals, worker)).unzip();
        let mut log_thread = LogThread::new(Arc::clone(&signals), rings, lines, output, Arc::clone(stats));
        let handle = thread::Builder::new().name("log".into()).spawn(move || {
            log_thread.run();
            drop(alive);
        })?;
        signals.thread.set(handle.thread().clone()).expect("only this function sets it");
        let (to, stats) = (settings.to.clone(), Arc::clone(stats));
        Ok((Log { to, signals, messages, stats, ended: Mutex::new(Some(ended)) }, senders))
    }

    /// Logs a message of the control side. Texts and values may be untrusted; the fields' names are the
    /// program's own. While [`MESSAGES_MAX`] lines are queued, further ones are dropped and counted.
    pub fn write_message(&self, level: Level, text: &str, fields: &[(&'static str, Value<'_>)]) {
        let mut line = Vec::new();
        LineWriter::default().message(&mut line, clock::wall(), level, text, fields);
        if self.messages.try_send(line.into()).is_err() {
            self.stats.log_messages_dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.signals.wake();
    }

    /// Reopens the file, after a rotation has renamed it. If that fails the old file stays in use, and a line
    /// reports it. For standard error this does nothing.
    pub fn reopen(&self) {
        self.signals.reopen.store(true, Ordering::Relaxed);
        self.signals.wake();
    }

    /// Rotates the file by `settings` from now on, unless they are those of another destination: that one is
    /// in use after a restart.
    pub fn configure(&self, settings: &settings::Log) {
        if settings.to == self.to {
            self.signals.rotation.set(settings);
        }
    }

    /// Writes what is queued and ends the log thread. Later events are dropped.
    ///
    /// Returns after at most [`CLOSE_SPAN_MAX`], even if the destination accepts nothing.
    pub fn close(&self) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(ended) = ended else { return };
        // Release pairs with the Acquire in `writer`: its last pass sees what was pushed before.
        self.signals.closing.store(true, Ordering::Release);
        self.signals.wake();
        // Nothing is ever sent: the wait ends by the thread's end, or by the time-out.
        let _ = ended.recv_timeout(CLOSE_SPAN_MAX);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

/// A reactor thread's sender of log events.
pub struct LogSender {
    signals: Arc<LogThreadSignals>,
    ring: Producer<Slot>,
    stats: Arc<WorkerStats>,
}

impl LogSender {
    /// Queues `event` for the log thread, or drops and counts it if [`RING_EVENTS`] of this thread are
    /// queued.
    pub fn push(&mut self, event: &Event, details: &Details<'_>) {
        if !self.try_push(event, details) {
            self.stats.log_dropped.add(1);
        }
    }

    /// Queues a count of suppressed lines, unless the ring is full.
    pub(crate) fn try_push_suppressed(&mut self, suppressed: &SuppressedLines<'_>) -> bool {
        let (network, user) = match suppressed.subject {
            Some(LineSubject::Source(network)) => (network, ""),
            Some(LineSubject::User(name)) => (NO_ADDRESS, name),
            None => (NO_ADDRESS, ""),
        };
        let event = Event {
            kind: EventKind::Suppressed(suppressed.lines),
            at: clock::wall(),
            record: Record::new(&Flow { user, client: SocketAddr::new(network, 0), ..NO_FLOW }),
            reason: suppressed.reason,
            ..Event::blank()
        };
        self.try_push(&event, &Details::default())
    }

    /// Queues a count of flows without a line, unless the ring is full.
    pub(crate) fn try_push_flows_left_out(&mut self, by: LeftOutBy, flows: u64) -> bool {
        let (kind, reason) = (EventKind::FlowsLeftOut(flows), by.as_str());
        let event = Event { kind, at: clock::wall(), reason, ..Event::blank() };
        self.try_push(&event, &Details::default())
    }

    /// Queues `event` for the log thread, unless the ring is full.
    fn try_push(&mut self, event: &Event, details: &Details<'_>) -> bool {
        let write = |slot: &mut Slot| {
            slot.event.copy_from(event);
            slot.details.pack(details);
        };
        let has_space = self.ring.push_over(write).is_ok();
        if self.signals.parked.must_wake() {
            self.signals.wake();
        }
        has_space
    }
}

/// What the log thread shares with its senders.
#[derive(Default)]
struct LogThreadSignals {
    /// Whether the log thread sleeps until it is woken.
    parked: ParkFlag,
    thread: OnceLock<Thread>,
    rotation: Rotation,
    reopen: AtomicBool,
    closing: AtomicBool,
}

impl LogThreadSignals {
    /// Ends the log thread's sleep, or its next one.
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

fn log_sender(signals: &Arc<LogThreadSignals>, stats: &Arc<WorkerStats>) -> (LogSender, Consumer<Slot>) {
    let (ring, consumer) = ring::ring(RING_EVENTS, Slot::blank());
    (LogSender { signals: Arc::clone(signals), ring, stats: Arc::clone(stats) }, consumer)
}

#[cfg(test)]
mod tests;
