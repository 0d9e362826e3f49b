//! The engine's timer service in a thread with a loop of its own: the target `tollgate-local`. Other threads
//! may cancel its timers.

use std::io;
use std::sync::Arc;

use engine::timer::{Cancel, LocalTimers, Next, Service, Settings, Slack, TimerHandle};
use sys::clock::{Nanos, monotonic};
use sys::parker::Parker;

use super::counters::Counters;
use super::timer_impl::{Sink, TimerImpl, User, Wakes};

/// More than any part of the experiment has threads, and timers that one of them arms at a time.
const LOCALS: usize = 64;
const TIMERS_MAX: usize = 1_024;

/// The engine's service with a driver in each user's thread.
#[derive(Clone)]
pub(super) struct LocalService(Arc<LocalServiceState>);

struct LocalServiceState {
    service: Service,
    sink: Sink,
    counters: Counters,
}

impl TimerImpl for LocalService {
    type User = LocalUser;

    fn start(sink: Sink) -> io::Result<Self> {
        let settings = Settings { locals: LOCALS, local_timers_max: TIMERS_MAX, ..Settings::default() };
        let service = Service::start(&settings, |_, _| Next::Done)?;
        Ok(Self(Arc::new(LocalServiceState { service, sink, counters: Counters::default() })))
    }

    fn enter(&self) -> LocalUser {
        let parker = Arc::new(Parker::new());
        let wake = Arc::clone(&parker);
        let local = self.0.service.timers().attach(move || wake.unpark());
        LocalUser {
            local: local.expect("there is a driver for every thread"),
            parker,
            shared: Arc::clone(&self.0),
        }
    }

    fn wakes(&self) -> Option<Wakes> {
        Some(self.0.counters.wakes())
    }
}

/// A thread's handle.
pub(super) struct LocalUser {
    local: LocalTimers,
    parker: Arc<Parker>,
    shared: Arc<LocalServiceState>,
}

impl LocalUser {
    /// Fires what is due; returns whether anything was.
    fn fire(&mut self) -> bool {
        let sink = &self.shared.sink;
        let fired = self.local.fire_due(monotonic(), |_, tag| {
            sink(Nanos(tag));
            Next::Done
        });
        fired > 0
    }
}

impl User for LocalUser {
    type Handle = TimerHandle;

    fn arm(&mut self, deadline: Nanos) -> io::Result<TimerHandle> {
        self.local.arm(deadline, Slack::Tick, deadline.0).map_err(io::Error::other)
    }

    fn cancel(&mut self, handle: TimerHandle) -> bool {
        self.local.cancel(handle) == Cancel::Cancelled
    }

    fn run_due(&mut self) {
        self.fire();
    }

    /// Wakes at `until` are the thread's own business; earlier ones are for timers.
    fn sleep_until(&mut self, until: Nanos) {
        self.fire();
        loop {
            let now = monotonic();
            if now >= until {
                return;
            }
            match self.local.park() {
                None => {
                    self.fire();
                }
                Some(due) if due < until => {
                    self.parker.park_for(due.since(now));
                    let has_fired = self.fire();
                    self.shared.counters.record_wake(has_fired);
                }
                Some(_) => {
                    self.parker.park_for(until.since(now));
                    self.fire();
                }
            }
        }
    }
}
