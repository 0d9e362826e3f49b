//! The values that callers of a timer service exchange with it: settings, handles, outcomes.

use std::fmt;
use std::num::NonZeroU64;

use sys::clock::Nanos;

/// How a service is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its threads are called so, with a number behind.
    pub name: &'static str,
    /// Threads that keep timers of threads without a loop; at least 1. One fires some million timers a
    /// second; more of them save their users from meeting each other.
    pub threads: usize,
    /// The most timers that may be armed with each of these threads, at most 14 million. Memory for all of
    /// them, about 80 bytes for each, is taken at the start.
    pub timers_max: usize,
    /// How many threads may have a [`LocalTimers`] end, each once.
    pub locals: usize,
    /// The most timers that may be armed at each local end.
    pub local_timers_max: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { name: "timer", threads: 1, timers_max: 16_384, locals: 0, local_timers_max: 16_384 }
    }
}

/// What becomes of a timer after its callback.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// It is gone, and its handle leads to nothing.
    Done,
    /// It is armed anew under the same handle and with the same slack, unless it was cancelled while the
    /// callback ran: for this time, or for the next tick if it has passed.
    Again(Nanos),
}

/// What cancelling found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cancel {
    /// The timer was armed: its callback will not run.
    Cancelled,
    /// Its callback runs at this moment; it will not run again.
    Running,
    /// Its callback has run, or it was cancelled before.
    Gone,
}

/// Why a timer could not be armed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArmError {
    /// As many are armed as the settings allow.
    Full,
    /// The service has ended.
    Closed,
}

impl fmt::Display for ArmError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            ArmError::Full => "as many timers are armed as the service may have",
            ArmError::Closed => "the timer service has ended",
        })
    }
}

impl std::error::Error for ArmError {}

/// Names a timer. It may be copied, kept for ever and used by any thread: when its timer is gone, it leads to
/// nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TimerHandle {
    /// The home above, the number in it below.
    location: u64,
    /// The generation above a bit that is set: an option or a result of a handle is no larger than that, and
    /// comes back in registers. (To store its parts and load them as one is to wait until all stores before
    /// have reached the cache.)
    generation: NonZeroU64,
}

impl TimerHandle {
    #[inline]
    pub(super) fn shard_id(self) -> ShardId {
        ShardId { service: (self.location >> 48) as u16, shard: (self.location >> 32) as u16 }
    }

    #[inline]
    pub(super) fn key(self) -> TimerKey {
        TimerKey { index: self.location as u32, generation: self.generation.get() >> 1 }
    }
}

/// Where timers are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ShardId {
    /// The number of the service, of 65,536 that a process may have had.
    pub(super) service: u16,
    /// Posts are numbered before desks.
    pub(super) shard: u16,
}

impl ShardId {
    #[inline]
    pub(super) fn handle(self, key: TimerKey) -> TimerHandle {
        let shard_bits = u64::from(self.service) << 48 | u64::from(self.shard) << 32;
        let generation = NonZeroU64::MIN | key.generation << 1;
        TimerHandle { location: shard_bits | u64::from(key.index), generation }
    }
}

/// A timer of one shard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TimerKey {
    pub(super) index: u32,
    pub(super) generation: u64,
}
