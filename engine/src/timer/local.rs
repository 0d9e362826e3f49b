//! A thread's own timers: the thread arms and fires them in its own loop, and other threads may cancel them.
//!
//! Guarantees: the thread's own arming and cancelling access no memory that others write, except the timer's
//! word. The thread is woken only to collect, when others have cancelled enough of its timers.
//!
//! Not handled here: the loop, and its sleep.
//!
//! ```text
//!   loop: fire_due(now, callback) -> work -> park() -> Some(until): sleep until then, or for another event
//!                                                 '-> None: fire_due again
//! ```

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use sys::clock::Nanos;

use super::handle::{ArmError, Cancel, Next, ShardId, TimerHandle};
use super::remote_handle::RemoteHandle;
use super::service::Timers;
use super::shard::FollowUp;
use super::slack::Slack;
use super::wheel_driver::{Finished, WheelDriver};

/// The timers of one thread with a loop. Dropping it cancels its timers.
pub struct LocalTimers {
    timers: Timers,
    number: usize,
    /// The part that its handles have in common.
    shard_id: ShardId,
    driver: WheelDriver,
}

impl Timers {
    /// Timers of the calling thread, which arms, cancels and fires them; other threads may cancel them. Other
    /// threads call `wake` to end the thread's sleep, when they have cancelled so many of its timers that it
    /// has to collect them. `None` when all of [`Settings::locals`](super::Settings::locals) are taken.
    pub fn attach(&self, wake: impl Fn() + Send + Sync + 'static) -> Option<LocalTimers> {
        let (number, remote) = self.next_local()?;
        let driver = remote.attach(Box::new(wake));
        Some(LocalTimers { timers: self.clone(), number, shard_id: self.local_shard_id(number), driver })
    }
}

impl LocalTimers {
    /// As [`Timers::arm`], for this thread.
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

    /// As [`Timers::cancel`]; cheapest for a timer of this thread.
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

    /// Runs `callback` for each timer that is due at `now`, and returns their number. The callback may arm
    /// and cancel timers here. A panic in it ends its timer, and is passed on to the caller.
    ///
    /// # Panics
    /// When the callback replaces the `LocalTimers` that it borrows.
    pub fn fire_due(&mut self, now: Nanos, mut callback: impl FnMut(&mut LocalTimers, u64) -> Next) -> usize {
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
            // Checked before the timer is finished: its index belongs to this driver.
            assert_eq!(
                self.shard_id, shard_id,
                "a callback does not replace the `LocalTimers` that it borrows"
            );
            if self.driver.finish(due, next) == Finished::Awaited {
                self.remote().barrier.notify();
            }
            if let Err(thrown) = called {
                resume_unwind(thrown);
            }
        }
        fired
    }

    /// Announces a sleep, and returns until when no timer is due; `None` if timers have to be fired or
    /// collected first. The next [`LocalTimers::fire_due`] withdraws the announcement.
    pub fn park(&mut self) -> Option<Nanos> {
        // Else the thread might be woken for earlier cancels.
        self.driver.collect();
        self.driver.park()
    }

    fn remote(&self) -> &RemoteHandle {
        self.timers.remote_handle(self.number)
    }

    /// The number of armed timers.
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
