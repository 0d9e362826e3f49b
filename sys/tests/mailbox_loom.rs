//! The mailbox, and the sleep of its receiver, under loom: every interleaving with a few preemptions, and
//! every reordering that the memory model permits.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sys --release --test mailbox_loom`

#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use sys::mailbox::{Receiver, mailbox};
use sys::park_flag::ParkFlag;

/// Preemptions per schedule: switches away from a thread that could continue.
const PREEMPTIONS_MAX: usize = 3;

fn explore(program: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(program);
}

fn receive_all<T: Send>(receiver: &mut Receiver<T>) -> Vec<T> {
    std::iter::from_fn(|| receiver.pop()).collect()
}

/// Fewer slots than values: slots are reused, or a send fails.
#[test]
fn accepted_values_arrive_once() {
    explore(|| {
        let (sender, mut receiver) = mailbox(1);
        let senders: Vec<_> = (0..2)
            .map(|number| {
                let sender = sender.clone();
                thread::spawn(move || sender.send(Box::new(number)).is_ok().then_some(number))
            })
            .collect();
        let mut values = receive_all(&mut receiver);
        let sent: Vec<u32> = senders.into_iter().filter_map(|it| it.join().unwrap()).collect();
        values.extend(receive_all(&mut receiver));
        let mut values: Vec<u32> = values.into_iter().map(|value| *value).collect();
        values.sort_unstable();
        assert_eq!(values, sent, "each accepted box arrives once, and so is freed once");
        assert!(!sent.is_empty(), "the only slot was free for one of them");
    });
}

/// Unreceived values are freed, whichever end is dropped last.
#[test]
fn unreceived_values_are_dropped() {
    explore(|| {
        let (sender, mut receiver) = mailbox(2);
        let pusher = thread::spawn(move || drop((sender.send(Box::new(1)), sender.send(Box::new(2)))));
        drop(receiver.pop());
        drop(receiver);
        pusher.join().unwrap();
    });
}

/// The receiver sleeps while its mailbox is empty. If a wake-up could be lost, loom would find the schedule
/// in which the receiver sleeps without end, and report the deadlock.
#[test]
fn no_wake_up_is_lost() {
    explore(|| {
        let (sender, mut receiver) = mailbox(1);
        let flag = Arc::new(ParkFlag::new());
        let sleeper = thread::current();
        let pusher = {
            let flag = Arc::clone(&flag);
            thread::spawn(move || {
                sender.send(7).expect("the mailbox is empty");
                if flag.must_wake() {
                    sleeper.unpark();
                }
            })
        };
        loop {
            if let Some(value) = receiver.pop() {
                assert_eq!(value, 7);
                break;
            }
            flag.announce();
            if receiver.is_empty() {
                thread::park();
            }
            flag.retract();
        }
        pusher.join().unwrap();
    });
}
