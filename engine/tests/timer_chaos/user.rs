//! The threads of a round: those that come and go, and those that have a loop with timers of their own.
//!
//! Promises: a thread with a loop sleeps as long as its end says, but for its own doings, and holds that its
//! cells have all come back before it goes. Leaves to others: what is done (`world.rs`), and when they end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use engine::timer::{ArmError, Cancel, LocalTimers, Slack, TimerHandle, Timers};
use sys::clock::{Nanos, monotonic};

use crate::random::Random;
use crate::world::{AnyThread, LoopThread, World};

/// What a thread does before it goes.
const ACTS_MAX: u64 = 20_000;
/// What it does without a rest.
const BURST_MAX: u64 = 64;
const PAUSE: Duration = Duration::from_micros(250);
/// Of a thread with a loop, while it has something to do.
const NAP_MAX: Duration = Duration::from_millis(2);
/// Refusals after which a shard is full: another thread may have its free cells in hand at that moment.
const REFUSALS: usize = 20;

/// The life of a thread that comes and goes.
pub(crate) fn run(world: &World, timers: &Timers, stream: u64) {
    let mut random = Random::new(world.seed, stream);
    let mut left = random.below(ACTS_MAX);
    while left > 0 && !world.is_over() {
        for _ in 0..=random.below(BURST_MAX).min(left - 1) {
            left -= 1;
            match world.act(&mut AnyThread(timers), &mut random) {
                Ok(()) => {}
                Err(ArmError::Full) => thread::sleep(PAUSE),
                Err(ArmError::Closed) => return,
            }
        }
        match random.below(8) {
            0 | 1 => thread::sleep(PAUSE),
            2 | 3 => thread::yield_now(),
            _ => {}
        }
    }
}

/// The way out for threads with a loop.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// How many of them have seen that the round is over: they only fire what is due.
    pub(crate) idle: AtomicUsize,
    /// They may go, once they are unparked.
    pub(crate) is_open: AtomicBool,
    /// Timers that were armed at their ends when they went.
    pub(crate) armed: AtomicUsize,
}

/// The life of a thread with a loop.
pub(crate) fn run_looping(world: &World, timers: &Timers, stream: u64, gate: &Gate) {
    let this = thread::current();
    let mut local = timers.attach(move || this.unpark()).expect("there is an end for each");
    let mut random = Random::new(world.seed, stream);
    let cells = fill(|| local.arm(Nanos::NEVER, Slack::Tick, u64::MAX).ok());
    let count = cells.len();
    assert!(cells.into_iter().all(|handle| local.cancel(handle) == Cancel::Cancelled));
    let mut is_idle = false;
    while !gate.is_open.load(SeqCst) {
        local.turn(monotonic(), |local, tag| world.fire(&mut LoopThread(local, timers), tag));
        let is_over = world.is_over();
        if is_over && !std::mem::replace(&mut is_idle, true) {
            gate.idle.fetch_add(1, SeqCst);
        }
        if !is_over {
            for _ in 0..random.below(BURST_MAX) {
                let outcome = world.act(&mut LoopThread(&mut local, timers), &mut random);
                assert_ne!(outcome, Err(ArmError::Closed), "its own end is open");
            }
        }
        sleep(&mut local, if is_over { Duration::MAX } else { NAP_MAX });
    }
    let free = fill(|| local.arm(Nanos::NEVER, Slack::Tick, u64::MAX).ok()).len();
    // Refused, it has collected what others cancelled: what is armed are the cells that it has.
    if local.armed() != count {
        world.fail(&format!("a loop began with {count} cells and has {}", local.armed()), u64::MAX);
    }
    gate.armed.fetch_add(count - free, SeqCst);
}

fn sleep(local: &mut LocalTimers, most: Duration) {
    let Some(until) = local.park() else { return };
    match until {
        Nanos::NEVER if most == Duration::MAX => thread::park(),
        until => thread::park_timeout(until.since(monotonic()).min(most)),
    }
}

/// Arms until it is refused for good.
fn fill(mut arm: impl FnMut() -> Option<TimerHandle>) -> Vec<TimerHandle> {
    let (mut handles, mut refusals) = (Vec::new(), 0);
    while refusals < REFUSALS {
        match arm() {
            Some(handle) => handles.push(handle),
            None => {
                refusals += 1;
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    handles
}

/// How many timers can be armed at the service's threads, while nobody else arms any: each thread comes to
/// the next of them. Nothing is left armed.
pub(crate) fn capacity(timers: &Timers, threads: usize) -> usize {
    let arm = |timers: &Timers| fill(|| timers.arm(Nanos::NEVER, Slack::Tick, u64::MAX).ok());
    let handles_of_each = (0..threads).map(|_| {
        let timers = timers.clone();
        thread::spawn(move || arm(&timers)).join().expect("arming does not panic")
    });
    let handles: Vec<TimerHandle> = handles_of_each.collect::<Vec<_>>().concat();
    assert!(handles.iter().all(|&handle| timers.cancel(handle) == Cancel::Cancelled));
    handles.len()
}
