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

use sys::clock::Nanos;

use super::handle::{ArmError, Cancel, Next, ShardId, TimerHandle};
use super::remote_handle::RemoteHandle;
use super::service::Timers;
use super::shard::FollowUp;
use super::slack::Slack;
use super::wheel_driver::{Finished, WheelDriver};

/// See the file's header. When it goes, its timers are gone.
pub struct LocalTimers {
    timers: Timers,
    number: usize,
    /// What its handles have in common.
    shard_id: ShardId,
    driver: WheelDriver,
}

impl Timers {
    /// The calling thread's end: it arms, cancels and fires timers of its own, and others may cancel them.
    /// `wake` ends the thread's sleep, and is called by others when they have cancelled so many of its timers
    /// that it is to collect them. `None` when the settings' ends are all taken.
    pub fn attach(&self, wake: impl Fn() + Send + Sync + 'static) -> Option<LocalTimers> {
        let (number, remote) = self.next_local()?;
        let driver = remote.attach(Box::new(wake));
        Some(LocalTimers { timers: self.clone(), number, shard_id: self.local_shard_id(number), driver })
    }
}

impl LocalTimers {
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
