//! The timer service with real threads and a real clock, and one shard in virtual time compared with an
//! ordered map. No test bounds a delay from above: a loaded machine is late but not wrong.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use sys::clock::{Nanos, monotonic};

use super::handle::{ArmError, Cancel, Next, Settings, TimerHandle, TimerKey};
use super::service::{Service, Timers};
use super::shard::{FollowUp, Shard, uncollected_max};
use super::wheel::tests::Random;
use super::wheel_driver::{Finished, WheelDriver};
use super::{LazyDeadline, Slack};

const MS: u64 = 1_000_000;
const FAR: Duration = Duration::from_secs(3600);

fn after_ms(ms: u64) -> Nanos {
    monotonic() + Duration::from_millis(ms)
}

fn far() -> Nanos {
    monotonic() + FAR
}

/// A service that sends the tag of each timer that fires.
fn reporting_service(settings: &Settings) -> (Service, Receiver<u64>) {
    let (sender, fired) = mpsc::channel();
    let sender = Mutex::new(sender);
    let service = Service::start(settings, move |_, tag| {
        sender.lock().unwrap().send(tag).unwrap();
        Next::Done
    });
    (service.unwrap(), fired)
}

fn small() -> Settings {
    Settings { threads: 1, timers_max: 64, locals: 2, local_timers_max: 64, ..Settings::default() }
}

#[test]
fn timer_fires_once_and_never_early() {
    let (service, fired) = reporting_service(&small());
    for span in [0, 1, 2, 7, 30] {
        for slack in [Slack::Tick, Slack::Fine] {
            let deadline = after_ms(span);
            let handle = service.timers().arm(deadline, slack, deadline.0).unwrap();
            assert_eq!(fired.recv().unwrap(), deadline.0);
            assert!(monotonic() >= deadline);
            // The callback may not have returned yet.
            assert_ne!(service.timers().cancel_sync(handle), Cancel::Cancelled);
            assert_eq!(service.timers().cancel(handle), Cancel::Gone);
        }
    }
    assert_eq!(service.timers().stats().fired, 10);
    assert_eq!(service.shutdown(), 0);
    assert!(fired.recv().is_err(), "nothing else fired");
}

#[test]
fn later_and_earlier_timers_fire_in_order() {
    let (service, fired) = reporting_service(&small());
    let timers = service.timers();
    let last = timers.arm(far(), Slack::Tick, 1).unwrap();
    timers.arm(after_ms(20), Slack::Tick, 2).unwrap();
    timers.arm(after_ms(5), Slack::Tick, 3).unwrap();
    assert_eq!([fired.recv().unwrap(), fired.recv().unwrap()], [3, 2]);
    assert_eq!(timers.cancel(last), Cancel::Cancelled);
    assert_eq!(timers.cancel(last), Cancel::Gone);
}

#[test]
fn cancelled_timer_never_fires_and_handle_is_stale() {
    let (service, fired) = reporting_service(&small());
    let timers = service.timers();
    let handles: Vec<_> = (0..50).map(|tag| timers.arm(after_ms(10), Slack::Tick, tag).unwrap()).collect();
    let cancelled: Vec<_> = handles.iter().map(|&handle| timers.cancel(handle)).collect();
    // Enough to reuse every cell.
    for _ in 0..2_000 {
        let other = timers.arm(far(), Slack::Tick, 99).unwrap();
        assert!(handles.iter().all(|&handle| timers.cancel(handle) != Cancel::Cancelled));
        assert_eq!(timers.cancel(other), Cancel::Cancelled);
    }
    timers.arm(after_ms(15), Slack::Tick, 1_000).unwrap();
    let fired: Vec<_> = fired.iter().take_while(|&tag| tag != 1_000).collect();
    for (tag, found) in cancelled.into_iter().enumerate() {
        assert_eq!(found == Cancel::Cancelled, !fired.contains(&(tag as u64)), "{tag}: {found:?}");
    }
}

#[test]
fn arming_beyond_capacity_fails_without_loss() {
    let (service, fired) = reporting_service(&small());
    let timers = service.timers();
    let mut handles = Vec::new();
    let error = loop {
        match timers.arm(far(), Slack::Tick, 0) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
    };
    assert_eq!(error, ArmError::Full);
    assert!(handles.len() >= 64, "{}", handles.len());
    // Cancelled timers free their cells at once.
    for round in 0..100 {
        for handle in handles.iter_mut() {
            assert_eq!(timers.cancel(*handle), Cancel::Cancelled);
            *handle = timers.arm(far(), Slack::Tick, round).unwrap();
        }
    }
    assert_eq!(timers.arm(far(), Slack::Tick, 0), Err(ArmError::Full));
    let timers = timers.clone();
    assert_eq!(service.shutdown(), handles.len() as u64);
    assert!(fired.try_recv().is_err(), "nothing fired");
    assert_eq!(timers.arm(far(), Slack::Tick, 0), Err(ArmError::Closed));
    assert!(handles.iter().all(|&handle| timers.cancel(handle) == Cancel::Gone));
}

#[test]
fn handle_of_another_service_is_gone() {
    let (small, _fired) = reporting_service(&small());
    let settings = Settings { threads: 2, locals: 3, ..Settings::default() };
    let (large, _fired) = reporting_service(&settings);
    let mut local = (0..3).map(|_| large.timers().attach(|| ()).unwrap()).next_back().unwrap();
    for _ in 0..200 {
        local.arm(far(), Slack::Tick, 0).unwrap();
    }
    let handle = local.arm(far(), Slack::Tick, 0).unwrap();
    assert_eq!(small.timers().cancel(handle), Cancel::Gone);
    assert_eq!(small.timers().cancel_sync(handle), Cancel::Gone);
    assert_eq!(large.timers().cancel(handle), Cancel::Cancelled);
    // Nor does a handle whose shard and cell exist here as well, with a timer of the same generation.
    let settings = Settings::default();
    let ((first, _fired), (second, _other_fired)) =
        (reporting_service(&settings), reporting_service(&settings));
    let [handle, other] = [&first, &second].map(|it| it.timers().arm(far(), Slack::Tick, 0).unwrap());
    assert_eq!(second.timers().cancel(handle), Cancel::Gone);
    assert_eq!(second.timers().cancel(other), Cancel::Cancelled);
}

#[test]
fn rearmed_timer_keeps_its_slack() {
    let shard = Arc::new(Shard::shared(4));
    let mut driver = WheelDriver::shared(Arc::clone(&shard), Nanos(0));
    let (_, follow_up) = shard.arm(Nanos(5 * MS), Slack::Second, 1).unwrap();
    assert_eq!(follow_up, FollowUp::Nothing);
    for second in 1..4 {
        driver.collect();
        let due = driver.park().unwrap();
        assert_eq!(due.0 >> 30, second, "together with all others of its class");
        let timer = driver.pop_due(due).unwrap();
        assert_eq!(driver.finish(timer, Next::Again(Nanos(due.0 + 5 * MS))), Finished::Rearmed);
    }
}

#[test]
fn lazy_deadline_fires_after_the_last_extension() {
    let deadline = Arc::new(LazyDeadline::new(after_ms(10)));
    let (sender, fired) = mpsc::channel();
    let (watched, sender) = (Arc::clone(&deadline), Mutex::new(sender));
    let service = Service::start(&small(), move |_, tag| {
        let next = watched.check(monotonic());
        sender.lock().unwrap().send((tag, next)).unwrap();
        next
    });
    let service = service.unwrap();
    let handle = service.timers().arm(deadline.until(), Slack::Tick, 7).unwrap();
    let until = after_ms(40);
    deadline.extend(until);
    assert_eq!(fired.recv().unwrap(), (7, Next::Again(until)));
    assert_eq!(fired.recv().unwrap(), (7, Next::Done));
    assert!(monotonic() >= until);
    let stats = service.timers().stats();
    assert_eq!((stats.fired, stats.rearmed), (2, 1));
    assert_ne!(service.timers().cancel(handle), Cancel::Cancelled);
}

/// A service whose callback reports its start, and ends on release.
struct BlockedCallback {
    service: Service,
    begun: Receiver<()>,
    release: mpsc::Sender<()>,
    ended: Arc<AtomicBool>,
}

fn blocked_callback(next: Next) -> BlockedCallback {
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let (ends, both) = (Arc::clone(&ended), Mutex::new((begin, released)));
    let service = Service::start(&small(), move |_, _| {
        let both = both.lock().unwrap();
        both.0.send(()).unwrap();
        both.1.recv().unwrap();
        ends.store(true, Ordering::SeqCst);
        next
    });
    BlockedCallback { service: service.unwrap(), begun, release, ended }
}

#[test]
fn cancel_during_callback_prevents_rearming() {
    let blocked = blocked_callback(Next::Again(Nanos(0)));
    let timers = blocked.service.timers();
    let handle = timers.arm(Nanos(0), Slack::Tick, 0).unwrap();
    blocked.begun.recv().unwrap();
    assert_eq!(timers.cancel(handle), Cancel::Running);
    assert_eq!(timers.cancel(handle), Cancel::Running);
    blocked.release.send(()).unwrap();
    assert_eq!(blocked.service.shutdown(), 0, "it was not rearmed");
    assert!(blocked.begun.recv().is_err(), "it ran once");
}

#[test]
fn cancel_sync_returns_after_the_callback() {
    let blocked = blocked_callback(Next::Done);
    let timers = blocked.service.timers();
    let handle = timers.arm(Nanos(0), Slack::Tick, 0).unwrap();
    blocked.begun.recv().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                assert_eq!(timers.cancel_sync(handle), Cancel::Running);
                assert!(blocked.ended.load(Ordering::SeqCst));
            });
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(!blocked.ended.load(Ordering::SeqCst));
        blocked.release.send(()).unwrap();
    });
    assert_eq!(timers.cancel_sync(handle), Cancel::Gone);
}

#[test]
fn callback_may_cancel_and_arm() {
    let (sender, fired) = mpsc::channel();
    let handles: Arc<Mutex<Vec<TimerHandle>>> = Arc::default();
    let (in_callback, sender) = (Arc::clone(&handles), Mutex::new(sender));
    let service = Service::start(&small(), move |timers, tag| {
        let found: Vec<_> =
            in_callback.lock().unwrap().iter().map(|&handle| timers.cancel_sync(handle)).collect();
        sender.lock().unwrap().send((tag, found)).unwrap();
        if tag < 10 {
            timers.arm(Nanos(0), Slack::Tick, 77).unwrap();
        }
        Next::Done
    });
    let service = service.unwrap();
    {
        // Locked, so that the first callback finds all of them.
        let mut handles = handles.lock().unwrap();
        let deadline = after_ms(5);
        handles.extend((0..3).map(|tag| service.timers().arm(deadline, Slack::Tick, tag).unwrap()));
    }
    let (first, found) = fired.recv().unwrap();
    for (tag, found) in found.into_iter().enumerate() {
        let expected = if tag as u64 == first { Cancel::Running } else { Cancel::Cancelled };
        assert_eq!(found, expected, "{tag}");
    }
    let (second, found) = fired.recv().unwrap();
    assert_eq!((second, found), (77, vec![Cancel::Gone; 3]), "the others of the batch did not run");
}

#[test]
fn callback_panic_ends_one_timer() {
    let (sender, fired) = mpsc::channel();
    let sender = Mutex::new(sender);
    let service = Service::start(&small(), move |_, tag| {
        assert_ne!(tag, 0, "this panic is part of the test");
        sender.lock().unwrap().send(tag).unwrap();
        Next::Done
    });
    let service = service.unwrap();
    service.timers().arm(Nanos(0), Slack::Tick, 0).unwrap();
    service.timers().arm(after_ms(5), Slack::Tick, 1).unwrap();
    assert_eq!(fired.recv().unwrap(), 1);
    assert_eq!(service.timers().stats().panics, 1);
}

#[test]
fn immediate_rearm_waits_for_the_next_tick() {
    let (sender, fired) = mpsc::channel();
    let sender = Mutex::new(sender);
    let service = Service::start(&small(), move |_, tag| {
        sender.lock().unwrap().send((tag, monotonic())).unwrap();
        if tag == 0 { Next::Again(Nanos(0)) } else { Next::Done }
    });
    let service = service.unwrap();
    service.timers().arm(Nanos(0), Slack::Tick, 0).unwrap();
    let (_, first) = fired.recv().unwrap();
    service.timers().arm(after_ms(5), Slack::Tick, 1).unwrap();
    let times: Vec<_> = fired.iter().take_while(|it| it.0 == 0).map(|it| it.1).collect();
    let ticks = monotonic().since(first).as_nanos() / (1 << 20);
    assert!(times.len() as u128 <= ticks + 2, "{} in {ticks} ticks", times.len());
    assert_eq!(service.shutdown(), 1);
    // The same in a thread's own loop.
    let (service, _fired) = reporting_service(&small());
    let mut local = service.timers().attach(|| ()).unwrap();
    local.arm(Nanos(0), Slack::Tick, 0).unwrap();
    let now = after_ms(100);
    let again = |local: &mut super::LocalTimers, _| {
        local.arm(Nanos(0), Slack::Tick, 1).unwrap();
        Next::Again(Nanos(0))
    };
    assert_eq!(local.fire_due(now, again), 1);
    assert_eq!(local.armed(), 2);
}

#[test]
fn local_callback_panic_ends_one_timer() {
    let (service, _fired) = reporting_service(&small());
    let mut local = service.timers().attach(|| ()).unwrap();
    let handle = local.arm(Nanos(0), Slack::Tick, 0).unwrap();
    let now = after_ms(100);
    let result = catch_unwind(AssertUnwindSafe(|| {
        local.fire_due(now, |_, _| panic!("this panic is part of the test"))
    }));
    assert!(result.is_err());
    assert_eq!(service.timers().cancel_sync(handle), Cancel::Gone);
    assert_eq!((local.fire_due(now, |_, _| Next::Done), local.armed()), (0, 0));
}

#[test]
fn callbacks_arm_in_cells_of_ended_timers() {
    let (sender, fired) = mpsc::channel();
    let sender = Mutex::new(sender);
    let service = Service::start(&small(), move |timers, tag| {
        let armed = timers.arm(far(), Slack::Tick, tag);
        sender.lock().unwrap().send(armed.is_ok()).unwrap();
        Next::Done
    });
    let service = service.unwrap();
    let deadline = after_ms(10);
    let armed = std::iter::from_fn(|| service.timers().arm(deadline, Slack::Tick, 0).ok()).count();
    assert!(armed >= 64);
    // All were due together, and all cells in use except that of each timer that has ended.
    let armed_again = fired.iter().take(armed).filter(|is_armed| *is_armed).count();
    assert!(armed_again >= armed - 1, "{armed_again} of {armed}");
}

#[test]
fn callback_may_drop_its_service() {
    let (sender, fired) = mpsc::channel();
    let slot: Arc<Mutex<Option<Service>>> = Arc::default();
    let (in_callback, sender) = (Arc::clone(&slot), Mutex::new(sender));
    let service = Service::start(&small(), move |_, _| {
        drop(in_callback.lock().unwrap().take());
        sender.lock().unwrap().send(()).unwrap();
        Next::Done
    });
    let service = slot.lock().unwrap().insert(service.unwrap()).timers().clone();
    service.arm(Nanos(0), Slack::Tick, 0).unwrap();
    fired.recv().unwrap();
    assert!(slot.lock().unwrap().is_none());
    while service.arm(far(), Slack::Tick, 0) != Err(ArmError::Closed) {
        std::thread::yield_now();
    }
}

#[test]
fn service_sleeps_with_far_or_cancelled_timers() {
    let settings = Settings { timers_max: 4_096, ..small() };
    let (service, fired) = reporting_service(&settings);
    let timers = service.timers();
    // Far more than there are cells, each due an hour from now.
    for _ in 0..20_000 {
        let handle = timers.arm(far(), Slack::Tick, 0).unwrap();
        assert_eq!(timers.cancel(handle), Cancel::Cancelled);
    }
    for tag in 0..1_000 {
        timers.arm(far(), Slack::Tick, tag).unwrap();
    }
    let stats = timers.stats();
    assert_eq!((stats.wakes, stats.fired), (0, 0), "{stats:?}");
    assert!(stats.collected > 0, "the cancelling threads did the work");
    drop(service);
    assert!(fired.recv().is_err());
}

#[test]
fn local_timers_fire_and_remote_cancels_work() {
    let (service, _fired) = reporting_service(&small());
    let mut local = service.timers().attach(|| ()).unwrap();
    let now = monotonic();
    let at = |ms: u64| now + Duration::from_millis(ms);
    // Two milliseconds apart: timers of one tick have no order, and a tick is a little longer than one
    // millisecond.
    let handles: Vec<_> = (0..10).map(|tag| local.arm(at(2 * tag), Slack::Tick, tag).unwrap()).collect();
    assert_eq!(local.cancel(handles[9]), Cancel::Cancelled);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(service.timers().cancel(handles[8]), Cancel::Cancelled));
    });
    assert_eq!(local.cancel(handles[8]), Cancel::Gone);
    let mut fired = Vec::new();
    // None is due before its time; each may cancel the next.
    assert_eq!(local.fire_due(now, |_, _| Next::Done), 0);
    local.fire_due(at(40), |local, tag| {
        fired.push(tag);
        assert_eq!(local.cancel(handles[tag as usize]), Cancel::Running);
        if tag == 3 {
            assert_eq!(local.cancel(handles[4]), Cancel::Cancelled);
        }
        // Cancelled while it runs: not rearmed.
        Next::Again(at(50))
    });
    fired.sort_unstable();
    assert_eq!(fired, [0, 1, 2, 3, 5, 6, 7]);
    assert_eq!((local.armed(), local.park()), (0, Some(Nanos::NEVER)));
    // A timer of the service's threads, cancelled through the local timers.
    let other = service.timers().arm(far(), Slack::Tick, 0).unwrap();
    assert_eq!(local.cancel(other), Cancel::Cancelled);
    assert!(service.timers().attach(|| ()).is_some());
    assert!(service.timers().attach(|| ()).is_none(), "the settings allow two");
}

#[test]
fn sleeping_local_timers_are_woken_once_to_collect() {
    let (service, _fired) = reporting_service(&Settings { local_timers_max: 2_000, ..small() });
    let wakes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&wakes);
    let mut local = service
        .timers()
        .attach(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    let handles: Vec<_> = (0..2_000).map(|tag| local.arm(far(), Slack::Tick, tag).unwrap()).collect();
    assert_eq!(local.fire_due(monotonic(), |_, _| Next::Done), 0);
    assert!(local.park().is_some());
    let cancel = |handles: &[TimerHandle]| {
        let found = handles.iter().map(|&handle| service.timers().cancel(handle));
        assert!(found.into_iter().all(|it| it == Cancel::Cancelled));
    };
    cancel(&handles[..uncollected_max(2_000) - 1]);
    assert_eq!(wakes.load(Ordering::SeqCst), 0);
    cancel(&handles[uncollected_max(2_000) - 1..]);
    assert_eq!(wakes.load(Ordering::SeqCst), 1);
    local.fire_due(monotonic(), |_, _| Next::Done);
    assert_eq!((local.armed(), local.park()), (0, Some(Nanos::NEVER)));
}

#[test]
fn local_timers_collect_on_request_and_on_park() {
    let (service, _fired) = reporting_service(&Settings { local_timers_max: 2_000, ..small() });
    let mut local = service.timers().attach(|| unreachable!("it does not sleep")).unwrap();
    let threshold = uncollected_max(0);
    for at_threshold in [false, true] {
        let handles = (0..threshold).map(|tag| local.arm(far(), Slack::Tick, tag as u64).unwrap());
        let handles: Vec<_> = handles.collect();
        let cancelled = if at_threshold { threshold } else { threshold - 1 };
        handles[..cancelled].iter().for_each(|&handle| {
            assert_eq!(service.timers().cancel(handle), Cancel::Cancelled);
        });
        local.fire_due(monotonic(), |_, _| Next::Done);
        assert_eq!(local.armed(), if at_threshold { 0 } else { threshold });
        handles[cancelled..].iter().for_each(|&handle| assert_eq!(local.cancel(handle), Cancel::Cancelled));
        assert_eq!(local.park(), Some(Nanos::NEVER));
        assert_eq!(local.armed(), 0);
        local.fire_due(monotonic(), |_, _| Next::Done);
    }
}

#[test]
fn reclaim_threshold_follows_armed_timers() {
    let (service, _fired) = reporting_service(&Settings { local_timers_max: 8_000, ..small() });
    let mut local = service.timers().attach(|| ()).unwrap();
    let handles: Vec<_> = (0..8_000).map(|tag| local.arm(far(), Slack::Tick, tag).unwrap()).collect();
    let threshold = uncollected_max(0);
    let fire_due = |local: &mut super::LocalTimers| local.fire_due(monotonic(), |_, _| Next::Done);
    assert!(local.park().is_some(), "the wheel has all timers");
    fire_due(&mut local);
    let (others, own) = handles.split_at(threshold);
    own.iter().for_each(|&handle| assert_eq!(local.cancel(handle), Cancel::Cancelled));
    fire_due(&mut local);
    others.iter().for_each(|&handle| assert_eq!(service.timers().cancel(handle), Cancel::Cancelled));
    fire_due(&mut local);
    assert_eq!(local.armed(), 0);
}

#[test]
fn callback_that_swaps_local_timers_panics() {
    let (service, _fired) = reporting_service(&small());
    let [mut one, mut other] = [(); 2].map(|()| service.timers().attach(|| ()).unwrap());
    let kept = other.arm(far(), Slack::Tick, 1).unwrap();
    one.arm(monotonic(), Slack::Tick, 0).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        one.fire_due(far(), |borrowed, _| {
            std::mem::swap(borrowed, &mut other);
            Next::Done
        })
    }));
    assert!(result.is_err());
    assert_eq!(service.timers().cancel(kept), Cancel::Cancelled, "the other thread's timer is still armed");
}

#[test]
fn dropped_local_timers_leave_stale_handles() {
    let (service, _fired) = reporting_service(&small());
    let mut local = service.timers().attach(|| ()).unwrap();
    let handle = local.arm(far(), Slack::Tick, 0).unwrap();
    drop(local);
    assert_eq!(service.timers().cancel(handle), Cancel::Gone);
}

/// A shard and its driver in virtual time, beside a map of what is armed.
struct Model {
    shard: Arc<Shard>,
    driver: WheelDriver,
    now: u64,
    /// By number: the deadline and the key.
    armed: BTreeMap<u64, (u64, TimerKey)>,
    ended: Vec<TimerKey>,
    cancelled_since_collection: usize,
}

impl Model {
    fn new(cells: usize, now: u64) -> Model {
        let shard = Arc::new(Shard::shared(cells));
        let driver = WheelDriver::shared(Arc::clone(&shard), Nanos(now));
        let (armed, ended) = (BTreeMap::new(), Vec::new());
        Model { shard, driver, now, armed, ended, cancelled_since_collection: 0 }
    }

    fn arm(&mut self, number: u64, when: u64) {
        match self.shard.arm(Nanos(when), Slack::Tick, number) {
            Ok((key, _)) => drop(self.armed.insert(number, (when, key))),
            Err(error) => {
                assert_eq!(error, ArmError::Full);
                self.collect();
            }
        }
    }

    fn cancel(&mut self, skip: usize) {
        let Some((&number, &(_, key))) = self.armed.iter().nth(skip) else { return };
        let (found, follow_up) = self.shard.cancel(key);
        assert_eq!(found, Cancel::Cancelled);
        self.armed.remove(&number);
        self.ended.push(key);
        self.cancelled_since_collection += 1;
        if follow_up == FollowUp::Collect {
            self.collect();
        }
        // Timers that are armed but not collected do not count for the bound.
        let bound = uncollected_max(self.shard.len());
        assert!(self.cancelled_since_collection <= bound, "{}", self.cancelled_since_collection);
    }

    fn collect(&mut self) {
        self.driver.collect();
        self.cancelled_since_collection = 0;
        assert_eq!(self.driver.armed(), self.armed.len(), "no cancelled timer keeps its memory");
    }

    fn pass(&mut self, span: u64, random: &mut Random) {
        self.now += span;
        self.collect();
        let before: BTreeMap<_, _> = self.armed.clone();
        while let Some(due) = self.driver.pop_due(Nanos(self.now)) {
            let (when, key) = self.armed.remove(&due.tag).expect("it is armed, once");
            assert!(when <= self.now, "never early");
            let next = if random.below(8) == 0 {
                let when = self.now + random.below(1 << 34);
                self.armed.insert(due.tag, (when, key));
                Next::Again(Nanos(when))
            } else {
                self.ended.push(key);
                Next::Done
            };
            let finished = self.driver.finish(due, next);
            assert_eq!(finished == Finished::Rearmed, next != Next::Done);
        }
        // Late by less than a tick: no timer is left that was due a tick ago.
        for (number, (when, _)) in &self.armed {
            let is_left = before.get(number).is_some_and(|before| before.0 == *when);
            assert!(!is_left || when + (1 << 20) > self.now, "at most a tick late");
        }
    }

    fn check(&mut self, random: &mut Random) {
        let earliest = self.armed.values().map(|armed| armed.0).min();
        self.driver.collect();
        self.cancelled_since_collection = 0;
        let until = self.driver.park().expect("everything has been collected");
        assert!(until == Nanos::NEVER || earliest.is_some(), "no wake for ended timers");
        assert!(earliest.is_none_or(|earliest| until.0 <= (earliest >> 20).saturating_add(1) << 20));
        if let Some(&key) = self.ended.get(random.below(self.ended.len().max(1) as u64) as usize) {
            assert_eq!(self.shard.cancel(key), (Cancel::Gone, FollowUp::Nothing));
        }
    }
}

#[test]
fn shard_agrees_with_an_ordered_map() {
    // Set `TOLLGATE_TIMER_OPERATIONS` to millions for a change of this module.
    let wanted = std::env::var("TOLLGATE_TIMER_OPERATIONS").ok().and_then(|text| text.parse().ok());
    let operations: u64 = wanted.unwrap_or(200_000);
    for seed in 1..=4 {
        let mut random = Random(seed);
        let mut model = Model::new(3_000, random.below(1 << 40));
        for number in 0..operations / 4 {
            match random.below(16) {
                0..=7 => {
                    let span = 1 << (10 + random.below(30));
                    model.arm(number, model.now + random.below(span));
                }
                8..=13 => model.cancel(random.below(60) as usize),
                14 => {
                    let span = 1 << (12 + random.below(20));
                    model.pass(random.below(span), &mut random);
                }
                _ => model.check(&mut random),
            }
        }
    }
}

#[test]
fn shard_reports_full_and_recovers() {
    let mut model = Model::new(10, 5 * MS);
    (0..10).for_each(|number| model.arm(number, 6 * MS));
    assert_eq!(model.shard.arm(Nanos(0), Slack::Tick, 0).map(|armed| armed.1), Err(ArmError::Full));
    model.pass(10 * MS, &mut Random(1));
    model.collect();
    assert!(model.shard.arm(Nanos(0), Slack::Tick, 0).is_ok());
}

#[test]
fn recycle_frees_cancelled_arrivals() {
    let shard = Shard::shared(300);
    let arm = |tag| shard.arm(Nanos(u64::MAX / 2), Slack::Tick, tag).unwrap().0;
    let kept: Vec<_> = (0..40).map(arm).collect();
    for round in 0..1_000 {
        let key = arm(round);
        let (found, follow_up) = shard.cancel(key);
        assert_eq!(found, Cancel::Cancelled);
        if follow_up == FollowUp::Collect {
            assert_eq!(shard.recycle(), FollowUp::Nothing, "no driver sleeps");
        }
    }
    assert!(kept.iter().all(|&key| shard.cancel(key).0 == Cancel::Cancelled));
}

#[test]
fn recycle_wakes_for_withheld_arrivals() {
    let shard = Arc::new(Shard::shared(10));
    let mut driver = WheelDriver::shared(Arc::clone(&shard), Nanos(0));
    let (_, follow_up) = shard.arm(Nanos(50 * MS), Slack::Tick, 1).unwrap();
    assert_eq!(follow_up, FollowUp::Nothing, "the driver runs, and will check");
    // As if another thread held the list at that moment.
    let mut list = shard.take_arrivals();
    assert_eq!(driver.park(), Some(Nanos::NEVER));
    let index = list.pop(&shard).unwrap();
    list.push(index, &shard);
    assert!(shard.put_arrivals(list));
    assert_eq!(shard.recycle(), FollowUp::Wake);
    assert!(shard.parked_until().is_some_and(|until| until.0 <= 52 * MS));
    assert_eq!(shard.recycle(), FollowUp::Nothing, "another thread is about to wake it");
    driver.collect();
    assert_eq!(driver.armed(), 1);
}

/// A caller's `Debug` output may include `Timers`.
#[test]
fn timers_debug_shows_statistics() {
    let (service, _fired) = reporting_service(&small());
    let timers: Timers = service.timers().clone();
    assert!(format!("{timers:?}").contains("wakes"));
}
