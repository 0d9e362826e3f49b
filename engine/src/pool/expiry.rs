//! The deadlines of jobs that wait: who waits for one is told when it has passed, also while every thread is
//! held by others.
//!
//! Promises: nothing runs here but the replies of jobs that were dropped; a job that is taken in time costs
//! an arming and a cancel, some 50 ns. Leaves to others: jobs that a thread finds too late itself.

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use sys::clock::{Nanos, monotonic};

use super::Shared;
use super::class_queue::{DROPS_MAX, Dropped};
use super::job::Job;
use crate::timer::{Next, Service, Settings, Slack, TimerHandle, Timers};

/// A mebibyte of timers: of jobs beyond, those are told by a thread's next look.
const TIMERS_MAX: usize = 1 << 14;

/// See the file's header.
pub(super) struct Expiry {
    timers: Timers,
    /// Whose jobs they are; set once, before there is any.
    pool: Arc<OnceLock<Weak<Shared>>>,
}

/// The timers of at most so many jobs, and what keeps them going.
///
/// # Errors
/// As [`Service::start`].
pub(super) fn start(jobs_max: usize) -> io::Result<(Expiry, Service)> {
    let pool: Arc<OnceLock<Weak<Shared>>> = Arc::default();
    let bound_pool = Arc::clone(&pool);
    let settings = Settings { name: "expiry", timers_max: jobs_max.min(TIMERS_MAX), ..Settings::default() };
    let service = Service::start(&settings, move |_, _| {
        if let Some(shared) = bound_pool.get().and_then(Weak::upgrade) {
            shared.expire();
        }
        Next::Done
    })?;
    Ok((Expiry { timers: service.timers().clone(), pool }, service))
}

impl Expiry {
    /// Says whose jobs they are.
    pub(super) fn set_pool(&self, pool: Weak<Shared>) {
        assert!(self.pool.set(pool).is_ok(), "it serves one pool");
    }

    /// A timer for a job that is about to wait. `None` for one without a deadline, and where there are more
    /// jobs than timers: then the next look of a thread tells.
    pub(super) fn arm(&self, deadline: Nanos) -> Option<TimerHandle> {
        let has_deadline = deadline != Nanos::NEVER;
        has_deadline.then(|| self.timers.arm(deadline, Slack::Tick, 0).ok()).flatten()
    }

    /// The job does not wait any more.
    pub(super) fn cancel(&self, job: &Job) {
        if let Some(timer) = job.expiry {
            self.timers.cancel(timer);
        }
    }
}

impl Shared {
    /// Drops what has expired and waits.
    fn expire(&self) {
        loop {
            let mut dropped = Dropped::new();
            let mut waiting = self.lock();
            self.arrivals.take().for_each(|job| waiting.schedule.put(job));
            waiting.schedule.drop_expired(monotonic(), &mut dropped);
            self.publish(&waiting);
            drop(waiting);
            let has_more = dropped.len() == DROPS_MAX;
            dropped.into_iter().for_each(|(job, why)| self.drop_job(job, why));
            // Jobs that had just arrived are somebody's to take.
            self.signal();
            if !has_more {
                return;
            }
        }
    }
}
