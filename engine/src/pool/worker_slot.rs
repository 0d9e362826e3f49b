//! The place of one thread of a pool, and what is known about it from outside.
//!
//! Promises: who changes a seat's state has won an exchange, so two never act on the same one. Leaves to
//! others: what follows from a state.
//!
//! ```text
//!            begin                enter                      end
//!   NoJob ----------> Running ------------> Declared     (any) --> NoJob
//!            ^          |  ^ <-- leave ------'  ^
//!            |  suspect v  | restore            | enter
//!            '--------- Suspected --------------'
//! ```
//!
//! A thread in Running holds a permit. Declared is inside `blocking`, without one until it is about to leave;
//! Suspected was seen asleep by the monitor while it should have been running, and has lost it. In NoJob it
//! is between two jobs, with a permit, or idle, without. The sequence number beside the state tells one job
//! from the next.

use sys::parker::Parker;
use sys::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::cpus::CpuSlot;

const STATE_BITS: u32 = 2;

/// What a thread does, as far as permits go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WorkerState {
    NoJob = 0,
    Running = 1,
    Declared = 2,
    Suspected = 3,
}

/// What a thread does, and which of its jobs it does it in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StateWord(u64);

impl StateWord {
    fn new(sequence: u64, state: WorkerState) -> StateWord {
        StateWord(sequence << STATE_BITS | state as u64)
    }

    pub(super) fn state(self) -> WorkerState {
        match self.0 & ((1 << STATE_BITS) - 1) {
            0 => WorkerState::NoJob,
            1 => WorkerState::Running,
            2 => WorkerState::Declared,
            _ => WorkerState::Suspected,
        }
    }

    fn sequence(self) -> u64 {
        self.0 >> STATE_BITS
    }

    /// The same job in another state.
    fn with_state(self, state: WorkerState) -> StateWord {
        StateWord::new(self.sequence(), state)
    }
}

/// See the file's header.
pub(super) struct WorkerSlot {
    state: AtomicU64,
    /// The kernel's id of the thread that sits here.
    pub(super) thread: AtomicI32,
    pub(super) cpu_slot: CpuSlot,
    /// The thread is to end instead of looking for a job; set before the token that wakes it.
    pub(super) is_dismissed: AtomicBool,
    pub(super) parker: Parker,
    /// For the list of those that are idle: the next one, and whether this one is in it (`idle.rs`).
    pub(super) next: AtomicU32,
    pub(super) list_state: AtomicU32,
}

impl WorkerSlot {
    pub(super) fn new() -> WorkerSlot {
        WorkerSlot {
            state: AtomicU64::new(0),
            thread: AtomicI32::new(0),
            cpu_slot: CpuSlot::unset(),
            is_dismissed: AtomicBool::new(false),
            parker: Parker::new(),
            next: AtomicU32::new(0),
            list_state: AtomicU32::new(0),
        }
    }

    pub(super) fn state_word(&self) -> StateWord {
        StateWord(self.state.load(Ordering::Relaxed))
    }

    /// A job begins on a thread with a permit. Only the thread itself calls this, and nobody else changes
    /// the state of a thread without a job.
    pub(super) fn begin(&self) {
        let next = self.state_word().sequence() + 1;
        self.state.store(StateWord::new(next, WorkerState::Running).0, Ordering::Relaxed);
    }

    /// The job has ended; whether the thread still holds a permit.
    pub(super) fn end(&self) -> bool {
        let idle = self.state_word().with_state(WorkerState::NoJob);
        StateWord(self.state.swap(idle.0, Ordering::Relaxed)).state() == WorkerState::Running
    }

    /// The job says that it is about to wait: what it was doing before.
    pub(super) fn enter(&self) -> WorkerState {
        let declared = self.state_word().with_state(WorkerState::Declared);
        StateWord(self.state.swap(declared.0, Ordering::Relaxed)).state()
    }

    /// The wait is over and the thread has a permit again. A new number: the monitor's suspicion starts anew.
    pub(super) fn leave(&self) {
        self.begin();
    }

    /// Takes a thread's permit that was seen asleep in this moment; false if something else has happened
    /// since.
    pub(super) fn suspect(&self, seen: StateWord) -> bool {
        seen.state() == WorkerState::Running && self.exchange(seen, seen.with_state(WorkerState::Suspected))
    }

    /// Undoes [`WorkerSlot::suspect`] for a thread that runs again; false if something else has happened
    /// since.
    pub(super) fn restore(&self, seen: StateWord) -> bool {
        seen.state() == WorkerState::Suspected && self.exchange(seen, seen.with_state(WorkerState::Running))
    }

    fn exchange(&self, from: StateWord, to: StateWord) -> bool {
        // What a state says is about the state alone; nothing else is published by it.
        self.state.compare_exchange(from.0, to.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
