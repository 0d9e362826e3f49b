//! The threads of a round: short-lived ones, and ones with a loop and their own timers.
//!
//! Guarantees: a thread with a loop sleeps as long as its local timers say, except for its own work. It
//! checks before its end that all its cells are free.
//!
//! Not handled here: the actions (`world.rs`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use engine::timer::{ArmError, Cancel, LocalTimers, Slack, TimerHandle, Timers};
use sys::clock::{Nanos, monotonic};

use crate::random::Random;
use crate::world::{AnyThread, LoopThread, World};

/// The most actions of a short-lived thread.
const ACTS_MAX: u64 = 20_000;
/// The most actions without a pause.
const BURST_MAX: u64 = 64;
const PAUSE: Duration = Duration::from_micros(250);
/// The longest sleep of a thread with a loop that still has work.
const NAP_MAX: Duration = Duration::from_millis(2);
/// Refusals after which a shard counts as full: another thread may hold its free cells at that moment.
const REFUSALS: usize = 20;

/// The body of a short-lived thread.
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

/// Lets the threads with a loop end.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// How many of them have seen the end of the round: they only fire due timers.
    pub(crate) idle: AtomicUsize,
    /// They may end, once they are unparked.
    pub(crate) is_open: AtomicBool,
    /// Timers that were armed at their ends.
    pub(crate) armed: AtomicUsize,
}

/// The body of a thread with a loop.
pub(crate) fn run_looping(world: &World, timers: &Timers, stream: u64, gate: &Gate) {
    let this = thread::current();
    let mut local = timers.attach(move || this.unpark()).expect("there are local timers for each");
    let mut random = Random::new(world.seed, stream);
    let cells = fill(|| local.arm(Nanos::NEVER, Slack::Tick, u64::MAX).ok());
    let count = cells.len();
    assert!(cells.into_iter().all(|handle| local.cancel(handle) == Cancel::Cancelled));
    let mut is_idle = false;
    while !gate.is_open.load(SeqCst) {
        local.fire_due(monotonic(), |local, tag| world.fire(&mut LoopThread(local, timers), tag));
        let is_over = world.is_over();
        if is_over && !std::mem::replace(&mut is_idle, true) {
            gate.idle.fetch_add(1, SeqCst);
        }
        if !is_over {
            for _ in 0..random.below(BURST_MAX) {
                let outcome = world.act(&mut LoopThread(&mut local, timers), &mut random);
                assert_ne!(outcome, Err(ArmError::Closed), "its own local timers are open");
            }
        }
        sleep(&mut local, if is_over { Duration::MAX } else { NAP_MAX });
    }
    let free = fill(|| local.arm(Nanos::NEVER, Slack::Tick, u64::MAX).ok()).len();
    // When arming fails, it has collected what others cancelled: the armed timers are its cells.
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

/// Arms timers until arming keeps failing.
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

/// How many timers can be armed at the timer threads, while no other thread arms any. Each new thread arms at
/// the next timer thread. No timer stays armed.
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
