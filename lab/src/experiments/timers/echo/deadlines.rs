//! The deadlines of a connection's calls, kept in one of three ways by either end of the echo.
//!
//! Guarantees: a deadline that passes while its call is in flight is found never early, and late by at most a
//! tick of the timers and a pass of the loop; no call allocates.
//!
//! | mode   | a call begins                      | a call ends | a timer fires                       |
//! |--------|------------------------------------|-------------|-------------------------------------|
//! | `Off`  | nothing                            | nothing     | never                               |
//! | `Lazy` | one store; an arm where the timer  | nothing     | scan all calls, arm for those that  |
//! |        | is not armed or is armed for later |             | remain                              |
//! | `Each` | an arm                             | a cancel    | a call has failed                   |
//!
//! `Lazy` has one timer for a connection, and fires_at <= the deadline of every call in flight. Where all
//! calls have the same span it fires once per span, however many calls begin and end in it.
//!
//! Calls that begin at once, with one deadline, and end all at once are a batch, and `Lazy` stores one
//! deadline for it. So are the requests of one wake at the server, which answers them in one write. A server
//! whose requests end one by one has to store one for each, as the client does.

use std::time::Duration;

use clap::ValueEnum;
use engine::reactor::{RawToken, Reactor, WakeTarget};
use engine::timer::wheel::TimerId;
use sys::clock::Nanos;

/// The deadline of a call at the client, and of its request at the server, from its begin.
const SPAN: Duration = Duration::from_millis(500);

/// How the deadlines of a connection are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(in crate::experiments::timers) enum DeadlineMode {
    /// There are no deadlines.
    Off,
    /// A timer for each connection.
    Lazy,
    /// A timer for each call.
    Each,
}

impl DeadlineMode {
    /// The name on the command line.
    pub(in crate::experiments::timers) fn as_str(self) -> &'static str {
        match self {
            DeadlineMode::Off => "off",
            DeadlineMode::Lazy => "lazy",
            DeadlineMode::Each => "each",
        }
    }

    /// The deadline of a call that begins `now`.
    pub(super) fn due(self, now: Nanos) -> Nanos {
        if self == DeadlineMode::Off { Nanos::NEVER } else { now + SPAN }
    }

    /// How many timers may be armed while no call is in flight.
    pub(super) fn idle_timers_max(self, connections: usize) -> usize {
        if self == DeadlineMode::Lazy { connections } else { 0 }
    }
}

/// Arms and cancels timers: a reactor, or the virtual time of a test.
pub(super) trait Timers {
    fn now(&self) -> Nanos;
    fn arm(&self, when: Nanos, tag: RawToken) -> TimerId;
    /// A timer that has fired is ignored.
    fn cancel(&self, timer: TimerId);
}

impl Timers for Reactor {
    fn now(&self) -> Nanos {
        Reactor::now(self)
    }

    fn arm(&self, when: Nanos, tag: RawToken) -> TimerId {
        Reactor::arm(self, when, WakeTarget::Token(tag))
    }

    fn cancel(&self, timer: TimerId) {
        Reactor::cancel(self, timer);
    }
}

/// The deadline of a call in flight. One that is dropped without [`DeadlineTracker::end`] may fire later.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deadline {
    Off,
    Lazy(Nanos),
    Each(TimerId),
}

/// Tracks the deadlines of a connection's calls, with one timer for all or one for each.
#[derive(Debug)]
pub(super) struct DeadlineTracker {
    mode: DeadlineMode,
    /// The token with which timers fire.
    tag: RawToken,
    /// The connection's own, if it is armed.
    timer: Option<TimerId>,
    /// When the timer fires; `NEVER` while it is not armed.
    fires_at: Nanos,
}

impl DeadlineTracker {
    pub(super) fn new(mode: DeadlineMode, tag: RawToken) -> Self {
        Self { mode, tag, timer: None, fires_at: Nanos::NEVER }
    }

    /// Tracks a call that begins, with its deadline `due`.
    #[inline]
    pub(super) fn begin(&mut self, timers: &impl Timers, due: Nanos) -> Deadline {
        match self.mode {
            DeadlineMode::Off => Deadline::Off,
            DeadlineMode::Lazy => {
                if due < self.fires_at {
                    self.arm(timers, due);
                }
                Deadline::Lazy(due)
            }
            DeadlineMode::Each => Deadline::Each(timers.arm(due, self.tag)),
        }
    }

    /// Ends the tracking of a call.
    #[inline]
    pub(super) fn end(timers: &impl Timers, deadline: Deadline) {
        if let Deadline::Each(timer) = deadline {
            timers.cancel(timer);
        }
    }

    /// As [`DeadlineTracker::begin`], for `count` calls that begin at once and end with all others in
    /// `group`.
    #[inline]
    pub(super) fn begin_group(&mut self, timers: &impl Timers, due: Nanos, count: u32, group: &mut Group) {
        match self.mode {
            DeadlineMode::Lazy if count > 0 => {
                if due < self.fires_at {
                    self.arm(timers, due);
                }
                group.lazy.push(Batch { due, count });
            }
            DeadlineMode::Off | DeadlineMode::Lazy => {}
            DeadlineMode::Each => group.each.extend((0..count).map(|_| timers.arm(due, self.tag))),
        }
    }

    /// Ends the tracking of all calls in `group`.
    #[inline]
    pub(super) fn end_group(&self, timers: &impl Timers, group: &mut Group) {
        match self.mode {
            DeadlineMode::Off => {}
            DeadlineMode::Lazy => group.lazy.clear(),
            DeadlineMode::Each => group.each.drain(..).for_each(|timer| timers.cancel(timer)),
        }
    }

    /// A timer with the connection's token has fired. `scan_calls` calls [`Scan::has_failed`] once for each
    /// call in flight and removes those that have failed. Returns their number.
    pub(super) fn fired(&mut self, timers: &impl Timers, scan_calls: impl FnOnce(&mut Scan)) -> u64 {
        if self.mode == DeadlineMode::Each {
            return 1;
        }
        let mut scan = Scan { now: timers.now(), failed: 0, earliest: Nanos::NEVER };
        scan_calls(&mut scan);
        self.arm(timers, scan.earliest);
        scan.failed
    }

    /// Ends the tracking of a connection that is closed, and of all its calls.
    pub(super) fn close(mut self, timers: &impl Timers) {
        self.arm(timers, Nanos::NEVER);
    }

    /// Arms the connection's timer for `when` alone. It may have fired without its event having been read:
    /// the event then finds no failed call.
    #[cold]
    fn arm(&mut self, timers: &impl Timers, when: Nanos) {
        if let Some(timer) = self.timer.take() {
            timers.cancel(timer);
        }
        self.fires_at = when;
        if when != Nanos::NEVER {
            self.timer = Some(timers.arm(when, self.tag));
        }
    }
}

/// The deadlines of calls that end all at once.
#[derive(Debug, Default)]
pub(super) struct Group {
    lazy: Vec<Batch>,
    each: Vec<TimerId>,
}

/// The calls of a group that began at once.
#[derive(Clone, Copy, Debug)]
struct Batch {
    due: Nanos,
    count: u32,
}

impl Group {
    /// Removes the calls that have failed.
    pub(super) fn take_failed(&mut self, scan: &mut Scan) {
        self.lazy.retain(|batch| !scan.passed(batch.due, batch.count));
    }
}

/// One scan of all calls of a connection.
#[derive(Debug)]
pub(super) struct Scan {
    now: Nanos,
    failed: u64,
    /// Earliest deadline of the calls that have not failed.
    earliest: Nanos,
}

impl Scan {
    /// Whether the call of `deadline` has failed.
    pub(super) fn has_failed(&mut self, deadline: Deadline) -> bool {
        matches!(deadline, Deadline::Lazy(due) if self.passed(due, 1))
    }

    fn passed(&mut self, due: Nanos, count: u32) -> bool {
        let passed = due <= self.now;
        if passed {
            self.failed += u64::from(count);
        } else {
            self.earliest = self.earliest.min(due);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use engine::timer::wheel::Wheel;

    /// A tick of the wheel, about a millisecond.
    const TICK: u64 = 1 << 20;

    const NONE_FAILED: [u64; 0] = [];

    struct VirtualTime {
        now: Cell<Nanos>,
        wheel: RefCell<Wheel<RawToken>>,
    }

    impl Timers for VirtualTime {
        fn now(&self) -> Nanos {
            self.now.get()
        }

        fn arm(&self, when: Nanos, tag: RawToken) -> TimerId {
            self.wheel.borrow_mut().arm(when, tag)
        }

        fn cancel(&self, timer: TimerId) {
            self.wheel.borrow_mut().cancel(timer);
        }
    }

    /// A connection in virtual time, which goes by ticks.
    struct Connection {
        time: VirtualTime,
        tracker: DeadlineTracker,
        /// Calls in flight by name, with when they are due.
        calls: BTreeMap<u64, (Nanos, Deadline)>,
    }

    impl Connection {
        fn new(mode: DeadlineMode) -> Self {
            let (now, wheel) = (Cell::new(Nanos(0)), RefCell::new(Wheel::new(Nanos(0))));
            let tracker = DeadlineTracker::new(mode, RawToken(7));
            Self { time: VirtualTime { now, wheel }, tracker, calls: BTreeMap::new() }
        }

        fn begin(&mut self, name: u64, due: Nanos) {
            let deadline = self.tracker.begin(&self.time, due);
            self.calls.insert(name, (due, deadline));
        }

        fn end(&mut self, name: u64) {
            let (_, deadline) = self.calls.remove(&name).expect("the call is in flight");
            DeadlineTracker::end(&self.time, deadline);
        }

        fn armed(&self) -> usize {
            self.time.wheel.borrow().armed()
        }

        /// Names the calls that were found to have failed (of `Each`: that must have).
        fn pass_to(&mut self, now: Nanos) -> Vec<u64> {
            self.time.now.set(now);
            let mut failed = Vec::new();
            let mut count = 0;
            while let Some(tag) = { self.time.wheel.borrow_mut().pop_due(now) } {
                assert_eq!(tag, RawToken(7));
                let calls = &mut self.calls;
                count += self.tracker.fired(&self.time, |scan| {
                    failed.extend(
                        calls.iter().filter(|(_, (_, it))| scan.has_failed(*it)).map(|(name, _)| name),
                    );
                    calls.retain(|name, _| !failed.contains(name));
                });
            }
            if self.tracker.mode == DeadlineMode::Each {
                failed = self.overdue();
                self.calls.retain(|name, _| !failed.contains(name));
            }
            assert_eq!(count, failed.len() as u64);
            failed
        }

        /// Calls in flight that must have failed by now.
        fn overdue(&self) -> Vec<u64> {
            let tick = self.time.now().0 / TICK;
            self.calls.iter().filter(|(_, (due, _))| due.0 / TICK < tick).map(|(&name, _)| name).collect()
        }
    }

    #[test]
    fn deadline_fires_after_earlier_calls_have_ended() {
        let mut connection = Connection::new(DeadlineMode::Lazy);
        connection.begin(1, Nanos(500 * TICK));
        connection.pass_to(Nanos(100 * TICK));
        connection.begin(2, Nanos(600 * TICK));
        connection.end(1);
        assert_eq!(
            connection.pass_to(Nanos(501 * TICK)),
            NONE_FAILED,
            "the timer fires at the first call's deadline"
        );
        assert_eq!(connection.pass_to(Nanos(600 * TICK - 1)), NONE_FAILED);
        assert_eq!(connection.armed(), 1);
        assert_eq!(connection.pass_to(Nanos(601 * TICK)), [2]);
        assert_eq!(connection.armed(), 0);
    }

    #[test]
    fn earlier_deadline_of_a_later_call_fails_first() {
        for mode in [DeadlineMode::Lazy, DeadlineMode::Each] {
            let mut connection = Connection::new(mode);
            connection.begin(1, Nanos(500 * TICK));
            connection.begin(2, Nanos(20 * TICK));
            connection.begin(3, Nanos(300 * TICK));
            assert_eq!(connection.pass_to(Nanos(20 * TICK - 1)), NONE_FAILED, "{mode:?}");
            assert_eq!(connection.pass_to(Nanos(21 * TICK)), [2], "{mode:?}");
            assert_eq!(connection.pass_to(Nanos(301 * TICK)), [3], "{mode:?}");
            assert_eq!(connection.pass_to(Nanos(501 * TICK)), [1], "{mode:?}");
            assert_eq!(connection.armed(), 0, "{mode:?}");
        }
    }

    #[test]
    fn lazy_scan_fails_only_calls_that_are_due() {
        let mut connection = Connection::new(DeadlineMode::Lazy);
        for (name, due) in [(1, 500 * TICK), (2, 501 * TICK), (3, 501 * TICK + 1)] {
            connection.begin(name, Nanos(due));
        }
        assert_eq!(connection.pass_to(Nanos(501 * TICK)), [1, 2]);
        assert_eq!(connection.pass_to(Nanos(502 * TICK)), [3]);
    }

    #[test]
    fn lazy_timer_without_calls_is_not_armed() {
        let mut connection = Connection::new(DeadlineMode::Lazy);
        connection.begin(1, Nanos(500 * TICK));
        connection.end(1);
        assert_eq!(connection.armed(), 1, "ending a call leaves the timer armed");
        assert_eq!(connection.pass_to(Nanos(501 * TICK)), NONE_FAILED);
        assert_eq!(connection.armed(), 0);
        connection.begin(2, Nanos(1_000 * TICK));
        assert_eq!(connection.pass_to(Nanos(1_001 * TICK)), [2]);
        connection.begin(3, Nanos::NEVER);
        assert_eq!(connection.armed(), 0);
        connection.begin(4, Nanos(2_000 * TICK));
        connection.tracker.close(&connection.time);
        assert_eq!(connection.time.wheel.borrow().armed(), 0);
    }

    #[test]
    fn timer_without_calls_changes_nothing() {
        let mut connection = Connection::new(DeadlineMode::Lazy);
        connection.begin(1, Nanos(500 * TICK));
        // As it does when it was due and an earlier owner of the token had armed it.
        assert_eq!(
            connection.tracker.fired(&connection.time, |scan| {
                assert!(!scan.has_failed(Deadline::Lazy(Nanos(500 * TICK))));
            }),
            0
        );
        assert_eq!(connection.armed(), 1);
        assert_eq!(connection.pass_to(Nanos(501 * TICK)), [1]);
    }

    #[test]
    fn group_calls_fail_at_their_own_deadlines() {
        let (time, mut tracker) =
            (Connection::new(DeadlineMode::Lazy).time, DeadlineTracker::new(DeadlineMode::Lazy, RawToken(7)));
        let mut group = Group::default();
        for (due, count) in [(500, 3), (20, 2), (300, 1), (10, 0)] {
            tracker.begin_group(&time, Nanos(due * TICK), count, &mut group);
        }
        for (now, failed) in [(11, 0), (20, 0), (21, 2), (301, 1)] {
            time.now.set(Nanos(now * TICK));
            while let Some(RawToken(7)) = { time.wheel.borrow_mut().pop_due(time.now()) } {
                assert_eq!(tracker.fired(&time, |scan| group.take_failed(scan)), failed, "{now}");
            }
        }
        tracker.end_group(&time, &mut group);
        time.now.set(Nanos(501 * TICK));
        assert_eq!(time.wheel.borrow_mut().pop_due(time.now()), Some(RawToken(7)));
        assert_eq!(tracker.fired(&time, |scan| group.take_failed(scan)), 0);
    }

    #[test]
    fn group_arms_the_timers_of_its_mode() {
        for (mode, armed) in
            [(DeadlineMode::Off, [0, 0]), (DeadlineMode::Lazy, [1, 1]), (DeadlineMode::Each, [5, 0])]
        {
            let (time, mut tracker) = (Connection::new(mode).time, DeadlineTracker::new(mode, RawToken(7)));
            let mut group = Group::default();
            tracker.begin_group(&time, Nanos(500 * TICK), 3, &mut group);
            tracker.begin_group(&time, Nanos(500 * TICK), 2, &mut group);
            let begun = time.wheel.borrow().armed();
            tracker.end_group(&time, &mut group);
            assert_eq!([begun, time.wheel.borrow().armed()], armed, "{mode:?}");
        }
    }

    /// Random calls with random deadlines: none fails early, none is overdue, and no more timers are armed
    /// than the mode needs.
    #[test]
    fn random_deadlines_are_found_in_time() {
        for mode in [DeadlineMode::Off, DeadlineMode::Lazy, DeadlineMode::Each] {
            for seed in 1..=20 {
                compare(mode, seed);
            }
        }
    }

    fn compare(mode: DeadlineMode, seed: u64) {
        let mut state = seed;
        let mut below = |bound: u64| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
        };
        let mut connection = Connection::new(mode);
        for name in 0..5_000 {
            let now = connection.time.now();
            match below(4) {
                0 | 1 => connection.begin(name, Nanos(now.0 + below(500 * TICK))),
                2 => {
                    let index = below(connection.calls.len().max(1) as u64) as usize;
                    if let Some(&name) = connection.calls.keys().nth(index) {
                        connection.end(name);
                    }
                }
                _ => {
                    let dues: BTreeMap<_, _> =
                        connection.calls.iter().map(|(&k, &(due, _))| (k, due)).collect();
                    let now = Nanos(now.0 + below(30 * TICK));
                    let failed = connection.pass_to(now);
                    assert!(failed.iter().all(|name| dues[name] <= now), "{mode:?}, seed {seed}");
                    assert!(
                        mode == DeadlineMode::Off || connection.overdue().is_empty(),
                        "{mode:?}, seed {seed}"
                    );
                }
            }
            let in_flight = connection.calls.len();
            let armed = connection.armed();
            match mode {
                DeadlineMode::Off => assert_eq!(armed, 0),
                DeadlineMode::Lazy => assert!(armed <= 1 && (armed == 1 || in_flight == 0), "seed {seed}"),
                DeadlineMode::Each => assert_eq!(armed, in_flight, "seed {seed}"),
            }
        }
    }
}
