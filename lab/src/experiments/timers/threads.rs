//! Many timer threads: each user's timers are in a heap of their own, with a mutex and a thread of their own.
//! Another thread that cancels takes that mutex.
//!
//! Users contend where one cancels another's timer, and each with its own thread. The timers of a user that
//! has ended are kept as long as the implementation.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::clock::Nanos;

use super::heap::{Id, LockedHeap};
use super::sleep;
use super::timer_impl::{self, Sink, TimerImpl, Wakes};
use super::timer_thread::TimerThread;

type Heaps = Vec<Arc<TimerThread<LockedHeap>>>;

/// The heaps of all users; clones share them.
#[derive(Clone)]
pub(super) struct Threads(Arc<ThreadsState>);

struct ThreadsState {
    heaps: Mutex<Heaps>,
    sink: Sink,
}

impl TimerImpl for Threads {
    type User = User;

    fn start(sink: Sink) -> io::Result<Self> {
        Ok(Self(Arc::new(ThreadsState { heaps: Mutex::default(), sink })))
    }

    fn enter(&self) -> User {
        User { shared: Arc::clone(&self.0), own: None, known: Vec::new() }
    }

    fn wakes(&self) -> Option<Wakes> {
        let add = |sum: Wakes, one: Wakes| Wakes { all: sum.all + one.all, dead: sum.dead + one.dead };
        Some(self.0.lock().iter().map(|heap| heap.wakes()).fold(Wakes::default(), add))
    }
}

impl ThreadsState {
    fn lock(&self) -> MutexGuard<'_, Heaps> {
        self.heaps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A user and its heap, which exists from its first timer on.
pub(super) struct User {
    shared: Arc<ThreadsState>,
    /// The number of its heap, and the heap as `known` has it.
    own: Option<(usize, Arc<TimerThread<LockedHeap>>)>,
    /// The first heaps of all users, so that reaching another's takes no common lock.
    known: Heaps,
}

/// An armed timer, and the number of its heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    heap: usize,
    id: Id,
}

impl timer_impl::User for User {
    type Handle = Handle;

    fn arm(&mut self, deadline: Nanos) -> io::Result<Handle> {
        if self.own.is_none() {
            self.own = Some(self.create_heap()?);
        }
        let (heap, own) = self.own.as_ref().expect("the user's heap was just created");
        Ok(Handle { heap: *heap, id: own.arm(deadline) })
    }

    fn cancel(&mut self, handle: Handle) -> bool {
        if let Some((heap, own)) = &self.own
            && *heap == handle.heap
        {
            return own.cancel(handle.id);
        }
        if handle.heap >= self.known.len() {
            self.known.clone_from(&self.shared.lock());
        }
        self.known[handle.heap].cancel(handle.id)
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}

impl User {
    fn create_heap(&self) -> io::Result<(usize, Arc<TimerThread<LockedHeap>>)> {
        let heap = LockedHeap::start(Arc::clone(&self.shared.sink))?;
        let mut heaps = self.shared.lock();
        heaps.push(Arc::clone(&heap));
        Ok((heaps.len() - 1, heap))
    }
}
