//! The engine's wheel as a reactor has it, for timers that never leave their thread: the target
//! `tollgate-own-wheel`. No other thread can cancel them.

use std::io;
use std::sync::Arc;

use engine::timer::wheel::{TimerId, Wheel};
use sys::clock::{Nanos, monotonic};

use super::counters::Counters;
use super::sleep;
use super::timer_impl::{Sink, TimerImpl, User, Wakes};

/// A wheel in each user's thread.
#[derive(Clone)]
pub(super) struct OwnWheel(Arc<SinkCounters>);

struct SinkCounters {
    sink: Sink,
    counters: Counters,
}

impl TimerImpl for OwnWheel {
    type User = WheelUser;

    fn start(sink: Sink) -> io::Result<Self> {
        Ok(Self(Arc::new(SinkCounters { sink, counters: Counters::default() })))
    }

    fn enter(&self) -> WheelUser {
        WheelUser { wheel: Wheel::new(monotonic()), shared: Arc::clone(&self.0) }
    }

    fn wakes(&self) -> Option<Wakes> {
        Some(self.0.counters.wakes())
    }
}

/// A thread's wheel.
pub(super) struct WheelUser {
    wheel: Wheel<Nanos>,
    shared: Arc<SinkCounters>,
}

impl WheelUser {
    /// Fires what is due; returns whether anything was.
    fn fire(&mut self) -> bool {
        let now = monotonic();
        let mut has_fired = false;
        while let Some(deadline) = self.wheel.pop_due(now) {
            (self.shared.sink)(deadline);
            has_fired = true;
        }
        has_fired
    }
}

impl User for WheelUser {
    type Handle = TimerId;

    fn arm(&mut self, deadline: Nanos) -> io::Result<TimerId> {
        Ok(self.wheel.arm(deadline, deadline))
    }

    fn cancel(&mut self, handle: TimerId) -> bool {
        self.wheel.cancel(handle).is_some()
    }

    fn run_due(&mut self) {
        self.fire();
    }

    fn sleep_until(&mut self, until: Nanos) {
        self.fire();
        while monotonic() < until {
            let due = self.wheel.next_due().filter(|due| *due < until);
            sleep::until(due.unwrap_or(until));
            let has_fired = self.fire();
            if due.is_some() {
                self.shared.counters.record_wake(has_fired);
            }
        }
    }
}
