//! The ring, and the sleep of its consumer, under loom: every interleaving, and every reordering that the memory model
//! permits, of small programs whose capacity is so low that the edges are near.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sys --release --test ring_loom`

#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use sys::parking::ParkFlag;
use sys::ring::{Consumer, Producer, ring};

/// Pushes `values`, each as often as it takes.
fn push_all(producer: &mut Producer<u32>, values: impl Iterator<Item = u32>) {
    for value in values {
        while producer.push(&value).is_err() {
            thread::yield_now();
        }
    }
}

/// Drains at most `max` at a time until `count` values have come, and returns them.
fn take_all(consumer: &mut Consumer<u32>, max: usize, count: usize) -> Vec<u32> {
    let mut values = Vec::new();
    while values.len() < count {
        if consumer.drain(max, |value| values.push(*value)) == 0 {
            thread::yield_now();
        }
    }
    values
}

fn check_order(capacity: usize, max: usize, count: u32) {
    loom::model(move || {
        let (mut producer, mut consumer) = ring(capacity);
        let pusher = thread::spawn(move || push_all(&mut producer, 0..count));
        let values = take_all(&mut consumer, max, count as usize);
        assert_eq!(values, (0..count).collect::<Vec<_>>());
        assert!(consumer.is_empty());
        pusher.join().unwrap();
    });
}

#[test]
fn values_arrive_once_and_in_order() {
    check_order(1, 1, 3);
    check_order(2, 1, 4);
    check_order(2, 2, 5);
    check_order(4, 3, 5);
}

#[test]
fn what_was_refused_was_not_taken() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(1);
        let pusher =
            thread::spawn(move || (0..3).filter(|value| producer.push(value).is_ok()).collect::<Vec<u32>>());
        let mut values = Vec::new();
        consumer.drain(1, |value| values.push(*value));
        let accepted = pusher.join().unwrap();
        consumer.drain(1, |value| values.push(*value));
        assert_eq!(values, accepted);
    });
}

/// A consumer of two rings that sleeps whenever both are empty. If a wake-up could be lost, loom would
/// find the schedule in which it sleeps for ever, and report the deadlock.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let flag = Arc::new(ParkFlag::new());
        let sleeper = thread::current();
        let (mut consumers, pushers): (Vec<_>, Vec<_>) = (0..2)
            .map(|value| {
                let (mut producer, consumer) = ring(1);
                let (flag, sleeper) = (Arc::clone(&flag), sleeper.clone());
                let pusher = thread::spawn(move || {
                    producer.push(&value).expect("the ring is empty");
                    if flag.must_wake() {
                        sleeper.unpark();
                    }
                });
                (consumer, pusher)
            })
            .unzip();
        let mut values: Vec<u32> = Vec::new();
        while values.len() < 2 {
            let found: usize =
                consumers.iter_mut().map(|ring| ring.drain(1, |value| values.push(*value))).sum();
            if found == 0 {
                flag.announce();
                if consumers.iter().all(Consumer::is_empty) {
                    thread::park();
                }
                flag.retract();
            }
        }
        values.sort_unstable();
        assert_eq!(values, [0, 1]);
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
    });
}
