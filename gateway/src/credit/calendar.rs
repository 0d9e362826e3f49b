//! The calendar of a quota: when its periods begin and end.
//!
//! Guarantees: the periods of a calendar fill all time from the epoch without a gap and without an overlap,
//! whatever the clocks of its zone do. Each border is a multiple of 15 minutes of UTC, as are the counts of
//! the ledger. Nothing here reads a file or panics: a reactor thread may call it.
//!
//! A border within a quarter-hour counts from the beginning of that quarter: the clocks of America/St_Johns
//! changed at 00:01 until 2011.

use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};
use sys::clock::WallNanos;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const SECONDS_PER_HOUR: i64 = 60 * 60;
const SECONDS_PER_QUARTER: i64 = 15 * 60;

/// How often a quota renews.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Per {
    /// At each hour of the local clock.
    Hour,
    /// At local midnight.
    Day,
    /// At local midnight of Monday (ISO 8601).
    Week,
    /// At local midnight of the anchor day.
    Month,
    /// Never.
    Total,
}

impl Per {
    /// The word in a configuration, in the ledger and on display.
    pub fn as_str(self) -> &'static str {
        match self {
            Per::Hour => "hour",
            Per::Day => "day",
            Per::Week => "week",
            Per::Month => "month",
            Per::Total => "total",
        }
    }
}

/// A period of a quota, half open: `end` belongs to the next one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Period {
    /// Its first nanosecond; the epoch for a period that began before it.
    pub start: WallNanos,
    /// The first nanosecond of the next period; `u64::MAX` where there is none.
    pub end: WallNanos,
}

impl Period {
    /// The only period of a quota that never renews.
    const ENDLESS: Period = Period { start: WallNanos(0), end: WallNanos(u64::MAX) };
}

/// When the periods of a quota begin.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    per: Per,
    zone: TimeZone,
    /// The day of the month on which a month begins, 1 to 31.
    anchor: u8,
}

impl Calendar {
    /// A calendar in `zone`. A month begins on day `anchor`, 1 to 31, or on its last day where it is shorter.
    /// Two calendars are equal where their periods are declared alike: without months the anchor is 1, and a
    /// total is in UTC.
    pub fn new(per: Per, zone: TimeZone, anchor: u8) -> Calendar {
        Calendar {
            per,
            zone: if per == Per::Total { TimeZone::UTC } else { zone },
            anchor: if per == Per::Month { anchor.clamp(1, 31) } else { 1 },
        }
    }

    /// How often the quota renews.
    pub fn per(&self) -> Per {
        self.per
    }

    /// The day of the month on which a month begins, 1 to 31.
    pub fn anchor(&self) -> u8 {
        self.anchor
    }

    /// The IANA name of the zone; `unnamed` for a zone without one, which no configuration has.
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("unnamed")
    }

    /// Whether the zone is UTC by that name, as without a setting.
    pub fn is_utc(&self) -> bool {
        self.zone == TimeZone::UTC
    }

    /// The period that contains `now`. At the last nanosecond of the clock, in the year 2554, it has no end.
    pub fn period_at(&self, now: WallNanos) -> Period {
        // A border is a whole second, so that the second of `now` decides.
        let second = i64::try_from(now.0 / NANOS_PER_SECOND).unwrap_or(i64::MAX);
        let (start, end) = match self.per {
            Per::Total => return Period::ENDLESS,
            Per::Hour => self.hour_at(second),
            Per::Day | Per::Week | Per::Month => self.dates_at(second),
        };
        Period { start: nanos(start), end: nanos(end) }
    }

    /// A moment as text, in RFC 3339, with the offset of the calendar's zone.
    pub fn text(&self, at: WallNanos) -> String {
        let second = i64::try_from(at.0 / NANOS_PER_SECOND).unwrap_or(i64::MAX);
        timestamp(second).to_zoned(self.zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }

    /// The borders of the local hour at `second`. An hour that a change of the clocks repeats is two.
    fn hour_at(&self, second: i64) -> (i64, i64) {
        let quarter = second - second.rem_euclid(SECONDS_PER_QUARTER);
        let hour = self.local_hour(quarter);
        // An hour has at most four quarters.
        let (mut start, mut end) = (quarter, quarter + SECONDS_PER_QUARTER);
        while self.local_hour(start - SECONDS_PER_QUARTER) == hour {
            start -= SECONDS_PER_QUARTER;
        }
        while self.local_hour(end) == hour {
            end += SECONDS_PER_QUARTER;
        }
        (start, end)
    }

    /// The local hour of the quarter-hour that begins at second `quarter`: the number of the hour, and the
    /// offset in seconds, which tells a repeated hour from the first. The offset is that of the quarter's
    /// end, so that a change within the quarter counts from its beginning.
    fn local_hour(&self, quarter: i64) -> (i64, i64) {
        let offset = i64::from(self.zone.to_offset(timestamp(quarter + SECONDS_PER_QUARTER - 1)).seconds());
        ((quarter + offset).div_euclid(SECONDS_PER_HOUR), offset)
    }

    /// The borders of the days, weeks or months at `second`.
    fn dates_at(&self, second: i64) -> (i64, i64) {
        let today = self.zone.to_datetime(timestamp(second)).date();
        let mut first = self.first_date(today);
        let mut start = self.beginning(first);
        loop {
            let next = self.next_first_date(first);
            let end = self.beginning(next);
            // Clocks that go back over midnight show yesterday's date again: the new day has begun all the
            // same. A date that a zone left out, as Apia 2011-12-30, ends where it begins.
            if end > second || next <= first {
                return (start, end);
            }
            (first, start) = (next, end);
        }
    }

    /// The first date of the period that has `date`.
    fn first_date(&self, date: Date) -> Date {
        match self.per {
            Per::Week => {
                let since_monday = i64::from(date.weekday().to_monday_zero_offset());
                date.saturating_sub(since_monday.days())
            }
            Per::Month => {
                let anchored = self.anchored(date);
                match anchored <= date {
                    true => anchored,
                    false => self.anchored(date.first_of_month().saturating_sub(1.day())),
                }
            }
            _ => date,
        }
    }

    /// The first date of the period after the one that begins on `first`.
    fn next_first_date(&self, first: Date) -> Date {
        match self.per {
            Per::Week => first.saturating_add(1.week()),
            Per::Month => self.anchored(first.last_of_month().saturating_add(1.day())),
            _ => first.saturating_add(1.day()),
        }
    }

    /// The anchor day of the month of `date`, or that month's last day.
    fn anchored(&self, date: Date) -> Date {
        let day = i8::try_from(self.anchor).unwrap_or(i8::MAX).min(date.days_in_month());
        date.with().day(day).build().unwrap_or(date)
    }

    /// The second at which `date` begins: midnight, the first of two, or the first instant of a date without
    /// midnight; then the beginning of its quarter-hour.
    fn beginning(&self, date: Date) -> i64 {
        let midnight = date.to_datetime(Time::midnight());
        let at = |offset: jiff::tz::Offset| {
            offset.to_timestamp(midnight).map_or(i64::MAX, |timestamp| timestamp.as_second())
        };
        let second = match self.zone.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => at(offset),
            AmbiguousOffset::Fold { before, .. } => at(before),
            AmbiguousOffset::Gap { before, after } => {
                // The change is later than midnight in the offset after it, and at the latest at midnight in
                // the offset before it.
                let mut changes = self.zone.following(timestamp(at(after)));
                let change = changes.find(|change| change.offset() == after);
                change.map_or(i64::MAX, |change| change.timestamp().as_second()).min(at(before))
            }
        };
        second - second.rem_euclid(SECONDS_PER_QUARTER)
    }
}

/// The nearest moment that jiff has; those of [`WallNanos`] are all within its bounds.
fn timestamp(second: i64) -> Timestamp {
    let bound = if second < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(second).unwrap_or(bound)
}

/// The nearest moment of the wall clock.
fn nanos(second: i64) -> WallNanos {
    WallNanos(u64::try_from(second).unwrap_or(0).saturating_mul(NANOS_PER_SECOND))
}

#[cfg(test)]
mod tests;
