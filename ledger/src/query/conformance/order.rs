//! The order of rows, and the names of periods.

use super::*;

pub(super) fn groups_are_ordered_key_by_key(fixture: &mut impl UsageFixture) {
    let of = |id, user, host, up, down| end(Flow { user, host, ..flow(id, EVENING, up, down) });
    fixture.apply(
        1,
        &[
            of(1, "small", "a", 5, 0),
            of(2, "big", "a", 1, 0),
            // More than "small" in both directions together.
            of(3, "big", "b", 1, 4),
            of(4, "even", "b", 2, 3),
            end(Flow { user: "small", host: "c", ..flow(5, EVENING - QUARTER, 0, 0) }),
        ],
    );
    let usage = fixture.usage(&[]);
    let names = |keys: &[GroupBy]| -> Vec<String> {
        rows(&usage, &all(), keys).into_iter().map(|(keys, _)| keys).collect()
    };
    assert_eq!(names(&[GroupBy::User]), ["big", "even", "small"]);
    assert_eq!(names(&[GroupBy::User, GroupBy::Host]), ["big b", "big a", "even b", "small a", "small c"]);
    assert_eq!(names(&[GroupBy::Host]), ["b", "a", "c"]);
    let by_three = names(&[GroupBy::Class, GroupBy::User, GroupBy::Host]);
    let due = ["big b", "big a", "even b", "small a", "small c"].map(|names| format!("external {names}"));
    assert_eq!(by_three, due);
    assert_eq!(
        names(&[GroupBy::Quarter, GroupBy::User]),
        [
            "2026-01-31T23:30Z small",
            "2026-01-31T23:45Z big",
            "2026-01-31T23:45Z even",
            "2026-01-31T23:45Z small",
        ]
    );
}

pub(super) fn periods_are_those_of_the_zone(fixture: &mut impl UsageFixture) {
    let at = |moment: &str| u64::try_from(moment.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap();
    // Clocks in Berlin go from 03:00 back to 02:00 at 01:00 UTC.
    let moments = ["2026-10-24T22:10:00Z", "2026-10-25T00:20:00Z", "2026-10-25T01:20:00Z"];
    let ends = moments.iter().enumerate();
    let ends: Vec<Entry> = ends.map(|(id, moment)| end(flow(id as u128, at(moment), 1, 0))).collect();
    fixture.apply(1, &ends);
    for (zone, key, expected) in [
        (
            "Europe/Berlin",
            GroupBy::Hour,
            vec!["2026-10-25T00:00+02:00", "2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00"],
        ),
        (
            "Europe/Berlin",
            GroupBy::Quarter,
            vec!["2026-10-25T00:00+02:00", "2026-10-25T02:15+02:00", "2026-10-25T02:15+01:00"],
        ),
        ("Europe/Berlin", GroupBy::Day, vec!["2026-10-25"]),
        (
            "Asia/Kathmandu",
            GroupBy::Hour,
            vec!["2026-10-25T03:00+05:45", "2026-10-25T06:00+05:45", "2026-10-25T07:00+05:45"],
        ),
        ("America/St_Johns", GroupBy::Day, vec!["2026-10-24"]),
        ("UTC", GroupBy::Hour, vec!["2026-10-24T22:00Z", "2026-10-25T00:00Z", "2026-10-25T01:00Z"]),
        ("Pacific/Kiritimati", GroupBy::Month, vec!["2026-10"]),
        ("UTC", GroupBy::Day, vec!["2026-10-24", "2026-10-25"]),
    ] {
        let usage = fixture.usage(&[]).in_zone(TimeZone::get(zone).unwrap());
        let found: Vec<String> = rows(&usage, &all(), &[key]).into_iter().map(|(key, _)| key).collect();
        assert_eq!(found, expected, "{zone}");
        let by_host: Vec<String> =
            rows(&usage, &of_host("example.com"), &[key]).into_iter().map(|(key, _)| key).collect();
        assert_eq!(by_host, expected, "{zone}, from details");
    }
}
