//! A calendar month in UTC: the span of one file of details.
//!
//! Guarantees: every moment that the database can hold belongs to exactly one month.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use jiff::civil::{self, Date};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// Nanoseconds of a quarter-hour: the grain of all sums. The offsets of today's time zones are multiples of
/// it.
pub(crate) const QUARTER_NS: i64 = 900 * NANOS;

/// Nanoseconds of an hour.
pub(crate) const HOUR_NS: i64 = 4 * QUARTER_NS;

/// Nanoseconds of a UTC day.
pub(crate) const DAY_NS: i64 = 24 * HOUR_NS;

const NANOS: i64 = 1_000_000_000;

/// The last quarter-hour of an hour, both counted from 1970: to it belongs what was summed up by hour.
pub(crate) fn last_quarter(hour: i64) -> i64 {
    hour.saturating_mul(4).saturating_add(3)
}

/// A month as a number in decimal digits: 202601 is January 2026.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Month(i32);

impl Month {
    /// The month of a moment, in nanoseconds since 1970.
    pub(crate) fn containing(moment_ns: i64) -> Month {
        Self::from_day(day(moment_ns))
    }

    /// The month of a quarter-hour, counted from 1970.
    pub(crate) fn of_quarter(quarter: i64) -> Month {
        Self::containing(quarter.saturating_mul(QUARTER_NS))
    }

    /// Its first nanosecond.
    pub(crate) fn beginning_ns(self) -> i64 {
        midnight_ns(self.first_day())
    }

    /// Its last nanosecond.
    pub(crate) fn last_ns(self) -> i64 {
        self.first_day().checked_add(1.month()).map_or(i64::MAX, |next| match midnight_ns(next) {
            i64::MAX => i64::MAX,
            midnight => midnight - 1,
        })
    }

    /// The next one; none behind the last that the database can hold.
    pub(crate) fn next(self) -> Option<Month> {
        self.last_ns().checked_add(1).map(Month::containing)
    }

    /// The number in the database: 202601.
    pub(crate) fn number(self) -> i64 {
        self.0.into()
    }

    /// The month of a number from the database, if it is valid.
    pub(crate) fn from_number(number: i64) -> Option<Month> {
        let year = i16::try_from(number / 100).ok().filter(|year| (1970..=2262).contains(year))?;
        let day = Date::new(year, i8::try_from(number % 100).ok()?, 1).ok()?;
        Some(Self::from_day(day))
    }

    /// The name of the file with its details.
    pub(crate) fn file_name(self) -> String {
        format!("usage-{:06}.db", self.0)
    }

    /// The path of its details.
    pub(crate) fn path(self, directory: &Path) -> PathBuf {
        directory.join(self.file_name())
    }

    /// The month whose details have this file name.
    pub(crate) fn from_file_name(name: &str) -> Option<Month> {
        let digits = name.strip_prefix("usage-")?.strip_suffix(".db")?;
        let exact = digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
        if exact { Self::from_number(digits.parse().ok()?) } else { None }
    }

    /// The months whose files are in `directory`, the oldest first.
    pub(crate) fn files(directory: &Path) -> io::Result<Vec<Month>> {
        let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name()));
        let names: Vec<_> = names.collect::<io::Result<_>>()?;
        let mut months: Vec<Month> =
            names.iter().filter_map(|name| Self::from_file_name(name.to_str()?)).collect();
        months.sort_unstable();
        Ok(months)
    }

    fn from_day(day: Date) -> Month {
        Month(i32::from(day.year()) * 100 + i32::from(day.month()))
    }

    fn first_day(self) -> Date {
        let year = i16::try_from(self.0 / 100).expect("a month comes from a valid date");
        civil::date(year, i8::try_from(self.0 % 100).expect("a month comes from a valid date"), 1)
    }
}

/// The form in reports: 2026-01.
impl fmt::Display for Month {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04}-{:02}", self.0 / 100, self.0 % 100)
    }
}

fn day(moment_ns: i64) -> Date {
    let moment = Timestamp::from_second(moment_ns.max(0) / NANOS).expect("i64 nanoseconds end in 2262");
    TimeZone::UTC.to_datetime(moment).date()
}

fn midnight_ns(day: Date) -> i64 {
    let moment = day.to_zoned(TimeZone::UTC).expect("UTC has every midnight").timestamp();
    i64::try_from(moment.as_nanosecond()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn month_borders_and_names_round_trip() {
        for (moment, month, text) in [
            (0, 197_001, "1970-01"),
            (1_769_903_999_999_999_999, 202_601, "2026-01"),
            (1_769_904_000_000_000_000, 202_602, "2026-02"),
            (1_709_164_800_000_000_000, 202_402, "2024-02"),
            (i64::MAX, 226_204, "2262-04"),
            (-1, 197_001, "1970-01"),
        ] {
            let found = Month::containing(moment);
            assert_eq!((found.number(), found.to_string().as_str()), (month, text));
            assert!((found.beginning_ns()..=found.last_ns()).contains(&moment.max(0)));
            assert_eq!(Month::containing(found.beginning_ns()), found);
            assert_eq!(Month::from_number(month), Some(found));
            let path = found.path(Path::new(""));
            assert_eq!(Month::from_file_name(path.to_str().expect("it is ASCII")), Some(found));
        }
    }

    #[test]
    fn other_file_names_are_not_months() {
        for name in [
            "usage-202613.db",
            "usage-202600.db",
            "usage-196912.db",
            "usage-20261.db",
            "usage-+20261.db",
            "usage-202601.db-wal",
            "ledger.db",
            "usage-202601",
            "usage-999912.db",
        ] {
            assert_eq!(Month::from_file_name(name), None, "{name}");
        }
    }
}
