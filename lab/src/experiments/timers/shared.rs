//! The engine's timer service as any thread has it: the target `tollgate-shared`.

use std::io;
use std::sync::Arc;

use engine::timer::{Cancel, Next, Service, Settings, Slack, TimerHandle, Timers};
use sys::clock::Nanos;

use super::sleep;
use super::timer_impl::{Sink, TimerImpl, User, Wakes};

/// Shards, so that users do not contend; the bucketed design has 13 buckets for that.
const THREADS: usize = 8;

/// More than any part of the experiment arms at a time with one of them.
const TIMERS_MAX: usize = 4_096;

/// The engine's service with a thread of its own.
#[derive(Clone)]
pub(super) struct SharedService(Arc<Service>);

impl TimerImpl for SharedService {
    type User = SharedUser;

    fn start(sink: Sink) -> io::Result<Self> {
        let settings = Settings { threads: THREADS, timers_max: TIMERS_MAX, ..Settings::default() };
        let service = Service::start(&settings, move |_, tag| {
            sink(Nanos(tag));
            Next::Done
        })?;
        Ok(Self(Arc::new(service)))
    }

    fn enter(&self) -> SharedUser {
        SharedUser { timers: self.0.timers().clone(), _service: Arc::clone(&self.0) }
    }

    fn wakes(&self) -> Option<Wakes> {
        let stats = self.0.timers().stats();
        Some(Wakes { all: stats.wakes, dead: stats.dead_wakes })
    }
}

/// A thread's handle.
pub(super) struct SharedUser {
    timers: Timers,
    _service: Arc<Service>,
}

impl User for SharedUser {
    type Handle = TimerHandle;

    fn arm(&mut self, deadline: Nanos) -> io::Result<TimerHandle> {
        self.timers.arm(deadline, Slack::Tick, deadline.0).map_err(io::Error::other)
    }

    fn cancel(&mut self, handle: TimerHandle) -> bool {
        self.timers.cancel(handle) == Cancel::Cancelled
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}
