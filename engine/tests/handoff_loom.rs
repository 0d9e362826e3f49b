//! Loom models of the pool's hand-off: a free permit, an idle thread and work, each added by another thread,
//! in every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p engine --release --target-dir target/loom --test handoff_loom`

#![cfg(loom)]
#![expect(dead_code, reason = "the models need only the part of these files that threads share")]

#[path = "../src/pool/cpus.rs"]
mod cpus;
#[path = "../src/pool/handoff.rs"]
mod handoff;
#[path = "../src/pool/idle.rs"]
mod idle;
#[path = "../src/pool/worker_slot.rs"]
mod worker_slot;

use std::sync::Arc;

use handoff::{Handoff, Signal};
use sys::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use sys::sync::thread::{JoinHandle, spawn};

/// More would take hours; two cover every way in which two threads can miss each other.
const PREEMPTIONS_MAX: usize = 2;

/// A pool reduced to its hand-off: jobs are a count.
struct Model {
    handoff: Handoff,
    jobs: AtomicUsize,
    remaining: AtomicUsize,
    is_closing: AtomicBool,
}

impl Model {
    fn new(permits: usize, threads: usize, jobs: usize) -> Arc<Model> {
        Arc::new(Model {
            handoff: Handoff::new(permits, threads),
            jobs: AtomicUsize::new(0),
            remaining: AtomicUsize::new(jobs),
            is_closing: AtomicBool::new(false),
        })
    }

    fn signal(&self) -> Signal {
        self.handoff.signal(|| self.jobs.load(Ordering::Relaxed) > 0)
    }

    fn submit(&self) {
        self.jobs.fetch_add(1, Ordering::Release);
        self.signal();
    }

    fn take(&self) -> bool {
        let one_less = |jobs: usize| jobs.checked_sub(1);
        self.jobs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less).is_ok()
    }

    /// The body of a thread, as in `worker.rs`. It ends only when every job was run: a lost wake leaves it
    /// asleep, which loom reports.
    fn run(&self, number: usize) {
        let slot = self.handoff.workers.at(number);
        loop {
            self.handoff.workers.push(number);
            self.signal();
            if self.is_closing.load(Ordering::SeqCst) && self.handoff.workers.try_remove(number) {
                return;
            }
            slot.parker.park();
            if slot.is_dismissed.load(Ordering::Acquire) {
                return;
            }
            self.work();
        }
    }

    fn work(&self) {
        while self.take() {
            if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.close();
            }
        }
        self.handoff.release();
        self.signal();
    }

    fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while let Some(number) = self.handoff.workers.pop() {
            let slot = self.handoff.workers.at(number);
            slot.is_dismissed.store(true, Ordering::Release);
            slot.parker.unpark();
        }
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

fn start(model: &Arc<Model>, threads: usize) -> Vec<JoinHandle<()>> {
    let start = |_| {
        let model = Arc::clone(model);
        let number = model.handoff.workers.allocate().expect("there is a slot for each thread");
        spawn(move || model.run(number))
    };
    (0..threads).map(start).collect()
}

fn end(model: &Model, threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((model.remaining.load(Ordering::Relaxed), model.handoff.held()), (0, 0));
}

fn check(permits: usize, threads: usize, jobs: usize) {
    explore(move || {
        let model = Model::new(permits, threads, jobs);
        let threads = start(&model, threads);
        (0..jobs).for_each(|_| model.submit());
        end(&model, threads);
    });
}

#[test]
fn no_wake_lost_between_a_submitter_and_a_thread() {
    check(1, 1, 2);
}

#[test]
fn no_wake_lost_with_two_threads_and_one_permit() {
    check(1, 2, 2);
}

#[test]
fn no_wake_lost_with_two_threads_and_two_permits() {
    check(2, 2, 1);
}

/// A thread whose idle time is over is on top of the stack, and leaves while it is about to be woken.
#[test]
fn leaving_thread_is_not_relied_on() {
    explore(|| {
        let model = Model::new(1, 2, 1);
        let idle_number = model.handoff.workers.allocate().unwrap();
        let threads = start(&model, 1);
        model.handoff.workers.push(idle_number);
        let leaving = {
            let model = Arc::clone(&model);
            spawn(move || {
                let slot = model.handoff.workers.at(idle_number);
                if !model.handoff.workers.try_remove(idle_number) {
                    slot.parker.park();
                    if !slot.is_dismissed.load(Ordering::Acquire) {
                        model.work();
                    }
                }
            })
        };
        model.submit();
        leaving.join().unwrap();
        end(&model, threads);
    });
}
