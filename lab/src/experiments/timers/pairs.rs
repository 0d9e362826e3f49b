//! Schedule and cancel, as an RPC client does, at full speed: by the thread that armed the timer, or by the
//! next one of a ring of threads.
//!
//! Guarantees: all threads begin together and end together; the clock is read once for every 64 calls, as a
//! thread with a loop does, whatever implementation keeps the timers; a timer that fired before its thread
//! came to cancel it is no pair, and many of them are an error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use sys::clock::{Nanos, monotonic, process_cpu};

use super::DEADLINE;
use super::timer_impl::{TimerImpl, User};

/// Calls between two passes of a thread's loop, each of which reads the clock.
const CALLS_PER_PASS: usize = 64;

/// One timer in this many may fire: fifty threads on two CPUs may keep a thread from cancelling for half a
/// second.
const FIRED_SHARE_MAX: u64 = 100;

/// A shorter run measures nothing, and one thread that does not run is a large share of it.
const MEASURED_MIN: Duration = Duration::from_millis(100);

/// The thread that cancels a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelledBy {
    /// The thread that armed it.
    Owner,
    /// Another thread.
    Other,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs {
    pub(super) by: CancelledBy,
    pub(super) threads: usize,
    /// Timers that each thread has armed and not seen cancelled, at most.
    pub(super) window: usize,
}

/// Calls of one or of all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairCounts {
    /// Cancelled timers.
    pub(super) pairs: u64,
    /// Timers that fired before they were cancelled.
    pub(super) fired: u64,
}

/// The result of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) counts: PairCounts,
    pub(super) elapsed: Duration,
    /// Of the whole process, with the threads of the implementation.
    pub(super) cpu: Duration,
}

impl Pairs {
    /// Runs the case for `time`.
    ///
    /// # Errors
    /// A timer could not be armed, or many fired that were to be cancelled.
    pub(super) fn run<F: TimerImpl>(self, timer_impl: &F, time: Duration) -> Result<Done> {
        let is_over = AtomicBool::new(false);
        let begin = Barrier::new(self.threads + 1);
        let mut ring_threads = ring_threads(self.threads, self.window);
        thread::scope(|scope| {
            let threads: Vec<_> = ring_threads
                .drain(..)
                .map(|ring_thread| {
                    let (timer_impl, is_over, begin) = (timer_impl.clone(), &is_over, &begin);
                    scope.spawn(move || {
                        let mut user = timer_impl.enter();
                        // All threads have started; then the clock is read; then they begin.
                        begin.wait();
                        begin.wait();
                        match self.by {
                            CancelledBy::Owner => cancel_own(&mut user, self.window, is_over),
                            CancelledBy::Other => ring_thread.run(&mut user, is_over),
                        }
                    })
                })
                .collect();
            begin.wait();
            let (began, cpu_before) = (monotonic(), process_cpu());
            begin.wait();
            thread::sleep(time);
            is_over.store(true, Ordering::Relaxed);
            let done: Vec<Result<PairCounts>> =
                threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect();
            let (elapsed, cpu) = (monotonic().since(began), process_cpu() - cpu_before);
            let mut all = PairCounts::default();
            for counts in done {
                let PairCounts { pairs, fired } = counts?;
                (all.pairs, all.fired) = (all.pairs + pairs, all.fired + fired);
            }
            ensure!(
                time < MEASURED_MIN || all.fired <= all.pairs / FIRED_SHARE_MAX,
                "{} timers fired before they were cancelled",
                all.fired
            );
            Ok(Done { counts: all, elapsed, cpu })
        })
    }
}

/// The deadline of a call in this pass.
fn deadline() -> Nanos {
    monotonic() + DEADLINE
}

/// A thread that cancels its own timers, oldest first.
fn cancel_own<U: User>(user: &mut U, window: usize, is_over: &AtomicBool) -> Result<PairCounts> {
    let mut armed: Vec<Option<U::Handle>> = (0..window).map(|_| None).collect();
    let (mut counts, mut index) = (PairCounts::default(), 0);
    while !is_over.load(Ordering::Relaxed) {
        let deadline = deadline();
        for _ in 0..CALLS_PER_PASS {
            if let Some(handle) = armed[index].take() {
                counts.add(user.cancel(handle));
            }
            armed[index] = Some(user.arm(deadline)?);
            index = if index + 1 == window { 0 } else { index + 1 };
        }
        user.run_due();
    }
    armed.into_iter().flatten().for_each(|handle| counts.add(user.cancel(handle)));
    Ok(counts)
}

impl PairCounts {
    #[inline]
    fn add(&mut self, is_cancelled: bool) {
        self.pairs += u64::from(is_cancelled);
        self.fired += u64::from(!is_cancelled);
    }
}

/// Timers that go from one thread to the next together, with a flag in front of the mutex, so that no two
/// threads ever contend for it.
#[repr(align(128))]
struct Batch<H> {
    is_full: AtomicBool,
    timers: Mutex<Vec<H>>,
}

/// A thread of the ring: the batches that it sends and those that it receives. All return empty.
struct RingThread<H> {
    outgoing: Arc<[Batch<H>]>,
    incoming: Arc<[Batch<H>]>,
    batch: usize,
}

/// The ring. A window is two batches, so that one can be armed while the other is cancelled, or a single one.
fn ring_threads<H>(threads: usize, window: usize) -> Vec<RingThread<H>> {
    let batches = window.min(2);
    let batch = window / batches;
    let empty = || Batch { is_full: AtomicBool::new(false), timers: Mutex::new(Vec::with_capacity(batch)) };
    let ring: Vec<Arc<[Batch<H>]>> = (0..threads).map(|_| (0..batches).map(|_| empty()).collect()).collect();
    let ring_thread = |number: usize| RingThread {
        outgoing: Arc::clone(&ring[number]),
        incoming: Arc::clone(&ring[(number + threads - 1) % threads]),
        batch,
    };
    (0..threads).map(ring_thread).collect()
}

impl<H: Send> RingThread<H> {
    fn run<U: User<Handle = H>>(self, user: &mut U, is_over: &AtomicBool) -> Result<PairCounts> {
        let mut counts = PairCounts::default();
        let (mut outgoing, mut incoming) = (self.outgoing.iter().cycle(), self.incoming.iter().cycle());
        let (mut empty, mut full) = (outgoing.next(), incoming.next());
        while !is_over.load(Ordering::Relaxed) {
            let arms = empty.filter(|batch| !batch.is_full());
            let cancels = full.filter(|batch| batch.is_full());
            if arms.is_none() && cancels.is_none() {
                thread::yield_now();
            }
            if let Some(batch) = arms {
                let deadline = deadline();
                let mut timers = batch.timers();
                for _ in 0..self.batch {
                    timers.push(user.arm(deadline)?);
                }
                drop(timers);
                batch.set_full(true);
                empty = outgoing.next();
            }
            if let Some(batch) = cancels {
                batch.timers().drain(..).for_each(|handle| counts.add(user.cancel(handle)));
                batch.set_full(false);
                full = incoming.next();
            }
            user.run_due();
        }
        Ok(counts)
    }
}

impl<H> Batch<H> {
    fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    fn timers(&self) -> MutexGuard<'_, Vec<H>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Release);
    }
}
