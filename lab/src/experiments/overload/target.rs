//! The overloaded pools: the engine's job pool, and a fixed pool with one unbounded queue, with poisoned jobs
//! and without.
//!
//! Guarantees: each has as many threads as the other; jobs that wait at the end are dropped.
//!
//! The fixed pool is the stronger form of what most servers have: one lock, one condition variable, no wake
//! of a thread that need not run.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use engine::pool::{Class, ClassSettings, Pool, PoolSettings, Shedding, blocking};

use super::DEADLINE;
use super::counters::{Counters, PendingJob};
use crate::kit::burn::Burn;
use crate::kit::machine;

/// The job class of the jobs that return.
const NORMAL_CLASS: Class = Class(0);
/// The job class of the jobs that never return.
const POISONED_CLASS: Class = Class(1);

/// Threads for each CPU, of either pool.
const THREADS_PER_CPU: usize = 8;

/// More than are offered in the time that a job is of use.
const QUEUE_MAX: usize = 100_000;

/// One in this many poisoned jobs declares its wait to the pool.
const DECLARED_EVERY: u64 = 2;

/// The pool that is overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Ours,
    Fixed,
    FixedPoisoned,
}

/// The result of one load.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) counters: Counters,
    pub(super) threads_max: usize,
    pub(super) poisoned_threads_max: usize,
}

impl Target {
    pub(super) const ALL: [Target; 3] = [Target::Ours, Target::Fixed, Target::FixedPoisoned];

    pub(super) fn name(self) -> &'static str {
        match self {
            Target::Ours => "ours-poisoned",
            Target::Fixed => "fixed",
            Target::FixedPoisoned => "fixed-poisoned",
        }
    }

    /// Whether jobs that never return are offered as well.
    pub(super) fn is_poisoned(self) -> bool {
        self != Target::Fixed
    }

    /// Starts the pool.
    ///
    /// # Errors
    /// No thread can be created.
    pub(super) fn start(self) -> Result<RunningPool> {
        let permits = machine::allowed_cpus().len();
        let threads = THREADS_PER_CPU * permits;
        Ok(match self {
            Target::Ours => RunningPool::Ours(Pool::start(PoolSettings {
                name: "overload",
                permits,
                threads_max: threads,
                niceness: 0,
                classes: classes(),
            })?),
            Target::Fixed | Target::FixedPoisoned => RunningPool::Fixed(Fixed::start(threads)?),
        })
    }
}

fn classes() -> Vec<ClassSettings> {
    let class = |name| ClassSettings { name, queue_max: QUEUE_MAX, ..ClassSettings::default() };
    let (deadline, shedding) = (Some(DEADLINE), Some(Shedding::default()));
    vec![ClassSettings { deadline, shedding, ..class("requests") }, class("poisoned")]
}

/// The threads that poisoned jobs may hold: half of them, since both classes have the same weight.
pub(super) fn poisoned_share() -> usize {
    THREADS_PER_CPU * machine::allowed_cpus().len() / 2
}

/// Blocks every thread that passes until it is opened.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    /// Threads that it has blocked.
    held: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.lock();
        // No thread passes a second time before the gate is opened for all.
        state.held += usize::from(!state.is_open);
        drop(self.opened.wait_while(state, |state| !state.is_open));
    }

    pub(super) fn open(&self) {
        self.lock().is_open = true;
        self.opened.notify_all();
    }

    /// The most threads that it has blocked at a time.
    pub(super) fn held_max(&self) -> usize {
        self.lock().held
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running target.
pub(super) enum RunningPool {
    Ours(Pool),
    Fixed(Fixed),
}

impl RunningPool {
    /// Offers a job that computes.
    pub(super) fn request(&self, burn: Burn, job: PendingJob) {
        match self {
            RunningPool::Ours(pool) => {
                // Shared by both closures: the reply takes it if the job was accepted.
                let job = Arc::new(Mutex::new(Some(job)));
                let reply_job = Arc::clone(&job);
                let take = |job: &Mutex<Option<PendingJob>>| {
                    job.lock().unwrap_or_else(PoisonError::into_inner).take()
                };
                let reply = move |outcome| {
                    if let Some(job) = take(&reply_job) {
                        job.answered(outcome);
                    }
                };
                let accepted = pool.run_then(NORMAL_CLASS, move || burn.run(), reply);
                if let Err(why) = accepted
                    && let Some(job) = take(&job)
                {
                    job.refused(why);
                }
            }
            RunningPool::Fixed(pool) => pool.run(Box::new(move || {
                burn.run();
                job.answered(Ok(()));
            })),
        }
    }

    /// Offers a job that does not return before the gate is opened.
    pub(super) fn poison(&self, number: u64, gate: &Arc<Gate>) {
        let gate = Arc::clone(gate);
        match self {
            RunningPool::Ours(pool) => {
                let is_declared = number.is_multiple_of(DECLARED_EVERY);
                let work = move || if is_declared { blocking(|| gate.pass()) } else { gate.pass() };
                // Refused when very many wait already: one poisoned job less.
                let _ = pool.run_then(POISONED_CLASS, work, drop);
            }
            RunningPool::Fixed(pool) => pool.run(Box::new(move || gate.pass())),
        }
    }

    /// Jobs that are accepted and not answered yet; of the fixed pool without the few that run.
    pub(super) fn unanswered(&self) -> usize {
        match self {
            RunningPool::Ours(pool) => {
                let normal = &pool.stats().classes[usize::from(NORMAL_CLASS.0)];
                normal.queued + normal.taken
            }
            RunningPool::Fixed(pool) => pool.lock().jobs.len(),
        }
    }

    /// The most threads at a time.
    pub(super) fn threads_max(&self) -> usize {
        match self {
            RunningPool::Ours(pool) => pool.stats().threads_peak,
            RunningPool::Fixed(pool) => pool.threads.len(),
        }
    }

    /// Ends the pool after `gate` has released the poisoned jobs; waiting jobs are dropped.
    pub(super) fn end(self, gate: &Gate) {
        if let RunningPool::Fixed(pool) = &self {
            pool.close();
        }
        gate.open();
        drop(self);
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Fixed threads, one queue.
pub(super) struct Fixed {
    shared: Arc<JobQueue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct JobQueue {
    queue: Mutex<Queue>,
    has_job: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl Fixed {
    fn start(threads: usize) -> Result<Fixed> {
        let mut pool = Fixed { shared: Arc::default(), threads: Vec::new() };
        for _ in 0..threads {
            let shared = Arc::clone(&pool.shared);
            pool.threads.push(thread::Builder::new().spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.shared.lock()
    }

    fn run(&self, job: Job) {
        self.lock().jobs.push_back(job);
        self.shared.has_job.notify_one();
    }

    fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        let left = std::mem::take(&mut queue.jobs);
        drop(queue);
        // The drop of each job's `PendingJob` counts it.
        drop(left);
        self.shared.has_job.notify_all();
    }
}

impl Drop for Fixed {
    fn drop(&mut self) {
        self.close();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let wait = |queue: &mut Queue| queue.jobs.is_empty() && !queue.is_closed;
            let queue = self.has_job.wait_while(self.lock(), wait);
            let Some(job) = queue.unwrap_or_else(PoisonError::into_inner).jobs.pop_front() else { return };
            job();
        }
    }
}

/// How long answers in progress are awaited.
pub(super) const ANSWER_GRACE: Duration = Duration::from_millis(100);
