//! A flow that a task holds open.
//!
//! Promises: it is closed, whatever becomes of the task: by the task, or by the drop, as a fault of ours
//! or as cut off. Leaves to others: what is counted meanwhile (`meter`).

use std::rc::Rc;

use engine::slab::Key;
use ledger::record::CloseReason;

use crate::context::{Phase, WorkerContext};
use crate::flow::closing::HeldPermits;
use crate::flow::meter::FlowStart;

/// See the file's header.
pub(crate) struct FlowGuard {
    context: Rc<WorkerContext>,
    key: Option<Key>,
}

impl FlowGuard {
    /// Opens a flow; see [`crate::flow::meter::Meter::open`].
    pub(crate) fn open(context: &Rc<WorkerContext>, opening: FlowStart) -> Option<FlowGuard> {
        let key = context.meter.borrow_mut().open(opening)?;
        Some(FlowGuard { context: Rc::clone(context), key: Some(key) })
    }

    /// By what the meter knows it.
    pub(crate) fn key(&self) -> Key {
        self.key.expect("it is held until it is closed or passed on")
    }

    /// Closes it; gives back what it had of the bounds.
    pub(crate) fn close(mut self, reason: CloseReason) -> Option<HeldPermits> {
        self.end(reason)
    }

    /// Leaves it open, for somebody else to close.
    pub(crate) fn pass_on(mut self) -> Key {
        self.key.take().expect("it is held until it is closed or passed on")
    }

    fn end(&mut self, reason: CloseReason) -> Option<HeldPermits> {
        let key = self.key.take()?;
        self.context.meter.borrow_mut().close(key, reason)
    }
}

impl Drop for FlowGuard {
    fn drop(&mut self) {
        let stops = self.context.phase.get() == Phase::Stopping;
        self.end(if stops { CloseReason::Drained } else { CloseReason::Fault });
    }
}
