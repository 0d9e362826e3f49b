//! The time zone of an answer: the names of quarter-hours, hours, days and months, and where they begin.
//!
//! Guarantees: each quarter-hour of UTC belongs to one period of any zone, since the offsets of all zones
//! have been multiples of 15 minutes since 1980. A period that a change of the clocks repeats has its offset
//! in its name.

use std::cmp::Ordering;

use jiff::civil::Date;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

use super::GroupBy;
use super::window::Window;
use crate::database::month::QUARTER_NS;

/// A time zone with the names of its periods.
#[derive(Debug)]
pub(crate) struct Zone(TimeZone);

impl Zone {
    /// The zone of the database's own sums.
    pub(crate) fn utc() -> Zone {
        Zone(TimeZone::UTC)
    }

    pub(crate) fn new(zone: TimeZone) -> Zone {
        Zone(zone)
    }

    /// Whether its days and months are those of the database's own sums.
    pub(crate) fn is_utc(&self) -> bool {
        self.0 == TimeZone::UTC
    }

    /// The name of the period that has the moment `at_ns`.
    pub(crate) fn name(&self, key: GroupBy, at_ns: i64) -> String {
        let (at_ns, format) = match key {
            GroupBy::Quarter => (at_ns / QUARTER_NS * QUARTER_NS, "%Y-%m-%dT%H:%M"),
            GroupBy::Hour => (at_ns, "%Y-%m-%dT%H:00"),
            GroupBy::Day => (at_ns, "%Y-%m-%d"),
            _ => (at_ns, "%Y-%m"),
        };
        let moment = self.at(at_ns);
        let name = strtime::format(format, &moment).unwrap_or_default();
        match key {
            GroupBy::Day | GroupBy::Month => name,
            _ if self.is_utc() => name + "Z",
            _ => name + &strtime::format("%:z", &moment).unwrap_or_default(),
        }
    }

    /// The parts of `window` in each day, or in each month, of the zone. It is one part where these are those
    /// of the database's own sums.
    pub(crate) fn periods(&self, keys: &[GroupBy], window: Window) -> Vec<Window> {
        let is_daily = keys.contains(&GroupBy::Day);
        if self.is_utc() || !(is_daily || keys.contains(&GroupBy::Month)) {
            return vec![window];
        }
        let mut parts = Vec::new();
        let mut since_ns = window.since_ns;
        while since_ns <= window.last_ns {
            let next_ns = self.next_beginning(since_ns, is_daily).filter(|next| *next <= window.last_ns);
            let last_ns = next_ns.map_or(window.last_ns, |next| next - 1);
            parts.push(Window { since_ns, last_ns });
            let Some(next_ns) = next_ns else { break };
            since_ns = next_ns;
        }
        parts
    }

    /// The beginning of the day or the month after the one at `at_ns`.
    fn next_beginning(&self, at_ns: i64, is_daily: bool) -> Option<i64> {
        let date = self.at(at_ns).date();
        let next: Date = match is_daily {
            true => date.tomorrow().ok()?,
            false => date.first_of_month().checked_add(1.month()).ok()?,
        };
        let beginning = next.to_zoned(self.0.clone()).ok()?.timestamp();
        i64::try_from(beginning.as_nanosecond()).ok()
    }

    /// Compares the names of two periods by their beginnings.
    pub(crate) fn compare(&self, key: GroupBy, one: &str, other: &str) -> Ordering {
        let offset = |name| str::get(name, LOCAL_BYTES..);
        // Days and months have none.
        if offset(one) == offset(other) {
            return one.cmp(other);
        }
        match (self.beginning(key, one), self.beginning(key, other)) {
            (Some(one), Some(other)) => one.cmp(&other),
            _ => one.cmp(other),
        }
    }

    /// The first moment of a period that has an offset in its name. It may be later than the name's time: the
    /// clocks of Pacific/Chatham go from 02:45 to 03:45, into an hour that is named 03:00.
    fn beginning(&self, key: GroupBy, name: &str) -> Option<i64> {
        let nominal = i64::try_from(name.parse::<Timestamp>().ok()?.as_nanosecond()).ok()?;
        let quarters = (0..4).map(|quarter| nominal.saturating_add(quarter * QUARTER_NS));
        quarters.into_iter().find(|at_ns| self.name(key, *at_ns) == name)
    }

    fn at(&self, at_ns: i64) -> Zoned {
        Timestamp::from_nanosecond(at_ns.into()).unwrap_or_default().to_zoned(self.0.clone())
    }
}

/// The bytes of a local time in a name, as `2026-01-31T23:45`.
const LOCAL_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> Zone {
        Zone::new(TimeZone::get(name).unwrap())
    }

    fn ns(moment: &str) -> i64 {
        i64::try_from(moment.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap()
    }

    #[test]
    fn names_are_those_of_the_zone() {
        for (name, moment, expected) in [
            ("Asia/Kolkata", "2026-01-31T18:40:00Z", ["2026-02-01T00:00+05:30", "2026-02-01", "2026-02"]),
            ("Asia/Kathmandu", "2026-01-31T18:14:59Z", ["2026-01-31T23:00+05:45", "2026-01-31", "2026-01"]),
            ("America/New_York", "2026-11-01T05:59:00Z", ["2026-11-01T01:00-04:00", "2026-11-01", "2026-11"]),
            ("America/New_York", "2026-11-01T06:00:00Z", ["2026-11-01T01:00-05:00", "2026-11-01", "2026-11"]),
            ("UTC", "2026-01-31T23:59:59Z", ["2026-01-31T23:00Z", "2026-01-31", "2026-01"]),
        ] {
            let keys = [GroupBy::Hour, GroupBy::Day, GroupBy::Month];
            assert_eq!(keys.map(|key| zone(name).name(key, ns(moment))), expected, "{name} {moment}");
        }
        let quarter = zone("Asia/Kathmandu").name(GroupBy::Quarter, ns("2026-01-31T18:14:59Z"));
        assert_eq!(quarter, "2026-01-31T23:45+05:45");
    }

    /// Clocks of Chatham go from 02:45 to 03:45, and from 03:45 back to 02:45.
    #[test]
    fn hours_are_in_order_where_clocks_change() {
        let zone = zone("Pacific/Chatham");
        for change in ["2026-09-26T14:00:00Z", "2026-04-04T14:00:00Z"] {
            let quarters = (-8..8).map(|quarter| ns(change) + quarter * QUARTER_NS);
            let mut names: Vec<String> = quarters.map(|at| zone.name(GroupBy::Hour, at)).collect();
            names.dedup();
            let mut sorted = names.clone();
            sorted.reverse();
            sorted.sort_by(|one, other| zone.compare(GroupBy::Hour, one, other));
            assert_eq!(sorted, names, "{change}");
        }
    }

    #[test]
    fn periods_begin_at_midnight_and_fill_the_window() {
        // The day without midnight: clocks go from 23:59:59 to 01:00.
        let cairo = zone("Africa/Cairo");
        let window = Window { since_ns: ns("2026-04-22T12:00:00Z"), last_ns: ns("2026-04-25T12:00:00Z") };
        let days = cairo.periods(&[GroupBy::User, GroupBy::Day], window);
        let starts: Vec<i64> = days.iter().map(|day| day.since_ns).collect();
        let expected =
            ["2026-04-22T12:00:00Z", "2026-04-22T22:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"];
        assert_eq!(starts, expected.map(ns));
        assert!(days.windows(2).all(|pair| pair[0].last_ns + 1 == pair[1].since_ns));
        assert_eq!(days.last().unwrap().last_ns, window.last_ns);
        assert_eq!(cairo.periods(&[GroupBy::Month], window).len(), 1);
        assert_eq!(zone("UTC").periods(&[GroupBy::Day], window), [window]);
        let all = Window { since_ns: i64::MAX - 1, last_ns: i64::MAX };
        assert_eq!(cairo.periods(&[GroupBy::Day], all), [all]);
    }

    /// The guarantee of this file, from the rules of all zones.
    #[test]
    fn offsets_are_multiples_of_a_quarter_hour() {
        let moments = (1980..2060).flat_map(|year| [1, 4, 7, 10].map(|month| (year, month)));
        let moments: Vec<Timestamp> = moments
            .map(|(year, month)| {
                Date::new(year, month, 1).unwrap().to_zoned(TimeZone::UTC).unwrap().timestamp()
            })
            .collect();
        let database = jiff::tz::TimeZoneDatabase::bundled();
        let mut zones = 0;
        for name in database.available() {
            let zone = database.get(name.as_str()).unwrap();
            zones += 1;
            for moment in &moments {
                let offset = zone.to_offset(*moment).seconds();
                assert_eq!(offset % 900, 0, "{name} {moment}");
            }
        }
        assert!(zones > 400);
    }
}
