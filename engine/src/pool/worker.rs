//! A worker: a thread of the pool. With a permit it takes the next job, without one it sleeps.
//!
//! Guarantees: a job holds a permit while it computes, and only then, as far as jobs declare their waits. A
//! job that returns from a wait precedes new jobs, except for every fifth time. For up to a millisecond too
//! many may run.
//!
//! Not handled here: which job is next (`schedule.rs`), which thread is woken (`handoff.rs`), and undeclared
//! waits (`monitor.rs`).

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use sys::clock::{Nanos, monotonic, thread_cpu};
use sys::sync::atomic::Ordering;
use sys::thread::thread_id;

use super::class_queue::Dropped;
use super::job::{Failure, Job};
use super::settings::Class;
use super::stats::count;
use super::worker_slot::{WorkerSlot, WorkerState};
use super::{PoolState, Waiting};

/// Jobs that resume in a row before a new one begins.
const RESUMED_IN_ROW_MAX: u32 = 4;

/// How long a thread with a CPU for itself continues although too many run. Until then a thread that shares
/// its CPU should release its permit instead.
const EXCESS_MAX: Duration = Duration::from_millis(1);

/// How long a thread beyond the permits is idle before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

sys::sync::thread_local! {
    /// The worker of this thread.
    static CURRENT_WORKER: RefCell<Option<Arc<Worker>>> = const { RefCell::new(None) };
}

/// Runs `wait`, during which this thread needs no CPU: another job gets this job's permit meanwhile. It
/// returns when the job may continue, which may be later than `wait` ends. Outside of a pool it only runs
/// `wait`.
pub fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    let worker = CURRENT_WORKER.with(|current| current.borrow().clone());
    let Some(worker) = worker else { return wait() };
    // A nested wait is part of the outer one.
    let Some(_guard) = worker.release_permit() else { return wait() };
    wait()
}

/// A thread of the pool.
pub(super) struct Worker {
    shared: Arc<PoolState>,
    number: usize,
}

/// The costs of a job that has ended.
struct Finished {
    class: Class,
    cpu: Duration,
    service: Duration,
}

/// Clock and CPU time of this thread at the last lap.
struct Stopwatch {
    time: Nanos,
    cpu: Duration,
}

impl Stopwatch {
    fn start() -> Stopwatch {
        Stopwatch { time: monotonic(), cpu: thread_cpu() }
    }

    /// CPU and wall time since the last lap. The time between two jobs counts for the later one.
    fn lap(&mut self) -> (Duration, Duration) {
        let last = std::mem::replace(self, Stopwatch::start());
        (self.cpu.saturating_sub(last.cpu), self.time.since(last.time))
    }
}

impl Worker {
    /// The worker of an allocated slot.
    pub(super) fn new(shared: Arc<PoolState>, number: usize) -> Worker {
        Worker { shared, number }
    }

    /// The body of the thread, which begins with or without a permit.
    pub(super) fn run(self, has_permit: bool) {
        let worker = Arc::new(self);
        // The slot's previous thread may have left it set.
        worker.slot().is_dismissed.store(false, Ordering::Relaxed);
        worker.slot().thread.store(thread_id(), Ordering::Relaxed);
        // Fails where the process already has a higher niceness.
        let _ = sys::limits::set_thread_niceness(worker.shared.niceness);
        CURRENT_WORKER.with(|current| *current.borrow_mut() = Some(Arc::clone(&worker)));
        if has_permit {
            worker.work();
        }
        while worker.wait_for_permit() {
            worker.work();
        }
        CURRENT_WORKER.with(|current| current.borrow_mut().take());
        worker.shared.thread_ended();
    }

    fn slot(&self) -> &WorkerSlot {
        self.shared.handoff.workers.at(self.number)
    }

    /// Runs jobs as long as the permit and the jobs last.
    fn work(&self) {
        let mut stopwatch = Stopwatch::start();
        let mut finished = None;
        let mut exceeded_since = None;
        loop {
            let may_leave = self.may_leave(&mut exceeded_since, finished.as_ref(), stopwatch.time);
            let Some(job) = self.shared.next(finished.take(), stopwatch.time, may_leave) else { return };
            let class = job.class;
            self.begin_running();
            self.slot().begin();
            let succeeded = job.run();
            let holds_permit = self.slot().end();
            let (cpu, service) = stopwatch.lap();
            self.shared.job_ended(class, succeeded);
            let end = Finished { class, cpu, service };
            if !holds_permit {
                return self.shared.record_finished(&end);
            }
            finished = Some(end);
        }
    }

    /// Whether this thread may release its permit when too many run. It should keep the permit while it has a
    /// CPU for itself, or that CPU would be idle while two threads share another. After a job longer than
    /// [`EXCESS_MAX`], the threads that share a CPU have had the time to release theirs.
    fn may_leave(&self, exceeded_since: &mut Option<Nanos>, last: Option<&Finished>, now: Nanos) -> bool {
        if !self.shared.handoff.is_exceeded() {
            *exceeded_since = None;
            return true;
        }
        let since = *exceeded_since.get_or_insert(now);
        let was_long = last.is_some_and(|last| last.service > EXCESS_MAX);
        was_long || self.shared.cpus.is_shared(&self.slot().cpu_slot) || now.since(since) > EXCESS_MAX
    }

    fn begin_running(&self) {
        self.shared.cpus.begin_running(&self.slot().cpu_slot);
    }

    fn stop_running(&self) {
        self.shared.cpus.stop_running(&self.slot().cpu_slot);
    }

    /// Sleeps until it gets a permit; false if the thread is to end.
    fn wait_for_permit(&self) -> bool {
        let (shared, slot) = (&*self.shared, self.slot());
        self.stop_running();
        shared.handoff.workers.push(self.number);
        // There may be work for this thread.
        shared.signal();
        loop {
            if shared.is_closing() && shared.handoff.workers.try_remove(self.number) {
                return false;
            }
            let is_surplus = shared.threads() > shared.handoff.permits();
            if !is_surplus {
                slot.parker.park();
            } else if !slot.parker.park_for(IDLE_MAX) {
                // Others may have ended meanwhile, or another thread may be about to wake this one.
                let is_surplus = shared.threads() > shared.handoff.permits();
                if is_surplus && shared.handoff.workers.try_remove(self.number) {
                    return false;
                }
                continue;
            }
            if !slot.is_dismissed.load(Ordering::Acquire) {
                return true;
            }
            shared.handoff.workers.free(self.number);
            return false;
        }
    }

    /// Releases the permit until the guard is dropped; `None` inside of another wait.
    fn release_permit(&self) -> Option<BlockingGuard<'_>> {
        match self.slot().enter() {
            WorkerState::Declared => return None,
            WorkerState::Running => {
                self.stop_running();
                self.shared.return_permit();
            }
            // The monitor has taken its permit.
            WorkerState::Suspected => {}
            // A reply of a dropped job waits: the thread holds a permit, but no job has begun.
            WorkerState::NoJob => {
                self.slot().end();
                return None;
            }
        }
        Some(BlockingGuard(self))
    }
}

/// A job inside of [`blocking`]. The drop, also by a panic, first acquires a permit.
struct BlockingGuard<'a>(&'a Worker);

impl Drop for BlockingGuard<'_> {
    fn drop(&mut self) {
        if !self.0.shared.reacquire_or_queue(self.0.number) {
            self.0.slot().parker.park();
        }
        self.0.begin_running();
        self.0.slot().leave();
    }
}

impl PoolState {
    /// The next job for a thread that holds a permit; `None` if the thread has lost the permit. It also
    /// records the job that has just ended. Where too many threads run, this one gives its permit up if it
    /// may.
    fn next(&self, mut finished: Option<Finished>, now: Nanos, may_leave: bool) -> Option<Job> {
        loop {
            let mut dropped = Dropped::new();
            let mut waiting = self.lock();
            if let Some(finished) = finished.take() {
                self.record(&mut waiting, &finished);
            }
            self.arrivals.take().for_each(|job| waiting.schedule.put(job));
            let keeps_permit = Self::must_start_new(&waiting) || self.handoff.is_exceeded() && !may_leave;
            let has_passed_permit = !keeps_permit && self.pass_permit_on(&mut waiting);
            let job = if has_passed_permit { None } else { waiting.schedule.take(now, &mut dropped) };
            waiting.resumed_in_row = if has_passed_permit { waiting.resumed_in_row } else { 0 };
            let has_none = job.is_none() && dropped.is_empty();
            if has_none && !has_passed_permit {
                // Under the lock, where resuming jobs look for a permit.
                self.handoff.release();
            }
            self.publish(&waiting);
            drop(waiting);
            dropped.into_iter().for_each(|(job, failure)| self.drop_job(job, failure));
            if let Some(job) = &job {
                self.job_taken(job);
            }
            if job.is_some() || has_none {
                self.signal();
                return job;
            }
        }
    }

    /// Records a job whose thread holds no permit any more.
    fn record_finished(&self, finished: &Finished) {
        let mut waiting = self.lock();
        self.record(&mut waiting, finished);
        self.publish(&waiting);
    }

    fn record(&self, waiting: &mut Waiting, finished: &Finished) {
        let Finished { class, cpu, service } = *finished;
        waiting.schedule.finish(class, cpu, service);
        let (cost_ns, service_ns) = waiting.schedule.means(class);
        let counts = self.counts(class);
        counts.cost_ns.store(cost_ns, Ordering::Relaxed);
        counts.service_ns.store(service_ns, Ordering::Relaxed);
        counts.taken.fetch_sub(1, Ordering::Relaxed);
    }

    fn job_taken(&self, job: &Job) {
        self.expiry.cancel(job);
        let counts = self.counts(job.class);
        counts.queued.fetch_sub(1, Ordering::Relaxed);
        let taken = counts.taken.fetch_add(1, Ordering::Relaxed) + 1;
        counts.taken_peak.fetch_max(taken, Ordering::Relaxed);
    }

    fn job_ended(&self, class: Class, succeeded: bool) {
        let counts = self.counts(class);
        count(&counts.finished);
        if !succeeded {
            count(&counts.panicked);
        }
    }

    pub(super) fn drop_job(&self, job: Job, failure: Failure) {
        self.expiry.cancel(&job);
        let counts = self.counts(job.class);
        counts.queued.fetch_sub(1, Ordering::Relaxed);
        count(if failure == Failure::Expired { &counts.expired } else { &counts.shed });
        job.fail(failure);
    }

    /// Takes the caller's permit, for a resuming job or because too many are held; false if the caller keeps
    /// it.
    fn pass_permit_on(&self, waiting: &mut Waiting) -> bool {
        let resuming = if self.handoff.may_pass_permit_on() { waiting.returning.pop_front() } else { None };
        if let Some(number) = resuming {
            waiting.resumed_in_row += 1;
            self.handoff.workers.at(number).parker.unpark();
        } else if self.handoff.is_exceeded() {
            self.handoff.release();
        } else {
            return false;
        }
        true
    }

    /// Whether a new job must begin although others wait to resume: else they would use the permits for ever.
    fn must_start_new(waiting: &Waiting) -> bool {
        waiting.resumed_in_row >= RESUMED_IN_ROW_MAX && waiting.schedule.is_eligible()
    }

    /// Passes the caller's permit to an idle thread for a new job, if one must begin; false if not, or if no
    /// thread is idle.
    fn pass_permit_to_new(&self, waiting: &mut Waiting) -> bool {
        let number = if Self::must_start_new(waiting) { self.handoff.workers.pop() } else { None };
        let Some(number) = number else { return false };
        waiting.resumed_in_row = 0;
        self.handoff.workers.at(number).parker.unpark();
        true
    }

    /// Whether a new job must begin and no idle thread could get a permit for it.
    pub(super) fn lacks_thread_for_new(&self) -> bool {
        self.has_returning.load(Ordering::Relaxed)
            && self.handoff.workers.is_empty()
            && Self::must_start_new(&self.lock())
    }

    /// Returns the permit of a job that continues without one.
    pub(super) fn return_permit(&self) {
        let mut waiting = self.lock();
        if !self.pass_permit_to_new(&mut waiting) && !self.pass_permit_on(&mut waiting) {
            self.handoff.release();
        }
        self.publish(&waiting);
        drop(waiting);
        self.signal();
    }

    /// Requests a permit for a job that returns from a wait. On false the job is queued, and its thread has
    /// to sleep until it gets one.
    fn reacquire_or_queue(&self, number: usize) -> bool {
        let mut waiting = self.lock();
        if self.handoff.acquire_for_resumed() {
            return true;
        }
        waiting.returning.push_back(number);
        self.publish(&waiting);
        drop(waiting);
        // A signal may hold a permit for a moment, and returns it without a look at this queue.
        self.monitor.wake();
        false
    }

    /// Passes free permits to jobs that return from a wait.
    pub(super) fn resume_returning(&self) {
        let mut waiting = self.lock();
        while !waiting.returning.is_empty() && self.handoff.acquire_for_resumed() {
            let number = waiting.returning.pop_front().expect("`returning` is not empty");
            self.handoff.workers.at(number).parker.unpark();
        }
        self.publish(&waiting);
    }
}
