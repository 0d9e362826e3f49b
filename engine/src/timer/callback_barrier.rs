//! The end of a callback, for threads that wait for it.
//!
//! Promises: who waits is told, whenever the callback ends; who waits inside a callback of the same thread
//! does not. Leaves to others: the word of the cell, which says whether anybody waits.

use std::ptr;
use std::sync::PoisonError;

use sys::sync::atomic::{AtomicUsize, Ordering};
use sys::sync::{Condvar, Mutex};

use super::handle::TimerKey;
use super::shard::Shard;

/// See the file's header.
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

    /// The calling thread runs callbacks from here on.
    pub(super) fn set_runner(&self) {
        // It is beside what others read, and so is not written without need.
        if self.runner.load(Ordering::Relaxed) != thread_token() {
            self.runner.store(thread_token(), Ordering::Relaxed);
        }
    }

    /// The callback has ended of a timer that somebody waits for.
    pub(super) fn notify(&self) {
        // Those who wait look at the word under this lock: they see that it has ended, or they sleep.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.ended.notify_all();
    }

    /// Returns when the callback of this timer does not run any more.
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

/// Something that no other thread has while this one lives, without a system call.
fn thread_token() -> usize {
    sys::sync::thread_local! {
        static TOKEN: u8 = const { 0 };
    }
    TOKEN.with(|token| ptr::from_ref(token).addr())
}
