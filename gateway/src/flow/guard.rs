//! A flow that a task holds open.

use std::cell::RefCell;
use std::rc::Rc;

use engine::slab::Key;
use ledger::record::CloseReason;

use super::closing::HeldPermits;
use super::meter::{FlowStart, Meter};
use super::request::{Admitted, RequestStart};

/// Closes its flow, by [`FlowGuard::close`] or by its drop, whatever becomes of the task.
pub(crate) struct FlowGuard {
    meter: Rc<RefCell<Meter>>,
    key: Option<Key>,
}

impl FlowGuard {
    /// Opens a flow; see [`Meter::open`].
    pub(crate) fn open(meter: &Rc<RefCell<Meter>>, start: FlowStart) -> Option<FlowGuard> {
        let key = meter.borrow_mut().open(start)?;
        Some(FlowGuard { meter: Rc::clone(meter), key: Some(key) })
    }

    /// The flow's key in the meter.
    pub(crate) fn key(&self) -> Key {
        self.key.expect("a guard has its flow until it is consumed")
    }

    /// Whether the flow's user was removed or disabled.
    pub(crate) fn is_revoked(&self) -> bool {
        self.meter.borrow().account(self.key()).is_some_and(|account| account.is_revoked())
    }

    /// Begins the next request of a run; see [`Meter::begin_request`].
    pub(crate) fn begin_request(&self, admitted: Admitted, start: RequestStart) {
        self.meter.borrow_mut().begin_request(self.key(), admitted, start);
    }

    /// Ends a request, and leaves the flow open; see [`Meter::end_request`].
    pub(crate) fn end_request(&self) -> Option<HeldPermits> {
        self.meter.borrow_mut().end_request(self.key())
    }

    /// Closes the flow; returns the permits that it held.
    pub(crate) fn close(mut self, reason: CloseReason) -> Option<HeldPermits> {
        let key = self.key.take()?;
        self.meter.borrow_mut().close(key, reason)
    }

    /// Leaves the flow open: the owner of the key closes it.
    pub(crate) fn release(mut self) -> Key {
        self.key.take().expect("a guard has its flow until it is consumed")
    }
}

impl Drop for FlowGuard {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.meter.borrow_mut().close_abandoned(key);
        }
    }
}
