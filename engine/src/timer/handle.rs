//! The values that callers exchange with a timer service: settings, handles and outcomes.

use std::fmt;
use std::num::NonZeroU64;

use sys::clock::Nanos;

/// The settings of a timer service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The threads' name; a number is appended.
    pub name: &'static str,
    /// Threads that fire the timers of threads without a loop; at least 1. One fires some million timers a
    /// second. More of them reduce contention between their callers.
    pub threads: usize,
    /// The most timers that may be armed at each of these threads, at most 14 million. Memory for all of
    /// them, about 80 bytes for each, is allocated at the start.
    pub timers_max: usize,
    /// How many threads may have [`LocalTimers`](super::LocalTimers), each once.
    pub locals: usize,
    /// The most timers that may be armed at each [`LocalTimers`](super::LocalTimers).
    pub local_timers_max: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { name: "timer", threads: 1, timers_max: 16_384, locals: 0, local_timers_max: 16_384 }
    }
}

/// What happens to a timer after its callback.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// It ends, and its handle is stale.
    Done,
    /// It is rearmed for this time under the same handle and with the same slack, or for the next tick if the
    /// time has passed. Not if it was cancelled while the callback ran.
    Again(Nanos),
}

/// The result of a cancel.
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
    /// As many timers are armed as the settings allow.
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

/// The handle of a timer. Any thread may copy, keep and use it; once the timer has ended, the handle is stale
/// and has no effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TimerHandle {
    /// The shard in the upper half, the index of the cell in the lower.
    location: u64,
    /// The generation above a bit that is always set. So an option or a result of a handle is no larger than
    /// the handle and is returned in registers. (Storing its parts and loading them as one word would wait
    /// until all earlier stores have reached the cache.)
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

/// Which shard a timer belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ShardId {
    /// The number of the service, modulo 65,536.
    pub(super) service: u16,
    /// Timer threads are numbered before local timers.
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

/// A timer of one shard: its cell and the cell's generation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TimerKey {
    pub(super) index: u32,
    pub(super) generation: u64,
}
