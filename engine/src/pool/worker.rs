//! The life of a pool's thread: with a permit it takes the next job, without one it rests.
//!
//! Promises: a permit is held while a job computes, and only then, as far as jobs say when they wait; one
//! that comes back from a wait goes on before a new job begins, but for every fifth time, and for a
//! millisecond while too many run. Leaves to others:
//! which job is next (`schedule.rs`), who is woken (`handoff.rs`), jobs that wait without saying so
//! (`monitor.rs`).

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
use super::{Shared, Waiting};

/// Jobs that come back from a wait and go on, one after the other, before a new one begins.
const RESUMED_IN_ROW_MAX: u32 = 4;

/// How long a thread that has a CPU for itself goes on although there are too many: until then one that
/// shares its CPU is to come by and leave.
const EXCESS_MAX: Duration = Duration::from_millis(1);

/// How long a thread beyond the permits is idle before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

sys::sync::thread_local! {
    /// The pool whose thread this is.
    static CURRENT_WORKER: RefCell<Option<Arc<Worker>>> = const { RefCell::new(None) };
}

/// Runs `wait`, during which this thread needs no CPU: inside a job, its permit is given to another
/// meanwhile. It returns when the job may go on, which may be later than `wait` ends. Outside of a pool it is
/// `wait` alone.
pub fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    let worker = CURRENT_WORKER.with(|current| current.borrow().clone());
    let Some(worker) = worker else { return wait() };
    // A wait inside a wait is the outer one.
    let Some(_guard) = worker.release_permit() else { return wait() };
    wait()
}

/// A thread of a pool.
pub(super) struct Worker {
    shared: Arc<Shared>,
    number: usize,
}

/// What is known of a job that has ended.
struct Finished {
    class: Class,
    cpu: Duration,
    service: Duration,
}

/// What this thread had of time and CPU when it last looked.
struct Stopwatch {
    time: Nanos,
    cpu: Duration,
}

impl Stopwatch {
    fn start() -> Stopwatch {
        Stopwatch { time: monotonic(), cpu: thread_cpu() }
    }

    /// CPU and time since the last look. What lies between two jobs is part of the next: it is work for it.
    fn lap(&mut self) -> (Duration, Duration) {
        let last = std::mem::replace(self, Stopwatch::start());
        (self.cpu.saturating_sub(last.cpu), self.time.since(last.time))
    }
}

impl Worker {
    /// The thread on this seat, which is occupied.
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Worker {
        Worker { shared, number }
    }

    /// The thread's whole life, which begins with a permit or without.
    pub(super) fn run(self, has_permit: bool) {
        let worker = Arc::new(self);
        // Set for a thread that sat here before.
        worker.slot().is_dismissed.store(false, Ordering::Relaxed);
        worker.slot().thread.store(thread_id(), Ordering::Relaxed);
        // Refused where the process is nicer than that already.
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

    /// Runs jobs for as long as the permit and the jobs last.
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

    /// Whether this thread is one to leave where too many run. One that leaves a CPU while two others share
    /// one would leave it idle; behind a long job there was time for it.
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

    /// Sleeps until it is given a permit; false if it is to end.
    fn wait_for_permit(&self) -> bool {
        let (shared, slot) = (&*self.shared, self.slot());
        self.stop_running();
        shared.handoff.workers.push(self.number);
        // There may be work for this very thread.
        shared.signal();
        loop {
            if shared.is_closing() && shared.handoff.workers.try_remove(self.number) {
                return false;
            }
            let is_surplus = shared.threads() > shared.handoff.permits();
            if !is_surplus {
                slot.parker.park();
            } else if !slot.parker.park_for(IDLE_MAX) {
                // Others may have ended meanwhile, or somebody is about to wake it.
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

    /// Gives the permit away until what this returns is dropped; `None` inside of another wait.
    fn release_permit(&self) -> Option<BlockingGuard<'_>> {
        match self.slot().enter() {
            WorkerState::Declared => return None,
            WorkerState::Running => {
                self.stop_running();
                self.shared.return_permit();
            }
            // Its permit is away already.
            WorkerState::Suspected => {}
            // Somebody is told that his job was dropped, and waits then: a permit is held and no job begun.
            WorkerState::NoJob => {
                self.slot().end();
                return None;
            }
        }
        Some(BlockingGuard(self))
    }
}

/// A job inside of [`blocking`]; dropped, also by a panic, it gets a permit first.
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

impl Shared {
    /// The next job for a thread that holds a permit; without one the thread holds it no longer. What it has
    /// just ended is booked by the way. Where too many run it leaves, if it may.
    fn next(&self, mut finished: Option<Finished>, now: Nanos, may_leave: bool) -> Option<Job> {
        loop {
            let mut dropped = Dropped::new();
            let mut waiting = self.lock();
            if let Some(finished) = finished.take() {
                self.record(&mut waiting, &finished);
            }
            self.arrivals.take().for_each(|job| waiting.schedule.put(job));
            let keeps_permit = Self::must_start_new(&waiting) || self.handoff.is_exceeded() && !may_leave;
            let passed_on = !keeps_permit && self.pass_permit_on(&mut waiting);
            let job = if passed_on { None } else { waiting.schedule.take(now, &mut dropped) };
            waiting.resumed_in_row = if passed_on { waiting.resumed_in_row } else { 0 };
            let has_none = job.is_none() && dropped.is_empty();
            if has_none && !passed_on {
                // Under the lock, where those that come back from a wait look for one.
                self.handoff.release();
            }
            self.publish(&waiting);
            drop(waiting);
            dropped.into_iter().for_each(|(job, why)| self.drop_job(job, why));
            if let Some(job) = &job {
                self.job_taken(job);
            }
            if job.is_some() || has_none {
                self.signal();
                return job;
            }
        }
    }

    /// Books a job whose thread holds no permit any more.
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

    pub(super) fn drop_job(&self, job: Job, why: Failure) {
        self.expiry.cancel(&job);
        let counts = self.counts(job.class);
        counts.queued.fetch_sub(1, Ordering::Relaxed);
        count(if why == Failure::Expired { &counts.expired } else { &counts.shed });
        job.fail(why);
    }

    /// Takes the caller's permit, for a job that comes back from a wait or because there are too many; false
    /// if the caller may keep it.
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

    /// Whether a new job is to begin although others wait to go on: they would take the permits for ever.
    fn must_start_new(waiting: &Waiting) -> bool {
        waiting.resumed_in_row >= RESUMED_IN_ROW_MAX && waiting.schedule.is_eligible()
    }

    /// Gives the caller's permit to an idle thread for a new job, if it is its turn; false if it is not, or
    /// no thread is idle.
    fn pass_permit_to_new(&self, waiting: &mut Waiting) -> bool {
        let number = if Self::must_start_new(waiting) { self.handoff.workers.pop() } else { None };
        let Some(number) = number else { return false };
        waiting.resumed_in_row = 0;
        self.handoff.workers.at(number).parker.unpark();
        true
    }

    /// Whether a new job is to begin and no thread is idle that could be given a permit for it.
    pub(super) fn lacks_thread_for_new(&self) -> bool {
        self.has_returning.load(Ordering::Relaxed)
            && self.handoff.workers.is_empty()
            && Self::must_start_new(&self.lock())
    }

    /// Gives back the permit of a job that goes on without one.
    pub(super) fn return_permit(&self) {
        let mut waiting = self.lock();
        if !self.pass_permit_to_new(&mut waiting) && !self.pass_permit_on(&mut waiting) {
            self.handoff.release();
        }
        self.publish(&waiting);
        drop(waiting);
        self.signal();
    }

    /// Asks for a permit for a job that comes back from a wait; false if it is to sleep until it is given
    /// one.
    fn reacquire_or_queue(&self, number: usize) -> bool {
        let mut waiting = self.lock();
        if self.handoff.acquire_for_resumed() {
            return true;
        }
        waiting.returning.push_back(number);
        self.publish(&waiting);
        drop(waiting);
        // A permit that a signal held for a moment is given back without a look at those who wait here.
        self.monitor.wake();
        false
    }

    /// Gives free permits to jobs that come back from a wait.
    pub(super) fn resume_returning(&self) {
        let mut waiting = self.lock();
        while !waiting.returning.is_empty() && self.handoff.acquire_for_resumed() {
            let number = waiting.returning.pop_front().expect("it is not empty");
            self.handoff.workers.at(number).parker.unpark();
        }
        self.publish(&waiting);
    }
}
