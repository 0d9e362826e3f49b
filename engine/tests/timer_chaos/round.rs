//! One round: a service, users that work for a moment, and the checks after they have ended.
//!
//! Guarantees: a wait that does not end fails the test, after `HANG`, which is far above what a loaded
//! machine needs.
//!
//! Not handled here: the consistency of a single timer (`history.rs`).

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use engine::timer::{ArmError, Cancel, Service, Settings, Slack, Timers};
use sys::clock::{Nanos, monotonic};

use crate::counters::{Counters, Lateness};
use crate::history::{History, Outcome};
use crate::user::{self, Gate};
use crate::world::{AnyThread, Workload, World, is_far};

const SERVICE_THREADS: usize = 2;
const LOCALS: usize = 2;
const USERS: usize = 5;
const WORK: Duration = Duration::from_millis(300);
/// More than the coarse slack, and less than the greatest.
const PATIENCE: Duration = Duration::from_millis(250);
const HANG: Duration = Duration::from_secs(60);
/// Timers that each timer thread has to fire while there is no other activity.
const ALONE: usize = 3;
/// Far timers that stay armed until their service ends.
const LEFT_MAX: usize = 16;
/// The name of all threads of a round, also of the service's; a suffix is appended.
const NAME: &str = "chaos";

/// How a round differs from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) workload: Workload,
    /// At its end, timers with the greatest slack are awaited, not cancelled.
    pub(crate) is_patient: bool,
    /// The service ends while its users are at work.
    pub(crate) ends_at_work: bool,
}

/// A running round.
pub(crate) struct Round {
    kind: Kind,
    world: Arc<World>,
    timers: Timers,
    gate: Arc<Gate>,
}

/// Far timers that are still armed at the end of a round.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Left {
    at_threads: usize,
    at_locals: usize,
}

/// Runs a round.
pub(crate) fn run(seed: u64, kind: Kind, lateness: [&'static Lateness; 2], counters: &mut Counters) {
    let before = (threads(), descriptors());
    let world = Arc::new(World::new(seed, kind.workload, lateness));
    let service = start(&world);
    let timers = service.timers().clone();
    Round { kind, world, timers, gate: Arc::default() }.run(service, counters);
    // A joined thread may stay in the list a moment longer.
    let end = monotonic() + HANG;
    loop {
        let now = (threads(), descriptors());
        if (now.0, now.1.len()) == (before.0, before.1.len()) {
            return;
        }
        assert!(monotonic() < end, "seed {seed}: threads and descriptors are {now:?}, and were {before:?}");
        thread::yield_now();
    }
}

fn start(world: &Arc<World>) -> Service {
    let settings = Settings {
        name: NAME,
        threads: SERVICE_THREADS,
        timers_max: 1_500,
        locals: LOCALS,
        local_timers_max: 1_000,
    };
    let world = Arc::clone(world);
    let callback = move |timers: &Timers, tag: u64| world.fire(&mut AnyThread(timers), tag);
    Service::start(&settings, callback).expect("the machine has threads and descriptors")
}

fn threads() -> usize {
    let names = fs::read_dir("/proc/self/task").expect("Linux has /proc").filter_map(|task| {
        // A thread that ends meanwhile has no name any more.
        fs::read_to_string(task.ok()?.path().join("comm")).ok()
    });
    names.filter(|name| name.starts_with(NAME)).count()
}

fn descriptors() -> Vec<PathBuf> {
    let open = fs::read_dir("/proc/self/fd").expect("Linux has /proc");
    open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect()
}

impl Round {
    fn run(&self, service: Service, counters: &mut Counters) {
        let capacity = user::capacity(&self.timers, SERVICE_THREADS);
        let loops: Vec<_> = (0..LOCALS).map(|number| self.spawn_loop(number as u64)).collect();
        let solitary: Vec<_> = (0..SERVICE_THREADS).filter_map(|_| self.spawn_solitary()).collect();
        let service = self.work(service);
        self.join(solitary);
        let wake = || loops.iter().for_each(|thread| thread.thread().unpark());
        wake();
        let left = self.wait_settled(|history| service.is_some() || history.is_local());
        if let Some(service) = service {
            let free = user::capacity(&self.timers, SERVICE_THREADS);
            self.check(
                free + left.at_threads == capacity,
                &format!("of {capacity} cells {free} were freed: {left:?}"),
            );
            self.assert_awake();
            let dropped = self.bounded("the end of the service", move || service.shutdown());
            self.check(dropped == left.at_threads as u64, &format!("it had {dropped} timers at its end"));
        }
        self.gate.is_open.store(true, SeqCst);
        wake();
        self.join(loops);
        let armed = self.gate.armed.load(SeqCst);
        self.check(armed == left.at_locals, &format!("{armed} were armed at the end of the loops: {left:?}"));
        self.check_histories(&left, counters);
        self.world.check();
    }

    /// Panics with the round's seed and kind, unless `holds`.
    #[track_caller]
    fn check(&self, holds: bool, otherwise: &str) {
        self.world.check();
        assert!(holds, "{otherwise}: seed {}, {:?}", self.world.seed, self.kind);
    }

    fn spawn(&self, life: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        thread::Builder::new().name(format!("{NAME}-user")).spawn(life).expect("the machine has threads")
    }

    fn spawn_loop(&self, number: u64) -> JoinHandle<()> {
        let (world, timers) = (Arc::clone(&self.world), self.timers.clone());
        let gate = Arc::clone(&self.gate);
        self.spawn(move || user::run_looping(&world, &timers, u64::MAX - number, &gate))
    }

    /// A thread whose timers are the only ones due, where all others are far.
    fn spawn_solitary(&self) -> Option<JoinHandle<()>> {
        let (world, timers) = (Arc::clone(&self.world), self.timers.clone());
        (self.kind.workload == Workload::Far).then(|| {
            self.spawn(move || {
                while !world.is_over() {
                    world.fire_alone(&timers);
                }
            })
        })
    }

    /// Starts and joins users for a while; returns the service unless it ended meanwhile.
    fn work(&self, service: Service) -> Option<Service> {
        let (mut users, mut streams) = (Vec::new(), u64::MAX / 2..);
        let end = monotonic() + WORK;
        let close_at = if self.kind.ends_at_work { monotonic() + WORK / 2 } else { Nanos::NEVER };
        let mut service = Some(service);
        while monotonic() < end && !self.world.is_over() {
            let (gone, here): (Vec<_>, Vec<_>) = users.into_iter().partition(JoinHandle::is_finished);
            self.join(gone);
            users = here;
            if service.is_some() {
                users.extend(
                    (users.len()..USERS).zip(&mut streams).map(|(_, stream)| self.spawn_user(stream)),
                );
            }
            if monotonic() > close_at
                && let Some(service) = service.take()
            {
                self.end_service(service);
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.world.end();
        self.join(users);
        service
    }

    fn spawn_user(&self, stream: u64) -> JoinHandle<()> {
        let (world, timers) = (Arc::clone(&self.world), self.timers.clone());
        self.spawn(move || user::run(&world, &timers, stream))
    }

    /// Ends the service while its users are at work: from then on its threads fire no timer and arming fails.
    fn end_service(&self, service: Service) {
        self.bounded("the end of the service, at work", move || service.shutdown());
        let fired = || {
            let histories = self.world.histories().filter(|(_, history)| !history.is_local());
            histories.map(|(_, history)| u64::from(history.begun())).sum::<u64>()
        };
        let before = fired();
        thread::sleep(Duration::from_millis(5));
        self.check(fired() == before, "a service that had ended fired timers");
    }

    fn join(&self, threads: Vec<JoinHandle<()>>) {
        for thread in threads {
            let outcome = self.bounded("the end of a user", move || thread.join());
            self.check(outcome.is_ok(), "a user panicked");
        }
    }

    /// The result of `wait`, unless it hangs.
    fn bounded<T: Send + 'static>(&self, what: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::sync_channel(1);
        let waiting = self.spawn(move || sender.send(wait()).expect("the round waits for it"));
        let outcome = receiver.recv_timeout(HANG);
        self.check(outcome.is_ok(), &format!("{what} did not happen"));
        waiting.join().expect("the thread has sent its result");
        outcome.expect("checked above")
    }

    /// Waits until the included timers have fired or are cancelled, except for some far ones.
    fn wait_settled(&self, is_included: impl Fn(&History) -> bool) -> Left {
        let (end, mut before) = (monotonic() + HANG, None);
        loop {
            // An idle loop arms nothing afterwards.
            let are_idle = self.gate.idle.load(SeqCst) == LOCALS;
            let (left, awaited) = self.count_left(&is_included);
            let now = (are_idle && awaited.is_none()).then_some(left);
            // A callback that ended meanwhile may have cancelled a timer that was counted.
            if before.is_some() && now == before {
                return left;
            }
            if monotonic() > end {
                self.world.fail("it neither fires nor ends", awaited.unwrap_or(u64::MAX));
            }
            self.world.check();
            thread::sleep(Duration::from_millis(1));
            before = now;
        }
    }

    /// Counts the far timers that stay armed, and returns one that is neither among them nor settled. It
    /// cancels those of the latter that are not due soon.
    fn count_left(&self, is_included: impl Fn(&History) -> bool) -> (Left, Option<u64>) {
        let (mut left, mut awaited) = (Left::default(), None);
        let patience = if self.kind.is_patient { 2 * HANG } else { PATIENCE };
        let is_open =
            |history: &History| !matches!(history.outcome(), Ok(outcome) if outcome != Outcome::Left);
        let histories =
            self.world.histories().filter(|(_, history)| is_included(history) && is_open(history));
        for (tag, history) in histories {
            if is_far(history) && left.at_threads + left.at_locals < LEFT_MAX {
                *(if history.is_local() { &mut left.at_locals } else { &mut left.at_threads }) += 1;
                continue;
            }
            awaited = Some(tag);
            if history.expected_by() > monotonic() + patience {
                self.world.cancel(&self.timers, tag);
            }
        }
        (left, awaited)
    }

    /// Only far timers are left, and not even cancelled ones, since all cells were armed once. So no other
    /// activity hides a lost wake: a timer has to wake each timer thread by itself.
    fn assert_awake(&self) {
        for _ in 0..ALONE * SERVICE_THREADS {
            let (world, timers) = (Arc::clone(&self.world), self.timers.clone());
            // Each new thread arms at the next timer thread.
            self.join(vec![self.spawn(move || world.fire_alone(&timers))]);
            self.wait_settled(|history| !history.is_local());
        }
    }

    /// All threads have ended: no timer is armed, and each history has an outcome.
    fn check_histories(&self, left: &Left, counters: &mut Counters) {
        let closed = self.timers.arm(Nanos(0), Slack::Tick, u64::MAX);
        self.check(closed == Err(ArmError::Closed), "arming succeeded at a service that had ended");
        let mut left_here = 0;
        for (tag, history) in self.world.histories() {
            match history.outcome() {
                Err(what) => self.world.fail(what, tag),
                Ok(outcome) => {
                    counters.add(history, outcome);
                    left_here += usize::from(outcome == Outcome::Left);
                }
            }
            let found = history.handle().map(|handle| self.timers.cancel(handle));
            if found.is_some_and(|found| found != Cancel::Gone) && !self.kind.ends_at_work {
                self.world.fail("its handle is valid after the end", tag);
            }
        }
        let is_even = self.kind.ends_at_work || left_here == left.at_threads + left.at_locals;
        self.check(is_even, "more timers are armed than were left armed");
    }
}
