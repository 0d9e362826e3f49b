//! What the threads of a round share: the histories, and slots through which they find each other's timers.
//!
//! Guarantees: every result of the service is recorded in the timer's history. The first contradiction is
//! kept and ends the round.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::Duration;

use engine::timer::{ArmError, Cancel, LocalTimers, Next, Slack, TimerHandle, Timers, wheel};
use sys::clock::{Nanos, monotonic};

use crate::counters::Lateness;
use crate::history::History;
use crate::random::Random;

/// Timers of one round, including those that could not be armed.
const HISTORIES: usize = 1 << 18;
/// Of these, so many are reserved for timers that are armed when the others are used up.
const HISTORIES_ALONE: usize = 1 << 13;
const SLOTS: u64 = 2_048;
const FAR: Duration = Duration::from_secs(3600);
/// Long enough for the timer thread to fall asleep meanwhile.
const ALONE: Duration = Duration::from_millis(2);

/// What most timers of a round are like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Workload {
    /// Deadlines of all kinds, mostly near ones.
    Mixed,
    /// Timers that are cancelled long before they are due, and one at a time that is due in a moment. The
    /// timer thread sleeps, other threads collect, and a lost wake would last for an hour.
    Far,
}

/// Access to the service, with or without a loop.
pub(crate) trait TimerApi {
    const IS_LOCAL: bool;
    fn arm(&mut self, deadline: Nanos, slack: Slack, tag: u64) -> Result<TimerHandle, ArmError>;
    fn cancel(&mut self, handle: TimerHandle) -> Cancel;
    fn cancel_sync(&mut self, handle: TimerHandle) -> Cancel;
}

/// As any thread has it.
pub(crate) struct AnyThread<'t>(pub(crate) &'t Timers);

impl TimerApi for AnyThread<'_> {
    const IS_LOCAL: bool = false;

    fn arm(&mut self, deadline: Nanos, slack: Slack, tag: u64) -> Result<TimerHandle, ArmError> {
        self.0.arm(deadline, slack, tag)
    }

    fn cancel(&mut self, handle: TimerHandle) -> Cancel {
        self.0.cancel(handle)
    }

    fn cancel_sync(&mut self, handle: TimerHandle) -> Cancel {
        self.0.cancel_sync(handle)
    }
}

/// As a thread with a loop has it; it may use the other way too.
pub(crate) struct LoopThread<'l>(pub(crate) &'l mut LocalTimers, pub(crate) &'l Timers);

impl TimerApi for LoopThread<'_> {
    const IS_LOCAL: bool = true;

    fn arm(&mut self, deadline: Nanos, slack: Slack, tag: u64) -> Result<TimerHandle, ArmError> {
        self.0.arm(deadline, slack, tag)
    }

    fn cancel(&mut self, handle: TimerHandle) -> Cancel {
        self.0.cancel(handle)
    }

    fn cancel_sync(&mut self, handle: TimerHandle) -> Cancel {
        self.1.cancel_sync(handle)
    }
}

/// The shared state of a round.
pub(crate) struct World {
    pub(crate) seed: u64,
    workload: Workload,
    histories: Box<[History]>,
    opened: AtomicUsize,
    /// Tags of timers that any thread may cancel.
    slots: Box<[Mutex<Option<u64>>]>,
    is_over: AtomicBool,
    failure: OnceLock<String>,
    pub(crate) service_lateness: &'static Lateness,
    pub(crate) local_lateness: &'static Lateness,
}

impl World {
    pub(crate) fn new(seed: u64, workload: Workload, lateness: [&'static Lateness; 2]) -> World {
        let [service_lateness, local_lateness] = lateness;
        World {
            seed,
            workload,
            histories: (0..HISTORIES).map(|_| History::new()).collect(),
            opened: AtomicUsize::new(0),
            slots: (0..SLOTS).map(|_| Mutex::new(None)).collect(),
            is_over: AtomicBool::new(false),
            failure: OnceLock::new(),
            service_lateness,
            local_lateness,
        }
    }

    /// No thread is to begin anything new.
    pub(crate) fn end(&self) {
        self.is_over.store(true, SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(SeqCst) || self.failure.get().is_some()
    }

    /// The histories in use, by their tags.
    pub(crate) fn histories(&self) -> impl Iterator<Item = (u64, &History)> {
        (0..).zip(&self.histories[..self.opened.load(SeqCst).min(HISTORIES)])
    }

    /// Records a contradiction; the first one is kept.
    pub(crate) fn fail(&self, what: &str, tag: u64) {
        let history = self.histories.get(tag as usize);
        let text = format!("{what}: seed {}, tag {tag}, {history:?} at {:?}", self.seed, monotonic());
        drop(self.failure.set(text));
        self.end();
    }

    /// Panics with the first contradiction, if there was one.
    pub(crate) fn check(&self) {
        assert!(self.failure.get().is_none(), "{}", self.failure.get().expect("checked above"));
    }

    fn expect(&self, outcome: Result<(), &'static str>, tag: u64) {
        if let Err(what) = outcome {
            self.fail(what, tag);
        }
    }

    /// One action of a thread; in half of the cases it arms a timer.
    pub(crate) fn act(&self, api: &mut impl TimerApi, random: &mut Random) -> Result<(), ArmError> {
        match random.below(8) {
            0 => {
                let tag = self.slot(random).take();
                self.cancel_any(api, tag);
            }
            1 => {
                let tag = self.slot(random).take();
                self.cancel_any_sync(api, tag);
            }
            // Leaves the tag there, so that others cancel a timer that has ended.
            2 => {
                let tag = *self.slot(random);
                self.cancel_any(api, tag);
            }
            _ => return self.arm(api, random),
        }
        Ok(())
    }

    /// The guard has to be dropped before any wait for a callback, which may lock the slot.
    fn slot(&self, random: &mut Random) -> MutexGuard<'_, Option<u64>> {
        self.slots[random.below(SLOTS) as usize].lock().expect("no thread panics here")
    }

    fn arm(&self, api: &mut impl TimerApi, random: &mut Random) -> Result<(), ArmError> {
        let deadline = self.deadline(monotonic(), random);
        let slack = [Slack::Tick, Slack::Fine, Slack::Coarse, Slack::Second][random.below(4) as usize];
        let slack = if self.workload == Workload::Far { Slack::Tick } else { slack };
        if self.opened.load(SeqCst) >= HISTORIES - HISTORIES_ALONE {
            self.end();
            return Ok(());
        }
        let tag = self.open(api, deadline, slack)?;
        let evicted = self.slot(random).replace(tag);
        // Timers that no slot holds fire. Far ones are cancelled instead, since there would be too many.
        let is_far = evicted.is_some_and(|tag| is_far(&self.histories[tag as usize]));
        if is_far || !random.one_in(4) {
            self.cancel_any(api, evicted);
        }
        Ok(())
    }

    /// Begins a history and arms its timer.
    fn open<E: TimerApi>(&self, api: &mut E, deadline: Nanos, slack: Slack) -> Result<u64, ArmError> {
        let tag = self.opened.fetch_add(1, SeqCst) as u64;
        let history =
            self.histories.get(tag as usize).expect("there are fewer threads than reserved histories");
        history.expect_by(deadline, wheel::due(slack.apply(deadline.max(monotonic()))));
        history.set_handle(api.arm(deadline, slack, tag)?, E::IS_LOCAL);
        Ok(tag)
    }

    /// Arms a timer that no thread cancels, and waits until it has fired or the round is over.
    pub(crate) fn fire_alone(&self, timers: &Timers) {
        let arm = || self.open(&mut AnyThread(timers), monotonic() + ALONE, Slack::Tick);
        let tag = loop {
            match arm() {
                Ok(tag) => break tag,
                Err(ArmError::Full) => thread::sleep(ALONE),
                Err(error) => panic!("the service is open here: {error}"),
            }
        };
        while self.histories[tag as usize].begun() == 0 && !self.is_over() {
            thread::sleep(ALONE / 10);
        }
    }

    fn deadline(&self, now: Nanos, random: &mut Random) -> Nanos {
        let within =
            |millis: u64, random: &mut Random| now + Duration::from_nanos(random.below(millis * 1_000_000));
        if self.workload == Workload::Far {
            return now + FAR;
        }
        match random.below(16) {
            0 => Nanos(now.0.saturating_sub(random.below(50_000_000))),
            1 => Nanos(random.below(2)),
            2 if random.one_in(2) => Nanos::NEVER,
            2 => now + FAR,
            3..=8 => within(2, random),
            _ => within(50, random),
        }
    }

    fn cancel_any(&self, api: &mut impl TimerApi, tag: Option<u64>) {
        if let Some((tag, history, handle)) = self.named(tag) {
            self.expect(history.record_cancel(api.cancel(handle), false), tag);
        }
    }

    fn cancel_any_sync(&self, api: &mut impl TimerApi, tag: Option<u64>) {
        if let Some((tag, history, handle)) = self.named(tag) {
            self.expect(history.record_cancel(api.cancel_sync(handle), true), tag);
        }
    }

    /// Cancels a timer at the end of the round.
    pub(crate) fn cancel(&self, timers: &Timers, tag: u64) {
        self.cancel_any(&mut AnyThread(timers), Some(tag));
    }

    fn named(&self, tag: Option<u64>) -> Option<(u64, &History, TimerHandle)> {
        let history = &self.histories[tag? as usize];
        Some((tag?, history, history.handle()?))
    }

    /// The callback of every timer.
    pub(crate) fn fire<E: TimerApi>(&self, api: &mut E, tag: u64) -> Next {
        let Some(history) = self.histories.get(tag as usize) else {
            self.fail("a timer fired that is due in 584 years", tag);
            return Next::Done;
        };
        let begun = match history.begin(monotonic()) {
            Ok(begun) => begun,
            Err(what) => {
                self.fail(what, tag);
                return Next::Done;
            }
        };
        let lateness = if E::IS_LOCAL { self.local_lateness } else { self.service_lateness };
        lateness.add(begun.late_nanos);
        let mut random = Random::new(self.seed, tag << 16 | u64::from(begun.number));
        self.act_in_callback(api, history, tag, &mut random);
        let next = if random.one_in(4) && !self.is_over() {
            Next::Again(self.deadline(monotonic(), &mut random))
        } else {
            Next::Done
        };
        // Slack was applied when it was armed, not when it is rearmed.
        let expected_by = match next {
            Next::Again(deadline) => wheel::due(deadline.max(monotonic())),
            Next::Done => Nanos::NEVER,
        };
        history.end(next, expected_by);
        next
    }

    fn act_in_callback(&self, api: &mut impl TimerApi, history: &History, tag: u64, random: &mut Random) {
        match random.below(8) {
            0 | 1 if !self.is_over() => {
                let _full_or_closed = self.arm(api, random);
            }
            2 | 3 => {
                let sibling = self.slot(random).take();
                self.cancel_any(api, sibling.filter(|&sibling| sibling != tag));
            }
            4 => self.cancel_itself(history, tag, |handle| api.cancel(handle)),
            5 => self.cancel_itself(history, tag, |handle| api.cancel_sync(handle)),
            _ => {}
        }
    }

    /// Inside its own callback, where a cancel does not wait for its end.
    fn cancel_itself(&self, history: &History, tag: u64, cancel: impl FnOnce(TimerHandle) -> Cancel) {
        let Some(handle) = history.handle() else { return };
        match cancel(handle) {
            Cancel::Running => self.expect(history.record_cancel(Cancel::Running, false), tag),
            found => self.fail(&format!("it is {found:?} inside its own callback"), tag),
        }
    }
}

/// Whether a timer is due long after its round.
pub(crate) fn is_far(history: &History) -> bool {
    history.expected_by() > monotonic() + FAR / 2
}
