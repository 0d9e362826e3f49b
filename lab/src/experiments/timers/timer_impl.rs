//! What every way of keeping deadlines looks like to the experiment: armed, cancelled, or told to a sink.
//!
//! Promises: one driver measures all, without a virtual call on the measured path. Leaves to others: each
//! way (the files beside this one), the work (`pairs.rs`, `calls.rs`, `held.rs`).

use std::io;
use std::sync::Arc;

use sys::clock::Nanos;

/// Told of each timer that fires, with its deadline: by whichever thread fires it.
pub(super) type Sink = Arc<dyn Fn(Nanos) + Send + Sync>;

/// Sleeps of a facility's own threads that have ended, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wakes {
    pub(super) all: u64,
    /// Of those, the ones that fired nothing, and armed no timer anew that was still wanted: they found only
    /// cancelled timers, or nothing at all.
    pub(super) dead: u64,
}

/// A way of keeping deadlines, for any number of threads; clones are the same one.
pub(super) trait TimerImpl: Clone + Send + Sync + 'static {
    /// A thread's end of it.
    type User: User;

    /// Starts its threads, if it has any. They end, and all is freed, when the last clone and the last user
    /// have gone.
    ///
    /// # Errors
    /// What the kernel says of a thread or a descriptor.
    fn start(sink: Sink) -> io::Result<Self>;

    /// The calling thread's end.
    fn enter(&self) -> Self::User;

    /// `None` where it cannot be told.
    fn wakes(&self) -> Option<Wakes>;
}

/// A thread's end of a facility, used by the thread that entered.
pub(super) trait User {
    /// Names an armed timer; any user of the same facility may cancel it.
    type Handle: Send + 'static;

    /// Has the sink told at `deadline`, unless cancelled before.
    ///
    /// # Errors
    /// No descriptor, no thread, no room.
    fn arm(&mut self, deadline: Nanos) -> io::Result<Self::Handle>;

    /// Whether the timer was taken back: it does not fire any more.
    fn cancel(&mut self, handle: Self::Handle) -> bool;

    /// What a thread that has a loop of its own does once in a turn; nothing where others keep the timers.
    fn run_due(&mut self) {}

    /// Sleeps until then, and keeps its own timers meanwhile if they are its own.
    fn sleep_until(&mut self, until: Nanos);
}
