//! Permits, and which thread is woken to use one.
//!
//! Guarantees: if there is work, a free permit and an idle thread, one thread is woken. The thread that added
//! the last of the three calls [`Handoff::signal`]. No wake is lost and no lock is taken, so a reactor may
//! call it. The wake passes a permit to the woken thread.
//!
//! Not handled here: what counts as work, and starting threads where none is idle.
//!
//! Why no wake is lost: a thread writes one of the three, executes a fence, and reads the other two. Of the
//! fences of two threads one comes first, so at least one thread sees both writes (Dekker's pattern, as in
//! `sys::park_flag`). A permit that `signal` acquires and releases for lack of a thread is hidden from others
//! for a moment, so `signal` looks for a thread once more after the release.

use sys::sync::atomic::{AtomicUsize, Ordering, fence};

use super::idle::IdleStack;

/// One permit more may be held for each so many permits, rounded up. So jobs that return from a wait need not
/// queue behind a job that has just begun.
const PERMITS_PER_EXCESS: usize = 4;

/// The result of a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Signal {
    /// There is no work.
    NoWork,
    /// A thread was woken.
    Woken,
    /// All permits are held: the thread that releases one looks for work.
    NoPermit,
    /// No thread is idle.
    NoThread,
}

/// Counts permits, and wakes idle threads for work.
pub(super) struct Handoff {
    permits: AtomicUsize,
    /// Permits that threads hold or that wakes carry.
    held: AtomicUsize,
    pub(super) workers: IdleStack,
}

impl Handoff {
    pub(super) fn new(permits: usize, threads: usize) -> Handoff {
        Handoff {
            permits: AtomicUsize::new(permits),
            held: AtomicUsize::new(0),
            workers: IdleStack::new(threads),
        }
    }

    /// Wakes a thread if there is work for it.
    pub(super) fn signal(&self, has_work: impl Fn() -> bool) -> Signal {
        loop {
            fence(Ordering::SeqCst);
            if !has_work() {
                return Signal::NoWork;
            }
            if !self.acquire() {
                return Signal::NoPermit;
            }
            if let Some(number) = self.workers.pop() {
                self.workers.at(number).parker.unpark();
                return Signal::Woken;
            }
            self.release();
            fence(Ordering::SeqCst);
            if self.workers.is_empty() {
                return Signal::NoThread;
            }
        }
    }

    /// Acquires a permit if one is free.
    pub(super) fn acquire(&self) -> bool {
        self.acquire_below(self.permits())
    }

    /// Acquires a permit for a job that has begun, of which a few more may run.
    pub(super) fn acquire_for_resumed(&self) -> bool {
        self.acquire_below(self.held_max())
    }

    fn acquire_below(&self, bound: usize) -> bool {
        let one_more = |held| (held < bound).then_some(held + 1);
        self.held.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).is_ok()
    }

    /// Acquires a permit even if none is free.
    pub(super) fn acquire_unconditionally(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    /// Releases a permit. [`Handoff::signal`] has to follow.
    pub(super) fn release(&self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether more permits are held than exist.
    pub(super) fn is_exceeded(&self) -> bool {
        self.held() > self.permits()
    }

    /// Whether a returned permit may go to a job that waits to resume.
    pub(super) fn may_pass_permit_on(&self) -> bool {
        self.held() <= self.held_max()
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn permits(&self) -> usize {
        self.permits.load(Ordering::Relaxed)
    }

    /// Changes the number of permits. [`Handoff::signal`] has to follow, for each one more.
    pub(super) fn set_permits(&self, permits: usize) {
        self.permits.store(permits, Ordering::Relaxed);
    }

    fn held_max(&self) -> usize {
        let permits = self.permits();
        permits + permits.div_ceil(PERMITS_PER_EXCESS)
    }
}
