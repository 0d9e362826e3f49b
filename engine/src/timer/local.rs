//! A thread's own end of the timer service: the thread arms and fires its timers in its own loop, and others
//! may cancel them.
//!
//! Promises: the thread's own arming and cancelling touch nothing that others write, but for the timer's
//! word; it is woken only when others have cancelled so many of its timers that they are to be collected.
//! Leaves to others: the loop, and its sleep.
//!
//! ```text
//!   loop: turn(now, callback) -> work -> park() -> Some(until): sleep, or until something else comes
//!                                             '-> None: turn again
//! ```

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock, PoisonError};

use sys::clock::Nanos;
use sys::sync::Mutex;

use super::callback_barrier::CallbackBarrier;
use super::service::{ArmError, Cancel, Next, ShardId, TimerHandle, Timers};
use super::shard::{FollowUp, Shard, TimerKey};
use super::slack::Slack;
use super::wheel_driver::{Finished, WheelDriver};

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

/// See the file's header. When it goes, its timers are gone.
pub struct LocalTimers {
    timers: Timers,
    number: usize,
    /// What its handles have in common.
    shard_id: ShardId,
    driver: WheelDriver,
}

impl LocalTimers {
    pub(super) fn new(timers: Timers, number: usize, driver: WheelDriver) -> LocalTimers {
        LocalTimers { shard_id: timers.local_shard_id(number), timers, number, driver }
    }

    /// As [`Timers::arm`], here.
    ///
    /// # Errors
    /// [`ArmError::Full`].
    #[inline]
    pub fn arm(&mut self, deadline: Nanos, slack: Slack, tag: u64) -> Result<TimerHandle, ArmError> {
        let mut key = self.driver.arm(deadline, slack, tag);
        if key.is_none() {
            self.driver.collect();
            key = self.driver.arm(deadline, slack, tag);
        }
        Ok(self.shard_id.handle(key.ok_or(ArmError::Full)?))
    }

    /// As [`Timers::cancel`]; costs least for a timer of this end.
    #[inline]
    pub fn cancel(&mut self, handle: TimerHandle) -> Cancel {
        if handle.shard_id() != self.shard_id {
            return self.timers.cancel(handle);
        }
        let (found, follow_up) = self.driver.cancel(handle.key());
        if follow_up == FollowUp::Collect {
            self.driver.collect();
        }
        found
    }

    /// Runs `callback` for each timer that is due at `now`, and says how many there were. It may arm and
    /// cancel others here. A panic in it ends its timer, and goes on to the caller.
    ///
    /// # Panics
    /// When the callback puts another end in the place of the one that it is lent.
    pub fn turn(&mut self, now: Nanos, mut callback: impl FnMut(&mut LocalTimers, u64) -> Next) -> usize {
        self.remote().shard.unpark();
        self.remote().barrier.set_runner();
        if self.remote().shard.is_collect_requested() {
            self.driver.collect();
        }
        self.driver.publish_armed();
        let (mut fired, shard_id) = (0, self.shard_id);
        while let Some(due) = self.driver.pop_due(now) {
            fired += 1;
            let called = catch_unwind(AssertUnwindSafe(|| callback(self, due.tag)));
            let next = *called.as_ref().unwrap_or(&Next::Done);
            // Before the timer of another end is taken for this one's.
            assert_eq!(self.shard_id, shard_id, "a callback leaves the end that it is lent where it is");
            if self.driver.finish(due, next) == Finished::Awaited {
                self.remote().barrier.notify();
            }
            if let Err(thrown) = called {
                resume_unwind(thrown);
            }
        }
        fired
    }

    /// Says that the thread will sleep, and until when nothing is due; `None` if another turn is to come
    /// first. The next [`LocalTimers::turn`] says that it is awake.
    pub fn park(&mut self) -> Option<Nanos> {
        // Or it might be woken for what was cancelled.
        self.driver.collect();
        self.driver.park()
    }

    fn remote(&self) -> &RemoteHandle {
        self.timers.remote_handle(self.number)
    }

    /// How many timers are armed.
    pub fn armed(&self) -> usize {
        self.driver.armed()
    }
}

impl Drop for LocalTimers {
    fn drop(&mut self) {
        self.driver.close();
    }
}

impl fmt::Debug for LocalTimers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LocalTimers").field("number", &self.number).field("armed", &self.armed()).finish()
    }
}
