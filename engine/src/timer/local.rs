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

type Wake = Box<dyn Fn() + Send + Sync>;

/// What other threads see of a local end.
pub(super) struct RemoteHandle {
    pub(super) shard: Arc<Shard>,
    pub(super) ending: CallbackBarrier,
    /// Until somebody comes.
    owner: Mutex<Option<WheelDriver>>,
    wake: OnceLock<Wake>,
}

impl RemoteHandle {
    pub(super) fn new(cells: usize, now: Nanos) -> RemoteHandle {
        let shard = Arc::new(Shard::own(cells));
        let owner = Mutex::new(Some(WheelDriver::keeping(Arc::clone(&shard), now)));
        RemoteHandle { shard, ending: CallbackBarrier::new(), owner, wake: OnceLock::new() }
    }

    /// The calling thread comes, the only one that ever does.
    pub(super) fn occupy(&self, wake: Wake) -> WheelDriver {
        assert!(self.wake.set(wake).is_ok(), "a desk is occupied once");
        let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        owner.expect("a desk is occupied once")
    }

    /// Any other thread.
    pub(super) fn cancel(&self, ticket: TimerKey) -> Cancel {
        let (found, duty) = self.shard.cancel(ticket);
        if duty == FollowUp::Collect
            && self.shard.call_to_collect()
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
    home: ShardId,
    owner: WheelDriver,
}

impl LocalTimers {
    pub(super) fn new(timers: Timers, number: usize, owner: WheelDriver) -> LocalTimers {
        LocalTimers { home: timers.home_of_desk(number), timers, number, owner }
    }

    /// As [`Timers::arm`], here.
    ///
    /// # Errors
    /// [`ArmError::Full`].
    #[inline]
    pub fn arm(&mut self, deadline: Nanos, slack: Slack, tag: u64) -> Result<TimerHandle, ArmError> {
        let mut ticket = self.owner.arm(deadline, slack, tag);
        if ticket.is_none() {
            self.owner.collect();
            ticket = self.owner.arm(deadline, slack, tag);
        }
        Ok(self.home.handle(ticket.ok_or(ArmError::Full)?))
    }

    /// As [`Timers::cancel`]; costs least for a timer of this end.
    #[inline]
    pub fn cancel(&mut self, handle: TimerHandle) -> Cancel {
        if handle.home() != self.home {
            return self.timers.cancel(handle);
        }
        let (found, duty) = self.owner.cancel(handle.ticket());
        if duty == FollowUp::Collect {
            self.owner.collect();
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
        self.remote().ending.run_here();
        if self.remote().shard.is_crowded() {
            self.owner.collect();
        }
        self.owner.tell_armed();
        let (mut fired, home) = (0, self.home);
        while let Some(due) = self.owner.pop_due(now) {
            fired += 1;
            let called = catch_unwind(AssertUnwindSafe(|| callback(self, due.tag)));
            let next = *called.as_ref().unwrap_or(&Next::Done);
            // Before the timer of another end is taken for this one's.
            assert_eq!(self.home, home, "a callback leaves the end that it is lent where it is");
            if self.owner.finish(due, next) == Finished::Awaited {
                self.remote().ending.notify();
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
        self.owner.collect();
        self.owner.park()
    }

    fn remote(&self) -> &RemoteHandle {
        self.timers.desk(self.number)
    }

    /// How many timers are armed.
    pub fn armed(&self) -> usize {
        self.owner.armed()
    }
}

impl Drop for LocalTimers {
    fn drop(&mut self) {
        self.owner.close();
    }
}

impl fmt::Debug for LocalTimers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Local").field("number", &self.number).field("armed", &self.armed()).finish()
    }
}
