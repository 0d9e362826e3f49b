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
const LOOK_MIN: Duration = Duration::from_millis(2);
/// Between two looks when the last ones found nothing: 1 % of a CPU with a hundred threads.
const LOOK_MAX: Duration = Duration::from_millis(16);
/// Looks without anything that waits, after which it sleeps.
const QUIET_LOOKS: u32 = 8;
/// How often a thread is seen in one state before that is believed: a lock may be waited for in between.
const SIGHTS_MIN: u8 = 2;
/// How long the machine's room for threads is remembered, and after a refusal none is asked for.
const BUDGET_TIME: Duration = Duration::from_secs(10);

/// The monitor's sleep.
pub(super) struct MonitorParker {
    flag: ParkFlag,
    parker: Parker,
    /// A thread is wanted at once.
    is_urgent: AtomicBool,
}

impl MonitorParker {
    pub(super) fn new() -> MonitorParker {
        MonitorParker { flag: ParkFlag::new(), parker: Parker::new(), is_urgent: AtomicBool::new(false) }
    }

    /// Something waits. Takes no lock; a system call only if the monitor sleeps.
    pub(super) fn wake(&self) {
        if self.flag.must_wake() {
            self.parker.unpark();
        }
    }

    /// A job waits, a permit is free, and no thread is idle.
    pub(super) fn ask_for_thread(&self) {
        // Once, until a pause of the monitor's has passed: there may be no more threads to be had, and many
        // who ask.
        if !self.is_urgent.load(Ordering::Relaxed) && !self.is_urgent.swap(true, Ordering::Relaxed) {
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
    moment: Option<StateWord>,
    /// How often the thread was seen otherwise than its state says, in a row.
    sights: u8,
}

/// The monitor at work.
pub(super) struct Monitor {
    shared: Arc<Shared>,
    sights: Vec<Sample>,
    /// Threads that the machine has room for, and until when that is believed.
    room: u64,
    room_until: Nanos,
    /// Ends with the pool.
    _expiry: Service,
}

impl Monitor {
    pub(super) fn new(shared: Arc<Shared>, expiry: Service) -> Monitor {
        let sights = vec![Sample::default(); shared.handoff.seats.len()];
        Monitor { shared, sights, room: 0, room_until: Nanos(0), _expiry: expiry }
    }

    /// The monitor's whole life, which ends with the pool's last thread.
    pub(super) fn live(mut self) {
        loop {
            let monitor = &self.shared.monitor;
            monitor.flag.announce();
            if !self.shared.is_wanting() {
                if self.shared.is_over() {
                    return;
                }
                monitor.parker.park();
            }
            monitor.flag.retract();
            self.watch();
        }
    }

    /// Looks until nothing has waited for a while.
    fn watch(&mut self) {
        let (mut quiet, mut pause) = (0, LOOK_MIN);
        while quiet < QUIET_LOOKS && !self.shared.is_over() {
            let has_found = self.look();
            quiet = if self.shared.is_wanting() { 0 } else { quiet + 1 };
            pause = if has_found { LOOK_MIN } else { (pause * 2).min(LOOK_MAX) };
            let was_called = self.shared.monitor.parker.park_for(pause);
            if !was_called {
                self.shared.monitor.is_urgent.store(false, Ordering::Relaxed);
            }
        }
    }

    /// One look; whether a thread was seen otherwise than its state says.
    fn look(&mut self) -> bool {
        self.shared.serve_returning();
        // Not more threads than jobs, which have work for them all until the first of them takes it.
        let mut wanted = self.shared.queued();
        while wanted > 0
            && self.shared.handoff.signal(|| self.shared.has_work()) == Signal::NoThread
            && self.grow()
        {
            wanted -= 1;
        }
        if self.shared.lacks_thread_for_new() {
            self.start_thread(false);
        }
        if !self.shared.is_wanting() {
            return false;
        }
        let mut has_found = false;
        for number in 0..self.sights.len() {
            has_found |= self.look_at(number);
        }
        has_found
    }

    fn look_at(&mut self, number: usize) -> bool {
        let (seat, sight) = (self.shared.handoff.seats.at(number), &mut self.sights[number]);
        let moment = seat.moment();
        if sight.moment != Some(moment) {
            *sight = Sample { moment: Some(moment), sights: 0 };
            return false;
        }
        // Unreadable is a thread that ends, or a system without /proc, on which nothing is suspected.
        let state = || thread_state(seat.thread.load(Ordering::Relaxed));
        let is_otherwise = match moment.doing() {
            WorkerState::Running => state().is_ok_and(ThreadState::is_blocked),
            WorkerState::Suspected => state().is_ok_and(|state| state == ThreadState::Running),
            WorkerState::NoJob | WorkerState::Declared => return false,
        };
        sight.sights = if is_otherwise { sight.sights + 1 } else { 0 };
        if sight.sights >= SIGHTS_MIN {
            *sight = Sample::default();
            self.correct(number, moment);
        }
        is_otherwise
    }

    /// Takes the permit of a thread that sleeps, or counts one again that runs.
    fn correct(&self, number: usize, moment: StateWord) {
        let seat = self.shared.handoff.seats.at(number);
        if seat.suspect(moment) {
            count(&self.shared.suspected);
            self.shared.cpus.depart(&seat.place);
            self.shared.give_back();
        } else if moment.doing() == WorkerState::Suspected {
            // First the permit: who ends the job in between gives back one that is held.
            self.shared.handoff.acquire_anyway();
            if !seat.restore(moment) {
                self.shared.give_back();
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

    fn start_thread(&mut self, with_permit: bool) -> bool {
        let now = monotonic();
        if now >= self.room_until {
            (self.room, self.room_until) = (thread_budget().threads, now + BUDGET_TIME);
        }
        if self.room == 0 {
            return false;
        }
        match self.shared.start_thread(with_permit) {
            Ok(true) => {
                self.room -= 1;
                true
            }
            Ok(false) => false,
            Err(_) => {
                count(&self.shared.threads_refused);
                (self.room, self.room_until) = (0, now + BUDGET_TIME);
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
    pub(super) fn start_thread(self: &Arc<Self>, with_permit: bool) -> std::io::Result<bool> {
        let Some(number) = self.handoff.seats.occupy() else { return Ok(false) };
        self.joined();
        let worker = Worker::new(Arc::clone(self), number);
        let started =
            thread::Builder::new().name(self.name.to_owned()).spawn(move || worker.live(with_permit));
        if let Err(error) = started {
            self.handoff.seats.vacate(number);
            self.left();
            return Err(error);
        }
        Ok(true)
    }
}
