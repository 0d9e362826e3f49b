//! Loom models of the timer service: two or three threads access one timer, in every order that the memory
//! model allows. Time passes at once, as in `sys::alarm`.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p engine --release --target-dir target/loom --test timer_loom`

#![cfg(loom)]
#![expect(dead_code, reason = "the models need only the part of these files that threads share")]

#[path = "../src/timer/arm_request.rs"]
mod arm_request;
#[path = "../src/timer/callback_barrier.rs"]
mod callback_barrier;
#[path = "../src/timer/cell.rs"]
mod cell;
#[path = "../src/timer/cell_allocator.rs"]
mod cell_allocator;
#[path = "../src/timer/handle.rs"]
mod handle;
#[path = "../src/timer/levels.rs"]
mod levels;
#[path = "../src/timer/remote_handle.rs"]
mod remote_handle;
#[path = "../src/timer/service.rs"]
mod service;
#[path = "../src/timer/shard.rs"]
mod shard;
#[path = "../src/timer/slack.rs"]
mod slack;
#[path = "../src/stats.rs"]
mod stats;
#[path = "../src/timer/timer_thread.rs"]
mod timer_thread;
#[path = "../src/timer/wheel_driver.rs"]
mod wheel_driver;

use std::sync::Arc;

use sys::clock::Nanos;
use sys::sync::atomic::{AtomicUsize, Ordering};
use sys::sync::thread::spawn;

use handle::{ArmError, Cancel, Next, Settings, TimerKey};
use service::Service;
use shard::{FollowUp, Shard};
use slack::Slack;
use wheel_driver::{Finished, WheelDriver};

/// Of each thread; the models are small.
const PREEMPTIONS_MAX: usize = 4;
const TAG: u64 = 42;
const SOON: Nanos = Nanos(0);
const FAR: Nanos = Nanos::NEVER;
/// Later than everything but `FAR`, and later still: a wheel does not go back.
const LATER: Nanos = Nanos(1 << 40);
const LAST: Nanos = Nanos(1 << 41);

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

fn shard(cells: usize) -> (Arc<Shard>, WheelDriver) {
    let shard = Arc::new(Shard::shared(cells));
    let driver = WheelDriver::shared(Arc::clone(&shard), Nanos(0));
    (shard, driver)
}

/// Fires the due timers; returns their number.
fn fire(driver: &mut WheelDriver) -> usize {
    fire_by(driver, LATER)
}

fn fire_by(driver: &mut WheelDriver, now: Nanos) -> usize {
    let mut fired = 0;
    while let Some(due) = driver.pop_due(now) {
        assert_eq!(due.tag, TAG);
        fired += 1;
        assert_eq!(driver.finish(due, Next::Done), Finished::Gone);
    }
    fired
}

fn arm_timer(shard: &Shard, when: Nanos) -> TimerKey {
    shard.arm(when, Slack::Tick, TAG).expect("there are free cells").0
}

/// Asserts that every cell is free, once.
fn assert_all_free(shard: &Shard, driver: &mut WheelDriver, cells: usize) {
    driver.collect();
    let mut indexes: Vec<_> = (0..cells).map(|_| arm_timer(shard, FAR).index).collect();
    assert_eq!(shard.arm(FAR, Slack::Tick, TAG).map(|_| ()), Err(ArmError::Full));
    indexes.sort_unstable();
    assert_eq!(indexes, (0..cells as u32).collect::<Vec<_>>());
}

#[test]
fn cancel_races_firing_and_one_wins() {
    explore(|| {
        let (shard, mut driver) = shard(1);
        let handle = arm_timer(&shard, SOON);
        driver.collect();
        let canceller = {
            let shard = Arc::clone(&shard);
            spawn(move || shard.cancel(handle).0)
        };
        let fired = fire(&mut driver);
        let found = canceller.join().unwrap();
        assert_eq!(fired == 0, found == Cancel::Cancelled, "{fired} {found:?}");
        assert_all_free(&shard, &mut driver, 1);
    });
}

#[test]
fn stale_key_does_not_reach_the_next_timer() {
    explore(|| {
        let (shard, mut driver) = shard(1);
        let old = arm_timer(&shard, SOON);
        let canceller = {
            let shard = Arc::clone(&shard);
            spawn(move || shard.cancel(old).0)
        };
        driver.collect();
        let fired = fire(&mut driver);
        driver.collect();
        if let Ok((new, _)) = shard.arm(SOON, Slack::Tick, TAG) {
            assert_ne!(new, old);
            let found = canceller.join().unwrap();
            assert_eq!(fired == 0, found == Cancel::Cancelled);
            driver.collect();
            assert_eq!(fire_by(&mut driver, LAST), 1, "the next timer of the cell fires");
        } else {
            canceller.join().unwrap();
        }
        assert_all_free(&shard, &mut driver, 1);
    });
}

#[test]
fn two_cancels_race_and_the_cell_returns_once() {
    for is_collected in [false, true] {
        explore(move || {
            let (shard, mut driver) = shard(2);
            let handle = arm_timer(&shard, SOON);
            if is_collected {
                driver.collect();
            }
            let cancellers = [0, 1].map(|_| {
                let shard = Arc::clone(&shard);
                spawn(move || shard.cancel(handle).0)
            });
            driver.collect();
            let found = cancellers.map(|canceller| canceller.join().unwrap());
            let won = found.iter().filter(|&&found| found == Cancel::Cancelled).count();
            assert_eq!(won, 1, "{found:?}");
            driver.collect();
            assert_eq!(fire(&mut driver), 0);
            assert_all_free(&shard, &mut driver, 2);
        });
    }
}

#[test]
fn timer_cancelled_in_arrivals_never_fires() {
    explore(|| {
        let (shard, mut driver) = shard(2);
        let user = {
            let shard = Arc::clone(&shard);
            spawn(move || shard.cancel(arm_timer(&shard, SOON)).0)
        };
        driver.collect();
        let fired = fire(&mut driver);
        let found = user.join().unwrap();
        assert_eq!(fired == 0, found == Cancel::Cancelled);
        driver.collect();
        assert_eq!(fire(&mut driver), 0);
        assert_all_free(&shard, &mut driver, 2);
    });
}

/// One thread has read the successor of the first free cell and has not taken that cell yet. Meanwhile others
/// take both cells and free the first. Then the thread must not put the second cell, which is in use, back
/// into the list.
#[test]
fn free_list_survives_the_aba_problem() {
    explore(|| {
        let (shard, mut driver) = shard(4);
        let user = {
            let shard = Arc::clone(&shard);
            spawn(move || arm_timer(&shard, FAR))
        };
        let (first, second) = (arm_timer(&shard, FAR), arm_timer(&shard, FAR));
        assert_eq!(shard.cancel(first).0, Cancel::Cancelled);
        driver.collect();
        let others = user.join().unwrap();
        let third = arm_timer(&shard, FAR);
        for handle in [others, second, third] {
            assert_eq!(shard.cancel(handle).0, Cancel::Cancelled);
        }
        assert_all_free(&shard, &mut driver, 4);
    });
}

#[test]
fn recycle_and_collect_lose_no_timer() {
    explore(|| {
        let (shard, mut driver) = shard(3);
        let kept = arm_timer(&shard, SOON);
        let user = {
            let shard = Arc::clone(&shard);
            spawn(move || {
                assert_eq!(shard.cancel(arm_timer(&shard, FAR)).0, Cancel::Cancelled);
                shard.recycle()
            })
        };
        driver.collect();
        let sleeps_until = driver.park();
        let follow_up = user.join().unwrap();
        // The timer is in the wheel, or among the arrivals of a driver that is about to be woken.
        assert!(sleeps_until != Some(FAR) || follow_up == FollowUp::Wake, "{sleeps_until:?} {follow_up:?}");
        driver.collect();
        assert_eq!(fire(&mut driver), 1);
        assert_eq!(shard.cancel(kept).0, Cancel::Gone);
        assert_all_free(&shard, &mut driver, 3);
    });
}

/// A service of one thread, and how often its callback ran.
fn service() -> (Service, Arc<AtomicUsize>) {
    let fired = Arc::new(AtomicUsize::new(0));
    let settings = Settings { timers_max: 2, ..Settings::default() };
    let counted = Arc::clone(&fired);
    let service = Service::start(&settings, move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Next::Done
    });
    (service.unwrap(), fired)
}

/// A lost wake leaves the thread asleep, and this loop without end: loom reports both.
#[test]
fn no_wake_lost_between_arm_and_park() {
    explore(|| {
        let (service, fired) = service();
        service.timers().arm(SOON, Slack::Tick, TAG).unwrap();
        while fired.load(Ordering::Relaxed) == 0 {
            sys::sync::thread::yield_now();
        }
        assert_eq!(service.shutdown(), 0);
    });
}

#[test]
fn no_wake_lost_between_two_earlier_deadlines() {
    explore(|| {
        let (shard, mut driver) = shard(2);
        assert_eq!(driver.park(), Some(FAR));
        let other = {
            let shard = Arc::clone(&shard);
            spawn(move || shard.arm(Nanos(5 << 20), Slack::Tick, TAG).unwrap().1)
        };
        let follow_up = shard.arm(SOON, Slack::Tick, TAG).unwrap().1;
        assert_eq!(follow_up, FollowUp::Wake, "it is the earliest");
        other.join().unwrap();
        assert_eq!(shard.parked_until(), Some(levels::start_of(levels::due_tick(SOON))));
        driver.collect();
        assert_eq!(fire(&mut driver), 2);
    });
}

#[test]
fn shutdown_races_arm_without_loss() {
    explore(|| {
        let (service, fired) = service();
        let timers = service.timers().clone();
        let user = spawn(move || {
            let armed = timers.arm(FAR, Slack::Tick, TAG);
            (armed, timers)
        });
        let dropped = service.shutdown();
        let (armed, timers) = user.join().unwrap();
        match armed {
            Ok(handle) => {
                assert_eq!((dropped, timers.cancel(handle)), (1, Cancel::Gone));
            }
            Err(error) => assert_eq!((dropped, error), (0, ArmError::Closed)),
        }
        assert_eq!(fired.load(Ordering::Relaxed), 0);
    });
}
