//! A pool for jobs that block or burn CPU, kept away from the reactors.
//!
//! Guarantees:
//!
//! - Submitting never waits, neither for a lock nor for another submitter; a full queue is an error.
//! - As many jobs compute as there are permits, whatever other jobs wait for. For a moment a quarter more may
//!   compute, when jobs return from a wait.
//! - A job that declares a wait ([`blocking`]) frees its permit meanwhile. A job that sleeps undeclared is
//!   detected.
//! - A class whose jobs never return holds its share of the threads and no more.
//! - An expired job is not run, and its caller gets the outcome at the deadline, however busy the threads
//!   are.
//! - A panic ends the job and not its thread. Every accepted job gets one reply.
//! - A pool without work uses no CPU. When the last handle is dropped, the threads drain the queue and end.
//!
//! ```text
//!   any thread                                   threads of the pool
//!   run --> bound, estimate --> arrivals --> Schedule (lock) --> Worker: permit, job, reply
//!             | Refused        (stack)    | classes by share     |   ^ wake, with a permit
//!             v                           | Expired, Shed        v   |
//!           caller                        '--> reply        Handoff: permits, idle threads
//!                                                                ^
//!                          Monitor: starts threads, finds sleeping jobs, sleeps while no job waits
//!                          Expiry: a timer for each queued job with a deadline
//! ```
//!
//! Only the pool's own threads take the lock: between two jobs, and on both sides of a wait. The design
//! follows the completion ports of Windows, where the kernel keeps the number of running threads constant. It
//! adds what Facebook describes in "Fail at Scale" (ACM Queue 13/8, 2015): a standing queue is served newest
//! first.

mod class_queue;
mod cpus;
mod expiry;
mod handoff;
mod idle;
mod job;
mod monitor;
mod schedule;
mod settings;
mod shedding;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod stats;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod worker;
mod worker_slot;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sys::clock::{Nanos, monotonic};
use sys::limits::thread_budget;
use sys::stack::Stack;
use sys::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sys::sync::{Mutex, MutexGuard, thread};

pub use self::job::{Failure, JobHandle, Outcome};
pub use self::settings::{Class, ClassSettings, PoolSettings, Shedding};
pub use self::stats::{ClassStats, PoolStats};
pub use self::worker::blocking;

use self::cpus::Cpus;
use self::expiry::Expiry;
use self::handoff::{Handoff, Signal};
use self::job::Job;
use self::monitor::{Monitor, MonitorParker};
use self::schedule::Schedule;
use self::stats::{Counts, count};
use crate::oneshot;

/// Why a job was not accepted. It was dropped without having run, and without a reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// The queue of its class is full.
    Full,
    /// By the cost of earlier jobs of its class, it would start after its deadline.
    Late,
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Refused::Full => "the job queue is full",
            Refused::Late => "the job queue is too long for the job's deadline",
        })
    }
}

impl std::error::Error for Refused {}

/// A handle to the pool's threads; they end when the last handle is dropped.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

struct Handle(Arc<PoolState>);

struct PoolState {
    name: &'static str,
    niceness: i32,
    /// Permits at the start, which are the most that there can be.
    permits_max: usize,
    classes: Box<[ClassInfo]>,
    /// Submitted jobs; a thread between two jobs takes all of them.
    arrivals: Stack<Job>,
    /// Locked by the pool's own threads only.
    waiting: Mutex<Waiting>,
    /// Whether the schedule has an eligible job, and whether a job waits to resume; published for readers
    /// without the lock.
    has_eligible: AtomicBool,
    has_returning: AtomicBool,
    handoff: Handoff,
    cpus: Cpus,
    expiry: Expiry,
    monitor: MonitorParker,
    threads: AtomicUsize,
    threads_peak: AtomicUsize,
    suspected: AtomicU64,
    threads_refused: AtomicU64,
    is_closing: AtomicBool,
}

/// What submitters need to know of a class.
struct ClassInfo {
    name: &'static str,
    queue_max: usize,
    concurrency_max: u64,
    deadline: Option<Duration>,
    counts: Counts,
}

/// What waits for a permit.
struct Waiting {
    schedule: Schedule,
    /// Worker slots of jobs that return from a wait, oldest first.
    returning: VecDeque<usize>,
    /// How many of them got a permit in a row since a new job last began.
    resumed_in_row: u32,
}

impl Pool {
    /// Starts a thread for each permit; the pool starts more when jobs wait. There are fewer than
    /// [`PoolSettings::threads_max`] where the machine's limits require it, but at least one for each class.
    ///
    /// # Errors
    /// `EAGAIN` when not even one thread can be created, or no monitor thread; `EMFILE` or `ENFILE` for the
    /// alarm of a timer thread.
    ///
    /// # Panics
    /// When the settings are invalid: no class, no permit, or a class that could never run.
    pub fn start(settings: PoolSettings) -> io::Result<Pool> {
        settings.assert_sound();
        let (expiry, service) = expiry::start(settings.classes.iter().map(|class| class.queue_max).sum())?;
        let shared = Arc::new(PoolState::new(&settings, expiry));
        shared.expiry.set_pool(Arc::downgrade(&shared));
        let pool = Pool(Arc::new(Handle(Arc::clone(&shared))));
        let monitor = Monitor::new(Arc::clone(&shared), service);
        for started in 0..settings.permits.min(shared.handoff.workers.len()) {
            match shared.start_thread(false) {
                Ok(_) => {}
                Err(error) if started == 0 => return Err(error),
                // The monitor tries again when a job waits.
                Err(_) => break,
            }
        }
        thread::Builder::new().name(format!("{}-monitor", settings.name)).spawn(move || monitor.run())?;
        Ok(pool)
    }

    /// Queues `work`; the handle is a future of its outcome, for a task of any reactor.
    ///
    /// # Errors
    /// See [`Refused`].
    ///
    /// # Panics
    /// Here and below: when the pool has no such class.
    pub fn run<T: Send + Sync + 'static>(
        &self,
        class: Class,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JobHandle<T>, Refused> {
        let (sender, receiver) = oneshot::channel();
        self.run_then(class, work, move |outcome| sender.send(outcome))?;
        Ok(JobHandle(receiver))
    }

    /// Queues `work`; `reply` is called once with its outcome, on a thread of the pool. It should only send
    /// the outcome to an inbox or a channel, since it delays other jobs.
    ///
    /// # Errors
    /// See [`Refused`]; then `reply` is dropped without a call.
    pub fn run_then<T: 'static>(
        &self,
        class: Class,
        work: impl FnOnce() -> T + Send + 'static,
        reply: impl FnOnce(Outcome<T>) + Send + 'static,
    ) -> Result<(), Refused> {
        let now = monotonic();
        let deadline = self.0.0.class(class).deadline.map_or(Nanos::NEVER, |deadline| now + deadline);
        self.0.0.submit((class, now, deadline), work, reply)
    }

    /// As [`Pool::run_then`], with a deadline for this job in place of its class's.
    ///
    /// # Errors
    /// See [`Refused`]; then `reply` is dropped without a call.
    pub fn run_by<T: 'static>(
        &self,
        class: Class,
        deadline: Nanos,
        work: impl FnOnce() -> T + Send + 'static,
        reply: impl FnOnce(Outcome<T>) + Send + 'static,
    ) -> Result<(), Refused> {
        self.0.0.submit((class, monotonic(), deadline), work, reply)
    }

    /// Changes how many jobs may run at a time: at least 1, at most as many as at the start. Running jobs
    /// continue; fewer permits take effect as jobs end.
    pub fn set_permits(&self, permits: usize) {
        let shared = &self.0.0;
        shared.handoff.set_permits(permits.clamp(1, shared.permits_max));
        for _ in 0..shared.permits_max {
            shared.signal();
        }
        shared.monitor.wake();
    }

    /// The permits at the start of the pool.
    pub fn permits_max(&self) -> usize {
        self.0.0.permits_max
    }

    /// The counters so far. Each is exact, but they may be read at slightly different moments.
    pub fn stats(&self) -> PoolStats {
        let shared = &self.0.0;
        PoolStats {
            permits: shared.handoff.permits(),
            held: shared.handoff.held(),
            threads: shared.threads(),
            threads_peak: shared.threads_peak.load(Ordering::Relaxed),
            suspected: shared.suspected.load(Ordering::Relaxed),
            threads_refused: shared.threads_refused.load(Ordering::Relaxed),
            classes: shared.classes.iter().map(|class| class.counts.read(class.name)).collect(),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl PoolState {
    fn new(settings: &PoolSettings, expiry: Expiry) -> PoolState {
        // One thread is the monitor.
        let budget = usize::try_from(thread_budget().threads).unwrap_or(usize::MAX).saturating_sub(1);
        let threads_min = settings.classes.len();
        let threads_max = settings.threads_max.max(settings.permits).min(budget).max(threads_min);
        let classes = settings.classes.iter().zip(settings.concurrency(threads_max));
        let info = |(class, concurrency_max): (&ClassSettings, usize)| ClassInfo {
            name: class.name,
            queue_max: class.queue_max,
            concurrency_max: concurrency_max as u64,
            deadline: class.deadline,
            counts: Counts::default(),
        };
        PoolState {
            name: settings.name,
            niceness: settings.niceness,
            permits_max: settings.permits,
            classes: classes.map(info).collect(),
            arrivals: Stack::new(),
            waiting: Mutex::new(Waiting {
                schedule: Schedule::new(settings, threads_max),
                returning: VecDeque::new(),
                resumed_in_row: 0,
            }),
            has_eligible: AtomicBool::new(false),
            has_returning: AtomicBool::new(false),
            handoff: Handoff::new(settings.permits, threads_max),
            cpus: Cpus::new(settings.niceness <= 0),
            expiry,
            monitor: MonitorParker::new(),
            threads: AtomicUsize::new(0),
            threads_peak: AtomicUsize::new(0),
            suspected: AtomicU64::new(0),
            threads_refused: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
        }
    }

    fn submit<T: 'static>(
        &self,
        (class, now, deadline): (Class, Nanos, Nanos),
        work: impl FnOnce() -> T + Send + 'static,
        reply: impl FnOnce(Outcome<T>) + Send + 'static,
    ) -> Result<(), Refused> {
        let class_info = self.class(class);
        // Count first, so that the bound holds however many threads submit at once.
        let ahead = class_info.counts.queued.fetch_add(1, Ordering::Relaxed);
        let refused = if ahead >= class_info.queue_max {
            Some((Refused::Full, &class_info.counts.refused_full))
        } else if now + self.expected_wait(class_info, ahead as u64) > deadline {
            Some((Refused::Late, &class_info.counts.refused_late))
        } else {
            None
        };
        if let Some((refused, counter)) = refused {
            class_info.counts.queued.fetch_sub(1, Ordering::Relaxed);
            count(counter);
            return Err(refused);
        }
        let mut job = Job::new((class, now, deadline), work, reply);
        job.expiry = self.expiry.arm(deadline);
        self.arrivals.push(job);
        self.signal();
        Ok(())
    }

    /// The expected wait of a job with `ahead` jobs of its class before it, by their recent means: CPU time
    /// over all permits, or service time over all threads of the class, whichever is longer. Jobs ahead that
    /// have a free permit or thread are about to begin, and add nothing.
    fn expected_wait(&self, class_info: &ClassInfo, ahead: u64) -> Duration {
        let mean = |mean: &AtomicU64| mean.load(Ordering::Relaxed);
        let permits = self.handoff.permits() as u64;
        let free = permits.saturating_sub(self.handoff.held() as u64);
        let cpu_wait = ahead.saturating_sub(free).saturating_mul(mean(&class_info.counts.cost_ns)) / permits;
        let taken = class_info.counts.taken.load(Ordering::Relaxed) as u64;
        let excess = ahead.min((ahead + taken).saturating_sub(class_info.concurrency_max));
        let thread_wait =
            excess.saturating_mul(mean(&class_info.counts.service_ns)) / class_info.concurrency_max;
        Duration::from_nanos(cpu_wait.max(thread_wait))
    }

    /// To be called after adding work, a permit or an idle thread.
    fn signal(&self) {
        match self.handoff.signal(|| self.has_work()) {
            Signal::NoWork | Signal::Woken => {}
            Signal::NoPermit => self.monitor.wake(),
            Signal::NoThread => self.monitor.request_thread(),
        }
    }

    /// Whether a thread with a permit would find an eligible job, or arrivals that are not in the schedule
    /// yet.
    fn has_work(&self) -> bool {
        self.has_eligible.load(Ordering::Relaxed) || !self.arrivals.is_empty()
    }

    /// Whether a job waits for a permit or a thread.
    fn has_waiting(&self) -> bool {
        self.has_work() || self.has_returning.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No job runs under the lock, so a poisoned lock guards an intact schedule.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the state of `waiting` for readers without the lock. To be called before the lock is
    /// released.
    fn publish(&self, waiting: &Waiting) {
        self.has_eligible.store(waiting.schedule.is_eligible(), Ordering::Relaxed);
        self.has_returning.store(!waiting.returning.is_empty(), Ordering::Relaxed);
    }

    fn class(&self, class: Class) -> &ClassInfo {
        &self.classes[usize::from(class.0)]
    }

    fn counts(&self, class: Class) -> &Counts {
        &self.class(class).counts
    }

    /// Queued jobs of all classes.
    fn queued(&self) -> usize {
        self.classes.iter().map(|class| class.counts.queued.load(Ordering::Relaxed)).sum()
    }

    fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    fn thread_started(&self) {
        let threads = self.threads.fetch_add(1, Ordering::Relaxed) + 1;
        self.threads_peak.fetch_max(threads, Ordering::Relaxed);
    }

    /// Counts a thread that ends.
    fn thread_ended(&self) {
        // Release pairs with the Acquire of `is_over`: the last thread to end has finished all its work.
        if self.threads.fetch_sub(1, Ordering::Release) == 1 {
            self.monitor.end();
        }
    }

    /// Makes the threads end when no work is left.
    fn close(&self) {
        // Pairs with the load of a thread that has just become idle, after the fence of its signal: either
        // that thread sees this flag, or this loop finds it in the stack.
        self.is_closing.store(true, Ordering::SeqCst);
        sys::sync::atomic::fence(Ordering::SeqCst);
        while let Some(number) = self.handoff.workers.pop() {
            let slot = self.handoff.workers.at(number);
            slot.is_dismissed.store(true, Ordering::Release);
            slot.parker.unpark();
        }
        self.monitor.end();
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Whether the pool has ended.
    fn is_over(&self) -> bool {
        self.is_closing() && self.threads.load(Ordering::Acquire) == 0 && !self.has_waiting()
    }
}
