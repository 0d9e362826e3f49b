//! The requests of a run: a flow of plain HTTP has one after another.

use ledger::record::{CloseReason, Identity, Legs, Record};
use sys::clock::WallNanos;

use crate::account::ConnectionPermit;
use crate::budget::FlowPermit;
use crate::flow::closing::HeldPermits;
use crate::observe::log::RequestOutcome;
use crate::observe::stats::WorkerStats;

/// The permits of an admitted tunnel or request, and what its admission took.
pub(crate) struct Admitted {
    /// One of the user's connections.
    pub(crate) permit: ConnectionPermit,
    /// One of all users' flows.
    pub(crate) global_permit: FlowPermit,
    /// How long the lookup of the name took, in microseconds, if there was one.
    pub(crate) dns_us: Option<u32>,
    /// How long the dial took, in microseconds, if there was one.
    pub(crate) connect_us: Option<u32>,
}

/// What begins a plain HTTP request. Such a request is short: its only log line is the one at its end.
pub(crate) struct RequestStart {
    /// The id in the response and the log; that of a run's first request is the flow's.
    pub(crate) id: u128,
    /// When the request, or for the first one its connection, arrived.
    pub(crate) begun: WallNanos,
    pub(crate) method: &'static str,
    /// The path, if the configuration has it logged.
    pub(crate) path: Option<Box<str>>,
}

/// The permits of a flow, while it has a request or is a tunnel.
pub(super) struct Permits {
    pub(super) user: ConnectionPermit,
    /// Held until the flow ends and its peers have acknowledged all bytes.
    pub(super) global: FlowPermit,
}

/// The last request of a flow, under way or over.
pub(super) struct LastRequest {
    /// The flow's identity, which each line repeats.
    identity: Identity,
    pub(super) outcome: RequestOutcome,
    pub(super) path: Option<Box<str>>,
    /// The flow's counts at its begin.
    before: Legs,
    is_counted: bool,
}

impl Permits {
    pub(super) fn held(self) -> HeldPermits {
        HeldPermits::of_flow(self.user, self.global)
    }
}

impl LastRequest {
    /// The first request of a flow.
    pub(super) fn first(identity: &Identity, start: RequestStart) -> LastRequest {
        let RequestStart { id, begun, method, path } = start;
        let outcome = RequestOutcome { id, begun, number: 1, method, status: None };
        LastRequest { identity: *identity, outcome, path, before: Legs::default(), is_counted: false }
    }

    /// The request after it, at the flow's `counts`.
    pub(super) fn follow(&mut self, start: RequestStart, counts: Legs) {
        let RequestStart { id, begun, method, path } = start;
        let number = self.outcome.number + 1;
        self.outcome = RequestOutcome { id, begun, number, method, status: None };
        (self.path, self.before, self.is_counted) = (path, counts, false);
    }

    /// What moved since its begin, at the flow's `counts`.
    pub(super) fn legs(&self, counts: &Legs) -> Legs {
        Legs {
            client_rx: counts.client_rx - self.before.client_rx,
            upstream_tx: counts.upstream_tx - self.before.upstream_tx,
            upstream_rx: counts.upstream_rx - self.before.upstream_rx,
            client_tx: counts.client_tx - self.before.client_tx,
        }
    }

    /// The record of the request for its line: the flow's identity, with the request's own counts.
    pub(super) fn record(&self, counts: &Legs, at: WallNanos, reason: CloseReason) -> Record {
        Record::from_parts(self.identity, at, reason, self.legs(counts))
    }

    /// Counts the response, once: a status may be replaced until it is sent.
    pub(super) fn count_response(&mut self, stats: &WorkerStats) {
        if let (Some(status), false) = (self.outcome.status, self.is_counted) {
            stats.responded(status);
            self.is_counted = true;
        }
    }
}
