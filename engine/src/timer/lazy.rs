//! A deadline that every activity extends, at the cost of one store.
//!
//! Guarantees: an extension touches no timer. The timer fires at the deadline that it was armed with, checks
//! here, and is rearmed for the current deadline: once for each span, however much happens in it. (HAProxy
//! handles its stream timeouts this way: it queues the task again only when the task wakes too early.)
//!
//! Not handled here: the timer.

use sys::clock::Nanos;
use sys::sync::atomic::{AtomicU64, Ordering};

use super::handle::Next;

/// A deadline that is extended by one store, and checked when its timer fires.
#[derive(Debug)]
pub struct LazyDeadline(AtomicU64);

impl LazyDeadline {
    /// A deadline at `until`, for which the caller arms a timer.
    pub fn new(until: Nanos) -> LazyDeadline {
        LazyDeadline(AtomicU64::new(until.0))
    }

    /// Extends the deadline to `until`. It must not be earlier than before: the timer would check too late.
    pub fn extend(&self, until: Nanos) {
        self.0.store(until.0, Ordering::Relaxed);
    }

    /// The current deadline.
    pub fn until(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    /// What the timer's callback is to return at `now`: [`Next::Done`] if the deadline has passed, else
    /// [`Next::Again`] with the current deadline.
    pub fn check(&self, now: Nanos) -> Next {
        let until = self.until();
        if until <= now { Next::Done } else { Next::Again(until) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lazy_deadline_passes_unless_extended() {
        let deadline = LazyDeadline::new(Nanos(100));
        assert_eq!(deadline.check(Nanos(99)), Next::Again(Nanos(100)));
        deadline.extend(Nanos(250));
        assert_eq!(deadline.check(Nanos(100)), Next::Again(Nanos(250)));
        assert_eq!(deadline.check(Nanos(250)), Next::Done);
    }
}
