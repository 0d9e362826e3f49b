//! The pool's threads under shuttle, which switches between them at every access to shared memory. The
//! simulated kernel reports a job's thread at random as sleeping or running.
//!
//! Guarantees: in every schedule each accepted job gets one reply. No wake-up is lost: a lost one would
//! make the schedule run forever. All permits are returned, and all threads end.
//!
//! Not handled here: what the memory model may reorder (`tests/handoff_loom.rs`).
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p engine --release --target-dir target/shuttle --lib shuttle_tests`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::thread;

use super::*;
use crate::explore::explore;

/// How many schedules each scheduler of shuttle runs: the random one, and the one by priorities.
const SCHEDULES_PER_SCHEDULER: usize = 3_000;
const JOBS: Class = Class(0);
const OTHERS: Class = Class(1);

fn pool(permits: usize, threads_max: usize) -> Pool {
    let class = |threads| ClassSettings { concurrency_max: Some(threads), ..ClassSettings::default() };
    let classes = vec![class(2), class(1)];
    Pool::start(PoolSettings { name: "model", permits, threads_max, niceness: 0, classes }).unwrap()
}

/// A decimal digit for each job counts its replies, so that a missing or second reply shows.
#[derive(Clone, Default)]
struct Replies(Arc<AtomicU64>);

impl Replies {
    fn submit(&self, pool: &Pool, class: Class, job: u32, work: impl FnOnce() + Send + 'static) {
        let replies = self.clone();
        let reply = move |outcome: Outcome<()>| {
            assert_eq!(outcome, Ok(()));
            replies.0.fetch_add(10u64.pow(job), Ordering::Relaxed);
        };
        pool.run_then(class, work, reply).unwrap();
    }

    /// Drops the pool; all its jobs have their reply when its threads have ended.
    fn close(self, pool: Pool, expected: u64) {
        let shared = Arc::clone(&pool.0.0);
        drop(pool);
        while Arc::strong_count(&shared) > 1 {
            thread::yield_now();
        }
        assert_eq!(self.0.load(Ordering::Relaxed), expected);
        assert_eq!(shared.handoff.held(), 0, "every permit was returned");
        assert_eq!(shared.threads(), 0);
        assert_eq!(shared.cpus.total(), 0);
    }
}

#[test]
fn two_submitters_with_blocking_jobs() {
    explore(SCHEDULES_PER_SCHEDULER, || {
        let (pool, replies) = (pool(1, 3), Replies::default());
        let other = {
            let (pool, replies) = (pool.clone(), replies.clone());
            thread::spawn(move || {
                replies.submit(&pool, JOBS, 0, || blocking(thread::yield_now));
                replies.submit(&pool, OTHERS, 1, || ());
            })
        };
        replies.submit(&pool, JOBS, 2, || blocking(thread::yield_now));
        replies.submit(&pool, OTHERS, 3, || blocking(thread::yield_now));
        other.join().unwrap();
        replies.close(pool, 1111);
    });
}

#[test]
fn blocking_job_lends_its_permit_to_its_successor() {
    explore(SCHEDULES_PER_SCHEDULER, || {
        let (pool, replies) = (pool(1, 3), Replies::default());
        let (sender, receiver) = shuttle::sync::mpsc::channel();
        replies.submit(&pool, JOBS, 0, move || blocking(|| receiver.recv().unwrap()));
        replies.submit(&pool, JOBS, 1, move || sender.send(()).unwrap());
        replies.close(pool, 11);
    });
}

#[test]
fn permits_change_while_jobs_run() {
    explore(SCHEDULES_PER_SCHEDULER, || {
        let (pool, replies) = (pool(2, 3), Replies::default());
        for job in 0..3 {
            replies.submit(&pool, JOBS, job, || blocking(thread::yield_now));
        }
        pool.set_permits(1);
        replies.submit(&pool, JOBS, 3, || ());
        pool.set_permits(2);
        replies.close(pool, 1111);
    });
}
