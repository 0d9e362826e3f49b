//! Schedule and cancel, as an RPC client does, as fast as it goes: by the thread that armed the timer, or by
//! the next one of a ring of threads.
//!
//! Promises: all threads begin together and end together; a clock is read once for every 64 calls, as a
//! thread with a loop does, whatever keeps the timers; a timer that fired before its thread came to cancel it
//! is no pair, and many of them are an error. Leaves to others: which ways, and when (`turn.rs`).

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use crossbeam_channel::{Receiver, Sender, bounded};
use sys::clock::{Nanos, monotonic, process_cpu};

use super::DEADLINE;
use super::facility::{Facility, User};

/// Calls between two turns of a thread's loop, at which it looks at the clock.
const CALLS_PER_TURN: usize = 64;

/// One timer of so many may fire: fifty threads on two CPUs may keep one from cancelling for half a second.
const FIRED_SHARE_MAX: u64 = 100;

/// Who takes a timer back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The thread that armed it.
    Owner,
    /// Another thread.
    Other,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs {
    pub(super) by: By,
    pub(super) threads: usize,
    /// Timers that each thread has armed and not seen cancelled, at most.
    pub(super) window: usize,
}

/// Calls of one or of all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tallied {
    /// Those that were cancelled.
    pub(super) pairs: u64,
    /// Those that were not, as they had fired.
    pub(super) fired: u64,
}

/// What a case came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) tallied: Tallied,
    pub(super) elapsed: Duration,
    /// Of the whole process, with the threads of the facility.
    pub(super) cpu: Duration,
}

impl Pairs {
    /// Runs it for `time`.
    ///
    /// # Errors
    /// A timer could not be armed, or many fired that were to be cancelled.
    pub(super) fn run<F: Facility>(self, facility: &F, time: Duration) -> Result<Done> {
        let is_over = AtomicBool::new(false);
        let begin = Barrier::new(self.threads + 1);
        let mut lanes = lanes(self.threads, self.window);
        thread::scope(|scope| {
            let threads: Vec<_> = lanes
                .drain(..)
                .map(|lane| {
                    let (facility, is_over, begin) = (facility.clone(), &is_over, &begin);
                    scope.spawn(move || {
                        let mut user = facility.enter();
                        // All are here; then the clock is read; then they begin.
                        begin.wait();
                        begin.wait();
                        match self.by {
                            By::Owner => own(&mut user, self.window, is_over),
                            By::Other => lane.run(&mut user, is_over),
                        }
                    })
                })
                .collect();
            begin.wait();
            let (began, cpu_before) = (monotonic(), process_cpu());
            begin.wait();
            thread::sleep(time);
            is_over.store(true, Ordering::Relaxed);
            let done: Vec<Result<Tallied>> =
                threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect();
            let (elapsed, cpu) = (monotonic().since(began), process_cpu() - cpu_before);
            let mut all = Tallied::default();
            for tallied in done {
                let Tallied { pairs, fired } = tallied?;
                (all.pairs, all.fired) = (all.pairs + pairs, all.fired + fired);
            }
            ensure!(
                all.fired <= all.pairs / FIRED_SHARE_MAX,
                "{} timers fired before their cancel",
                all.fired
            );
            Ok(Done { tallied: all, elapsed, cpu })
        })
    }
}

/// When a call fails that is made in this turn.
fn deadline() -> Nanos {
    monotonic() + DEADLINE
}

/// A thread that cancels its own, oldest first.
fn own<U: User>(user: &mut U, window: usize, is_over: &AtomicBool) -> Result<Tallied> {
    let mut armed: Vec<Option<U::Handle>> = (0..window).map(|_| None).collect();
    let (mut tallied, mut place) = (Tallied::default(), 0);
    while !is_over.load(Ordering::Relaxed) {
        let deadline = deadline();
        for _ in 0..CALLS_PER_TURN {
            if let Some(handle) = armed[place].take() {
                tallied.add(user.cancel(handle));
            }
            armed[place] = Some(user.arm(deadline)?);
            place = if place + 1 == window { 0 } else { place + 1 };
        }
        user.turn();
    }
    armed.into_iter().flatten().for_each(|handle| tallied.add(user.cancel(handle)));
    Ok(tallied)
}

impl Tallied {
    #[inline]
    fn add(&mut self, is_cancelled: bool) {
        self.pairs += u64::from(is_cancelled);
        self.fired += u64::from(!is_cancelled);
    }
}

/// Timers that go from one thread to the next together, in a vector that comes back empty.
type Batch<H> = Vec<H>;

/// A thread of the ring: what it hands on, what it gets, and the ways back.
struct Lane<H> {
    onward: Sender<Batch<H>>,
    returned: Receiver<Batch<H>>,
    incoming: Receiver<Batch<H>>,
    give_back: Sender<Batch<H>>,
    batch: usize,
}

/// The ring. A window is two batches, so that one can be armed while the other is cancelled, or a single one.
fn lanes<H>(threads: usize, window: usize) -> Vec<Lane<H>> {
    let batches = window.min(2);
    let batch = window / batches;
    let (mut forth, mut back) = (Vec::new(), Vec::new());
    for _ in 0..threads {
        forth.push(bounded(batches));
        let (give_back, returned) = bounded(batches);
        (0..batches).for_each(|_| give_back.send(Vec::with_capacity(batch)).expect("there is room"));
        back.push((give_back, returned));
    }
    let lane = |number: usize| {
        let before = (number + threads - 1) % threads;
        Lane {
            onward: forth[number].0.clone(),
            returned: back[number].1.clone(),
            incoming: forth[before].1.clone(),
            give_back: back[before].0.clone(),
            batch,
        }
    };
    (0..threads).map(lane).collect()
}

impl<H: Send> Lane<H> {
    fn run<U: User<Handle = H>>(self, user: &mut U, is_over: &AtomicBool) -> Result<Tallied> {
        let mut tallied = Tallied::default();
        while !is_over.load(Ordering::Relaxed) {
            let arms = self.returned.try_recv().ok();
            let cancels = self.incoming.try_recv().ok();
            if arms.is_none() && cancels.is_none() {
                thread::yield_now();
            }
            if let Some(mut batch) = arms {
                let deadline = deadline();
                for _ in 0..self.batch {
                    batch.push(user.arm(deadline)?);
                }
                drop(self.onward.send(batch));
            }
            if let Some(mut batch) = cancels {
                batch.drain(..).for_each(|handle| tallied.add(user.cancel(handle)));
                drop(self.give_back.send(batch));
            }
            user.turn();
        }
        Ok(tallied)
    }
}
