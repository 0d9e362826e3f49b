//! A thread-local wheel as other threads use it: they cancel its timers and wake its thread.

use std::sync::{Arc, OnceLock, PoisonError};

use sys::clock::Nanos;
use sys::sync::Mutex;

use super::callback_barrier::CallbackBarrier;
use super::handle::{Cancel, TimerKey};
use super::shard::{FollowUp, Shard};
use super::wheel_driver::WheelDriver;

type WakeFn = Box<dyn Fn() + Send + Sync>;

/// What other threads access of a thread's local timers.
pub(super) struct RemoteHandle {
    pub(super) shard: Arc<Shard>,
    pub(super) barrier: CallbackBarrier,
    /// `Some` until a thread attaches.
    driver: Mutex<Option<WheelDriver>>,
    wake: OnceLock<WakeFn>,
}

impl RemoteHandle {
    pub(super) fn new(cells: usize, now: Nanos) -> RemoteHandle {
        let shard = Arc::new(Shard::local(cells));
        let driver = Mutex::new(Some(WheelDriver::local(Arc::clone(&shard), now)));
        RemoteHandle { shard, barrier: CallbackBarrier::new(), driver, wake: OnceLock::new() }
    }

    /// Attaches the calling thread; no other thread ever does.
    pub(super) fn attach(&self, wake: WakeFn) -> WheelDriver {
        assert!(self.wake.set(wake).is_ok(), "a thread attaches once");
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        driver.expect("a thread attaches once")
    }

    /// Any other thread: cancels a timer, and wakes the thread if it has to collect.
    pub(super) fn cancel(&self, key: TimerKey) -> Cancel {
        let (found, follow_up) = self.shard.cancel(key);
        if follow_up == FollowUp::Collect
            && self.shard.request_collect()
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
        found
    }
}
