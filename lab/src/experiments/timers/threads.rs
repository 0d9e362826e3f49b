//! Many timer threads: each user's timers are in a heap of their own, with a mutex and a thread of their
//! own. Who cancels elsewhere takes that mutex.
//!
//! Promises: users contend where one cancels another's timer, and each with its own thread. Leaves to others:
//! the heap (`heap.rs`). The timers of a user that has gone are kept as long as the facility.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::clock::Nanos;

use super::facility::{self, Facility, Sink, Wakes};
use super::heap::{Id, Shelf};
use super::keeper::Keeper;
use super::sleep;

type Shelves = Vec<Arc<Keeper<Shelf>>>;

/// See the file's header.
#[derive(Clone)]
pub(super) struct Threads(Arc<Shared>);

struct Shared {
    shelves: Mutex<Shelves>,
    sink: Sink,
}

impl Facility for Threads {
    type User = User;

    fn start(sink: Sink) -> io::Result<Self> {
        Ok(Self(Arc::new(Shared { shelves: Mutex::default(), sink })))
    }

    fn enter(&self) -> User {
        User { shared: Arc::clone(&self.0), own: None, known: Vec::new() }
    }

    fn wakes(&self) -> Option<Wakes> {
        let add = |sum: Wakes, one: Wakes| Wakes { all: sum.all + one.all, dead: sum.dead + one.dead };
        Some(self.0.lock().iter().map(|shelf| shelf.wakes()).fold(Wakes::default(), add))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A user and its shelf, which is there from its first timer on.
pub(super) struct User {
    shared: Arc<Shared>,
    /// Its number, and the same as `known` has there.
    own: Option<(usize, Arc<Keeper<Shelf>>)>,
    /// The first of the facility's shelves, so that to reach another's takes no common lock.
    known: Shelves,
}

/// Names an armed timer, and the shelf where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    shelf: usize,
    id: Id,
}

impl facility::User for User {
    type Handle = Handle;

    fn arm(&mut self, deadline: Nanos) -> io::Result<Handle> {
        if self.own.is_none() {
            self.own = Some(self.found()?);
        }
        let (shelf, own) = self.own.as_ref().expect("it was just made");
        Ok(Handle { shelf: *shelf, id: own.arm(deadline) })
    }

    fn cancel(&mut self, handle: Handle) -> bool {
        if let Some((shelf, own)) = &self.own
            && *shelf == handle.shelf
        {
            return own.cancel(handle.id);
        }
        if handle.shelf >= self.known.len() {
            self.known.clone_from(&self.shared.lock());
        }
        self.known[handle.shelf].cancel(handle.id)
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}

impl User {
    fn found(&self) -> io::Result<(usize, Arc<Keeper<Shelf>>)> {
        let shelf = Shelf::start(Arc::clone(&self.shared.sink))?;
        let mut shelves = self.shared.lock();
        shelves.push(Arc::clone(&shelf));
        Ok((shelves.len() - 1, shelf))
    }
}
