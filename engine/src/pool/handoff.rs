//! Permits, and who is woken to use one.
//!
//! Promises: while there is work, a permit that is free and a thread that is idle, one is woken: whichever of
//! the three came last, whoever brought it calls [`Handoff::signal`]; no wake is lost and no lock is taken,
//! so that a reactor may call it. A woken thread is given the permit with the wake. Leaves to others: what
//! work is; and threads, where none is idle.
//!
//! Why none is lost: each of the three is written, then there is a fence, then the other two are read. Of
//! the fences of two threads one comes first, so at least one of them sees both writes (Dekker's pattern, as
//! in `sys::parking`). A permit that `signal` takes and gives back for lack of a thread hides it from others
//! for a moment: so it looks for a thread once more after giving it back.

use sys::sync::atomic::{AtomicUsize, Ordering, fence};

use super::idle::IdleStack;

/// One more than the permits may run for each so many of them, and for what is left over: those that come
/// back from a wait need not queue behind a job that has just begun.
const PERMITS_PER_EXCESS: usize = 4;

/// What became of a call for a thread.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Signal {
    /// There is no work.
    NoWork,
    /// A thread was woken.
    Woken,
    /// All permits are taken: whoever gives one back looks for work.
    NoPermit,
    /// No thread is idle.
    NoThread,
}

/// See the file's header.
pub(super) struct Handoff {
    permits: AtomicUsize,
    /// Permits that threads hold, and wakes carry.
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

    /// Takes a permit if one is free.
    pub(super) fn acquire(&self) -> bool {
        self.acquire_below(self.permits())
    }

    /// Takes a permit for a job that has begun, of which a few more may run.
    pub(super) fn acquire_for_resumed(&self) -> bool {
        self.acquire_below(self.held_max())
    }

    fn acquire_below(&self, bound: usize) -> bool {
        let one_more = |held| (held < bound).then_some(held + 1);
        self.held.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).is_ok()
    }

    /// Takes a permit though none may be free.
    pub(super) fn acquire_unconditionally(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    /// Gives a permit back. [`Handoff::signal`] is to follow.
    pub(super) fn release(&self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether more permits are held than there are.
    pub(super) fn is_exceeded(&self) -> bool {
        self.held() > self.permits()
    }

    /// Whether a permit that is given back may go to a job that waits to go on.
    pub(super) fn may_pass_permit_on(&self) -> bool {
        self.held() <= self.held_max()
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn permits(&self) -> usize {
        self.permits.load(Ordering::Relaxed)
    }

    /// Changes how many there are. [`Handoff::signal`] is to follow, for each one more.
    pub(super) fn set_permits(&self, permits: usize) {
        self.permits.store(permits, Ordering::Relaxed);
    }

    fn held_max(&self) -> usize {
        let permits = self.permits();
        permits + permits.div_ceil(PERMITS_PER_EXCESS)
    }
}
