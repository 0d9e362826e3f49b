//! A log in memory, for simulations of what writes to it.

use std::sync::Arc;

use ledger::record::CloseReason;
use sys::ring::Consumer;

use super::{EventKind, LogSender, LogThreadSignals, Slot, log_sender};
use crate::observe::stats::WorkerStats;

/// The receiving end of one thread's events.
pub(crate) struct MemoryLog(Consumer<Slot>);

/// A tunnel or a request whose end was logged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LoggedFlow {
    /// The flow's id.
    pub(crate) id: u128,
    /// The request's id and its number in the run, of plain HTTP.
    pub(crate) request: Option<(u128, u64)>,
    /// Bytes to the destination.
    pub(crate) up: u64,
    /// Bytes to the client.
    pub(crate) down: u64,
    pub(crate) reason: CloseReason,
}

impl MemoryLog {
    /// Both ends of a log of one thread.
    pub(crate) fn new(stats: &Arc<WorkerStats>) -> (MemoryLog, LogSender) {
        let (sender, events) = log_sender(&Arc::new(LogThreadSignals::default()), stats);
        (MemoryLog(events), sender)
    }

    /// The flows whose end was logged since the last call.
    pub(crate) fn take_closed(&mut self) -> Vec<LoggedFlow> {
        let mut closed = Vec::new();
        self.0.drain(super::RING_EVENTS, |slot| {
            if slot.event.kind == EventKind::Close {
                let flow = slot.event.record.flow();
                let (up, down) = (flow.legs.upstream_tx, flow.legs.client_tx);
                let request = slot.event.request.map(|request| (request.id, request.number));
                closed.push(LoggedFlow { id: flow.id, request, up, down, reason: flow.reason });
            }
        });
        closed
    }
}
