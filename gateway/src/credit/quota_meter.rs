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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
}

/// A period of a quota.
#[derive(Debug)]
pub struct QuotaPeriod {
    period: Period,
    /// Its limit is the greatest until it is known what was spent before.
    pub(crate) allowance: Allowance,
    is_known: AtomicBool,
}

/// The state of a quota at a moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QuotaStatus {
    /// The present period.
    pub period: Period,
    /// The bytes of the period.
    pub limit: u64,
    /// Bytes that were spent in it, or are reserved.
    pub used: u64,
    /// Whether what was spent before this process knew the quota is included.
    pub is_known: bool,
}

impl QuotaMeter {
    /// A quota of `limit` bytes in each period. Until [`QuotaMeter::settle_used`] it counts what is spent, and
    /// ends nothing.
    pub fn new(terms: QuotaTerms, limit: u64, now: WallNanos) -> QuotaMeter {
        let present = QuotaPeriod {
            period: terms.calendar.period_at(now),
            allowance: Allowance::new(BYTES_MAX, 0),
            is_known: AtomicBool::new(false),
        };
        let current = ArcSwap::from_pointee(present);
        QuotaMeter { terms, limit: AtomicU64::new(limit), current }
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
            let next = Arc::new(QuotaPeriod {
                period: self.terms.calendar.period_at(now),
                allowance: Allowance::new(self.limit.load(Ordering::Relaxed), 0),
                is_known: AtomicBool::new(true),
            });
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
            used: present.allowance.spent(),
            is_known: present.is_known(),
        }
    }

    /// Adds what was spent in the period that begins at `start` and is not counted here. From then on the
    /// limit holds. Nothing if that period is over.
    pub fn settle_used(&self, start: WallNanos, used: u64, now: WallNanos) {
        let present = self.period(now);
        if present.period.start != start {
            return;
        }
        present.allowance.add_spent(used);
        present.allowance.set_limit(self.limit.load(Ordering::Relaxed));
        present.is_known.store(true, Ordering::Release);
    }

    /// Replaces the limit, also that of the present period.
    pub fn set_limit(&self, limit: u64, now: WallNanos) {
        self.limit.store(limit, Ordering::Relaxed);
        let present = self.period(now);
        if present.is_known() {
            present.allowance.set_limit(limit);
        }
    }
}

impl QuotaPeriod {
    /// Whether it is not over at `now`.
    pub(crate) fn contains(&self, now: WallNanos) -> bool {
        now < self.period.end
    }

    /// Whether the limit holds: what was spent before is known.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }
}
