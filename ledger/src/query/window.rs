//! A span of time, and the parts of it that are whole units.

use crate::database::month::{DAY_NS, Month, QUARTER_NS};

/// A span of time, both ends included; empty if the last is before the first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Window {
    pub(crate) since_ns: i64,
    pub(crate) last_ns: i64,
}

impl Window {
    /// Every moment of the database.
    pub(crate) const EVER: Window = Window { since_ns: 0, last_ns: i64::MAX };

    pub(crate) fn of_day(day: i64) -> Window {
        let since_ns = day.saturating_mul(DAY_NS);
        Window { since_ns, last_ns: since_ns.saturating_add(DAY_NS - 1) }
    }

    pub(crate) fn of(month: Month) -> Window {
        Window { since_ns: month.beginning_ns(), last_ns: month.last_ns() }
    }

    /// The largest part of the window that consists of whole quarter-hours, if there is any.
    pub(crate) fn whole_quarters(self) -> Option<Window> {
        self.whole(QUARTER_NS)
    }

    /// The part in `month`; empty if there is none.
    pub(crate) fn within(self, month: Month) -> Window {
        let Window { since_ns, last_ns } = Window::of(month);
        Window { since_ns: self.since_ns.max(since_ns), last_ns: self.last_ns.min(last_ns) }
    }

    /// The largest part that consists of whole days.
    pub(crate) fn whole_days(self) -> Option<Window> {
        self.whole(DAY_NS)
    }

    /// The largest part that consists of whole units of `unit_ns`.
    pub(crate) fn whole(self, unit_ns: i64) -> Option<Window> {
        let first = self.since_ns.checked_add(unit_ns - 1)? / unit_ns;
        // The database's last moment counts as the end of a unit too.
        let end = match self.last_ns {
            i64::MAX => return Some(Window { since_ns: first * unit_ns, ..self }),
            last => (last + 1) / unit_ns,
        };
        (first < end).then_some(Window { since_ns: first * unit_ns, last_ns: end * unit_ns - 1 })
    }

    /// The largest part that consists of whole months.
    pub(crate) fn whole_months(self) -> Option<Window> {
        let mut first = Month::containing(self.since_ns);
        if first.beginning_ns() < self.since_ns {
            first = first.next()?;
        }
        let mut last = Month::containing(self.last_ns);
        if last.last_ns() > self.last_ns {
            last = Month::containing(last.beginning_ns().checked_sub(1).filter(|ns| *ns >= 0)?);
        }
        let whole = Window { since_ns: first.beginning_ns(), last_ns: last.last_ns() };
        (first <= last && whole.since_ns >= self.since_ns).then_some(whole)
    }

    /// The parts of the window before and after `inner`.
    pub(crate) fn without(self, inner: Window) -> impl Iterator<Item = Window> {
        let before = (self.since_ns < inner.since_ns).then(|| Window { last_ns: inner.since_ns - 1, ..self });
        let after = (inner.last_ns < self.last_ns).then(|| Window { since_ns: inner.last_ns + 1, ..self });
        before.into_iter().chain(after)
    }
}
