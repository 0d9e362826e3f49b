//! The engine's job pool: as many requests compute as there are CPUs, and a request that declares a wait
//! gives its permit to another meanwhile.
//!
//! Guarantees: the pool is the one on which the gateway runs its jobs, with threads for at most eight waiting
//! requests a CPU; sleeps are declared, yields are not, since a yielding thread can go on at once.
//!
//! The pool's monitor, a thread that does no request and sleeps while no job waits, is not among the counted
//! threads.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, Thread};

use anyhow::{Context, Result, ensure};
use engine::pool::{Class, ClassSettings, Outcome, Pool, PoolSettings, blocking};

use super::Strategy;
use super::recording::ThreadPlacement;
use super::waits::Wait;
use super::work::{ThreadGuard, Work};

/// Threads for each permit, waiting ones included.
const THREADS_PER_CPU_MAX: usize = 8;

pub(super) struct IoAware {
    pub(super) cpus: usize,
}

thread_local! {
    /// Of a thread of the pool, from its first request to its end.
    static THREAD_GUARD: RefCell<Option<ThreadGuard>> = const { RefCell::new(None) };
}

impl Strategy for IoAware {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let requests = ClassSettings {
            name: "requests",
            queue_max: work.requests().max(1) as usize,
            ..ClassSettings::default()
        };
        let pool = Pool::start(PoolSettings {
            name: "requests",
            permits: self.cpus,
            threads_max: THREADS_PER_CPU_MAX * self.cpus,
            niceness: 0,
            classes: vec![requests],
        });
        let pool = pool.context("creating a thread")?;
        let countdown = Arc::new(Countdown::new(work.requests()));
        for request in 0..work.requests() {
            let (work, countdown) = (Arc::clone(work), Arc::clone(&countdown));
            pool.run_then(
                Class(0),
                move || finish_request(&work, request),
                move |outcome| countdown.note(outcome),
            )
            .context("the queue admits every request")?;
        }
        countdown.wait();
        drop(pool);
        // The threads end by themselves, as those of other pools are joined.
        while work.has_running_threads() {
            thread::yield_now();
        }
        ensure!(!countdown.has_failed.load(Ordering::Relaxed), "a request did not end");
        Ok(())
    }
}

fn finish_request(work: &Work, request: u32) {
    THREAD_GUARD.with_borrow_mut(|enter| {
        let enter = enter.get_or_insert_with(|| work.enter(ThreadPlacement::Any));
        work.request(request, enter, |wait| match wait {
            Wait::Sleep(_) => blocking(|| wait.hold_thread()),
            Wait::Nothing | Wait::Yield => wait.hold_thread(),
        });
    });
}

/// Requests that are not done yet, and the thread that waits for them.
struct Countdown {
    left: AtomicU32,
    has_failed: AtomicBool,
    waiter: Thread,
}

impl Countdown {
    fn new(left: u32) -> Self {
        Self { left: AtomicU32::new(left), has_failed: AtomicBool::new(false), waiter: thread::current() }
    }

    fn note(&self, outcome: Outcome<()>) {
        if outcome.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        // Release pairs with the Acquire of `wait`, which then sees what the requests counted.
        if self.left.fetch_sub(1, Ordering::Release) == 1 {
            self.waiter.unpark();
        }
    }

    fn wait(&self) {
        while self.left.load(Ordering::Acquire) > 0 {
            thread::park();
        }
    }
}
