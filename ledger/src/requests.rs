//! Requests to the committer, each with its reply.
//!
//! Guarantees: at most [`REQUESTS_MAX`] wait; one more is refused. The caller waits as long as it wants: a
//! reply that it does not wait for any more is dropped. No thread that counts takes the lock.

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

/// The requests that wait for the committer.
#[derive(Default)]
pub(crate) struct Requests {
    waiting: Mutex<Vec<Reply>>,
    /// Whether there is one.
    is_waiting: AtomicBool,
}

impl Requests {
    /// Adds a request; returns what receives the reply, or `None` if too many wait.
    pub(crate) fn put(&self) -> Option<Receiver<()>> {
        let mut waiting = self.lock();
        if waiting.len() >= REQUESTS_MAX {
            return None;
        }
        let (reply, receiver) = sync_channel(1);
        waiting.push(Reply(reply));
        self.is_waiting.store(true, Ordering::Release);
        Some(receiver)
    }

    /// Whether a request waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Acquire)
    }

    /// The requests that wait.
    pub(crate) fn take(&self) -> Vec<Reply> {
        let mut waiting = self.lock();
        self.is_waiting.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Reply>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Requests").field("is_waiting", &self.is_waiting()).finish_non_exhaustive()
    }
}
