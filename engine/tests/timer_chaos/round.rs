//! One round: a service, users that work for a moment, and what must hold when they are gone.
//!
//! Promises: a wait that does not end is a failure and not a wait (`HANG`, which is far above what a loaded
//! machine needs). Leaves to others: what one timer's account says (`account.rs`).

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use engine::timer::{ArmError, Cancel, Service, Settings, Slack, Timers};
use sys::clock::{Nanos, monotonic};

use crate::account::{Account, Fate};
use crate::tally::{Lateness, Tally};
use crate::user::{self, Gate};
use crate::world::{Anyone, Temper, World, is_far};

const POSTS: usize = 2;
const LOCALS: usize = 2;
const USERS: usize = 5;
const WORK: Duration = Duration::from_millis(300);
/// More than the coarse slack, and less than the greatest.
const PATIENCE: Duration = Duration::from_millis(250);
const HANG: Duration = Duration::from_secs(60);
/// Timers that each of the service's threads has to fire when there is nothing else.
const ALONE: usize = 3;
/// Far timers that stay armed until their service ends.
const LEFT_MAX: usize = 16;
/// All threads of a round, the service's too, are called so, with something behind.
const NAME: &str = "chaos";

/// What is special about a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) temper: Temper,
    /// What has the greatest slack is waited for at the end, and not cancelled.
    pub(crate) is_patient: bool,
    /// The service ends while its users are at work.
    pub(crate) ends_at_work: bool,
}

/// See the file's header.
pub(crate) struct Round {
    kind: Kind,
    world: Arc<World>,
    timers: Timers,
    gate: Arc<Gate>,
}

/// Far timers that the end of a round leaves armed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Left {
    at_posts: usize,
    at_locals: usize,
}

/// Runs a round.
pub(crate) fn run(seed: u64, kind: Kind, lateness: [&'static Lateness; 2], tally: &mut Tally) {
    let before = (threads(), descriptors());
    let world = Arc::new(World::new(seed, kind.temper, lateness));
    let service = start(&world);
    let timers = service.timers().clone();
    Round { kind, world, timers, gate: Arc::default() }.run(service, tally);
    // A thread that was joined may stand in the list a moment longer.
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
    let settings =
        Settings { name: NAME, threads: POSTS, timers_max: 1_500, locals: LOCALS, local_timers_max: 1_000 };
    let world = Arc::clone(world);
    let callback = move |timers: &Timers, tag: u64| world.fire(&mut Anyone(timers), tag);
    Service::start(&settings, callback).expect("there are threads and descriptors to be had")
}

fn threads() -> usize {
    let names = fs::read_dir("/proc/self/task").expect("Linux has it").filter_map(|task| {
        // Who ends while this looks has no name any more.
        fs::read_to_string(task.ok()?.path().join("comm")).ok()
    });
    names.filter(|name| name.starts_with(NAME)).count()
}

fn descriptors() -> Vec<PathBuf> {
    let open = fs::read_dir("/proc/self/fd").expect("Linux has it");
    open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect()
}

impl Round {
    fn run(&self, service: Service, tally: &mut Tally) {
        let room = user::room(&self.timers, POSTS);
        let loops: Vec<_> = (0..LOCALS).map(|number| self.spawn_loop(number as u64)).collect();
        let lonely: Vec<_> = (0..POSTS).filter_map(|_| self.spawn_lonely()).collect();
        let service = self.work(service);
        self.join(lonely);
        let wake = || loops.iter().for_each(|thread| thread.thread().unpark());
        wake();
        let left = self.settle(|account| service.is_some() || account.is_local());
        if let Some(service) = service {
            let free = user::room(&self.timers, POSTS);
            self.hold(free + left.at_posts == room, &format!("of {room} cells {free} came back: {left:?}"));
            self.assert_awake();
            let forgotten = self.bounded("the end of the service", move || service.shutdown());
            self.hold(forgotten == left.at_posts as u64, &format!("it had {forgotten} timers at its end"));
        }
        self.gate.is_open.store(true, SeqCst);
        wake();
        self.join(loops);
        let armed = self.gate.armed.load(SeqCst);
        self.hold(armed == left.at_locals, &format!("{armed} were armed at the loops' ends: {left:?}"));
        self.close_accounts(&left, tally);
        self.world.check();
    }

    /// Panics, and says which round it was, unless that holds.
    #[track_caller]
    fn hold(&self, holds: bool, otherwise: &str) {
        self.world.check();
        assert!(holds, "{otherwise}: seed {}, {:?}", self.world.seed, self.kind);
    }

    fn spawn(&self, life: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        thread::Builder::new().name(format!("{NAME}-user")).spawn(life).expect("there are threads to be had")
    }

    fn spawn_loop(&self, number: u64) -> JoinHandle<()> {
        let (world, timers) = (Arc::clone(&self.world), self.timers.clone());
        let gate = Arc::clone(&self.gate);
        self.spawn(move || user::live_looping(&world, &timers, u64::MAX - number, &gate))
    }

    /// A thread whose timers are the only ones that are due, where all others are far.
    fn spawn_lonely(&self) -> Option<JoinHandle<()>> {
        let (world, timers) = (Arc::clone(&self.world), self.timers.clone());
        (self.kind.temper == Temper::Far).then(|| {
            self.spawn(move || {
                while !world.is_over() {
                    world.fire_alone(&timers);
                }
            })
        })
    }

    /// Lets users come and go for a while, and gives the service back unless it ended meanwhile.
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
        self.spawn(move || user::live(&world, &timers, stream))
    }

    /// While its users are at work: from then on nothing fires and nothing is armed at its threads.
    fn end_service(&self, service: Service) {
        self.bounded("the end of the service, at work", move || service.shutdown());
        let fired = || {
            let accounts = self.world.accounts().filter(|(_, account)| !account.is_local());
            accounts.map(|(_, account)| u64::from(account.begun())).sum::<u64>()
        };
        let before = fired();
        thread::sleep(Duration::from_millis(5));
        self.hold(fired() == before, "a service that had ended fired timers");
    }

    fn join(&self, threads: Vec<JoinHandle<()>>) {
        for thread in threads {
            let outcome = self.bounded("the end of a user", move || thread.join());
            self.hold(outcome.is_ok(), "a user panicked");
        }
    }

    /// What `wait` returns, unless it hangs.
    fn bounded<T: Send + 'static>(&self, what: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::sync_channel(1);
        let waiting = self.spawn(move || tell.send(wait()).expect("somebody waits for it"));
        let outcome = told.recv_timeout(HANG);
        self.hold(outcome.is_ok(), &format!("{what} did not come"));
        waiting.join().expect("it has said what there was to say");
        outcome.expect("it was just there")
    }

    /// Waits until the timers of which that is asked have fired or are cancelled, but for some that are far.
    fn settle(&self, is_asked: impl Fn(&Account) -> bool) -> Left {
        let (end, mut before) = (monotonic() + HANG, None);
        loop {
            // Who rests arms nothing afterwards.
            let are_resting = self.gate.resting.load(SeqCst) == LOCALS;
            let (left, awaited) = self.look(&is_asked);
            let now = (are_resting && awaited.is_none()).then_some(left);
            // A callback that ended during the look may have cancelled what had been counted.
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

    /// The far timers that are to be left, and one that is neither of them nor settled. Of those it cancels
    /// what is not due soon.
    fn look(&self, is_asked: impl Fn(&Account) -> bool) -> (Left, Option<u64>) {
        let (mut left, mut awaited) = (Left::default(), None);
        let patience = if self.kind.is_patient { 2 * HANG } else { PATIENCE };
        let is_open = |account: &Account| !matches!(account.fate(), Ok(fate) if fate != Fate::Left);
        let accounts = self.world.accounts().filter(|(_, account)| is_asked(account) && is_open(account));
        for (tag, account) in accounts {
            if is_far(account) && left.at_posts + left.at_locals < LEFT_MAX {
                *(if account.is_local() { &mut left.at_locals } else { &mut left.at_posts }) += 1;
                continue;
            }
            awaited = Some(tag);
            if account.promised() > monotonic() + patience {
                self.world.cancel(&self.timers, tag);
            }
        }
        (left, awaited)
    }

    /// With nothing but far timers left, not even cancelled ones since all room was made, nobody comes by who
    /// would make up for a wake that was lost: a timer has to wake each of the service's threads by itself.
    fn assert_awake(&self) {
        for _ in 0..ALONE * POSTS {
            let (world, timers) = (Arc::clone(&self.world), self.timers.clone());
            // Each new thread comes to the next of them.
            self.join(vec![self.spawn(move || world.fire_alone(&timers))]);
            self.settle(|account| !account.is_local());
        }
    }

    /// All threads are gone: nothing is armed, and each account tells how its timer ended.
    fn close_accounts(&self, left: &Left, tally: &mut Tally) {
        let closed = self.timers.arm(Nanos(0), Slack::Tick, u64::MAX);
        self.hold(closed == Err(ArmError::Closed), "something was armed at a service that had ended");
        let mut left_here = 0;
        for (tag, account) in self.world.accounts() {
            match account.fate() {
                Err(what) => self.world.fail(what, tag),
                Ok(fate) => {
                    tally.add(account, fate);
                    left_here += usize::from(fate == Fate::Left);
                }
            }
            let found = account.handle().map(|handle| self.timers.cancel(handle));
            if found.is_some_and(|found| found != Cancel::Gone) && !self.kind.ends_at_work {
                self.world.fail("its name leads to something after the end", tag);
            }
        }
        let is_even = self.kind.ends_at_work || left_here == left.at_posts + left.at_locals;
        self.hold(is_even, "more timers are left than were left armed");
    }
}
