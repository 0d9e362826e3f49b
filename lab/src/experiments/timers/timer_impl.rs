//! The interface of all timer implementations: a timer is armed, cancelled, or reported to a sink when it
//! fires.
//!
//! Guarantees: one driver measures all, without a virtual call on the measured path.

use std::io;
use std::sync::Arc;

use sys::clock::Nanos;

/// Called with the deadline of each timer that fires, by whichever thread fires it.
pub(super) type Sink = Arc<dyn Fn(Nanos) + Send + Sync>;

/// Completed sleeps of an implementation's own threads since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wakes {
    pub(super) all: u64,
    /// Of those, the wakes that fired nothing and rearmed no live timer: they found only cancelled timers, or
    /// nothing at all.
    pub(super) dead: u64,
}

/// A timer implementation for any number of threads; clones are the same one.
pub(super) trait TimerImpl: Clone + Send + Sync + 'static {
    /// A thread's handle of it.
    type User: User;

    /// Starts its threads, if it has any. They end, and all is freed, when the last clone and the last user
    /// are dropped.
    ///
    /// # Errors
    /// The kernel refused a thread or a descriptor.
    fn start(sink: Sink) -> io::Result<Self>;

    /// The calling thread's handle.
    fn enter(&self) -> Self::User;

    /// `None` where the implementation cannot count them.
    fn wakes(&self) -> Option<Wakes>;
}

/// A thread's handle of an implementation, used by the thread that entered.
pub(super) trait User {
    /// An armed timer; any user of the same implementation may cancel it.
    type Handle: Send + 'static;

    /// Arms a timer that calls the sink at `deadline`, unless cancelled before.
    ///
    /// # Errors
    /// No descriptor, no thread, or no free slot.
    fn arm(&mut self, deadline: Nanos) -> io::Result<Self::Handle>;

    /// Returns whether the timer was cancelled in time: it does not fire any more.
    fn cancel(&mut self, handle: Self::Handle) -> bool;

    /// Called once in a pass by a thread that has a loop of its own; does nothing where other threads keep
    /// the timers.
    fn run_due(&mut self) {}

    /// Sleeps until then, and keeps its own timers meanwhile if it has any.
    fn sleep_until(&mut self, until: Nanos);
}
