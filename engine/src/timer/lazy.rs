//! A deadline that every activity puts off, at the price of one store.
//!
//! Promises: putting it off touches no timer; the timer that watches it fires at the deadline as it was when
//! it was armed, looks here, and goes on to the deadline as it is: once per span, however much happens in
//! it. Leaves to others: the timer. (HAProxy keeps its stream timeouts so: the task is queued again only when
//! it wakes too early.)

use sys::clock::Nanos;
use sys::sync::atomic::{AtomicU64, Ordering};

use super::handle::Next;

/// See the file's header.
#[derive(Debug)]
pub struct LazyDeadline(AtomicU64);

impl LazyDeadline {
    /// A deadline at `until`, for which the caller arms a timer.
    pub fn new(until: Nanos) -> LazyDeadline {
        LazyDeadline(AtomicU64::new(until.0))
    }

    /// Puts it off to `until`. It must not be earlier than before: the timer would find out late.
    pub fn extend(&self, until: Nanos) {
        self.0.store(until.0, Ordering::Relaxed);
    }

    /// When it is, as of now.
    pub fn until(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    /// What the timer's callback is to answer at `now`: [`Next::Done`] if the deadline has passed, otherwise
    /// to be asked again.
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
