//! The deadlines of queued jobs: a job's caller gets its expiry in time, even while every thread is busy.
//!
//! Guarantees: only the replies of dropped jobs run here. A job that is taken in time costs an arm and a
//! cancel, some 50 ns.
//!
//! Not handled here: jobs that a worker finds expired.

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use sys::clock::{Nanos, monotonic};

use super::PoolState;
use super::class_queue::{DROPS_MAX, Dropped};
use super::job::Job;
use crate::timer::{Next, Service, Settings, Slack, TimerHandle, Timers};

/// A mebibyte of timers. Expired jobs beyond that are dropped when a worker takes its next job.
const TIMERS_MAX: usize = 1 << 14;

/// A timer for each queued job that has a deadline.
pub(super) struct Expiry {
    timers: Timers,
    /// The pool of these jobs; set once, before there is any.
    pool: Arc<OnceLock<Weak<PoolState>>>,
}

/// Timers for at most `jobs_max` jobs, and the service that fires them.
///
/// # Errors
/// As [`Service::start`].
pub(super) fn start(jobs_max: usize) -> io::Result<(Expiry, Service)> {
    let pool: Arc<OnceLock<Weak<PoolState>>> = Arc::default();
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
    /// Sets the pool of these jobs.
    pub(super) fn set_pool(&self, pool: Weak<PoolState>) {
        assert!(self.pool.set(pool).is_ok(), "an `Expiry` belongs to one pool");
    }

    /// A timer for a job that is about to wait. `None` for a job without a deadline, and where all timers are
    /// armed: then a worker drops it when it takes its next job.
    pub(super) fn arm(&self, deadline: Nanos) -> Option<TimerHandle> {
        let has_deadline = deadline != Nanos::NEVER;
        has_deadline.then(|| self.timers.arm(deadline, Slack::Tick, 0).ok()).flatten()
    }

    /// Cancels the timer of a job that waits no longer.
    pub(super) fn cancel(&self, job: &Job) {
        if let Some(timer) = job.expiry {
            self.timers.cancel(timer);
        }
    }
}

impl PoolState {
    /// Drops the queued jobs that have expired.
    fn expire(&self) {
        loop {
            let mut dropped = Dropped::new();
            let mut waiting = self.lock();
            self.arrivals.take().for_each(|job| waiting.schedule.put(job));
            waiting.schedule.drop_expired(monotonic(), &mut dropped);
            self.publish(&waiting);
            drop(waiting);
            let has_more = dropped.len() == DROPS_MAX;
            dropped.into_iter().for_each(|(job, failure)| self.drop_job(job, failure));
            // Jobs that have just arrived need a thread.
            self.signal();
            if !has_more {
                return;
            }
        }
    }
}
