//! Periods in every zone, and those that changes of the clocks make unusual.

use std::sync::LazyLock;

use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;

use super::*;

/// Every zone of jiff's copy: what this machine has installed decides nothing here.
static ZONES: LazyLock<Vec<TimeZone>> = LazyLock::new(|| {
    let database = TimeZoneDatabase::bundled();
    let zones: Vec<_> =
        database.available().map(|name| database.get(name.as_str())).collect::<Result<_, _>>().unwrap();
    assert!(zones.len() > 400);
    zones
});

const PERS: [Per; 5] = [Per::Hour, Per::Day, Per::Week, Per::Month, Per::Total];

fn calendar(per: Per, zone: &str, anchor: u8) -> Calendar {
    Calendar::new(per, TimeZoneDatabase::bundled().get(zone).unwrap(), anchor)
}

fn moment(text: &str) -> WallNanos {
    nanos(text.parse::<Timestamp>().unwrap().as_second())
}

fn text(at: WallNanos) -> String {
    timestamp(i64::try_from(at.0 / NANOS_PER_SECOND).unwrap()).to_string()
}

/// Checks that borders follow each other: of the first of them, and of the periods after it.
#[track_caller]
fn check_borders(calendar: &Calendar, borders: &[&str]) {
    let mut start = moment(borders[0]);
    let mut found = Vec::new();
    for _ in borders {
        let period = calendar.period_at(start);
        found.push(text(period.start));
        assert_eq!(calendar.period_at(WallNanos(period.end.0 - 1)), period, "{}", text(period.start));
        start = period.end;
    }
    assert_eq!(found, borders);
}

#[test]
fn hours_and_days_follow_daylight_saving_time() {
    let hours = calendar(Per::Hour, "America/New_York", 1);
    let (spring, autumn) = (
        ["2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z"],
        ["2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"],
    );
    check_borders(&hours, &spring);
    check_borders(&hours, &autumn);
    // Days of 23 and of 25 hours.
    let days = calendar(Per::Day, "America/New_York", 1);
    check_borders(&days, &["2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", "2026-03-10T04:00:00Z"]);
    check_borders(&days, &["2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"]);
}

#[test]
fn day_without_midnight_begins_at_its_first_instant() {
    // From 23:59:59 to 01:00; in Apia there was no 30 December 2011.
    let cairo = calendar(Per::Day, "Africa/Cairo", 1);
    check_borders(&cairo, &["2026-04-22T22:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"]);
    let apia = calendar(Per::Day, "Pacific/Apia", 1);
    check_borders(&apia, &["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"]);
    let anchored = calendar(Per::Month, "Pacific/Apia", 30);
    check_borders(&anchored, &["2011-11-30T10:00:00Z", "2011-12-30T10:00:00Z", "2012-01-29T10:00:00Z"]);
}

#[test]
fn repeated_midnight_begins_one_day() {
    // Havana from 01:00 back to 00:00, St Johns from 00:01 back to 23:01 of the day before.
    let havana = calendar(Per::Day, "America/Havana", 1);
    check_borders(&havana, &["2024-11-02T04:00:00Z", "2024-11-03T04:00:00Z", "2024-11-04T05:00:00Z"]);
    let days = calendar(Per::Day, "America/St_Johns", 1);
    check_borders(&days, &["2010-11-06T02:30:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"]);
    let hours = calendar(Per::Hour, "America/St_Johns", 1);
    let borders = ["2010-11-07T01:30:00Z", "2010-11-07T02:30:00Z", "2010-11-07T03:30:00Z"];
    check_borders(&hours, &borders);
}

#[test]
fn borders_are_those_of_offsets_with_quarters() {
    let kathmandu = calendar(Per::Hour, "Asia/Kathmandu", 1);
    check_borders(&kathmandu, &["2026-01-31T17:15:00Z", "2026-01-31T18:15:00Z"]);
    let days = calendar(Per::Day, "Asia/Kathmandu", 1);
    check_borders(&days, &["2026-01-31T18:15:00Z", "2026-02-01T18:15:00Z"]);
    // From 02:45 to 03:45: the hours 02 and 03 are parts of an hour; then from 03:45 back to 02:45.
    let chatham = calendar(Per::Hour, "Pacific/Chatham", 1);
    let spring = ["2026-09-26T13:15:00Z", "2026-09-26T14:00:00Z", "2026-09-26T14:15:00Z"];
    check_borders(&chatham, &spring);
    let autumn = ["2026-04-04T13:15:00Z", "2026-04-04T14:00:00Z", "2026-04-04T14:15:00Z"];
    check_borders(&chatham, &autumn);
    // By half an hour: from 02:00 to 02:30, and back to 01:30.
    let lord_howe = calendar(Per::Hour, "Australia/Lord_Howe", 1);
    let spring = ["2026-10-03T14:30:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"];
    check_borders(&lord_howe, &spring);
    let autumn = ["2026-04-04T14:00:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"];
    check_borders(&lord_howe, &autumn);
}

#[test]
fn weeks_begin_on_monday() {
    let weeks = calendar(Per::Week, "Europe/Berlin", 1);
    check_borders(&weeks, &["2025-12-28T23:00:00Z", "2026-01-04T23:00:00Z"]);
    let sunday = weeks.period_at(moment("2026-03-29T21:59:59Z"));
    assert_eq!(
        [text(sunday.start), text(sunday.end)],
        ["2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z"],
        "a week of 167 hours"
    );
}

#[test]
fn anchor_is_clamped_to_each_month_anew() {
    let months = |anchor| calendar(Per::Month, "UTC", anchor);
    let leap = [
        "2028-01-31T00:00:00Z",
        "2028-02-29T00:00:00Z",
        "2028-03-31T00:00:00Z",
        "2028-04-30T00:00:00Z",
        "2028-05-31T00:00:00Z",
    ];
    check_borders(&months(31), &leap);
    check_borders(&months(30), &["2026-01-30T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-30T00:00:00Z"]);
    check_borders(&months(1), &["2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z"]);
    check_borders(&months(15), &["2026-12-15T00:00:00Z", "2027-01-15T00:00:00Z"]);
    assert_eq!(months(0), months(1));
    assert_eq!(months(255), months(31));
}

#[test]
fn ends_of_the_clock_are_periods() {
    for per in PERS {
        for zone in ["UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Kiritimati"] {
            let calendar = calendar(per, zone, 31);
            assert_eq!(calendar.period_at(WallNanos(0)).start, WallNanos(0), "{per:?} {zone}");
            let last = calendar.period_at(WallNanos(u64::MAX));
            assert_eq!(last.end, WallNanos(u64::MAX), "{per:?} {zone}");
            let before = calendar.period_at(WallNanos(last.start.0.saturating_sub(1)));
            assert!(per == Per::Total || before.end == last.start, "{per:?} {zone}");
        }
    }
    assert_eq!(calendar(Per::Total, "UTC", 1).period_at(moment("2026-01-01T00:00:00Z")), Period::ENDLESS);
}

#[test]
fn calendars_are_equal_where_zone_or_anchor_have_no_meaning() {
    assert_eq!(calendar(Per::Total, "Asia/Kolkata", 7), calendar(Per::Total, "UTC", 1));
    assert_eq!(calendar(Per::Day, "Asia/Kolkata", 7), calendar(Per::Day, "Asia/Kolkata", 1));
    assert_ne!(calendar(Per::Day, "Asia/Kolkata", 1), calendar(Per::Day, "UTC", 1));
    assert_eq!(calendar(Per::Day, "Asia/Kolkata", 1).zone_name(), "Asia/Kolkata");
    assert_eq!(calendar(Per::Total, "Asia/Kolkata", 1).zone_name(), "UTC");
}

/// The properties of the periods at `now`, and of the next one.
fn check(calendar: &Calendar, now: WallNanos) {
    let period = calendar.period_at(now);
    let what = || {
        let (zone, anchor) = (calendar.zone_name(), calendar.anchor());
        format!("{:?} {zone} {anchor} at {}: {} to {}", calendar.per(), text(now), text(period.start), {
            text(period.end)
        })
    };
    assert!(period.start <= now && now < period.end, "{}", what());
    assert_eq!(calendar.period_at(period.start), period, "{}", what());
    assert_eq!(calendar.period_at(WallNanos(period.end.0 - 1)), period, "{}", what());
    if calendar.per() == Per::Total {
        return;
    }
    let next = calendar.period_at(period.end);
    assert_eq!(next.start, period.end, "{}", what());
    let quarter_ns = 900 * NANOS_PER_SECOND;
    for border in [period.start, period.end] {
        assert!(border.0.is_multiple_of(quarter_ns), "{}", what());
    }
}

/// Nanoseconds from 1980 to 2100.
fn moments() -> std::ops::Range<u64> {
    moment("1980-01-01T00:00:00Z").0..moment("2100-01-01T00:00:00Z").0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn periods_fill_the_time_of_every_zone(
        zone in 0..ZONES.len(),
        per in prop::sample::select(&PERS),
        anchor in 1..=31_u8,
        now in moments(),
        later_ns in 0..40 * 86_400 * NANOS_PER_SECOND,
    ) {
        let calendar = Calendar::new(per, ZONES[zone].clone(), anchor);
        let later = WallNanos(now + later_ns);
        check(&calendar, WallNanos(now));
        let (period, next) = (calendar.period_at(WallNanos(now)), calendar.period_at(later));
        prop_assert!(period == next || period.end <= next.start, "{calendar:?} {now} {later:?}");
    }

    /// Random moments rarely meet a change of the clocks: these are all within an hour of one.
    #[test]
    fn periods_fill_the_time_around_changes(
        zone in 0..ZONES.len(),
        anchor in 1..=31_u8,
        since in moments(),
        delta_s in -3_700..3_700_i64,
    ) {
        let since = i64::try_from(since / NANOS_PER_SECOND).unwrap();
        let change = ZONES[zone].following(timestamp(since)).next();
        let change = change.map_or(since, |change| change.timestamp().as_second());
        for per in PERS {
            check(&Calendar::new(per, ZONES[zone].clone(), anchor), nanos(change + delta_s));
        }
    }
}

/// Each change of the clocks of each zone: the quarters on both sides and the days around it.
#[test]
fn every_change_of_the_clocks_is_covered() {
    let (since, until) = (timestamp(315_532_800), timestamp(2_240_524_800));
    for zone in &*ZONES {
        for change in zone.following(since).take_while(|change| change.timestamp() < until) {
            let at = change.timestamp().as_second();
            for per in [Per::Hour, Per::Day, Per::Week, Per::Month] {
                let calendar = Calendar::new(per, zone.clone(), 31);
                for delta_s in [-3600, -60, -1, 0, 1, 3600] {
                    check(&calendar, nanos(at + delta_s));
                }
            }
        }
    }
}
