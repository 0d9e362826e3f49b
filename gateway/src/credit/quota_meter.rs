//! A quota, with what is spent in its present period.
//!
//! Guarantees: a period is opened once, by the first thread that reserves in it, whatever the clock does: a
//! clock that steps back leaves the present period open. A period that is over is never drawn on again, and
//! what is returned to it changes no other.
//!
//! ```text
//!   current --> QuotaPeriod 1 --(now >= its end: one thread of many replaces it)--> QuotaPeriod 2
//!                   ^ flows that still hold it settle there
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use ledger::record::Class;
use sys::allowance::{Allowance, BYTES_MAX};
use sys::clock::WallNanos;

use super::calendar::{Calendar, Period};
use super::{Destination, SetId};

/// The owner of a quota.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Owner {
    /// The user with this name.
    User(Box<str>),
    /// The team with this name, for all its users and teams.
    Team(Box<str>),
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::User(name) => write!(out, "user `{name}`"),
            Owner::Team(name) => write!(out, "team `{name}`"),
        }
    }
}

/// The destinations that a quota covers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coverage {
    /// All.
    All,
    /// Those of a class.
    Class(Class),
    /// Those of a named set.
    Set(SetId),
}

/// What stays the same for the life of a quota.
#[derive(Clone, Debug)]
pub struct QuotaTerms {
    /// The user or team that has it.
    pub owner: Owner,
    /// Its name among its owner's quotas, as `day/external/up`.
    pub key: Box<str>,
    /// When its periods begin.
    pub calendar: Calendar,
    /// Whether it covers bytes toward the destination.
    pub up: bool,
    /// Whether it covers bytes toward the client.
    pub down: bool,
    /// The destinations that it covers.
    pub coverage: Coverage,
}

/// A quota of bytes in each period. All threads draw on it.
#[derive(Debug)]
pub struct QuotaMeter {
    terms: QuotaTerms,
    /// The bytes of a period.
    limit: AtomicU64,
    current: ArcSwap<QuotaPeriod>,
    /// Whether other users count than before: the used bytes of the present period are to be read anew.
    awaits_recount: AtomicBool,
}

/// A period of a quota.
#[derive(Debug)]
pub struct QuotaPeriod {
    period: Period,
    /// Its limit is the greatest until it is known what was spent before.
    pub(crate) allowance: Allowance,
    /// Bytes that operators added to the limit.
    granted: AtomicU64,
    is_known: AtomicBool,
    /// The greatest threshold that was reported, in percent; 0 if none was.
    reported: AtomicU8,
}

/// What happened in the present period before this process knew the quota.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QuotaPast {
    /// Bytes that were spent.
    pub used: u64,
    /// Bytes that operators added.
    pub granted: u64,
    /// The greatest threshold that was reported, in percent; 0 if none was.
    pub reported: u8,
}

/// The state of a quota at a moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QuotaStatus {
    /// The present period.
    pub period: Period,
    /// The bytes of each period.
    pub limit: u64,
    /// Bytes that operators added in this one.
    pub granted: u64,
    /// Bytes that were spent in it, or are reserved.
    pub used: u64,
    /// Whether what was spent before this process knew the quota is included.
    pub is_known: bool,
}

impl QuotaStatus {
    /// The bytes that the period has, with those that were granted.
    pub fn total(&self) -> u64 {
        self.limit.saturating_add(self.granted)
    }

    /// What is used, in percent of the total, rounded down; above 100 where the limit was lowered.
    pub fn percent(&self) -> u64 {
        let percent = u128::from(self.used) * 100 / u128::from(self.total().max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

impl QuotaMeter {
    /// A quota of `limit` bytes in each period. Until [`QuotaMeter::settle`] it counts what is spent, and
    /// ends nothing.
    pub fn new(terms: QuotaTerms, limit: u64, now: WallNanos) -> QuotaMeter {
        let present = QuotaPeriod::new(terms.calendar.period_at(now), BYTES_MAX, false);
        let current = ArcSwap::from_pointee(present);
        QuotaMeter { terms, limit: AtomicU64::new(limit), current, awaits_recount: AtomicBool::new(false) }
    }

    /// What stays the same.
    pub fn terms(&self) -> &QuotaTerms {
        &self.terms
    }

    /// Whether it covers flows to `destination`.
    pub(crate) fn covers(&self, destination: Destination) -> bool {
        match self.terms.coverage {
            Coverage::All => true,
            Coverage::Class(class) => class == destination.class,
            Coverage::Set(set) => set == destination.set && set != SetId::NONE,
        }
    }

    /// The period at `now`, or the last one that was opened, if `now` is before its beginning.
    pub(crate) fn period(&self, now: WallNanos) -> Arc<QuotaPeriod> {
        loop {
            let present = self.current.load_full();
            if present.contains(now) {
                return present;
            }
            let period = self.terms.calendar.period_at(now);
            let next = Arc::new(QuotaPeriod::new(period, self.limit.load(Ordering::Relaxed), true));
            // Another thread may have opened it: then the loop finds that one.
            self.current.compare_and_swap(&present, next);
        }
    }

    /// The state at `now`.
    pub fn status(&self, now: WallNanos) -> QuotaStatus {
        let present = self.period(now);
        QuotaStatus {
            period: present.period,
            limit: self.limit.load(Ordering::Relaxed),
            granted: present.granted.load(Ordering::Relaxed),
            used: present.allowance.spent(),
            is_known: present.is_known(),
        }
    }

    /// Takes over what happened before in the period that begins at `start`. From then on the limit holds.
    /// Nothing if that period is over, or its past is known.
    pub fn settle(&self, start: WallNanos, past: QuotaPast, now: WallNanos) {
        let present = self.period(now);
        if present.period.start != start || present.is_known() {
            return;
        }
        present.allowance.add_spent(past.used);
        present.granted.store(past.granted, Ordering::Relaxed);
        present.reported.store(past.reported, Ordering::Relaxed);
        self.apply_limit(&present);
        present.is_known.store(true, Ordering::Release);
    }

    /// Has the used bytes read anew, since other users count. Until then the quota holds with those that it
    /// has.
    pub(crate) fn request_recount(&self) {
        self.awaits_recount.store(true, Ordering::Relaxed);
    }

    /// Whether the used bytes are to be read anew.
    pub(crate) fn awaits_recount(&self) -> bool {
        self.awaits_recount.load(Ordering::Relaxed)
    }

    /// Replaces the `counted` bytes of the period that begins at `start` by the `used` ones, which were read
    /// later: what was spent since then stays counted.
    pub(crate) fn recount(&self, start: WallNanos, counted: u64, used: u64, now: WallNanos) {
        let present = self.period(now);
        if present.period.start == start {
            present.allowance.add_spent(used.saturating_sub(counted));
            present.allowance.remove_spent(counted.saturating_sub(used));
        }
        self.awaits_recount.store(false, Ordering::Relaxed);
    }

    /// Adds `bytes` to the limit of the period that begins at `start`; false if that period is over.
    pub(crate) fn grant(&self, start: WallNanos, bytes: u64, now: WallNanos) -> bool {
        let present = self.period(now);
        if present.period.start != start {
            return false;
        }
        present.granted.fetch_add(bytes, Ordering::Relaxed);
        if present.is_known() {
            self.apply_limit(&present);
        }
        true
    }

    /// The greatest threshold that was reported in the present period, in percent.
    pub(crate) fn reported(&self, now: WallNanos) -> u8 {
        self.period(now).reported.load(Ordering::Relaxed)
    }

    /// Notes that a threshold was reported in the period that begins at `start`.
    pub(crate) fn note_reported(&self, start: WallNanos, percent: u8, now: WallNanos) {
        let present = self.period(now);
        if present.period.start == start {
            present.reported.fetch_max(percent, Ordering::Relaxed);
        }
    }

    fn apply_limit(&self, period: &QuotaPeriod) {
        let granted = period.granted.load(Ordering::Relaxed);
        period.allowance.set_limit(self.limit.load(Ordering::Relaxed).saturating_add(granted));
    }

    /// Replaces the limit, also that of the present period.
    pub fn set_limit(&self, limit: u64, now: WallNanos) {
        self.limit.store(limit, Ordering::Relaxed);
        let present = self.period(now);
        if present.is_known() {
            self.apply_limit(&present);
        }
    }
}

impl QuotaPeriod {
    fn new(period: Period, limit: u64, is_known: bool) -> QuotaPeriod {
        QuotaPeriod {
            period,
            allowance: Allowance::new(limit, 0),
            granted: AtomicU64::new(0),
            is_known: AtomicBool::new(is_known),
            reported: AtomicU8::new(0),
        }
    }

    /// Whether it is not over at `now`.
    pub(crate) fn contains(&self, now: WallNanos) -> bool {
        now < self.period.end
    }

    /// Whether the limit holds: what was spent before is known.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use sys::allowance::Reservation;

    use super::super::calendar::Per;
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;
    const NOW: WallNanos = WallNanos(500_000 * HOUR + 5);
    const START: WallNanos = WallNanos(500_000 * HOUR);

    fn meter(limit: u64) -> QuotaMeter {
        let terms = QuotaTerms {
            owner: Owner::Team("build".into()),
            key: "hour/all/both".into(),
            calendar: Calendar::new(Per::Hour, TimeZone::UTC, 1),
            up: true,
            down: true,
            coverage: Coverage::All,
        };
        QuotaMeter::new(terms, limit, NOW)
    }

    fn spend(meter: &QuotaMeter, bytes: u64, now: WallNanos) {
        let period = meter.period(now);
        assert_eq!(period.allowance.reserve(bytes), Reservation::Granted(bytes));
        period.allowance.settle(0);
    }

    #[test]
    fn quota_holds_once_its_past_is_known() {
        let meter = meter(100);
        spend(&meter, 500, NOW);
        assert!(!meter.period(NOW).is_known() && !meter.period(NOW).allowance.is_spent());
        let past = QuotaPast { used: 90, granted: 600, reported: 80 };
        meter.settle(WallNanos(START.0 - HOUR), past, NOW);
        assert!(!meter.period(NOW).is_known(), "the past of another period tells nothing");
        meter.settle(START, past, NOW);
        let status = meter.status(NOW);
        assert_eq!((status.total(), status.used, status.percent()), (700, 590, 84));
        assert_eq!((meter.reported(NOW), meter.period(NOW).allowance.limit()), (80, 700));
        meter.settle(START, past, NOW);
        assert_eq!(meter.status(NOW), status, "the past counts once");
        assert!(meter.grant(START, 50, NOW) && !meter.grant(WallNanos(1), 50, NOW));
        meter.set_limit(10, NOW);
        assert_eq!(meter.period(NOW).allowance.limit(), 660);
    }

    #[test]
    fn period_opens_once_whatever_the_clock_does() {
        let meter = meter(100);
        meter.settle(START, QuotaPast { granted: 30, ..QuotaPast::default() }, NOW);
        let before = meter.period(NOW);
        spend(&meter, 120, NOW);
        let later = WallNanos(NOW.0 + HOUR);
        spend(&meter, 70, later);
        // Back in the first hour: its period is over, and the next one stays.
        for now in [NOW, WallNanos(0), later, WallNanos(START.0 + 2 * HOUR - 1)] {
            let status = meter.status(now);
            assert_eq!(
                (status.period.start, status.used, status.total()),
                (WallNanos(START.0 + HOUR), 70, 100)
            );
        }
        before.allowance.refund(20);
        assert_eq!(meter.status(later).used, 70, "what comes back late belongs to its own period");
        assert_eq!(meter.status(WallNanos(NOW.0 + 1_000 * HOUR)).used, 0);
    }

    #[test]
    fn recount_replaces_what_was_counted_and_keeps_what_was_spent_since() {
        let meter = meter(1_000);
        meter.settle(START, QuotaPast::default(), NOW);
        spend(&meter, 100, NOW);
        meter.request_recount();
        spend(&meter, 20, NOW);
        meter.recount(START, 100, 250, NOW);
        assert_eq!((meter.status(NOW).used, meter.awaits_recount()), (270, false));
        meter.recount(START, 270, 70, NOW);
        assert_eq!(meter.status(NOW).used, 70);
        meter.recount(WallNanos(1), 70, 900, NOW);
        assert_eq!(meter.status(NOW).used, 70, "the usage of another period tells nothing");
    }

    #[test]
    fn threads_open_the_next_period_together() {
        let meter = meter(1_000_000);
        meter.settle(START, QuotaPast::default(), NOW);
        let later = WallNanos(NOW.0 + HOUR);
        let spend = || {
            for _ in 0..1_000 {
                spend(&meter, 1, later);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(spend))));
        assert_eq!(meter.status(later).used, 4_000);
    }
}
