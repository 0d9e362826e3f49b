//! Waiting for the end of a callback.
//!
//! Guarantees: a waiting thread is notified whenever the callback ends. A wait inside a callback on the same
//! thread returns at once.
//!
//! Not handled here: the word of the cell, which records whether a thread waits.

use std::ptr;
use std::sync::PoisonError;

use sys::sync::atomic::{AtomicUsize, Ordering};
use sys::sync::{Condvar, Mutex};

use super::handle::TimerKey;
use super::shard::Shard;

/// A condition variable for threads that wait for a callback's end.
#[derive(Debug, Default)]
pub(super) struct CallbackBarrier {
    lock: Mutex<()>,
    ended: Condvar,
    /// The thread that runs callbacks here.
    runner: AtomicUsize,
}

impl CallbackBarrier {
    pub(super) fn new() -> CallbackBarrier {
        CallbackBarrier::default()
    }

    /// From now on the calling thread runs the callbacks.
    pub(super) fn set_runner(&self) {
        // It shares a cache line with data that others read, so it is written only on a change.
        if self.runner.load(Ordering::Relaxed) != thread_token() {
            self.runner.store(thread_token(), Ordering::Relaxed);
        }
    }

    /// A callback has ended that another thread waits for.
    pub(super) fn notify(&self) {
        // Waiting threads check the word under this lock: they see the end, or are asleep before the
        // notification.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.ended.notify_all();
    }

    /// Returns when the callback of this timer has ended.
    pub(super) fn wait(&self, shard: &Shard, key: TimerKey) {
        if self.runner.load(Ordering::Relaxed) == thread_token() {
            return;
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while shard.cell(key.index).await_end(key.generation) {
            guard = self.ended.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A number that is unique among living threads, without a system call.
fn thread_token() -> usize {
    sys::sync::thread_local! {
        static TOKEN: u8 = const { 0 };
    }
    TOKEN.with(|token| ptr::from_ref(token).addr())
}
