//! How the jobs of one load ended.
//!
//! Guarantees: every offered job ends in exactly one way, also a dropped one; times run from when a job was
//! due.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use engine::pool::{Failure, Refused};
use hdrhistogram::Histogram;

use crate::kit::child;

/// The longest time that the histograms distinguish, and their precision.
const TIME_US_MAX: u64 = 60_000_000;
const DIGITS: u8 = 3;

/// How long the end of every job is awaited, and how often it is polled.
const END_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(1);

/// The numbers of one load's jobs by how they ended.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    deadline: Duration,
    /// Jobs that were due in the measured time.
    pub(super) offered: u64,
    pub(super) in_time: u64,
    /// Done after the deadline, or never.
    pub(super) late: u64,
    pub(super) refused: u64,
    pub(super) expired: u64,
    pub(super) shed: u64,
    in_time_us: Histogram<u64>,
    /// The times of all accepted jobs until they were answered or dropped.
    answer_us: Histogram<u64>,
}

/// Counters to which many threads add.
#[derive(Clone, Debug)]
pub(super) struct SharedCounters(Arc<Mutex<Counters>>);

/// An offered job; its drop records an end if there was none before.
#[derive(Debug)]
pub(super) struct PendingJob {
    due: Instant,
    /// `None` for a job before the measured time.
    counters: Option<SharedCounters>,
}

impl SharedCounters {
    pub(super) fn new(deadline: Duration) -> SharedCounters {
        let histogram =
            || Histogram::new_with_max(TIME_US_MAX, DIGITS).expect("the histogram's bounds are valid");
        SharedCounters(Arc::new(Mutex::new(Counters {
            deadline,
            offered: 0,
            in_time: 0,
            late: 0,
            refused: 0,
            expired: 0,
            shed: 0,
            in_time_us: histogram(),
            answer_us: histogram(),
        })))
    }

    /// A job that is due at `due`.
    pub(super) fn offer(&self, due: Instant) -> PendingJob {
        self.lock().offered += 1;
        PendingJob { due, counters: Some(self.clone()) }
    }

    /// The counters so far.
    pub(super) fn read(&self) -> Counters {
        self.lock().clone()
    }

    /// The counters once every job has ended.
    ///
    /// # Errors
    /// Some jobs have not ended within a time that is long for any server's shutdown, or the user asks the
    /// lab to stop.
    pub(super) fn read_whole(&self) -> Result<Counters> {
        let started = Instant::now();
        loop {
            let counters = self.read();
            let without_end = counters.offered - counters.ended();
            if without_end == 0 {
                return Ok(counters);
            }
            ensure!(started.elapsed() < END_MAX, "{without_end} of {} jobs have not ended", counters.offered);
            child::pause(POLL)?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingJob {
    /// A job that does not count.
    pub(super) fn uncounted(due: Instant) -> PendingJob {
        PendingJob { due, counters: None }
    }

    /// The job was accepted and has ended.
    pub(super) fn answered(mut self, outcome: Result<(), Failure>) {
        let took = self.due.elapsed();
        let Some(counters) = self.counters.take() else { return };
        let mut counters = counters.lock();
        counters.answer_us.saturating_record(took.as_micros() as u64);
        match outcome {
            Ok(()) if took <= counters.deadline => {
                counters.in_time += 1;
                counters.in_time_us.saturating_record(took.as_micros() as u64);
            }
            Ok(()) | Err(Failure::Panicked) => counters.late += 1,
            Err(Failure::Expired) => counters.expired += 1,
            Err(Failure::Shed) => counters.shed += 1,
        }
    }

    /// The job was not accepted.
    pub(super) fn refused(mut self, _why: Refused) {
        if let Some(counters) = self.counters.take() {
            counters.lock().refused += 1;
        }
    }
}

impl Drop for PendingJob {
    /// A dropped job without an answer was never done.
    fn drop(&mut self) {
        let Some(counters) = self.counters.take() else { return };
        let mut counters = counters.lock();
        counters.late += 1;
        counters.answer_us.saturating_record(self.due.elapsed().as_micros() as u64);
    }
}

impl Counters {
    /// Jobs that have ended, in whatever way.
    fn ended(&self) -> u64 {
        self.in_time + self.late + self.refused + self.expired + self.shed
    }

    /// A quantile of the time until jobs were done, of those done in time.
    pub(super) fn in_time_ms(&self, quantile: f64) -> f64 {
        self.in_time_us.value_at_quantile(quantile) as f64 / 1e3
    }

    /// A quantile of the time until an accepted job was answered, run or not.
    pub(super) fn answer_ms(&self, quantile: f64) -> f64 {
        self.answer_us.value_at_quantile(quantile) as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn job_ends_in_exactly_one_way() {
        let counters = SharedCounters::new(Duration::from_secs(3600));
        let now = Instant::now();
        let offer = || counters.offer(now);
        offer().answered(Ok(()));
        offer().answered(Err(Failure::Expired));
        offer().answered(Err(Failure::Shed));
        offer().answered(Err(Failure::Panicked));
        offer().refused(Refused::Full);
        drop(offer());
        PendingJob::uncounted(now).answered(Ok(()));
        let counters = counters.read();
        let ends = [counters.in_time, counters.late, counters.refused, counters.expired, counters.shed];
        assert_eq!((counters.offered, ends), (6, [1, 2, 1, 1, 1]));
        assert_eq!((counters.in_time_us.len(), counters.answer_us.len()), (1, 5));
    }

    #[test]
    fn job_done_after_its_deadline_is_late() {
        let counters = SharedCounters::new(Duration::ZERO);
        counters.offer(Instant::now()).answered(Ok(()));
        assert_eq!((counters.read().in_time, counters.read().late), (0, 1));
    }

    #[test]
    fn whole_counters_wait_for_jobs_in_flight() {
        let counters = SharedCounters::new(Duration::from_secs(3600));
        let job = counters.offer(Instant::now());
        let job = thread::spawn(move || job.answered(Ok(())));
        assert_eq!(counters.read_whole().expect("every job ends").in_time, 1);
        job.join().expect("the thread does not panic");
    }
}
