//! Evicts connections without a flow, where a connection that is to have one lacks a descriptor or a permit.

use std::cell::RefCell;
use std::rc::Rc;

use super::IdleConnections;
use crate::flow::closing::ClosingConnections;

/// The connections of a thread that may be evicted.
pub(crate) struct Evictor {
    closing: Rc<ClosingConnections>,
    idle: Rc<RefCell<IdleConnections>>,
}

impl Evictor {
    /// Evicts from these two tables.
    pub(crate) fn new(closing: &Rc<ClosingConnections>, idle: &Rc<RefCell<IdleConnections>>) -> Evictor {
        Evictor { closing: Rc::clone(closing), idle: Rc::clone(idle) }
    }

    /// Closes a connection for its descriptors: a closing one that has stalled first, then an idle one.
    /// Returns whether one was left to close.
    pub(crate) fn free_descriptor(&self) -> bool {
        self.closing.evict_stalled() || self.idle.borrow_mut().evict_oldest()
    }

    /// Closes an idle connection for its permit. Returns whether this thread had one of a user with no fewer
    /// connections than users have on average.
    pub(crate) fn free_permit(&self) -> bool {
        self.idle.borrow_mut().evict_of_heavy_user()
    }
}
