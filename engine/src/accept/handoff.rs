//! `handoff`: one socket; the woken thread accepts, and hands each connection to the least loaded of itself
//! and two others. This is HAProxy's way (listener.c), but without a lock, and with a queue in which no
//! thread can stall another (`sys::mailbox`).
//!
//! The kernel wakes the first sleeping thread in its wait queue, at light load the same one each time. If
//! that thread has more load than others, each connection would take a detour through it. So a thread that
//! hands off registers again, at the tail of the wait queue.

use sys::clock::Nanos;
use sys::epoll::Trigger;

use super::{Strategy, WorkerHandle};

/// How much lower another thread's load must be to get a connection: a hand-off costs a wake if that thread
/// sleeps, and a difference of a connection or two is no imbalance.
const MARGIN: u64 = 2;

/// One exclusive socket; accepted connections go to the least loaded of three threads.
pub(super) struct Handoff;

impl Strategy for Handoff {
    fn name(&self) -> &'static str {
        "handoff"
    }

    fn trigger(&self) -> Trigger {
        Trigger::LevelReadExclusive
    }

    /// HAProxy's `tune.maxaccept` for threads that share a socket.
    fn accepts_per_wake_max(&self) -> u32 {
        4
    }

    /// The power of two choices (Mitzenmacher 1996): two samples balance nearly as well as a scan of all
    /// threads, and the own thread needs no hand-off. A thread in a long pass gets none, however few
    /// connections it has: they would wait for its end, and other threads could not help.
    fn serving_thread(&self, worker: &WorkerHandle, now: Nanos) -> usize {
        let own_number = worker.number();
        let has_time = |other: &usize| worker.has_capacity(*other) && !worker.is_stuck(*other, now);
        let others = worker.sample().into_iter().flatten().filter(has_time);
        let Some(least_loaded) = others.min_by_key(|other| worker.load(*other, now)) else {
            return own_number;
        };
        if worker.load(least_loaded, now) + MARGIN < worker.load(own_number, now) {
            least_loaded
        } else {
            own_number
        }
    }
}
