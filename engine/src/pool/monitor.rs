//! The one who looks after a pool whose jobs wait: more threads where none is idle, and permits for others
//! while a job sleeps without having said so.
//!
//! Promises: sleeps while nothing waits for a permit or a thread; a job that computes for long keeps its
//! permit, one that was seen asleep twice loses it until it is seen running twice; threads are refused before
//! the machine's limits are met. Leaves to others: everything while no job waits.
//!
//! A thread that sleeps and one that computes look alike from inside; the kernel tells them apart
//! (`/proc/self/task/T/stat`), as Go's `sysmon` and the I/O completion ports of Windows have their kernel or
//! runtime tell.

use std::sync::Arc;
use std::time::Duration;

use sys::clock::{Nanos, monotonic};
use sys::limits::thread_budget;
use sys::parker::Parker;
use sys::parking::ParkFlag;
use sys::sync::atomic::{AtomicBool, Ordering};
use sys::sync::thread;
use sys::thread::{ThreadState, thread_state};

use super::Shared;
use super::handoff::Signal;
use super::stats::count;
use super::worker::Worker;
use super::worker_slot::{StateWord, WorkerState};
use crate::timer::Service;

/// A job that has run for less is not looked at.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// Between two looks when the last ones found nothing: 1 % of a CPU with a hundred threads.
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// Looks without anything that waits, after which it sleeps.
const QUIET_SCANS: u32 = 8;
/// How often a thread is seen in one state before that is believed: a lock may be waited for in between.
const MISMATCHES_MIN: u8 = 2;
/// How long the machine's room for threads is remembered, and after a refusal none is asked for.
const BUDGET_TTL: Duration = Duration::from_secs(10);

/// The monitor's sleep.
pub(super) struct MonitorParker {
    flag: ParkFlag,
    parker: Parker,
    /// A thread is wanted at once.
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

    /// Something waits. Takes no lock; a system call only if the monitor sleeps.
    pub(super) fn wake(&self) {
        if self.flag.must_wake() {
            self.parker.unpark();
        }
    }

    /// A job waits, a permit is free, and no thread is idle.
    pub(super) fn request_thread(&self) {
        // Once, until a pause of the monitor's has passed: there may be no more threads to be had, and many
        // who ask.
        if !self.thread_requested.load(Ordering::Relaxed)
            && !self.thread_requested.swap(true, Ordering::Relaxed)
        {
            self.parker.unpark();
        }
        self.wake();
    }

    /// The pool's last thread has left.
    pub(super) fn end(&self) {
        self.parker.unpark();
    }
}

/// What the last looks at a seat found.
#[derive(Clone, Copy, Default)]
struct Sample {
    word: Option<StateWord>,
    /// How often the thread was seen otherwise than its state says, in a row.
    mismatches: u8,
}

/// The monitor at work.
pub(super) struct Monitor {
    shared: Arc<Shared>,
    samples: Vec<Sample>,
    /// Threads that the machine has room for, and until when that is believed.
    budget: u64,
    budget_until: Nanos,
    /// Ends with the pool.
    _expiry: Service,
}

impl Monitor {
    pub(super) fn new(shared: Arc<Shared>, expiry: Service) -> Monitor {
        let samples = vec![Sample::default(); shared.handoff.workers.len()];
        Monitor { shared, samples, budget: 0, budget_until: Nanos(0), _expiry: expiry }
    }

    /// The monitor's whole life, which ends with the pool's last thread.
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

    /// Looks until nothing has waited for a while.
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

    /// One look; whether a thread was seen otherwise than its state says.
    fn scan(&mut self) -> bool {
        self.shared.resume_returning();
        // Not more threads than jobs, which have work for them all until the first of them takes it.
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
        // Unreadable is a thread that ends, or a system without /proc, on which nothing is suspected.
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

    /// Takes the permit of a thread that sleeps, or counts one again that runs.
    fn correct(&self, number: usize, word: StateWord) {
        let slot = self.shared.handoff.workers.at(number);
        if slot.suspect(word) {
            count(&self.shared.suspected);
            self.shared.cpus.stop_running(&slot.cpu_slot);
            self.shared.return_permit();
        } else if word.state() == WorkerState::Suspected {
            // First the permit: who ends the job in between gives back one that is held.
            self.shared.handoff.acquire_unconditionally();
            if !slot.restore(word) {
                self.shared.return_permit();
            }
        }
    }

    /// Starts a thread with a permit; false if there may be none. With the permit, so that no more are
    /// started than permits are free while the first of them are on their way.
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

impl Shared {
    /// Starts a thread on a free seat, with the permit that the caller holds or without; false if every seat
    /// is taken.
    ///
    /// # Errors
    /// What the kernel says: `EAGAIN` at a limit.
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
