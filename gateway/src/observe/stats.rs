//! The gateway's counters: one [`WorkerStats`] per reactor thread, and [`Stats`] over all of them.
//!
//! Guarantees: each counter has one writing thread, for which it costs a load and a store. Readers see values
//! that were true a moment ago, each by itself: two counters may disagree by what happens in between. Totals
//! only grow.
//!
//! Not handled here: the names of metrics (crate `admin`), and what is billed (crate `ledger`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use engine::pool::ClassStats;
use engine::pool::Pool;
use engine::stats::Counter;
pub use engine::stats::ReactorStats;
use ledger::record::{CloseReason, Legs, Protocol};
use policy::Reason;
use sys::clock::{Nanos, WallNanos};
use sys::pressure::Pressure;
use sys::socket::ResourceExhausted;

use crate::credit::quota_meter::QuotaStatus;
use crate::limits::{PENDING_BYTES_MAX, READ_BYTES_UNDER_PRESSURE, SCRATCH_BYTES};

/// How long a resource counts as used up after the last failure. While connections are pending, an accept is
/// tried again after 0.1 s at most.
pub const SHORTAGE_SPAN: Duration = Duration::from_secs(3);

/// The whole process: the counters of its threads, and the state that the control side sets.
pub struct Stats {
    /// The program's version.
    pub version: &'static str,
    /// When the process started.
    pub started: WallNanos,
    /// One for each reactor thread.
    pub workers: Vec<Arc<WorkerStats>>,
    /// The job pool.
    pub pool: Pool,
    /// How long the reactor threads waited for a CPU.
    pub pressure: LastPressure,
    /// The reloads of the configuration.
    pub reloads: Reloads,
    /// The quotas, as of the last check.
    pub quotas: QuotaStats,
    /// Failed writes to the log's destination, and failed attempts to open it.
    pub log_write_errors: AtomicU64,
    /// Messages of the control side that found the log's queue full.
    pub log_messages_dropped: AtomicU64,
    ready: AtomicBool,
    draining: AtomicBool,
}

impl Stats {
    /// Zeroes, for `workers` reactor threads. The gateway is not ready yet.
    pub fn new(version: &'static str, started: WallNanos, workers: usize, pool: Pool) -> Arc<Stats> {
        Arc::new(Stats {
            version,
            started,
            workers: (0..workers).map(|_| Arc::default()).collect(),
            pool,
            pressure: LastPressure::default(),
            reloads: Reloads::default(),
            quotas: QuotaStats::default(),
            log_write_errors: AtomicU64::new(0),
            log_messages_dropped: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        })
    }

    /// The sum of one number over all threads.
    pub fn sum(&self, counter: impl Fn(&WorkerStats) -> u64) -> u64 {
        self.workers.iter().map(|worker| counter(worker)).sum()
    }

    /// Lines that the log dropped because their queue was full.
    pub fn log_dropped(&self) -> u64 {
        let messages = self.log_messages_dropped.load(Ordering::Relaxed);
        self.sum(|worker| worker.log_dropped.value()) + messages
    }

    /// The resource whose shortage made an accept or a dial fail within the last [`SHORTAGE_SPAN`].
    pub fn shortage(&self, now: Nanos) -> Option<ResourceExhausted> {
        let is_recent = |at: Nanos| at > Nanos(0) && now.since(at) < SHORTAGE_SPAN;
        let mut shortages = ResourceExhausted::ALL.into_iter();
        shortages.find(|resource| {
            self.workers.iter().any(|worker| is_recent(worker.reactor.last_exhausted(*resource)))
        })
    }

    /// Accepts that failed because a resource was used up.
    pub fn failed_accepts(&self) -> u64 {
        self.sum(|worker| worker.reactor.exhausted.iter().map(Counter::value).sum())
    }

    /// Records that every listener is bound and served.
    pub fn mark_ready(&self) {
        // Relaxed, here and below: each flag is read by itself, and orders no other memory.
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Records that the gateway is shutting down.
    pub fn mark_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether every listener is bound and served.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Whether the gateway is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// The last pressure sample.
#[derive(Debug, Default)]
pub struct LastPressure(Mutex<Pressure>);

impl LastPressure {
    /// A copy of the sample; empty before the first. The lock is the control side's: no reactor thread takes
    /// it.
    pub fn read(&self) -> Pressure {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores a sample.
    pub fn set(&self, pressure: Pressure) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pressure;
    }
}

/// Quotas by their state.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QuotaCounts {
    /// Some bytes are left.
    pub open: u64,
    /// None is left.
    pub exhausted: u64,
    /// It is not known what was used before: new flows that would draw on it are denied.
    pub unknown: u64,
}

impl QuotaCounts {
    /// Counts a quota.
    pub(crate) fn count(&mut self, status: &QuotaStatus) {
        match status {
            QuotaStatus { is_known: false, .. } => self.unknown += 1,
            status if status.used >= status.total() => self.exhausted += 1,
            _ => self.open += 1,
        }
    }
}

/// What the control side has found of quotas.
#[derive(Debug, Default)]
pub struct QuotaStats {
    counts: Mutex<QuotaCounts>,
    notices: AtomicU64,
}

impl QuotaStats {
    /// The quotas by their state. The lock is the control side's: no reactor thread takes it.
    pub fn counts(&self) -> QuotaCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Thresholds that were reported.
    pub fn notices(&self) -> u64 {
        self.notices.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, counts: QuotaCounts) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    pub(crate) fn count_notice(&self) {
        self.notices.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often the configuration was reloaded, with which outcome. Written by the control side alone.
#[derive(Debug)]
pub struct Reloads {
    succeeded: AtomicU64,
    failed: AtomicU64,
    last_succeeded: AtomicBool,
    last_success: AtomicU64,
}

impl Reloads {
    /// Counts a reload that took effect, or the first load, at `now`.
    pub fn succeeded(&self, now: WallNanos) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
        self.last_success.store(now.0, Ordering::Relaxed);
        self.last_succeeded.store(true, Ordering::Relaxed);
    }

    /// Counts a rejected reload: the old configuration stays.
    pub fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.last_succeeded.store(false, Ordering::Relaxed);
    }

    /// How many reloads took effect, and how many were rejected.
    pub fn counts(&self) -> (u64, u64) {
        (self.succeeded.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Whether the running configuration is that of the files at the last attempt.
    pub fn last_succeeded(&self) -> bool {
        self.last_succeeded.load(Ordering::Relaxed)
    }

    /// When the running configuration was loaded; the epoch if none was.
    pub fn last_success(&self) -> WallNanos {
        WallNanos(self.last_success.load(Ordering::Relaxed))
    }
}

impl Default for Reloads {
    /// Nothing was loaded yet, and nothing rejected.
    fn default() -> Reloads {
        Reloads {
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            last_succeeded: AtomicBool::new(true),
            last_success: AtomicU64::new(0),
        }
    }
}

/// The counters of one reactor thread. Only that thread writes them, and they share no cache line with
/// others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerStats {
    /// The counters of the thread's reactor.
    pub reactor: Arc<ReactorStats>,
    /// Client connections between accept and relay, now.
    pub handshakes_active: Counter,
    /// Client connections between two plain HTTP requests, now.
    pub sessions_idle: Counter,
    /// Connections whose flows have ended and whose peers have not acknowledged all bytes, now.
    pub connections_closing: Counter,
    /// Client connections that end after a response because their user, or the gateway, has as many idle ones
    /// as allowed.
    pub sessions_unkept: Counter,
    /// Bytes of the flows, by leg.
    pub bytes: LegBytes,
    /// Directions of relays that changed from copying to splicing.
    pub splice_promotions: Counter,
    /// Pipes created for splicing.
    pub pipes_created: Counter,
    /// Pipes that exist now, in use or cached.
    pub pipes_held: Counter,
    /// Times a direction of a relay has got a pipe.
    pub pipes_lent: Counter,
    /// Pipes that were emptied because a receiver read nothing.
    pub pipes_emptied: Counter,
    /// Memory of the buffers for bytes that slow receivers have not read, now, in use or cached.
    pub pending_bytes: Counter,
    /// Log events that found their ring full.
    pub log_dropped: Counter,
    /// Log lines that were suppressed because one source or user had many.
    pub log_suppressed: Counter,
    /// Flows that have ended without a line, by the settings of the log.
    pub log_flows_left_out: Counter,
    /// Flows that were denied because the live table was full or the journal failed.
    pub ledger_full: Counter,
    /// Attempts to connect beside another of the same dial, now.
    pub dial_extras_active: Counter,
    /// Times that a dial could not start another attempt beside the one it had.
    pub dial_extras_refused: Counter,
    /// Attempts that were closed in favour of a newer one of the same dial.
    pub dial_attempts_replaced: Counter,
    /// How long lookups of names took that were not in the cache.
    pub dns: Durations,
    /// How long it took to reach the destination, over all its addresses together.
    pub connect: Durations,
    opened: [Counter; PROTOCOLS.len()],
    closed: [Counter; CLOSE_REASONS.len()],
    denied: [Counter; DenialKind::ALL.len()],
    requested: [Counter; METHODS.len()],
    responded: [Counter; STATUS_CLASSES.len()],
    flows_active: Counter,
}

impl WorkerStats {
    /// Counts a flow whose relay begins.
    pub fn opened(&self, protocol: Protocol) {
        self.opened[protocol as usize - 1].add(1);
        self.flows_active.add(1);
    }

    /// Counts the end of a flow that was counted by [`WorkerStats::opened`].
    pub fn closed(&self, reason: CloseReason) {
        self.closed[reason as usize - 1].add(1);
        self.flows_active.sub(1);
    }

    /// Counts an open flow out of the active ones: it waits for its next request.
    pub(crate) fn paused(&self) {
        self.flows_active.sub(1);
    }

    /// Counts in a flow that was counted out by [`WorkerStats::paused`].
    pub(crate) fn resumed(&self) {
        self.flows_active.add(1);
    }

    /// Counts a plain HTTP request that was admitted.
    pub fn requested(&self, method: &str) {
        let index = METHODS.iter().position(|named| *named == method);
        self.requested[index.unwrap_or(METHODS.len() - 1)].add(1);
    }

    /// Counts the response to a request that was counted by [`WorkerStats::requested`].
    pub fn responded(&self, status: u16) {
        let class = usize::from(status / 100).checked_sub(1);
        if let Some(counter) = class.and_then(|class| self.responded.get(class)) {
            counter.add(1);
        }
    }

    /// Counts a request that never became a flow.
    pub fn denied(&self, kind: DenialKind) {
        self.denied[kind as usize].add(1);
    }

    /// How many bytes a read may request: less than a whole buffer while slow receivers occupy many.
    pub(crate) fn read_bytes_max(&self) -> usize {
        if self.pending_bytes.value() < PENDING_BYTES_MAX { SCRATCH_BYTES } else { READ_BYTES_UNDER_PRESSURE }
    }

    /// Flows relayed now.
    pub fn flows_active(&self) -> u64 {
        self.flows_active.value()
    }

    /// Flows of `protocol` whose relay began.
    pub fn opened_count(&self, protocol: Protocol) -> u64 {
        self.opened[protocol as usize - 1].value()
    }

    /// Flows that ended for `reason`.
    pub fn closed_count(&self, reason: CloseReason) -> u64 {
        self.closed[reason as usize - 1].value()
    }

    /// Plain HTTP requests that were admitted: their method, or `other`, and their number.
    pub fn request_counts(&self) -> [(&'static str, u64); METHODS.len()] {
        std::array::from_fn(|index| (METHODS[index], self.requested[index].value()))
    }

    /// Responses to these requests: the class of their status, and their number.
    pub fn response_counts(&self) -> [(&'static str, u64); STATUS_CLASSES.len()] {
        std::array::from_fn(|index| (STATUS_CLASSES[index], self.responded[index].value()))
    }

    /// Requests that never became flows, because of `kind`.
    pub fn denied_count(&self, kind: DenialKind) -> u64 {
        self.denied[kind as usize].value()
    }
}

/// The methods that are counted by name (RFC 9110 and RFC 5789), and the label of all others. TRACE is
/// denied, and CONNECT opens a tunnel.
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "other"];

/// The classes of a response's status, from 100 on.
const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Lists the variants of an enum of the ledger, whose numbers begin at 1 and index these counters. A missing
/// or misplaced variant does not compile.
macro_rules! listed {
    ($(#[doc = $text:literal])+ $list:ident: $enum:ident { $($variant:ident)+ }) => {
        $(#[doc = $text])+
        pub const $list: &[$enum] = &[$($enum::$variant),+];

        const _: fn($enum) = |variant| match variant {
            $($enum::$variant => {})+
        };
        const _: () = {
            let mut index = 0;
            while index < $list.len() {
                assert!($list[index] as usize == index + 1);
                index += 1;
            }
        };
    };
}

listed! {
    /// Every protocol, in the order of their numbers.
    PROTOCOLS: Protocol { HttpConnect Socks5 Forward Http }
}

listed! {
    /// Every reason for a flow's end, in the order of their numbers.
    CLOSE_REASONS: CloseReason {
        ClientClosed UpstreamClosed ClientReset UpstreamReset IdleTimeout HalfClosedTimeout LifetimeTimeout
        PolicyChanged Drained Overload Fault Killed Lost Completed QuotaExhausted
    }
}

/// Bytes by leg: which connection, and whether the gateway received them (`rx`) or the kernel accepted them
/// for sending (`tx`).
///
/// For a tunnel this is the payload after the handshake; handshakes and denials are not included.
#[derive(Debug, Default)]
pub struct LegBytes {
    /// Read from clients.
    pub client_rx: Counter,
    /// Accepted by the kernel toward upstreams: what is billed as up.
    pub upstream_tx: Counter,
    /// Read from upstreams.
    pub upstream_rx: Counter,
    /// Accepted by the kernel toward clients: what is billed as down.
    pub client_tx: Counter,
}

impl LegBytes {
    /// Adds what moved between two samples of a flow.
    pub(crate) fn add(&self, before: &Legs, after: &Legs) {
        self.client_rx.add(after.client_rx - before.client_rx);
        self.upstream_tx.add(after.upstream_tx - before.upstream_tx);
        self.upstream_rx.add(after.upstream_rx - before.upstream_rx);
        self.client_tx.add(after.client_tx - before.client_tx);
    }
}

/// Declares why requests are denied: the variants, their list, and the names that metrics and log show.
macro_rules! denied {
    ($($(#[doc = $text:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a connection did not become a flow.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum DenialKind {
            $($(#[doc = $text])+ $variant,)+
        }

        impl DenialKind {
            /// Every reason, in the order of their numbers.
            pub const ALL: &[DenialKind] = &[$(DenialKind::$variant),+];

            /// The name that metrics and log show.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(DenialKind::$variant => $name,)+
                }
            }
        }
    };
}

denied! {
    /// No credentials, wrong ones, or those of a disabled user.
    Unauthenticated = "unauthenticated",
    /// Too many failed credentials from the source: these were not checked.
    Throttled = "throttled",
    /// No rule allows the destination to the user.
    NoRule = "no_rule",
    /// A `deny` rule names the destination.
    ByRule = "denied_by_rule",
    /// The resolved or requested address is not public, and no rule allows it.
    AddressForbidden = "address_forbidden",
    /// The destination is the gateway itself.
    OwnAddress = "own_address",
    /// The user has as many connections as they may.
    ConnectionCap = "connection_cap",
    /// The user has as many names in flight as they may.
    LookupShare = "lookup_share",
    /// A quota of the user or of a team is spent.
    QuotaExhausted = "quota_exhausted",
    /// The client sent no valid request of a protocol that the listener accepts.
    Malformed = "malformed",
    /// A well-formed request for something that the gateway does not support.
    Unsupported = "unsupported",
    /// The request was not complete at the greeting deadline.
    GreetingTimeout = "greeting_timeout",
    /// The request was not complete at the deadline that was shortened because most handshake slots were
    /// taken.
    GreetingShortened = "greeting_shortened",
    /// Every handshake slot was taken when another client came, and this one was the oldest of the source
    /// with most.
    HandshakeDisplaced = "handshake_displaced",
    /// The client left, or failed, before it got a response.
    ClientGone = "client_gone",
    /// The name does not resolve, or not in time.
    Dns = "dns",
    /// The destination refused the connection.
    ConnectRefused = "connect_refused",
    /// The destination did not answer in time.
    ConnectTimeout = "connect_timeout",
    /// No route leads to the destination.
    Unreachable = "unreachable",
    /// A bound of the gateway itself is reached: handshakes, connections, descriptors, jobs or the ledger.
    Overload = "overload",
    /// A fault of the gateway itself.
    Internal = "internal",
}

impl DenialKind {
    /// Whether nothing denied the flow: the name, the destination or the client failed.
    pub const fn is_failure(self) -> bool {
        use DenialKind::{ClientGone, ConnectRefused, ConnectTimeout, Dns, Unreachable};
        matches!(self, Dns | ConnectRefused | ConnectTimeout | Unreachable | ClientGone)
    }

    /// The kind of a policy's decision; `None` if it allows.
    pub const fn by_policy(reason: Reason) -> Option<DenialKind> {
        match reason {
            Reason::Allowed => None,
            Reason::DeniedByRule => Some(DenialKind::ByRule),
            Reason::NoRule(_) => Some(DenialKind::NoRule),
            Reason::AddressForbidden(_) => Some(DenialKind::AddressForbidden),
            Reason::OwnAddress => Some(DenialKind::OwnAddress),
            Reason::MalformedName => Some(DenialKind::Malformed),
        }
    }
}

/// The upper bounds of the buckets of [`Durations`], in microseconds.
pub const DURATION_BOUNDS_US: [u64; 13] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];

/// A histogram of durations, with the buckets of [`DURATION_BOUNDS_US`].
#[derive(Debug, Default)]
pub struct Durations {
    /// One for each bound, for durations up to it and above the bound before; the last for durations above
    /// all bounds.
    buckets: [Counter; DURATION_BOUNDS_US.len() + 1],
    sum_us: Counter,
}

impl Durations {
    /// Counts a duration of `span`.
    pub fn add(&self, span: Duration) {
        let span_us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.buckets[DURATION_BOUNDS_US.partition_point(|bound| *bound < span_us)].add(1);
        self.sum_us.add(span_us);
    }

    /// The count of each bucket; the last is for durations above every bound.
    pub fn buckets(&self) -> [u64; DURATION_BOUNDS_US.len() + 1] {
        std::array::from_fn(|index| self.buckets[index].value())
    }

    /// The sum of all durations, in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.sum_us.value()
    }
}

#[cfg(test)]
mod tests;
