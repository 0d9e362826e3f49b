//! One suite for every timer implementation. No test requires a timer to be quick: a hang fails, and every
//! early timer.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sys::clock::{Nanos, monotonic};

use super::sleep;
use super::timer_impl::{Sink, TimerImpl, User, Wakes};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);
/// Of timers that must not fire, or not before they are cancelled.
const FAR: Duration = Duration::from_secs(3600);

/// The calls of a sink: when, and with which deadline.
#[derive(Clone, Default)]
struct Fired(Arc<Mutex<Vec<(Nanos, Nanos)>>>);

impl Fired {
    /// An implementation with this sink.
    fn start<F: TimerImpl>(&self) -> F {
        // One implementation has a descriptor for each timer.
        sys::limits::raise_descriptors().unwrap();
        let fired = self.clone();
        let sink: Sink = Arc::new(move |deadline| fired.0.lock().unwrap().push((monotonic(), deadline)));
        F::start(sink).unwrap()
    }

    /// The deadlines in order, when there are `count` of them or more.
    fn wait_for(&self, count: usize) -> Vec<Nanos> {
        wait_for("timers that fire", || self.0.lock().unwrap().len() >= count);
        let fired = self.0.lock().unwrap();
        assert!(fired.iter().all(|(at, deadline)| at >= deadline), "early: {fired:?}");
        let mut deadlines: Vec<Nanos> = fired.iter().map(|(_, deadline)| *deadline).collect();
        deadlines.sort_unstable();
        deadlines
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

fn wait_for(what: &str, mut is_done: impl FnMut() -> bool) {
    let end = monotonic() + PATIENCE;
    while !is_done() {
        assert!(monotonic() < end, "timed out waiting for {what}");
        thread::sleep(POLL);
    }
}

/// Near and far, some the same, some past, in no order.
fn deadlines(count: u64) -> Vec<Nanos> {
    let now = monotonic();
    let after = |number: u64| Duration::from_micros(number * 7919 % 60_000);
    let mut deadlines: Vec<Nanos> = (0..count).map(|number| now + after(number)).collect();
    deadlines.extend([Nanos(0), Nanos(1), now, now + POLL, now + POLL]);
    deadlines
}

fn fires_once_and_never_early<F: TimerImpl>() {
    let fired = Fired::default();
    let timer_impl: F = fired.start();
    let mut user = timer_impl.enter();
    let mut expected = deadlines(200);
    // Some handles are kept and some are dropped: that makes no difference for the timer.
    let kept: Vec<_> = expected
        .iter()
        .filter_map(|&deadline| Some(user.arm(deadline).unwrap()).filter(|_| deadline.0 % 2 == 0))
        .collect();
    expected.sort_unstable();
    assert_eq!(fired.wait_for(expected.len()), expected);
    user.sleep_until(monotonic() + Duration::from_millis(20));
    assert_eq!(fired.wait_for(expected.len()), expected, "no timer fires again");
    kept.into_iter().for_each(|handle| assert!(!user.cancel(handle), "too late"));
}

fn cancelled_timer_never_fires<F: TimerImpl>() {
    let fired = Fired::default();
    let timer_impl: F = fired.start();
    let mut user = timer_impl.enter();
    let far = monotonic() + FAR;
    let handles: Vec<_> = (0..3000).map(|_| user.arm(far).unwrap()).collect();
    handles.into_iter().for_each(|handle| assert!(user.cancel(handle)));
    // Slots that were used before are armed again, now for soon.
    let soon = monotonic() + Duration::from_millis(30);
    let handles: Vec<_> = (0..500).map(|_| user.arm(soon).unwrap()).collect();
    let cancelled = handles.into_iter().map(|handle| user.cancel(handle)).filter(|&is_ours| is_ours).count();
    user.sleep_until(soon + Duration::from_millis(30));
    assert_eq!(fired.wait_for(500 - cancelled).len(), 500 - cancelled);
    let last = monotonic();
    drop(user.arm(last).unwrap());
    assert_eq!(fired.wait_for(501 - cancelled).last(), Some(&last), "the implementation still works");
}

fn timer_is_either_cancelled_or_fired<F: TimerImpl>() {
    let fired = Fired::default();
    let timer_impl: F = fired.start();
    let mut user = timer_impl.enter();
    let mut cancelled = 0;
    for number in 0..2000 {
        let deadline = monotonic() + Duration::from_micros(number % 130);
        let handle = user.arm(deadline).unwrap();
        let other = user.arm(deadline + FAR).unwrap();
        sleep::until(deadline);
        cancelled += usize::from(user.cancel(handle));
        assert!(user.cancel(other));
    }
    user.sleep_until(monotonic() + Duration::from_millis(20));
    assert_eq!(fired.wait_for(2000 - cancelled).len(), 2000 - cancelled);
}

fn another_user_can_cancel<F: TimerImpl>() {
    const COUNT: usize = 3000;
    let fired = Fired::default();
    let timer_impl: F = fired.start();
    let (give, take) = std::sync::mpsc::sync_channel(64);
    thread::scope(|scope| {
        let timer_impl = &timer_impl;
        scope.spawn(move || {
            let mut user = timer_impl.enter();
            (0..COUNT).for_each(|_| give.send(user.arm(monotonic() + FAR).unwrap()).unwrap());
        });
        scope.spawn(move || {
            let mut user = timer_impl.enter();
            let cancelled = take.iter().filter_map(|handle| user.cancel(handle).then_some(()));
            assert_eq!(cancelled.count(), COUNT);
        });
    });
    assert!(fired.is_empty());
}

fn dropped_user_leaves_its_timers<F: TimerImpl>() {
    let fired = Fired::default();
    let timer_impl: F = fired.start();
    let deadline = monotonic() + Duration::from_millis(5);
    let entered = timer_impl.clone();
    thread::spawn(move || drop(entered.enter().arm(deadline).unwrap())).join().unwrap();
    assert_eq!(fired.wait_for(1), [deadline]);
}

fn threads_end_with_the_last_user<F: TimerImpl>() {
    let fired = Fired::default();
    let timer_impl: F = fired.start();
    let mut user = timer_impl.enter();
    let handles: Vec<_> = (0..100).map(|_| user.arm(monotonic() + FAR).unwrap()).collect();
    drop(user.arm(monotonic() + FAR).unwrap());
    drop(timer_impl.clone());
    drop(timer_impl);
    let deadline = monotonic();
    drop(user.arm(deadline).unwrap());
    assert_eq!(fired.wait_for(1), [deadline], "a user keeps the threads running");
    drop(user);
    drop(handles);
    // The sink holds the other one, and is dropped with the threads.
    wait_for("threads that end", || Arc::strong_count(&fired.0) == 1);
    assert_eq!(fired.wait_for(1), [deadline], "the end fires no timer");
}

fn wakes_are_counted<F: TimerImpl>() {
    let fired = Fired::default();
    let timer_impl: F = fired.start();
    let mut user = timer_impl.enter();
    for number in 1..=5 {
        drop(user.arm(monotonic() + Duration::from_millis(5)).unwrap());
        fired.wait_for(number);
        user.sleep_until(monotonic() + Duration::from_millis(5));
    }
    let wakes = || timer_impl.wakes().unwrap_or(Wakes { all: 5, dead: 0 });
    wait_for("five wakes", || wakes().all >= 5);
    assert!(wakes().dead < wakes().all, "{:?}", wakes());
}

macro_rules! suite {
    ($($name:ident: $timer_impl:ty;)*) => { $(mod $name { suite!(@ $timer_impl:
        fires_once_and_never_early cancelled_timer_never_fires timer_is_either_cancelled_or_fired
        another_user_can_cancel dropped_user_leaves_its_timers threads_end_with_the_last_user
        wakes_are_counted
    ); })* };
    (@ $timer_impl:ty: $($case:ident)*) => { suite!(@@ $($case $timer_impl;)*); };
    (@@ $($case:ident $timer_impl:ty;)*) => { $(
        #[test]
        fn $case() {
            super::$case::<$timer_impl>();
        }
    )* };
}

suite! {
    heap: super::super::heap::Heap;
    bucketed: super::super::bucketed::Bucketed;
    timerfd: super::super::timerfd::Timerfd;
    threads: super::super::threads::Threads;
    tick: super::super::tick::Tick;
    tokio: super::super::tokio::Tokio;
}
