//! The monitor of a pool whose jobs wait: it starts threads when none is idle, and frees the permits of jobs
//! that sleep undeclared.
//!
//! Guarantees: the monitor sleeps while no job waits for a permit or a thread. A job that computes for long
//! keeps its permit. A job seen asleep twice loses it, until it is seen running twice. It starts no thread
//! beyond the machine's limits.
//!
//! A sleeping and a computing thread look alike from inside the process, but the kernel distinguishes them
//! (`/proc/self/task/T/stat`). Go's `sysmon` gets the same from its runtime, and the I/O completion ports of
//! Windows from their kernel.

use std::sync::Arc;
use std::time::Duration;

use sys::clock::{Nanos, monotonic};
use sys::limits::thread_budget;
use sys::park_flag::ParkFlag;
use sys::parker::Parker;
use sys::sync::atomic::{AtomicBool, Ordering};
use sys::sync::thread;
use sys::thread::{ThreadState, thread_state};

use super::PoolState;
use super::handoff::Signal;
use super::stats::count;
use super::worker::Worker;
use super::worker_slot::{StateWord, WorkerState};
use crate::timer::Service;

/// The shortest pause between two scans. A job that runs for less is not suspected.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// The longest pause, after scans without a mismatch: 1 % of a CPU with a hundred threads.
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// Scans without a waiting job, after which the monitor sleeps.
const QUIET_SCANS: u32 = 8;
/// How often a thread must be seen in a state before that is believed: it may wait for a lock in between.
const MISMATCHES_MIN: u8 = 2;
/// How long the machine's thread budget is remembered, and how long no thread is started after a refusal.
const BUDGET_TTL: Duration = Duration::from_secs(10);

/// The monitor's sleep, and the means to end it.
pub(super) struct MonitorParker {
    flag: ParkFlag,
    parker: Parker,
    /// A thread is needed at once.
    thread_requested: AtomicBool,
}

impl MonitorParker {
    pub(super) fn new() -> MonitorParker {
        MonitorParker {
            flag: ParkFlag::new(),
            parker: Parker::new(),
            thread_requested: AtomicBool::new(false),
        }
    }

    /// A job waits. Takes no lock; makes a system call only if the monitor sleeps.
    pub(super) fn wake(&self) {
        if self.flag.must_wake() {
            self.parker.unpark();
        }
    }

    /// A job waits, a permit is free, and no thread is idle.
    pub(super) fn request_thread(&self) {
        // Unpark once for each pause of the monitor: no more threads may be available, while many submitters
        // ask.
        if !self.thread_requested.load(Ordering::Relaxed)
            && !self.thread_requested.swap(true, Ordering::Relaxed)
        {
            self.parker.unpark();
        }
        self.wake();
    }

    /// The pool's last thread has ended.
    pub(super) fn end(&self) {
        self.parker.unpark();
    }
}

/// The last samples of a worker slot.
#[derive(Clone, Copy, Default)]
struct Sample {
    word: Option<StateWord>,
    /// How often in a row the kernel's state contradicted the slot's state.
    mismatches: u8,
}

/// The monitor thread.
pub(super) struct Monitor {
    shared: Arc<PoolState>,
    samples: Vec<Sample>,
    /// How many threads the machine's limits still allow, and until when that is believed.
    budget: u64,
    budget_until: Nanos,
    /// Ends with the pool.
    _expiry: Service,
}

impl Monitor {
    pub(super) fn new(shared: Arc<PoolState>, expiry: Service) -> Monitor {
        let samples = vec![Sample::default(); shared.handoff.workers.len()];
        Monitor { shared, samples, budget: 0, budget_until: Nanos(0), _expiry: expiry }
    }

    /// The body of the monitor thread; returns after the pool's last thread has ended.
    pub(super) fn run(mut self) {
        loop {
            let monitor = &self.shared.monitor;
            monitor.flag.announce();
            if !self.shared.has_waiting() {
                if self.shared.is_over() {
                    return;
                }
                monitor.parker.park();
            }
            monitor.flag.retract();
            self.scan_until_quiet();
        }
    }

    /// Scans until no job has waited for a while.
    fn scan_until_quiet(&mut self) {
        let (mut quiet, mut pause) = (0, PAUSE_MIN);
        while quiet < QUIET_SCANS && !self.shared.is_over() {
            let found_mismatch = self.scan();
            quiet = if self.shared.has_waiting() { 0 } else { quiet + 1 };
            pause = if found_mismatch { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            let was_unparked = self.shared.monitor.parker.park_for(pause);
            if !was_unparked {
                self.shared.monitor.thread_requested.store(false, Ordering::Relaxed);
            }
        }
    }

    /// One scan; returns whether any thread's state was a mismatch.
    fn scan(&mut self) -> bool {
        self.shared.resume_returning();
        // At most one thread for each queued job, since `has_work` stays true until the first of them takes a
        // job.
        let mut needed = self.shared.queued();
        while needed > 0
            && self.shared.handoff.signal(|| self.shared.has_work()) == Signal::NoThread
            && self.grow()
        {
            needed -= 1;
        }
        if self.shared.lacks_thread_for_new() {
            self.start_thread(false);
        }
        if !self.shared.has_waiting() {
            return false;
        }
        let mut found_mismatch = false;
        for number in 0..self.samples.len() {
            found_mismatch |= self.check_worker(number);
        }
        found_mismatch
    }

    fn check_worker(&mut self, number: usize) -> bool {
        let (slot, sample) = (self.shared.handoff.workers.at(number), &mut self.samples[number]);
        let word = slot.state_word();
        if sample.word != Some(word) {
            *sample = Sample { word: Some(word), mismatches: 0 };
            return false;
        }
        // An error means a thread that ends, or a system without /proc, where no thread is suspected.
        let kernel_state = || thread_state(slot.thread.load(Ordering::Relaxed));
        let is_mismatch = match word.state() {
            WorkerState::Running => kernel_state().is_ok_and(ThreadState::is_blocked),
            WorkerState::Suspected => kernel_state().is_ok_and(|state| state == ThreadState::Running),
            WorkerState::NoJob | WorkerState::Declared => return false,
        };
        sample.mismatches = if is_mismatch { sample.mismatches + 1 } else { 0 };
        if sample.mismatches >= MISMATCHES_MIN {
            *sample = Sample::default();
            self.correct(number, word);
        }
        is_mismatch
    }

    /// Takes the permit of a sleeping thread, or returns one to a thread that runs again.
    fn correct(&self, number: usize, word: StateWord) {
        let slot = self.shared.handoff.workers.at(number);
        if slot.suspect(word) {
            count(&self.shared.suspected);
            self.shared.cpus.stop_running(&slot.cpu_slot);
            self.shared.return_permit();
        } else if word.state() == WorkerState::Suspected {
            // Acquire first: the end of the job in between releases a permit, which must be held by then.
            self.shared.handoff.acquire_unconditionally();
            if !slot.restore(word) {
                self.shared.return_permit();
            }
        }
    }

    /// Starts a thread with a permit; false if none may be started. The permit bounds the threads that are on
    /// their way by the number of free permits.
    fn grow(&mut self) -> bool {
        if !self.shared.handoff.acquire() {
            return false;
        }
        let has_started = self.start_thread(true);
        if !has_started {
            self.shared.handoff.release();
        }
        has_started
    }

    fn start_thread(&mut self, has_permit: bool) -> bool {
        let now = monotonic();
        if now >= self.budget_until {
            (self.budget, self.budget_until) = (thread_budget().threads, now + BUDGET_TTL);
        }
        if self.budget == 0 {
            return false;
        }
        match self.shared.start_thread(has_permit) {
            Ok(true) => {
                self.budget -= 1;
                true
            }
            Ok(false) => false,
            Err(_) => {
                count(&self.shared.threads_refused);
                (self.budget, self.budget_until) = (0, now + BUDGET_TTL);
                false
            }
        }
    }
}

impl PoolState {
    /// Starts a thread in a free slot, with or without the permit that the caller holds; false if every slot
    /// is occupied.
    ///
    /// # Errors
    /// The kernel's: `EAGAIN` at a limit.
    pub(super) fn start_thread(self: &Arc<Self>, has_permit: bool) -> std::io::Result<bool> {
        let Some(number) = self.handoff.workers.allocate() else { return Ok(false) };
        self.thread_started();
        let worker = Worker::new(Arc::clone(self), number);
        let started = thread::Builder::new().name(self.name.to_owned()).spawn(move || worker.run(has_permit));
        if let Err(error) = started {
            self.handoff.workers.free(number);
            self.thread_ended();
            return Err(error);
        }
        Ok(true)
    }
}
