//! A run of requests: one flow of plain HTTP, and what its next request must have in common with its first.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use ledger::record::CloseReason;
use policy::{UserIndex, Verdict};
use proto::target::Target;
use sys::clock::Nanos;

use crate::flow::closing::HeldPermits;
use crate::flow::guard::FlowGuard;
use crate::limits::{RUN_IDLE_MAX, RUN_SPAN_MAX};
use crate::snapshot::SnapshotHandle;

/// A run of requests of one client connection. Its drop closes the flow.
pub(crate) struct Run {
    flow: FlowGuard,
    /// The configuration that admitted its first request.
    snapshot: Rc<SnapshotHandle>,
    user: UserIndex,
    target: Target,
    /// The address in the flow's record.
    address: SocketAddr,
    verdict: Verdict,
    /// The version of the policy in the flow's record; 0 before the ledger has numbered it.
    policy: u32,
    opened: Nanos,
    /// Until when its next request has to begin.
    idle_until: Nanos,
}

/// What the requests of a run have in common before they are admitted.
pub(crate) struct RunKey<'a> {
    pub(crate) snapshot: &'a Rc<SnapshotHandle>,
    pub(crate) user: UserIndex,
    pub(crate) target: &'a Target,
}

impl Run {
    /// The run of `flow`, which was opened at `opened` for a request with `key` to `address`, admitted by
    /// `verdict`.
    pub(crate) fn new(
        flow: FlowGuard,
        key: &RunKey<'_>,
        (address, verdict): (SocketAddr, Verdict),
        opened: Nanos,
    ) -> Run {
        Run {
            flow,
            snapshot: Rc::clone(key.snapshot),
            user: key.user,
            target: *key.target,
            address,
            verdict,
            policy: key.snapshot.numbers.version(),
            opened,
            idle_until: Nanos::NEVER,
        }
    }

    /// The flow.
    pub(crate) fn flow(&self) -> &FlowGuard {
        &self.flow
    }

    /// Whether a request with this key, of the same connection, belongs to the run. A reload ends each run,
    /// and so do the numbers that the ledger gives to the configuration.
    pub(crate) fn fits(&self, key: &RunKey<'_>) -> bool {
        Arc::ptr_eq(&key.snapshot.0, &self.snapshot.0)
            && self.policy == key.snapshot.numbers.version()
            && self.user == key.user
            && self.target == *key.target
    }

    /// Whether it leads to `address`, by the same decision.
    pub(crate) fn leads_to(&self, address: SocketAddr, verdict: &Verdict) -> bool {
        self.address == address && self.verdict == *verdict
    }

    /// Ends the request; returns its permits. The run stays open until [`Run::idle_until`].
    pub(crate) fn end_request(&mut self, now: Nanos) -> Option<HeldPermits> {
        self.idle_until = now + RUN_IDLE_MAX;
        self.flow.end_request()
    }

    /// Whether it has been open for so long that it ends with its request.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        now.since(self.opened) >= RUN_SPAN_MAX
    }

    /// Until when its next request has to begin.
    pub(crate) fn idle_until(&self) -> Nanos {
        self.idle_until
    }

    /// Closes the flow; returns the permits that it held.
    pub(crate) fn close(self, reason: CloseReason) -> Option<HeldPermits> {
        self.flow.close(reason)
    }

    /// The flow, whose connections become a tunnel.
    pub(crate) fn into_flow(self) -> FlowGuard {
        self.flow
    }
}
