//! Calls of 5 ms with deadlines of 500 ms, at a fixed rate: how often timer threads wake, and for what.
//!
//! Guarantees: every 200th call is never answered, so that its deadline fires; the lateness of each is
//! recorded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use sys::clock::{Nanos, monotonic};

use super::DEADLINE;
use super::timer_impl::{Sink, TimerImpl, User, Wakes};
use crate::kit::usage::own_memory_bytes;

/// The interval of the client's event loop.
const PASS: Duration = Duration::from_millis(1);
const CALLS_PER_PASS: usize = 20;
/// Passes after which a call is answered.
const ANSWERED_AFTER: usize = 5;
/// One in this many calls is never answered.
const UNANSWERED_SHARE: u64 = 200;
/// How long an implementation may take to fire the last deadline after the last call, and how long on a
/// machine that stands still meanwhile.
const LAST_DEADLINE_MAX: Duration = Duration::from_millis(700);
const STALL_MAX: Duration = Duration::from_secs(10);

/// How late timers fired, in nanoseconds; below zero where one was early.
#[derive(Clone, Debug, Default)]
pub(super) struct Lateness(Arc<Mutex<Vec<i64>>>);

/// The result of a run.
#[derive(Clone, Debug)]
pub(super) struct CallResults {
    pub(super) calls: u64,
    pub(super) fired: u64,
    /// Over the whole run, and in its last quarter.
    pub(super) wakes: Option<(Wakes, Wakes)>,
    pub(super) lateness: Vec<i64>,
    /// The most memory that the process gained.
    pub(super) gained_bytes: u64,
}

impl Lateness {
    /// The sink that records timers that fire.
    pub(super) fn sink(&self) -> Sink {
        let fired = Arc::clone(&self.0);
        Arc::new(move |deadline| {
            let late = monotonic().0 as i64 - deadline.0 as i64;
            fired.lock().unwrap_or_else(PoisonError::into_inner).push(late);
        })
    }

    fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    /// All values in order of size.
    pub(super) fn sorted(&self) -> Vec<i64> {
        let mut late = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        late.sort_unstable();
        late
    }
}

/// Makes calls for `time`.
///
/// # Errors
/// A timer could not be armed, or fired although it was to be cancelled, or did not fire at all.
pub(super) fn run<F: TimerImpl>(time: Duration) -> Result<CallResults> {
    let lateness = Lateness::default();
    let timer_impl = F::start(lateness.sink())?;
    let mut client = Client { user: timer_impl.enter(), in_flight: VecDeque::new(), calls: 0, unanswered: 0 };
    let before = own_memory_bytes("VmRSS")?;
    let mut gained_bytes = 0;
    let passes = (time.as_nanos() / PASS.as_nanos()) as usize;
    let mut next = monotonic();
    let mut at_three_quarters = None;
    for pass in 0..passes {
        client.run_pass()?;
        if pass % 64 == 0 {
            gained_bytes = gained_bytes.max(own_memory_bytes("VmRSS")?.saturating_sub(before));
        }
        if pass == passes * 3 / 4 {
            at_three_quarters = timer_impl.wakes();
        }
        next = next + PASS;
        client.user.sleep_until(next);
    }
    let wakes = timer_impl.wakes().zip(at_three_quarters);
    client.finish(|| lateness.count())?;
    let lateness = lateness.sorted();
    let fired = lateness.len() as u64;
    ensure!(fired == client.unanswered, "{fired} of {} deadlines fired", client.unanswered);
    let wakes = wakes.map(|(all, before)| {
        (all, Wakes { all: all.all - before.all, dead: all.dead.saturating_sub(before.dead) })
    });
    Ok(CallResults { calls: client.calls, fired, wakes, lateness, gained_bytes })
}

/// A thread that makes calls.
struct Client<U: User> {
    user: U,
    /// The answered calls of each pass, oldest first, with their deadline.
    in_flight: VecDeque<(Nanos, Vec<U::Handle>)>,
    calls: u64,
    unanswered: u64,
}

impl<U: User> Client<U> {
    fn run_pass(&mut self) -> Result<()> {
        let mut batch = match self.in_flight.len() {
            ANSWERED_AFTER.. => self.answer()?,
            _ => Vec::with_capacity(CALLS_PER_PASS),
        };
        let deadline: Nanos = monotonic() + DEADLINE;
        for _ in 0..CALLS_PER_PASS {
            let handle = self.user.arm(deadline)?;
            self.calls += 1;
            if self.calls.is_multiple_of(UNANSWERED_SHARE) {
                self.unanswered += 1;
                // The dropped handle does not cancel the timer; it fires.
                drop(handle);
            } else {
                batch.push(handle);
            }
        }
        self.in_flight.push_back((deadline, batch));
        self.user.run_due();
        Ok(())
    }

    /// Answers the oldest calls.
    fn answer(&mut self) -> Result<Vec<U::Handle>> {
        let Some((deadline, mut batch)) = self.in_flight.pop_front() else { return Ok(Vec::new()) };
        for handle in batch.drain(..) {
            if !self.user.cancel(handle) {
                // On a machine that stood still the answer may have come too late.
                ensure!(monotonic() >= deadline, "a deadline fired although its call was answered");
                self.unanswered += 1;
            }
        }
        Ok(batch)
    }

    /// Answers the calls in flight, and awaits the deadlines of the others.
    fn finish(&mut self, fired: impl Fn() -> u64) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.answer()?;
        }
        let now = monotonic();
        self.user.sleep_until(now + LAST_DEADLINE_MAX);
        while fired() < self.unanswered && monotonic() < now + STALL_MAX {
            self.user.sleep_until(monotonic() + PASS);
        }
        Ok(())
    }
}
