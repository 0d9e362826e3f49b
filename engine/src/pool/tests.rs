//! The pool as its callers see it, with real threads. Where a test depends on an order, it enforces that
//! order; it measures no time.

use super::*;
use crate::oneshot::tests::block_on;
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};

const JOBS: Class = Class(0);

fn settings(permits: usize, threads_max: usize) -> PoolSettings {
    let class = ClassSettings { queue_max: 100_000, ..ClassSettings::default() };
    PoolSettings { name: "test", permits, threads_max, niceness: 5, classes: vec![class] }
}

fn pool(permits: usize, threads_max: usize) -> Pool {
    Pool::start(settings(permits, threads_max)).unwrap()
}

/// A job that reports its start, and ends when the sender sends or is dropped.
fn gated(pool: &Pool, class: Class) -> (Sender<()>, Receiver<()>) {
    let ((open, gate), (sender, receiver)) = (channel::<()>(), channel());
    let work = move || {
        let _ = sender.send(());
        let _ = gate.recv();
    };
    pool.run_then(class, work, drop).unwrap();
    (open, receiver)
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

/// Calls its function when it is dropped.
struct Guard<F: Fn()>(F);

impl<F: Fn()> Drop for Guard<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[test]
fn value_returns_to_a_task_and_to_a_channel() {
    let pool = pool(2, 2);
    assert_eq!(block_on(pool.run(JOBS, || 6 * 7).unwrap()), Ok(42));
    let (sender, receiver) = channel();
    pool.run_then(JOBS, || "done", move |outcome| sender.send(outcome).unwrap()).unwrap();
    assert_eq!(receiver.recv(), Ok(Ok("done")));
}

#[test]
fn full_queue_refuses_and_keeps_order() {
    let mut settings = settings(1, 1);
    settings.classes[0].queue_max = 3;
    let pool = Pool::start(settings).unwrap();
    let (open, started) = gated(&pool, JOBS);
    started.recv().unwrap();
    let (done, order) = channel();
    for n in 0..3 {
        let done = done.clone();
        pool.run_then(JOBS, move || done.send(n).unwrap(), drop).unwrap();
    }
    assert_eq!(pool.run(JOBS, || ()).err(), Some(Refused::Full));
    let stats = &pool.stats().classes[0];
    assert_eq!((stats.queued, stats.taken, stats.refused_full), (3, 1, 1));
    open.send(()).unwrap();
    assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn job_panic_is_its_outcome() {
    let pool = pool(1, 1);
    let panicked = pool.run(JOBS, || -> u8 { std::panic::panic_any("planted") }).unwrap();
    assert_eq!(block_on(panicked), Err(Failure::Panicked));
    // Nor does a panic of the reply end the thread.
    pool.run_then(JOBS, || (), |_| std::panic::panic_any("planted")).unwrap();
    let in_a_wait = pool.run(JOBS, || blocking(|| -> u8 { std::panic::panic_any("planted") })).unwrap();
    assert_eq!(block_on(in_a_wait), Err(Failure::Panicked));
    assert_eq!(block_on(pool.run(JOBS, || 1).unwrap()), Ok(1));
    wait_until(|| pool.stats().held == 0);
    let stats = pool.stats();
    assert_eq!((stats.classes[0].finished, stats.classes[0].panicked, stats.threads), (4, 3, 1));
}

#[test]
fn last_handle_drains_the_queue_and_ends_threads() {
    let pool = pool(2, 4);
    let (done, results) = channel();
    for n in 0..50 {
        let done = done.clone();
        pool.run_then(JOBS, move || blocking(|| done.send(n).unwrap()), drop).unwrap();
    }
    drop(done);
    let shared = Arc::downgrade(&pool.0.0);
    drop(pool);
    // Ends only when every job has run and dropped its sender.
    assert_eq!(results.iter().count(), 50);
    wait_until(|| shared.strong_count() == 0);
}

#[test]
fn declared_wait_frees_its_permit() {
    let pool = pool(1, 3);
    let ((open, gate), (sender, receiver)) = (channel::<()>(), channel());
    let work = move || {
        let received = blocking(move || {
            sender.send(()).unwrap();
            gate.recv()
        });
        // A nested wait is one wait.
        blocking(|| blocking(|| received))
    };
    let waiting = pool.run(JOBS, work).unwrap();
    receiver.recv().unwrap();
    assert_eq!(block_on(pool.run(JOBS, || 5).unwrap()), Ok(5), "on the only permit");
    open.send(()).unwrap();
    assert_eq!(block_on(waiting), Ok(Ok(())));
    wait_until(|| pool.stats().held == 0);
}

#[test]
fn running_jobs_exceed_permits_by_a_quarter_at_most() {
    const PERMITS: usize = 2;
    let pool = pool(PERMITS, 12);
    let (running, running_max) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (done, results) = channel();
    for _ in 0..2_000 {
        let (running, running_max, done) = (Arc::clone(&running), Arc::clone(&running_max), done.clone());
        let compute = move || {
            let now = running.fetch_add(1, Ordering::Relaxed) + 1;
            running_max.fetch_max(now, Ordering::Relaxed);
            // Long enough for all others to run in between, if they may.
            (0..50).for_each(|_| std::thread::yield_now());
            running.fetch_sub(1, Ordering::Relaxed);
        };
        let work = move || {
            compute();
            // Many jobs wait, so that many threads exist, and return together.
            blocking(|| std::thread::sleep(Duration::from_micros(200)));
            compute();
        };
        pool.run_then(JOBS, work, move |outcome| done.send(outcome).unwrap()).unwrap();
    }
    drop(done);
    assert_eq!(results.iter().filter(Result::is_ok).count(), 2_000);
    assert!(running_max.load(Ordering::Relaxed) <= PERMITS + 1, "{running_max:?}");
    wait_until(|| pool.stats().held == 0);
}

#[test]
fn undeclared_sleep_is_suspected() {
    let pool = pool(1, 2);
    let (open, started) = gated(&pool, JOBS);
    started.recv().unwrap();
    // Only the monitor can free a permit for it.
    assert_eq!(block_on(pool.run(JOBS, || 5).unwrap()), Ok(5));
    assert_eq!(pool.stats().suspected, 1);
    drop(open);
    wait_until(|| pool.stats().held == 0);
    assert_eq!(block_on(pool.run(JOBS, || 6).unwrap()), Ok(6));
}

#[test]
fn stuck_class_holds_only_its_share() {
    let class = |name| ClassSettings { name, ..ClassSettings::default() };
    let classes = vec![class("poisoned"), class("others")];
    let pool = Pool::start(PoolSettings { classes, ..settings(2, 6) }).unwrap();
    let gates: Vec<_> = (0..100).map(|_| gated(&pool, Class(0)).0).collect();
    wait_until(|| pool.stats().classes[0].taken == 3);
    let handles: Vec<_> = (0..500).map(|n| pool.run(Class(1), move || n).unwrap()).collect();
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(block_on(handle), Ok(n));
    }
    let stats = pool.stats();
    assert_eq!((stats.classes[0].taken_peak, stats.classes[0].finished), (3, 0));
    assert_eq!(stats.classes[0].queued, 97);
    drop(gates);
    wait_until(|| pool.stats().classes[0].finished == 100);
}

#[test]
fn late_job_is_refused_and_expired_job_not_run() {
    let mut settings = settings(1, 1);
    settings.classes[0].deadline = Some(Duration::from_secs(3600));
    let pool = Pool::start(settings).unwrap();
    // The first job sets the mean cost: more than zero.
    assert_eq!(
        block_on(pool.run(JOBS, || (0..10_000).map(std::hint::black_box).sum::<u64>()).unwrap()),
        Ok(49_995_000)
    );
    wait_until(|| pool.stats().held == 0);
    let (open, started) = gated(&pool, JOBS);
    started.recv().unwrap();
    let (sender, receiver) = channel();
    let deadline = monotonic() + Duration::from_millis(200);
    let reply = move |outcome: Outcome<()>| sender.send(outcome).unwrap();
    // No job is ahead of it in the queue, so it is accepted.
    pool.run_by(JOBS, deadline, || (), reply).unwrap();
    let late = pool.run_by(JOBS, monotonic(), || (), |_| ());
    assert_eq!(late, Err(Refused::Late));
    wait_until(|| monotonic() > deadline);
    open.send(()).unwrap();
    assert_eq!(receiver.recv(), Ok(Err(Failure::Expired)));
    // The reply came at its deadline, before the job ahead of it could end.
    wait_until(|| pool.stats().classes[0].finished == 2);
    let stats = &pool.stats().classes[0];
    assert_eq!((stats.finished, stats.expired, stats.refused_late, stats.queued), (2, 1, 1, 0));
}

#[test]
fn expiry_is_reported_behind_an_endless_job() {
    let mut settings = settings(1, 1);
    let deadline = Some(Duration::from_millis(20));
    settings.classes.push(ClassSettings { deadline, ..ClassSettings::default() });
    let pool = Pool::start(settings).unwrap();
    // It computes, so it keeps its permit, the only one.
    let is_over = Arc::new(AtomicBool::new(false));
    let (should_stop, (sender, receiver)) = (Arc::clone(&is_over), channel());
    let compute = move || {
        sender.send(()).unwrap();
        while !should_stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    pool.run_then(JOBS, compute, drop).unwrap();
    receiver.recv().unwrap();
    let begun = monotonic();
    let (sender, receiver) = channel();
    for job in 0..200 {
        let sender = sender.clone();
        pool.run_then(Class(1), || (), move |outcome| sender.send((job, outcome)).unwrap()).unwrap();
    }
    // A job with a late deadline is ahead of one with an early deadline.
    let [first, second] = [sender.clone(), sender];
    pool.run_by(JOBS, begun + Duration::from_secs(3600), || (), move |it| first.send((1_000, it)).unwrap())
        .unwrap();
    pool.run_by(JOBS, begun + Duration::from_millis(30), || (), move |it| second.send((1_001, it)).unwrap())
        .unwrap();
    // No worker has looked into the queue: the only one is busy.
    let mut expired: Vec<_> = receiver.iter().take(201).collect();
    assert!(monotonic() >= begun + Duration::from_millis(20));
    expired.sort_unstable_by_key(|it| it.0);
    let numbers = (0..200).chain([1_001]);
    assert!(expired.into_iter().eq(numbers.map(|job| (job, Err(Failure::Expired)))));
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(receiver.recv(), Ok((1_000, Ok(()))), "it was in time");
    let stats = pool.stats();
    assert_eq!((stats.classes[1].expired, stats.classes[0].expired), (200, 1));
}

#[test]
fn permit_changes_bound_running_jobs() {
    let pool = pool(3, 3);
    let (running, running_max) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    // Dropped before the pool, which waits for its jobs, also where an assertion fails.
    let end = Guard(|| is_over.store(true, Ordering::Relaxed));
    let submit = || {
        let (running, running_max, is_over) =
            (Arc::clone(&running), Arc::clone(&running_max), Arc::clone(&is_over));
        let spin = move || {
            running_max.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            // It does not sleep, so it keeps its permit.
            wait_until(|| is_over.load(Ordering::Relaxed));
            running.fetch_sub(1, Ordering::Relaxed);
        };
        pool.run_then(JOBS, spin, drop).unwrap();
    };
    pool.set_permits(1);
    (0..3).for_each(|_| submit());
    wait_until(|| running.load(Ordering::Relaxed) >= 1);
    // Many scans of the monitor and of threads that could take another job.
    for _ in 0..1_000 {
        std::thread::yield_now();
        assert_eq!(pool.stats().classes[0].queued, 2);
    }
    pool.set_permits(2);
    wait_until(|| running.load(Ordering::Relaxed) >= 2);
    assert_eq!((pool.stats().permits, running_max.load(Ordering::Relaxed)), (2, 2));
    pool.set_permits(100);
    assert_eq!(pool.stats().permits, 3, "as many as at the start");
    wait_until(|| running.load(Ordering::Relaxed) == 3);
    drop(end);
    wait_until(|| pool.stats().held == 0);
}

#[test]
fn resumed_jobs_do_not_starve_new_jobs() {
    const JOBS_MAX: usize = 6;
    let pool = pool(1, 2 * JOBS_MAX);
    let begun = Arc::new(AtomicUsize::new(0));
    let submit = |_| {
        let begun = Arc::clone(&begun);
        let work = move || {
            begun.fetch_add(1, Ordering::Relaxed);
            // Each continues until all have begun, and between two waits there is always one that returns.
            while begun.load(Ordering::Relaxed) < JOBS_MAX {
                let start = monotonic();
                wait_until(|| monotonic().since(start) > Duration::from_micros(300));
                blocking(|| std::thread::sleep(Duration::from_micros(50)));
            }
        };
        pool.run(JOBS, work).unwrap()
    };
    let handles: Vec<_> = (0..JOBS_MAX).map(submit).collect();
    handles.into_iter().for_each(|handle| assert_eq!(block_on(handle), Ok(())));
}

#[test]
fn panicking_payloads_and_replies_end_no_thread() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any("planted");
        }
    }
    let pool = pool(1, 1);
    let panicking = pool.run(JOBS, || -> u8 { std::panic::panic_any(Bomb) }).unwrap();
    assert_eq!(block_on(panicking), Err(Failure::Panicked));
    // A reply may wait, also that of a job that was not run.
    let (open, started) = gated(&pool, JOBS);
    started.recv().unwrap();
    let deadline = monotonic() + Duration::from_millis(200);
    let (sender, receiver) = channel();
    let reply = move |outcome: Outcome<()>| blocking(|| sender.send(outcome).unwrap());
    pool.run_by(JOBS, deadline, || (), reply).unwrap();
    wait_until(|| monotonic() > deadline);
    drop(open);
    assert_eq!(receiver.recv(), Ok(Err(Failure::Expired)));
    assert_eq!(block_on(pool.run(JOBS, || 1).unwrap()), Ok(1));
    wait_until(|| pool.stats().held == 0);
    assert_eq!(pool.stats().threads, 1);
}

#[test]
fn jobs_about_to_begin_add_no_expected_wait() {
    let mut settings = settings(4, 4);
    settings.classes[0].deadline = Some(Duration::from_secs(60));
    let pool = Pool::start(settings).unwrap();
    // By the mean cost, four of these would take longer than the deadline.
    let class_info = pool.0.0.class(JOBS);
    class_info.counts.cost_ns.store(120_000_000_000, Ordering::Relaxed);
    class_info.counts.service_ns.store(120_000_000_000, Ordering::Relaxed);
    let waits = |ahead| pool.0.0.expected_wait(class_info, ahead).as_secs();
    assert_eq!([waits(0), waits(3), waits(4), waits(6)], [0, 0, 0, 60]);
    // With every thread busy, the jobs ahead count; the first in the queue is always accepted.
    class_info.counts.taken.store(4, Ordering::Relaxed);
    assert_eq!([waits(0), waits(1), waits(4)], [0, 30, 120]);
    class_info.counts.taken.store(0, Ordering::Relaxed);
}

#[test]
fn many_submitters_lose_no_job() {
    const SUBMITTERS: u64 = 4;
    const JOBS_EACH: u64 = 2_500_000;
    let mut settings = settings(3, 6);
    settings.classes[0].queue_max = 1_000;
    let pool = Pool::start(settings).unwrap();
    let (ran, replied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let barrier = Barrier::new(SUBMITTERS as usize);
    std::thread::scope(|scope| {
        for submitter in 0..SUBMITTERS {
            let (pool, ran, replied, barrier) = (&pool, &ran, &replied, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let mut n = 0;
                while n < JOBS_EACH {
                    let (ran, replied) = (Arc::clone(ran), Arc::clone(replied));
                    let value = submitter * JOBS_EACH + n;
                    let work = move || {
                        ran.fetch_add(value, Ordering::Relaxed);
                        if value.is_multiple_of(5_000) {
                            blocking(std::thread::yield_now);
                        }
                        value
                    };
                    let reply = move |outcome: Outcome<u64>| {
                        replied.fetch_add(outcome.unwrap(), Ordering::Relaxed);
                    };
                    match pool.run_then(JOBS, work, reply) {
                        Ok(()) => n += 1,
                        Err(refused) => {
                            assert_eq!(refused, Refused::Full);
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
    });
    let all = SUBMITTERS * JOBS_EACH;
    wait_until(|| pool.stats().classes[0].finished == all);
    assert_eq!([ran.load(Ordering::Relaxed), replied.load(Ordering::Relaxed)], [all * (all - 1) / 2; 2]);
    let stats = pool.stats();
    assert_eq!((stats.queued(), stats.classes[0].panicked), (0, 0));
}

#[test]
fn blocking_outside_a_pool_only_waits() {
    assert_eq!(blocking(|| 3), 3);
}

/// The context switches of all the pool's threads so far, as the kernel counts them.
fn switches(name: &str) -> u64 {
    let of_task = |task: std::fs::DirEntry| {
        let is_ours =
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with(name));
        let status = is_ours.then(|| std::fs::read_to_string(task.path().join("status")).unwrap_or_default());
        let switches = |line: &str| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok();
        status.iter().flat_map(|status| status.lines().filter_map(switches)).sum::<u64>()
    };
    std::fs::read_dir("/proc/self/task").unwrap().map(|task| of_task(task.unwrap())).sum()
}

#[test]
fn idle_pool_does_not_wake() {
    // Longer than the monitor's longest pause.
    const PERIOD: Duration = Duration::from_millis(1_500);
    const PERIODS_MAX: usize = 10;
    let pool = Pool::start(PoolSettings { name: "quiet", ..settings(2, 4) }).unwrap();
    let handles: Vec<_> = (0..100).map(|n| pool.run(JOBS, move || blocking(|| n)).unwrap()).collect();
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(block_on(handle), Ok(n));
    }
    // The monitor may need some scans to see that no job waits; then it stays asleep.
    let mut periods = (0..PERIODS_MAX).map(|_| {
        let before = switches("quiet");
        std::thread::sleep(PERIOD);
        (before, switches("quiet"))
    });
    let quiet = periods.find(|(before, after)| before == after);
    assert!(quiet.is_some_and(|(count, _)| count > 0), "it never falls asleep, or was never seen: {quiet:?}");
}
