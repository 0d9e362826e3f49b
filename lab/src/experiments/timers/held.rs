//! The memory of cancelled timers: many calls, each answered at once, and none of them outstanding at the
//! end.

use std::time::Duration;

use anyhow::{Result, ensure};
use sys::clock::monotonic;

use super::DEADLINE;
use super::timer_impl::{TimerImpl, User};
use crate::kit::usage::own_memory_bytes;

/// Calls before the first reading, so that one-time costs of an implementation are not counted.
const WARM_UP: u64 = 10_000;
/// Calls between two readings.
const CALLS_PER_READING: u64 = 50_000;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) cancelled: u64,
    /// The most memory that the process had beyond that after the first calls.
    pub(super) bytes_max: u64,
}

/// Arms and cancels `wanted` timers, or as many as it completes in `time`.
///
/// # Errors
/// A timer could not be armed, or it fired.
pub(super) fn run<F: TimerImpl>(wanted: u64, time: Duration) -> Result<Held> {
    let timer_impl = F::start(std::sync::Arc::new(|_| ()))?;
    let mut user = timer_impl.enter();
    call(&mut user, WARM_UP)?;
    let (before, end) = (own_memory_bytes("VmRSS")?, monotonic() + time);
    let mut held = Held { cancelled: WARM_UP, bytes_max: 0 };
    while held.cancelled < wanted && monotonic() < end {
        let calls = CALLS_PER_READING.min(wanted - held.cancelled);
        call(&mut user, calls)?;
        held.cancelled += calls;
        held.bytes_max = held.bytes_max.max(own_memory_bytes("VmRSS")?.saturating_sub(before));
    }
    Ok(held)
}

fn call<U: User>(user: &mut U, calls: u64) -> Result<()> {
    for _ in 0..calls {
        let handle = user.arm(monotonic() + DEADLINE)?;
        ensure!(user.cancel(handle), "a timer fired before it was cancelled");
    }
    user.run_due();
    Ok(())
}
