//! What is summed up, and at which moment it counts.

use super::*;

pub(super) fn bytes_belong_to_the_quarter_hour_of_their_count(fixture: &mut impl UsageFixture) {
    let late = FEBRUARY + 7 * SECOND;
    fixture.apply(
        1,
        &[
            open(flow(1, EVENING, 1, 0)),
            open(flow(1, EVENING + SECOND, 3, 10)),
            // Nothing moved in two quarter-hours.
            open(flow(1, late + 2 * QUARTER, 7, 10)),
            end(flow(1, late + 3 * QUARTER, 15, 11)),
            open(flow(2, late, 100, 0)),
        ],
    );
    let usage = fixture.usage(&[]);
    let quarters = [
        ("2026-01-31T23:45Z", [0, 0, 3, 10]),
        ("2026-02-01T00:00Z", [0, 1, 100, 0]),
        ("2026-02-01T00:30Z", [0, 0, 4, 0]),
        ("2026-02-01T00:45Z", [1, 0, 8, 1]),
    ];
    assert_rows(&usage, &all(), &[GroupBy::Quarter], &quarters);
    let months = [("2026-01", [0, 0, 3, 10]), ("2026-02", [1, 1, 112, 1])];
    assert_rows(&usage, &all(), &[GroupBy::Month], &months);
    for filter in [all(), of_host("example.com")] {
        let with = |since, until| Filter { host: filter.host.clone(), ..span(since, until) };
        // What is before the last quarter-hour counts at the end of its own.
        assert_eq!(total(&usage, &with(EVENING, FEBRUARY - 1)), [0; 4]);
        assert_eq!(total(&usage, &with(FEBRUARY - 1, FEBRUARY)), [0, 0, 3, 10]);
        // What is in the last one counts at its end, or at the last count.
        assert_eq!(total(&usage, &with(FEBRUARY, late)), [0; 4]);
        assert_eq!(total(&usage, &with(late, late + 1)), [0, 1, 100, 0]);
        let ended = late + 3 * QUARTER;
        assert_eq!(total(&usage, &with(ended, ended + 1)), [1, 0, 8, 1]);
        assert_eq!(total(&usage, &with(late + 1, ended)), [0, 0, 4, 0]);
    }
}

pub(super) fn counts_and_moments_never_fall(fixture: &mut impl UsageFixture) {
    let with_requests = |requests, of: Flow<'static>| Flow { requests, ..of };
    fixture.apply(
        1,
        &[
            open(flow(1, EVENING + 9 * SECOND, 50, 5)),
            // No count is higher: the moment does not change either.
            open(flow(1, FEBRUARY, 50, 4)),
            open(flow(2, FEBRUARY, 50, 5)),
            // The clock went back, over a month.
            open(flow(2, EVENING, 70, 1)),
            end(with_requests(4, flow(3, EVENING, 9, 9))),
            open(with_requests(9, flow(4, EVENING, 100, 100))),
            // A request more is a higher count.
            open(with_requests(10, flow(4, FEBRUARY, 0, 0))),
        ],
    );
    let quarters = [("2026-01-31T23:45Z", [1, 1, 159, 114]), ("2026-02-01T00:00Z", [0, 2, 70, 5])];
    assert_rows(&fixture.usage(&[]), &all(), &[GroupBy::Quarter], &quarters);
    fixture.apply(
        1,
        &[
            end(flow(1, EVENING, 20, 6)),
            end(with_requests(3, flow(2, EVENING, 60, 0))),
            end(flow(4, EVENING, 1, 1)),
        ],
    );
    let usage = fixture.usage(&[]);
    let quarters = [("2026-01-31T23:45Z", [2, 0, 159, 115]), ("2026-02-01T00:00Z", [2, 0, 70, 5])];
    assert_rows(&usage, &all(), &[GroupBy::Quarter], &quarters);
    assert_eq!(usage.total(&all()).unwrap().requests, 4 + 3 + 10);
    let listed = usage.flows(&all(), 9).unwrap();
    let first = listed.iter().find(|flow| flow.id == 1).unwrap();
    assert_eq!((first.up, first.down, first.closed), (50, 6, WallNanos(EVENING + 9 * SECOND)));
}

pub(super) fn requests_and_uncertain_bytes_count_at_the_end(fixture: &mut impl UsageFixture) {
    let with =
        |requests, up, down, of: Flow<'static>| Flow { requests, uncertain: Uncertain { up, down }, ..of };
    let rest = |usage: &dyn Fn(GroupBy) -> Row, key| {
        let row = usage(key);
        [row.requests, row.uncertain_up, row.uncertain_down]
    };
    fixture.apply(1, &[open(with(5, 7, 9, flow(1, EVENING, 1, 1)))]);
    let usage = fixture.usage(&[]);
    let only = |key| usage.rows(&all(), &[key]).unwrap().rows.remove(0);
    assert_eq!(rest(&only, GroupBy::User), [0; 3]);
    assert_eq!(rest(&only, GroupBy::Host), [0; 3]);
    fixture.apply(1, &[end(with(6, 3, 9, flow(1, FEBRUARY, 1, 1)))]);
    let usage = fixture.usage(&[]);
    for key in [GroupBy::User, GroupBy::Host, GroupBy::Port] {
        let only = |key| usage.rows(&span(FEBRUARY, FEBRUARY + 1), &[key]).unwrap().rows.remove(0);
        assert_eq!(rest(&only, key), [6, 7, 9], "the higher counts, at the end: {key:?}");
    }
}

pub(super) fn run_ends_open_flows(fixture: &mut impl UsageFixture) {
    fixture.apply(1, &[open(Flow { requests: 3, ..flow(1, EVENING, 10, 0) }), open(flow(2, EVENING, 20, 0))]);
    // The next run found the second flow in the live table.
    fixture.apply(2, &[end(flow(2, FEBRUARY, 25, 0)), began(2, FEBRUARY + QUARTER)]);
    fixture.apply(2, &[open(flow(3, FEBRUARY + QUARTER, 40, 0))]);
    let usage = fixture.usage(&[]);
    let quarters = [
        ("2026-01-31T23:45Z", [1, 0, 30, 0]),
        ("2026-02-01T00:00Z", [1, 0, 5, 0]),
        ("2026-02-01T00:15Z", [0, 1, 40, 0]),
    ];
    assert_rows(&usage, &all(), &[GroupBy::Quarter], &quarters);
    assert_eq!(usage.total(&span(EVENING, FEBRUARY)).unwrap().requests, 3);
    let lost = usage.flows(&all(), 9).unwrap().into_iter().find(|flow| flow.id == 1).unwrap();
    assert_eq!((lost.reason.as_str(), lost.closed), ("lost", WallNanos(EVENING)));
}

pub(super) fn rows_of_any_keys_add_up(fixture: &mut impl UsageFixture) {
    let other = Flow { user: "ops", host: "b.example", port: 22, protocol: Protocol::Http, ..PLAIN };
    fixture.apply(
        1,
        &[
            open(flow(1, EVENING, 1, 0)),
            end(flow(1, FEBRUARY, 3, 9)),
            end(Flow { id: 2, requests: 7, class: Class::Internal, ..flow(2, FEBRUARY, 10, 0) }),
            open(Flow { id: 3, legs: Legs { upstream_tx: 100, ..Legs::default() }, ..other }),
            // Without any byte.
            open(Flow { id: 4, ..other }),
        ],
    );
    let usage = fixture.usage(&[]);
    let mut lists: Vec<Vec<GroupBy>> = KEYS.map(|key| vec![key]).to_vec();
    lists.extend(KEYS.iter().flat_map(|one| KEYS.map(|other| vec![*one, other])));
    lists.push(KEYS.to_vec());
    for keys in lists {
        let answer = usage.rows(&all(), &keys).unwrap();
        let sum = |column: fn(&Row) -> u64| answer.rows.iter().map(column).sum::<u64>();
        let found = [sum(|row| row.flows), sum(|row| row.live), sum(|row| row.up), sum(|row| row.down)];
        assert_eq!((found, sum(|row| row.requests)), ([2, 2, 113, 9], 7), "{keys:?}");
        assert!(answer.rows.iter().all(|row| row.keys.len() == keys.len()));
    }
    let by_port = [("22", [0, 2, 100, 0]), ("443", [2, 0, 13, 9])];
    assert_rows(&usage, &all(), &[GroupBy::Port], &by_port);
    let by_protocol = [("http", [0, 2, 100, 0]), ("socks5", [2, 0, 13, 9])];
    assert_rows(&usage, &all(), &[GroupBy::Protocol], &by_protocol);
}

pub(super) fn sum_beyond_the_bound_is_an_error(fixture: &mut impl UsageFixture) {
    let most = (i64::MAX - 1) as u64;
    fixture.apply(1, &[end(flow(1, EVENING, most, 1))]);
    assert_eq!(total(&fixture.usage(&[]), &all()), [1, 0, most, 1]);
    let one = end(Flow { user: "ops", ..flow(2, EVENING, 1, u64::MAX) });
    for _ in 0..2 {
        let usage = fixture.usage(&[(1, one)]);
        assert!(usage.total(&all()).is_err());
        assert!(usage.rows(&all(), &[GroupBy::Host]).is_err());
        assert!(usage.rows(&all(), &[GroupBy::User]).is_err());
        assert!(usage.rows(&all(), &[GroupBy::Month]).is_err());
        assert_eq!(total(&usage, &of_user("ci")), [1, 0, most, 1], "other sums are as before");
    }
    fixture.apply(1, &[one]);
    let usage = fixture.usage(&[]);
    assert!(usage.total(&all()).is_err() && usage.rows(&all(), &[GroupBy::Day]).is_err());
    assert_eq!(total(&usage, &of_user("ci")), [1, 0, most, 1]);
    // Every sum, not bytes alone.
    let many = |id| end(Flow { user: "many", requests: most, ..flow(id, EVENING, 1, 1) });
    fixture.apply(1, &[many(3), many(4)]);
    assert!(fixture.usage(&[]).total(&of_user("many")).is_err());
}

pub(super) fn entries_ahead_count_as_if_applied(fixture: &mut impl UsageFixture) {
    let history = [
        open(flow(1, EVENING, 10, 0)),
        open(Flow { user: "ops", ..flow(2, EVENING, 20, 1) }),
        open(flow(1, EVENING + 5 * SECOND, 15, 0)),
        open(flow(1, FEBRUARY, 15, 0)),
        end(Flow { user: "new", ..flow(3, EVENING, 40, 0) }),
        end(Flow { requests: 2, ..flow(1, FEBRUARY + SECOND, 80, 0) }),
        began(2, FEBRUARY + 2 * SECOND),
    ];
    let whole = [
        (all(), [3, 0, 140, 1]),
        (of_user("ci"), [1, 0, 80, 0]),
        (of_user("new"), [1, 0, 40, 0]),
        (span(EVENING, EVENING + 1), [2, 0, 60, 1]),
        (span(EVENING + 1, FEBRUARY), [0, 0, 15, 0]),
        (span(FEBRUARY, FEBRUARY + SECOND), [0; 4]),
        (span(FEBRUARY, FEBRUARY + QUARTER), [1, 0, 65, 0]),
    ];
    for applied in 0..=history.len() {
        let unapplied: Vec<(u32, Entry)> = history[applied..].iter().map(|entry| (1, *entry)).collect();
        let usage = fixture.usage(&unapplied);
        for (filter, expected) in &whole {
            assert_eq!(total(&usage, filter), *expected, "{applied} applied, {filter:?}");
            let by_host = Filter { host: Some("example.com".to_owned()), ..filter.clone() };
            assert_eq!(total(&usage, &by_host), *expected, "{applied} applied, {by_host:?}");
        }
        assert!(usage.users().unwrap().into_iter().eq(["ci", "new", "ops"]), "{applied} applied");
        assert!(usage.has_user("new").unwrap(), "{applied} applied");
        assert_eq!(usage.completeness().includes_unapplied, applied < history.len());
        if applied < history.len() {
            fixture.apply(1, &history[applied..=applied]);
        }
    }
}
