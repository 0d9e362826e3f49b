//! The ring, and the sleep of its consumer, under loom: every interleaving with a few preemptions, and every
//! reordering that the memory model permits. The programs are small, so the ring is often full or empty.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sys --release --test ring_loom`

#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use sys::park_flag::ParkFlag;
use sys::ring::{Consumer, Producer, ring};

/// Preemptions per schedule: switches away from a thread that could continue. The bugs of such small programs
/// need one or two; every further one multiplies the schedules.
const PREEMPTIONS_MAX: usize = 3;

fn explore(program: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(program);
}

/// Pushes `values`, and retries each one while the ring is full.
fn push_all(producer: &mut Producer<u32>, values: impl IntoIterator<Item = u32>) {
    for value in values {
        while producer.push(&value).is_err() {
            thread::yield_now();
        }
    }
}

/// Drains at most `max` at a time until `count` values have arrived, and returns them.
fn drain_all(consumer: &mut Consumer<u32>, max: usize, count: usize) -> Vec<u32> {
    let mut values = Vec::new();
    while values.len() < count {
        if consumer.drain(max, |value| values.push(*value)) == 0 {
            thread::yield_now();
        }
    }
    values
}

fn check_order(capacity: usize, max: usize, count: u32) {
    explore(move || {
        let (mut producer, mut consumer) = ring(capacity, u32::MAX);
        let pusher = thread::spawn(move || push_all(&mut producer, 0..count));
        let values = drain_all(&mut consumer, max, count as usize);
        assert_eq!(values, (0..count).collect::<Vec<_>>());
        assert!(consumer.is_empty());
        pusher.join().unwrap();
    });
}

#[test]
fn values_arrive_once_and_in_order() {
    check_order(1, 1, 3);
    check_order(2, 1, 3);
    check_order(2, 2, 3);
}

#[test]
fn refused_values_never_arrive() {
    explore(|| {
        let (mut producer, mut consumer) = ring(1, u32::MAX);
        let pusher =
            thread::spawn(move || (0..3).filter(|value| producer.push(value).is_ok()).collect::<Vec<u32>>());
        let mut values = Vec::new();
        consumer.drain(1, |value| values.push(*value));
        let accepted = pusher.join().unwrap();
        consumer.drain(1, |value| values.push(*value));
        assert_eq!(values, accepted);
    });
}

/// The consumer sleeps while its ring is empty. If a wake-up could be lost, loom would find the schedule in
/// which the consumer sleeps without end, and report the deadlock.
///
/// One push only: from the second `swap` of the flag on, loom 0.7.2 lets a load after the flag's fence see
/// the value of a swap although a later store has replaced it, which no C++20 execution may.
#[test]
fn no_wake_up_is_lost() {
    explore(|| {
        let (mut producer, mut consumer) = ring(1, u32::MAX);
        let flag = Arc::new(ParkFlag::new());
        let sleeper = thread::current();
        let pusher = {
            let flag = Arc::clone(&flag);
            thread::spawn(move || {
                producer.push(&7).expect("the ring is empty");
                if flag.must_wake() {
                    sleeper.unpark();
                }
            })
        };
        while consumer.drain(1, |value| assert_eq!(*value, 7)) == 0 {
            flag.announce();
            if consumer.is_empty() {
                thread::park();
            }
            flag.retract();
        }
        pusher.join().unwrap();
    });
}
