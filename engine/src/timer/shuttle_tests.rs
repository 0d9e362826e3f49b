//! The timer service under shuttle, which switches between its threads and its callers at every access to
//! shared memory. Timers do not wait: one with a deadline fires as soon as its thread runs, and a timer
//! for `FAR` never fires.
//!
//! Guarantees: in every schedule a timer is fired or cancelled once and never both. No wake-up is
//! lost: a lost one would make the schedule run forever. All threads end, and all cells are returned.
//!
//! Not handled here: what the memory model may reorder (`tests/timer_loom.rs`).
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p engine --release --target-dir target/shuttle --lib shuttle_tests`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use sys::clock::Nanos;

use super::{Cancel, Next, Service, Settings, Slack, TimerHandle, Timers};
use crate::explore::explore;

/// How many schedules each scheduler of shuttle runs: the random one, and the one by priorities.
const SCHEDULES_PER_SCHEDULER: usize = 8_000;
const THREADS: u64 = 8;
const SOON: Nanos = Nanos(0);
const FAR: Nanos = Nanos::NEVER;

/// How often each tag fired, eight bits for each.
#[derive(Clone, Default)]
struct Fired(Arc<AtomicU64>);

impl Fired {
    fn count(&self, tag: u64) -> u64 {
        self.0.load(Ordering::SeqCst) >> (8 * tag) & 0xff
    }

    fn add(&self, tag: u64) {
        self.0.fetch_add(1 << (8 * tag), Ordering::SeqCst);
    }

    fn wait_for(&self, tag: u64) {
        while self.count(tag) == 0 {
            thread::yield_now();
        }
    }
}

fn service(threads: usize) -> (Service, Fired) {
    let fired = Fired::default();
    let in_callback = fired.clone();
    let settings =
        Settings { threads, timers_max: 16, locals: 1, local_timers_max: 8, ..Settings::default() };
    let service = Service::start(&settings, move |_, tag| {
        in_callback.add(tag);
        Next::Done
    });
    (service.unwrap(), fired)
}

#[test]
fn eight_threads_arm_and_cancel_due_timers() {
    explore(SCHEDULES_PER_SCHEDULER, || {
        let (service, fired) = service(1);
        let users: Vec<_> = (0..THREADS - 1)
            .map(|tag| {
                let (timers, fired) = (service.timers().clone(), fired.clone());
                thread::spawn(move || {
                    let handle = timers.arm(SOON, Slack::Tick, tag).unwrap();
                    let found = if tag % 2 == 0 { timers.cancel_sync(handle) } else { timers.cancel(handle) };
                    match found {
                        Cancel::Cancelled => assert_eq!(fired.count(tag), 0),
                        // `cancel_sync` has waited for its end.
                        _ if tag % 2 == 0 => assert_eq!(fired.count(tag), 1),
                        _ => fired.wait_for(tag),
                    }
                    found
                })
            })
            .collect();
        let found: Vec<_> = users.into_iter().map(|user| user.join().unwrap()).collect();
        assert_eq!(service.shutdown(), 0);
        for (tag, found) in found.into_iter().enumerate() {
            assert_eq!(fired.count(tag as u64), u64::from(found != Cancel::Cancelled));
        }
    });
}

#[test]
fn one_canceller_wins_and_cells_return() {
    explore(SCHEDULES_PER_SCHEDULER, || {
        let (service, fired) = service(2);
        let timers = service.timers().clone();
        let handles: Arc<Vec<TimerHandle>> =
            Arc::new((0..4).map(|tag| timers.arm(FAR, Slack::Tick, tag).unwrap()).collect());
        let users: Vec<_> = (0..THREADS - 2)
            .map(|_| {
                let (timers, handles) = (timers.clone(), Arc::clone(&handles));
                thread::spawn(move || {
                    let found = handles.iter().map(|&handle| timers.cancel(handle));
                    found.filter(|&found| found == Cancel::Cancelled).count()
                })
            })
            .collect();
        let won: usize = users.into_iter().map(|user| user.join().unwrap()).sum();
        assert_eq!(won, 4);
        // A lost cell makes an arm fail here; a cell that was freed twice gives two timers one handle.
        let again: Vec<_> = (0..16).map(|_| timers.arm(FAR, Slack::Tick, 7).unwrap()).collect();
        assert!(again.iter().all(|&handle| timers.cancel(handle) == Cancel::Cancelled));
        assert_eq!((service.shutdown(), fired.count(0)), (0, 0));
    });
}

#[test]
fn no_wake_is_lost_during_cancel_and_collect() {
    explore(SCHEDULES_PER_SCHEDULER, || {
        let (service, fired) = service(1);
        let users: Vec<_> = (0..3)
            .map(|_| {
                let timers = service.timers().clone();
                thread::spawn(move || cancel_many(&timers))
            })
            .collect();
        let timers = service.timers();
        for tag in 0..3 {
            timers.arm(SOON, Slack::Tick, tag).unwrap();
            fired.wait_for(tag);
        }
        users.into_iter().for_each(|user| user.join().unwrap());
        assert_eq!(service.shutdown(), 0);
    });
}

fn cancel_many(timers: &Timers) {
    for _ in 0..4 {
        let handle = timers.arm(FAR, Slack::Tick, 7).unwrap();
        assert_eq!(timers.cancel(handle), Cancel::Cancelled);
    }
}

#[test]
fn service_ends_while_threads_arm() {
    explore(SCHEDULES_PER_SCHEDULER, || {
        let (service, fired) = service(1);
        let users: Vec<_> = (0..THREADS - 2)
            .map(|tag| {
                let timers = service.timers().clone();
                thread::spawn(move || {
                    let handle = timers.arm(if tag < 3 { SOON } else { FAR }, Slack::Tick, tag);
                    (handle, timers)
                })
            })
            .collect();
        if thread_rng().gen_range(0..2) == 0 {
            thread::yield_now();
        }
        service.shutdown();
        for user in users {
            let (handle, timers) = user.join().unwrap();
            let before = fired.0.load(Ordering::SeqCst);
            assert!(handle.is_err() || timers.cancel(handle.unwrap()) != Cancel::Running);
            assert_eq!(fired.0.load(Ordering::SeqCst), before, "no timer fires after the shutdown");
        }
    });
}

#[test]
fn remote_cancels_wake_local_timers() {
    explore(SCHEDULES_PER_SCHEDULER, || {
        let (service, _fired) = service(1);
        let woken = Arc::new(AtomicU64::new(0));
        let wake = Arc::clone(&woken);
        let mut local = service
            .timers()
            .attach(move || {
                wake.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        let handles: Vec<_> = (0..4).map(|tag| local.arm(FAR, Slack::Tick, tag).unwrap()).collect();
        let users: Vec<_> = handles
            .into_iter()
            .map(|handle| {
                let timers = service.timers().clone();
                thread::spawn(move || assert_eq!(timers.cancel(handle), Cancel::Cancelled))
            })
            .collect();
        // Asleep only while fewer cancelled timers than the threshold are uncollected.
        while local.armed() > 1 {
            local.fire_due(SOON, |_, _| Next::Done);
            let before = woken.load(Ordering::SeqCst);
            if local.park().is_some() {
                while local.armed() > 1 && woken.load(Ordering::SeqCst) == before {
                    thread::yield_now();
                }
            }
        }
        users.into_iter().for_each(|user| user.join().unwrap());
    });
}
