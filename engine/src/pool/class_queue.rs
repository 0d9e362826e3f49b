//! The queue of one class: which of its jobs is next, and which ones to drop.
//!
//! Guarantees: without overload the oldest job is next. Under overload the newest is next: its client has
//! waited the shortest, and is the likeliest to be still connected. A job is not run after its deadline.
//! Pure: the times are arguments.

use std::collections::VecDeque;
use std::time::Duration;

use sys::clock::Nanos;

use super::job::{Failure, Job};
use super::settings::ClassSettings;
use super::shedding::Shedder;

/// The most jobs that one call drops, since it runs under a lock.
pub(super) const DROPS_MAX: usize = 64;

/// Jobs that are not run, and why.
pub(super) type Dropped = Vec<(Job, Failure)>;

/// The weight of a new cost in the mean is 2^-`MEAN_SHIFT`: the last eight jobs make two thirds of it.
const MEAN_SHIFT: u32 = 3;

/// The queued jobs of one class, its mean costs and its virtual time.
pub(super) struct ClassQueue {
    jobs: VecDeque<Job>,
    shedder: Option<Shedder>,
    weight: u64,
    concurrency_max: usize,
    /// Threads that its jobs hold.
    taken: usize,
    /// Mean CPU time of a job.
    pub(super) cost_ns: u64,
    /// Mean time that a job holds a thread.
    pub(super) service_ns: u64,
    /// The CPU time of its jobs divided by its weight, as if it had begun together with all other classes.
    /// The class with the least is next.
    pub(super) virtual_ns: u64,
}

impl ClassQueue {
    pub(super) fn new(settings: &ClassSettings, concurrency_max: usize) -> ClassQueue {
        ClassQueue {
            jobs: VecDeque::new(),
            shedder: settings.shedding.map(Shedder::new),
            weight: u64::from(settings.weight),
            concurrency_max,
            taken: 0,
            cost_ns: 0,
            service_ns: 0,
            virtual_ns: 0,
        }
    }

    /// Whether a job could be taken now.
    pub(super) fn is_eligible(&self) -> bool {
        !self.jobs.is_empty() && self.taken < self.concurrency_max
    }

    /// Whether no job is queued: then the class does not compete for CPU time.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn put(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    /// Takes the job to run next; it holds a thread until [`ClassQueue::finish`]. Jobs that are not to be run
    /// are appended to `dropped`, up to its bound; then there may be more.
    pub(super) fn take(&mut self, now: Nanos, dropped: &mut Dropped) -> Option<Job> {
        let newest_first = self.is_overloaded(now);
        while dropped.len() < DROPS_MAX {
            if self.drop_oldest(now, dropped) {
                continue;
            }
            let job = if newest_first { self.jobs.pop_back() } else { self.jobs.pop_front() }?;
            if job.deadline <= now {
                dropped.push((job, Failure::Expired));
                continue;
            }
            self.taken += 1;
            self.virtual_ns += self.cost_ns / self.weight;
            return Some(job);
        }
        None
    }

    /// Drops the oldest jobs as long as they are not to be run.
    pub(super) fn drop_old(&mut self, now: Nanos, dropped: &mut Dropped) {
        while dropped.len() < DROPS_MAX && self.drop_oldest(now, dropped) {}
    }

    /// Drops expired jobs, wherever they are queued, up to the bound of `dropped`.
    pub(super) fn drop_expired(&mut self, now: Nanos, dropped: &mut Dropped) {
        let mut index = 0;
        while index < self.jobs.len() && dropped.len() < DROPS_MAX {
            if self.jobs[index].deadline <= now {
                dropped.extend(self.jobs.remove(index).map(|job| (job, Failure::Expired)));
            } else {
                index += 1;
            }
        }
    }

    /// Drops the oldest job if it is not to be run.
    fn drop_oldest(&mut self, now: Nanos, dropped: &mut Dropped) -> bool {
        let Some(oldest) = self.jobs.front() else { return false };
        let failure = if oldest.deadline <= now {
            Failure::Expired
        } else if self.shedder.as_ref().is_some_and(|shedder| shedder.sheds(now.since(oldest.submitted))) {
            Failure::Shed
        } else {
            return false;
        };
        dropped.extend(self.jobs.pop_front().map(|job| (job, failure)));
        true
    }

    /// Whether the queue is overloaded. Observes before any job is dropped for it, so that an overload of
    /// long ago causes no drop.
    fn is_overloaded(&mut self, now: Nanos) -> bool {
        let wait = self.jobs.front().map_or(Duration::ZERO, |oldest| now.since(oldest.submitted));
        self.shedder.as_mut().is_some_and(|shedder| {
            shedder.observe(wait, now);
            shedder.is_overloaded()
        })
    }

    /// A job has ended after `cpu` of CPU time; it held its thread for `service`.
    pub(super) fn finish(&mut self, cpu: Duration, service: Duration) {
        self.taken -= 1;
        let (cpu_ns, charged_ns) = (nanos(cpu), self.cost_ns);
        // The charge at its start was the mean of that time, which other jobs have moved since. The
        // difference is noise, and fades with the mean.
        self.virtual_ns = (self.virtual_ns + cpu_ns / self.weight).saturating_sub(charged_ns / self.weight);
        update_mean(&mut self.cost_ns, cpu_ns);
        update_mean(&mut self.service_ns, nanos(service));
    }
}

/// Moves a mean toward the newest value; the first value is the mean.
fn update_mean(mean: &mut u64, value: u64) {
    *mean = if *mean == 0 { value } else { *mean - (*mean >> MEAN_SHIFT) + (value >> MEAN_SHIFT) };
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
