//! The end of a thread-local wheel that other threads use: they cancel its timers and wake its thread.

use std::sync::{Arc, OnceLock, PoisonError};

use sys::clock::Nanos;
use sys::sync::Mutex;

use super::callback_barrier::CallbackBarrier;
use super::handle::{Cancel, TimerKey};
use super::shard::{FollowUp, Shard};
use super::wheel_driver::WheelDriver;

type WakeFn = Box<dyn Fn() + Send + Sync>;

/// What other threads see of a local end.
pub(super) struct RemoteHandle {
    pub(super) shard: Arc<Shard>,
    pub(super) barrier: CallbackBarrier,
    /// Until somebody comes.
    driver: Mutex<Option<WheelDriver>>,
    wake: OnceLock<WakeFn>,
}

impl RemoteHandle {
    pub(super) fn new(cells: usize, now: Nanos) -> RemoteHandle {
        let shard = Arc::new(Shard::local(cells));
        let driver = Mutex::new(Some(WheelDriver::local(Arc::clone(&shard), now)));
        RemoteHandle { shard, barrier: CallbackBarrier::new(), driver, wake: OnceLock::new() }
    }

    /// The calling thread comes, the only one that ever does.
    pub(super) fn attach(&self, wake: WakeFn) -> WheelDriver {
        assert!(self.wake.set(wake).is_ok(), "a desk is occupied once");
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        driver.expect("a desk is occupied once")
    }

    /// Any other thread.
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
