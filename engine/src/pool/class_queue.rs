//! The queue of one class: which of its jobs is next, and which are not worth running any more.
//!
//! Promises: without overload the oldest job is next, under overload the newest, whose client has waited for
//! the shortest time and is likeliest to be there still; a job is not run after its deadline. Pure: the
//! times come from outside. Leaves to others: which class is next, and who is told.

use std::collections::VecDeque;
use std::time::Duration;

use sys::clock::Nanos;

use super::job::{Failure, Job};
use super::settings::ClassSettings;
use super::shedding::Shedder;

/// How fast the mean cost follows: the last eight jobs make two thirds of it.
const MEAN_SHIFT: u32 = 3;

/// See the file's header.
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
    /// CPU time that its jobs had, divided by its weight, as if it had begun with everybody else: the class
    /// with the least is next.
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

    /// Whether it takes no part in the competition for CPU time.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.taken == 0
    }

    pub(super) fn put(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    /// Takes off the oldest job if it is not to be run any more.
    pub(super) fn drop_one(&mut self, now: Nanos) -> Option<(Job, Failure)> {
        let oldest = self.jobs.front()?;
        let why = if oldest.deadline <= now {
            Failure::Expired
        } else if self.shedder.as_ref().is_some_and(|shedder| shedder.sheds(now.since(oldest.submitted))) {
            Failure::Shed
        } else {
            return None;
        };
        self.jobs.pop_front().map(|job| (job, why))
    }

    /// Takes the job to run next; it holds a thread until [`ClassQueue::finish`].
    pub(super) fn take(&mut self, now: Nanos) -> Option<Job> {
        let wait = self.jobs.front().map_or(Duration::ZERO, |oldest| now.since(oldest.submitted));
        let newest_first = self.shedder.as_mut().is_some_and(|shedder| {
            shedder.observe(wait, now);
            shedder.is_overloaded()
        });
        let job = if newest_first { self.jobs.pop_back() } else { self.jobs.pop_front() }?;
        self.taken += 1;
        self.virtual_ns += self.cost_ns / self.weight;
        Some(job)
    }

    /// A job has ended that had `cpu` of its thread's CPU time and held the thread for `service`.
    pub(super) fn finish(&mut self, cpu: Duration, service: Duration) {
        self.taken -= 1;
        let (cpu_ns, charged_ns) = (nanos(cpu), self.cost_ns);
        // Charged when it began with the mean of that time, which others have moved since: the difference is
        // noise, and is forgotten with the mean.
        self.virtual_ns = (self.virtual_ns + cpu_ns / self.weight).saturating_sub(charged_ns / self.weight);
        follow(&mut self.cost_ns, cpu_ns);
        follow(&mut self.service_ns, nanos(service));
    }
}

/// Moves a mean toward the newest value; the first value is the mean.
fn follow(mean: &mut u64, value: u64) {
    *mean = if *mean == 0 { value } else { *mean - (*mean >> MEAN_SHIFT) + (value >> MEAN_SHIFT) };
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
