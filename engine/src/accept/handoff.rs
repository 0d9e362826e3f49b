//! `handoff`: one socket; whoever is woken accepts, and hands each connection to the least loaded of itself
//! and two others. HAProxy's way (listener.c), without a lock and without a queue in which one thread can
//! stall another (`sys::mailbox`).
//!
//! The kernel wakes the first thread that sleeps, at leisure the same one each time. If that one has more to
//! do than others, each connection would wait for it and be handed over; so who hands over watches anew,
//! behind the others.

use sys::clock::Nanos;
use sys::epoll::Trigger;

use super::{Strategy, WorkerHandle};

/// By how much another thread's load must be less for a connection to be handed to it: a hand-over costs a
/// wake where the other one sleeps, and a difference of a connection or two is none.
const MARGIN: u64 = 2;

/// See the file's header.
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

    /// The power of two choices (Mitzenmacher 1996): two samples come nearly as close to an even balance as a
    /// look at all would, and oneself is free of a hand-over. Nothing goes to a thread that is in a long
    /// turn, however few connections it has: they would wait for its end, and other threads could not help.
    fn serving_thread(&self, worker: &WorkerHandle, now: Nanos) -> usize {
        let me = worker.number();
        let takes = |other: &usize| worker.has_capacity(*other) && !worker.is_stuck(*other, now);
        let others = worker.sample().into_iter().flatten().filter(takes);
        let Some(best) = others.min_by_key(|other| worker.load(*other, now)) else { return me };
        if worker.load(best, now) + MARGIN < worker.load(me, now) { best } else { me }
    }
}
