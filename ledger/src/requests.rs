//! Requests to the committer, each with its reply.
//!
//! Guarantees: at most [`REQUESTS_MAX`] wait; one more is refused. The caller waits as long as it wants: a
//! reply that it does not wait for any more is dropped. No thread that counts takes the lock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use sys::sync::atomic::{AtomicBool, Ordering};
use sys::sync::{Mutex, MutexGuard};

use crate::limits::REQUESTS_MAX;

/// The sending end of a request's reply.
#[derive(Debug)]
pub(crate) struct Reply(SyncSender<()>);

impl Reply {
    /// Answers the request.
    pub(crate) fn send(&self) {
        // The caller may have given up.
        let _ = self.0.try_send(());
    }
}

/// The requests that wait for the committer, each with what it is about.
pub(crate) struct Requests<T> {
    waiting: Mutex<VecDeque<(T, Reply)>>,
    /// Whether there is one.
    is_waiting: AtomicBool,
}

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), is_waiting: AtomicBool::new(false) }
    }
}

impl<T> Requests<T> {
    /// Adds a request; returns what receives the reply, or `None` if too many wait.
    pub(crate) fn put(&self, about: T) -> Option<Receiver<()>> {
        let mut waiting = self.lock();
        if waiting.len() >= REQUESTS_MAX {
            return None;
        }
        let (reply, receiver) = sync_channel(1);
        waiting.push_back((about, Reply(reply)));
        self.is_waiting.store(true, Ordering::Release);
        Some(receiver)
    }

    /// Whether a request waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Acquire)
    }

    /// At most `max` of the requests that wait, the oldest ones.
    pub(crate) fn take(&self, max: usize) -> Vec<(T, Reply)> {
        let mut waiting = self.lock();
        let count = max.min(waiting.len());
        let taken = waiting.drain(..count).collect();
        self.is_waiting.store(!waiting.is_empty(), Ordering::Relaxed);
        taken
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(T, Reply)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Requests<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Requests").field("is_waiting", &self.is_waiting()).finish_non_exhaustive()
    }
}
