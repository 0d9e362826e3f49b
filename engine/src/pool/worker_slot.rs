//! A worker slot: one thread of a pool, as the other threads see it.
//!
//! Guarantees: only the winner of an exchange changes a slot's state, so two threads never act on the same
//! state.
//!
//! ```text
//!            begin                enter                      end
//!   NoJob ----------> Running ------------> Declared     (any) --> NoJob
//!            ^          |  ^ <-- leave ------'  ^
//!            |  suspect v  | restore            | enter
//!            '--------- Suspected --------------'
//! ```
//!
//! A Running thread holds a permit. A Declared one is inside `blocking`, without a permit until it is about
//! to leave. A Suspected one was seen asleep by the monitor while it should have run, and has lost its
//! permit. A thread in NoJob is between two jobs, with a permit, or idle, without. The sequence number beside
//! the state distinguishes successive jobs.

use sys::parker::Parker;
use sys::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::cpus::CpuSlot;

const STATE_BITS: u32 = 2;

/// The state of a worker thread with respect to permits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WorkerState {
    NoJob = 0,
    Running = 1,
    Declared = 2,
    Suspected = 3,
}

/// A worker's state, with the sequence number of its job.
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

/// One thread of a pool, as the other threads see it.
pub(super) struct WorkerSlot {
    state: AtomicU64,
    /// The kernel's id of the slot's thread.
    pub(super) thread: AtomicI32,
    pub(super) cpu_slot: CpuSlot,
    /// The thread is to end instead of taking a job; set before the wake.
    pub(super) is_dismissed: AtomicBool,
    pub(super) parker: Parker,
    /// For the stack of idle threads (`idle.rs`): the next slot, and whether this one is in the list.
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

    /// A job begins on a thread with a permit. Only the thread itself calls this, and no other thread changes
    /// the state of a thread without a job.
    pub(super) fn begin(&self) {
        let next = self.state_word().sequence() + 1;
        self.state.store(StateWord::new(next, WorkerState::Running).0, Ordering::Relaxed);
    }

    /// The job has ended; returns whether the thread still holds a permit.
    pub(super) fn end(&self) -> bool {
        let idle = self.state_word().with_state(WorkerState::NoJob);
        StateWord(self.state.swap(idle.0, Ordering::Relaxed)).state() == WorkerState::Running
    }

    /// The job is about to wait; returns its previous state.
    pub(super) fn enter(&self) -> WorkerState {
        let declared = self.state_word().with_state(WorkerState::Declared);
        StateWord(self.state.swap(declared.0, Ordering::Relaxed)).state()
    }

    /// The wait is over and the thread has a permit again. The new sequence number restarts the monitor's
    /// suspicion.
    pub(super) fn leave(&self) {
        self.begin();
    }

    /// Takes the permit of a thread that was seen asleep in state `seen`; false if the state has changed
    /// since.
    pub(super) fn suspect(&self, seen: StateWord) -> bool {
        seen.state() == WorkerState::Running && self.exchange(seen, seen.with_state(WorkerState::Suspected))
    }

    /// Undoes [`WorkerSlot::suspect`] for a thread that runs again; false if the state has changed since.
    pub(super) fn restore(&self, seen: StateWord) -> bool {
        seen.state() == WorkerState::Suspected && self.exchange(seen, seen.with_state(WorkerState::Running))
    }

    fn exchange(&self, from: StateWord, to: StateWord) -> bool {
        // Relaxed: the state publishes no other memory.
        self.state.compare_exchange(from.0, to.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
