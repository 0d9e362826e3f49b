//! A bounded pool for jobs that block or burn CPU, kept away from the reactors.
//!
//! Promises: submitting never waits, not for a lock and not for another submitter: a full queue is an
//! answer; a panic ends the job and not its thread; when the last handle goes, the threads finish what is
//! queued and end. Leaves to others: which work belongs here, and what to tell a client when it is full.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use sys::semaphore::Semaphore;
use sys::stack::Stack;

use crate::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// What a pool is made of.
#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// The threads' name; the kernel shows the first 15 bytes.
    pub name: &'static str,
    /// How many jobs run at a time; at least 1.
    pub threads: usize,
    /// How many jobs may wait.
    pub queue_max: usize,
    /// The threads' niceness, 0 to 19: work that must not take CPU from the reactors yields to them.
    pub niceness: i32,
}

/// All places in the queue are taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueFull;

impl std::fmt::Display for QueueFull {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the job queue is full")
    }
}

impl std::error::Error for QueueFull {}

/// A pool's counts so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PoolStats {
    /// Jobs that wait now.
    pub queued: usize,
    /// Jobs that were run.
    pub finished: u64,
    /// Jobs that were refused because the queue was full.
    pub refused: u64,
    /// Jobs that panicked.
    pub panicked: u64,
}

struct Shared {
    settings: PoolSettings,
    /// Where submitters put jobs; a thread that finds `next` empty takes all of them.
    arrivals: Stack<Job>,
    /// Jobs in the order of arrival. Locked by the pool's own threads only.
    next: Mutex<VecDeque<Job>>,
    /// One permit for each queued job; a thread that gets one and finds no job ends.
    permits: Semaphore,
    queued: AtomicUsize,
    finished: AtomicU64,
    refused: AtomicU64,
    panicked: AtomicU64,
    closing: AtomicBool,
}

/// A handle; see the file's header.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

struct Handle(Arc<Shared>);

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// `EAGAIN` when no thread can be created, `EMFILE`.
    pub fn start(settings: PoolSettings) -> io::Result<Pool> {
        assert!(settings.threads >= 1, "a pool without threads would never run a job");
        let shared = Arc::new(Shared {
            settings,
            arrivals: Stack::new(),
            next: Mutex::default(),
            permits: Semaphore::new()?,
            queued: AtomicUsize::new(0),
            finished: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        });
        let handle = Handle(Arc::clone(&shared));
        for _ in 0..settings.threads {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(settings.name.into()).spawn(move || shared.work())?;
        }
        Ok(Pool(Arc::new(handle)))
    }

    /// Queues `job`; the receiver gives its result.
    ///
    /// # Errors
    /// [`QueueFull`]; the job is dropped without having run.
    pub fn run<T: Send + Sync + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, QueueFull> {
        let shared = &self.0.0;
        // The count goes up first, so that the bound holds however many threads submit at once.
        if shared.queued.fetch_add(1, Ordering::Relaxed) >= shared.settings.queue_max {
            shared.queued.fetch_sub(1, Ordering::Relaxed);
            shared.refused.fetch_add(1, Ordering::Relaxed);
            return Err(QueueFull);
        }
        let (sender, receiver) = oneshot::channel();
        shared.arrivals.push(Box::new(move || sender.send(job())));
        shared.permits.release();
        Ok(receiver)
    }

    /// The counts so far.
    pub fn stats(&self) -> PoolStats {
        let shared = &self.0.0;
        PoolStats {
            queued: shared.queued.load(Ordering::Relaxed),
            finished: shared.finished.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            panicked: shared.panicked.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    fn work(&self) {
        // Refused only for negative values, which settings exclude.
        let _ = sys::limits::set_thread_niceness(self.settings.niceness);
        loop {
            self.permits.acquire();
            let Some(job) = self.next_job() else {
                debug_assert!(self.closing.load(Ordering::Relaxed), "each other permit stands for a job");
                return;
            };
            self.queued.fetch_sub(1, Ordering::Relaxed);
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                self.panicked.fetch_add(1, Ordering::Relaxed);
            }
            self.finished.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn next_job(&self) -> Option<Job> {
        // No job runs under the lock, so a poisoned one guards an intact queue.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.is_empty() {
            next.extend(self.arrivals.take());
        }
        next.pop_front()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.closing.store(true, Ordering::Relaxed);
        for _ in 0..self.0.settings.threads {
            self.0.permits.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn pool(threads: usize, queue_max: usize) -> Pool {
        Pool::start(PoolSettings { name: "test", threads, queue_max, niceness: 5 }).unwrap()
    }

    #[test]
    fn a_full_queue_is_an_answer_and_queued_jobs_keep_their_order() {
        let pool = pool(1, 3);
        let (open, gate) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let (done, order) = mpsc::channel();
        let blocker = pool.run(move || {
            started.send(()).unwrap();
            gate.recv().unwrap();
        });
        assert!(blocker.is_ok());
        has_started.recv().unwrap();
        for n in 0..3 {
            let done = done.clone();
            assert!(pool.run(move || done.send(n).unwrap()).is_ok());
        }
        assert_eq!(pool.run(|| ()).err(), Some(QueueFull));
        assert_eq!(pool.stats(), PoolStats { queued: 3, finished: 0, refused: 1, panicked: 0 });
        open.send(()).unwrap();
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_panic_ends_the_job_and_the_last_handle_ends_the_threads() {
        let pool = pool(2, 100);
        let (done, results) = mpsc::channel();
        assert!(pool.run(|| -> u8 { std::panic::panic_any("planted") }).is_ok());
        for n in 0..50 {
            let done = done.clone();
            assert!(pool.run(move || done.send(n).unwrap()).is_ok());
        }
        drop(done);
        let shared = Arc::downgrade(&pool.0.0);
        drop(pool);
        // Ends only when every job has run and dropped its sender.
        assert_eq!(results.iter().count(), 50);
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
