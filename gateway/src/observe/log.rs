//! The log: one decision line and one close line per flow, and what the control side has to say, as JSON
//! lines on standard error or in a file.
//!
//! Promises: [`LogSender::push`] never waits and makes a system call only to wake a log thread that sleeps; a
//! line is never torn and holds nothing but printable ASCII, whatever a client sent; an event that finds no
//! room is dropped and counted, and a line says so; a destination that fails is tried again and stops nobody.
//! Leaves to others: what is billed (crate `ledger`): the log may lose lines, the ledger may not.
//!
//! ```text
//!   reactor thread --ring of events--.
//!   reactor thread --ring of events---+--> log thread: lines (line.rs) --> one write per batch (writer.rs)
//!   control side   --queue of lines--'
//! ```
//!
//! After a batch the log thread naps instead of waiting to be woken, so that under load nobody ever pays for
//! a wake-up; it sleeps until woken only once a nap has brought nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use ledger::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};
use sys::clock::{self, WallNanos};
use sys::parking::ParkFlag;
use sys::ring::{self, Consumer, Producer};

use crate::config::settings::LogTarget;
use crate::observe::stats::{Stats, WorkerStats};

mod details;
mod disk_reserve;
mod line;
mod line_limiter;
mod writer;

pub use details::Details;
pub(crate) use details::PATH_BYTES_MAX;
pub use line::{Level, Value};
pub(crate) use line_limiter::{LineLimiter, Subject, SuppressedLines};

use details::PackedDetails;
use line::LineWriter;
use writer::{LogThread, Output};

/// Events of one reactor thread that wait for the log thread: with a nap of 10 ms, 50,000 a second. Each slot
/// is used in turn, however few events wait, so more of them would take more of the CPU's caches.
const RING_EVENTS: usize = 512;
/// Bounds a slot of the ring.
const SLOT_BYTES_MAX: usize = 1024;
/// Lines of the control side that wait for the log thread.
const MESSAGES_MAX: usize = 256;
/// How long [`Log::close`] waits for a destination that takes nothing: a reader of our standard error who
/// stopped reading must not keep the process from ending.
const CLOSE_SPAN_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(size_of::<Slot>() <= SLOT_BYTES_MAX);
const _: () = assert!(RING_EVENTS.is_power_of_two());

/// No address.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A flow of which nothing is known.
const NO_FLOW: Flow<'_> = Flow {
    id: 0,
    opened: WallNanos(0),
    closed: WallNanos(0),
    user: "",
    host: "",
    port: 0,
    address: None,
    client: SocketAddr::new(NO_ADDRESS, 0),
    class: Class::External,
    protocol: Protocol::Forward,
    rule: "",
    reason: CloseReason::Fault,
    legs: Legs { client_rx: 0, upstream_tx: 0, upstream_rx: 0, client_tx: 0 },
    uncertain: Uncertain { up: 0, down: 0 },
};

/// What a line tells of a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EventKind {
    /// The flow was admitted, denied, or failed before it began.
    Decision,
    /// The flow ended.
    Close,
    /// So many lines were left out: of the record's user, else of its client's network, else of several.
    Suppressed(u64),
}

impl EventKind {
    fn as_str(self) -> &'static str {
        match self {
            EventKind::Decision => "decision",
            EventKind::Close => "close",
            EventKind::Suppressed(_) => "left_out",
        }
    }
}

/// What came of a request for a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Decision {
    /// The flow began.
    Allow,
    /// The gateway refused it.
    Deny,
    /// Nothing stood against it, and it failed: the name, the destination or the client.
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
    /// What it tells.
    pub kind: EventKind,
    /// When it happened.
    pub at: WallNanos,
    /// The flow, as far as it is known; empty texts, port 0 and a missing address are left out of the line.
    pub record: Record,
    /// Whether the record's user is one that the client only claims to be.
    pub is_claimed: bool,
    /// What the client speaks, once that is known; the record's own word is not looked at.
    pub protocol: Option<Protocol>,
    /// The listener that took the connection.
    pub listener: SocketAddr,
    /// What came of it.
    pub decision: Decision,
    /// Why: a code in snake case.
    pub reason: &'static str,
    /// How long the lookup of the name took, in microseconds, if there was one.
    pub dns_us: Option<u32>,
    /// How long it took to reach the destination, in microseconds, if that was tried.
    pub connect_us: Option<u32>,
    /// Of a plain HTTP request that was admitted.
    pub answered: Option<RequestOutcome>,
}

impl Event {
    /// Becomes `other`. Most of an event is room for the longest texts, which is not touched where it is not
    /// used: a ring of events is larger than a CPU's nearer caches.
    fn assign(&mut self, other: &Event) {
        let Event { kind, at, record, is_claimed, protocol, listener, .. } = other;
        let Event { decision, reason, dns_us, connect_us, answered, .. } = other;
        self.record.assign(record);
        (self.kind, self.at, self.is_claimed) = (*kind, *at, *is_claimed);
        (self.protocol, self.listener) = (*protocol, *listener);
        (self.decision, self.reason, self.answered) = (*decision, *reason, *answered);
        (self.dns_us, self.connect_us) = (*dns_us, *connect_us);
    }

    /// How many lines about clients that are not known it stands for.
    fn anonymous_lines(&self) -> u64 {
        let is_known = !self.is_claimed && !self.record.flow().user.is_empty();
        match self.kind {
            _ if is_known => 0,
            EventKind::Suppressed(count) => count,
            EventKind::Decision | EventKind::Close => 1,
        }
    }

    /// What the slots of a ring begin with.
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
            answered: None,
        }
    }
}

/// An event and its details, as they wait for the log thread.
#[derive(Clone, Copy)]
struct Slot {
    event: Event,
    details: PackedDetails,
}

impl Slot {
    /// What a ring begins with.
    fn blank() -> Slot {
        Slot { event: Event::blank(), details: PackedDetails::blank() }
    }
}

/// What a plain HTTP request was, and what came of it.
#[derive(Clone, Copy)]
pub struct RequestOutcome {
    /// The method; `OTHER` for one that RFC 9110 does not name.
    pub method: &'static str,
    /// The answer's status, if there was an answer; ours where the destination gave none.
    pub status: Option<u16>,
}

/// The control side's handle; see the file's header. Dropping it closes the log.
pub struct Log {
    shared: Arc<Shared>,
    messages: Sender<Box<[u8]>>,
    stats: Arc<Stats>,
    /// Disconnected once the log thread has ended. Taken by the first [`Log::close`].
    ended: Mutex<Option<Receiver<()>>>,
}

impl Log {
    /// Opens the destination, starts the log thread, and returns an inlet for each of `stats.workers`, in
    /// their order.
    ///
    /// # Errors
    /// The file cannot be opened or made (with mode 0640), or no thread can be started.
    pub fn start(target: &LogTarget, stats: &Arc<Stats>) -> io::Result<(Log, Vec<LogSender>)> {
        let output = Output::open(target)?;
        let shared = Arc::new(Shared::default());
        let (messages, lines) = bounded(MESSAGES_MAX);
        let (alive, ended) = bounded(0);
        let (senders, rings) = stats.workers.iter().map(|worker| log_sender(&shared, worker)).unzip();
        let mut log_thread = LogThread::new(Arc::clone(&shared), rings, lines, output, Arc::clone(stats));
        let handle = thread::Builder::new().name("log".into()).spawn(move || {
            log_thread.run();
            drop(alive);
        })?;
        shared.thread.set(handle.thread().clone()).expect("only this function sets it");
        let log = Log { shared, messages, stats: Arc::clone(stats), ended: Mutex::new(Some(ended)) };
        Ok((log, senders))
    }

    /// Puts a message of the control side into the log. Texts and values may be anybody's; the fields'
    /// names are ours. While [`SAID_LINES_MAX`] lines wait, further ones are dropped and counted.
    pub fn say(&self, level: Level, text: &str, fields: &[(&'static str, Value<'_>)]) {
        let mut line = Vec::new();
        LineWriter::default().message(&mut line, clock::wall(), level, text, fields);
        if self.messages.try_send(line.into()).is_err() {
            self.stats.log_messages_dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.wake();
    }

    /// Opens the file anew, after a rotation has renamed it. If that fails the old file stays in use, and a
    /// line says so. Nothing happens where the log goes to standard error.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Relaxed);
        self.shared.wake();
    }

    /// Writes what waits and ends the log thread. What is pushed later is dropped.
    ///
    /// Returns after at most [`CLOSE_SPAN_MAX`], even if the destination takes nothing.
    pub fn close(&self) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(ended) = ended else { return };
        // Release pairs with the Acquire in `writer`: what was pushed before is seen by its last look.
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake();
        // Nothing is ever sent: it ends by the thread's end, or by the time-out.
        let _ = ended.recv_timeout(CLOSE_SPAN_MAX);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

/// A reactor thread's way into the log.
pub struct LogSender {
    shared: Arc<Shared>,
    ring: Producer<Slot>,
    stats: Arc<WorkerStats>,
}

impl LogSender {
    /// Hands `event` to the log thread, or drops and counts it if [`RING_EVENTS`] of this thread wait.
    pub fn push(&mut self, event: &Event, details: &Details<'_>) {
        if !self.try_push(event, details) {
            self.stats.log_dropped.add(1);
        }
    }

    /// Hands over how many lines were left out, if there is room.
    pub(crate) fn offer_left_out(&mut self, suppressed: &SuppressedLines<'_>) -> bool {
        let (network, user) = match suppressed.subject {
            Some(Subject::Source(network)) => (network, ""),
            Some(Subject::User(name)) => (NO_ADDRESS, name),
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

    /// Hands `event` to the log thread, if there is room.
    fn try_push(&mut self, event: &Event, details: &Details<'_>) -> bool {
        let write = |slot: &mut Slot| {
            slot.event.assign(event);
            slot.details.assign(details);
        };
        let has_space = self.ring.push_over(write).is_ok();
        if self.shared.parked.must_wake() {
            self.shared.wake();
        }
        has_space
    }
}

/// What the log thread shares with those who feed it.
#[derive(Default)]
struct Shared {
    /// Whether the log thread sleeps until it is woken.
    parked: ParkFlag,
    thread: OnceLock<Thread>,
    reopen: AtomicBool,
    closing: AtomicBool,
}

impl Shared {
    /// Ends the log thread's sleep, or its next one.
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

fn log_sender(shared: &Arc<Shared>, stats: &Arc<WorkerStats>) -> (LogSender, Consumer<Slot>) {
    let (ring, consumer) = ring::ring(RING_EVENTS, Slot::blank());
    (LogSender { shared: Arc::clone(shared), ring, stats: Arc::clone(stats) }, consumer)
}

#[cfg(test)]
mod tests;
