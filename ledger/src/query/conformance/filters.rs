//! Which usage a filter admits.

use super::*;

pub(super) fn span_has_its_beginning_and_not_its_end(fixture: &mut impl UsageFixture) {
    let at = EVENING + 77;
    fixture.apply(1, &[end(flow(1, at, 1, 0)), end(flow(2, at + 1, 2, 0)), end(flow(3, u64::MAX, 4, 0))]);
    let usage = fixture.usage(&[]);
    let up = |filter: &Filter| {
        let [_, _, up, _] = total(&usage, filter);
        let with_host = Filter { host: Some("example.com".to_owned()), ..filter.clone() };
        assert_eq!(total(&usage, &with_host)[2], up, "{filter:?}");
        let listed = usage.flows(filter, 9).unwrap();
        assert_eq!(listed.iter().map(|flow| flow.up).sum::<u64>(), up, "{filter:?}");
        up
    };
    let since = |at| Filter { since: Some(WallNanos(at)), ..Filter::default() };
    let until = |at| Filter { until: Some(WallNanos(at)), ..Filter::default() };
    assert_eq!([up(&since(at)), up(&since(at + 1)), up(&since(at + 2))], [7, 6, 4]);
    assert_eq!([up(&until(at)), up(&until(at + 1)), up(&until(at + 2))], [0, 1, 3]);
    assert_eq!([up(&span(at, at + 1)), up(&span(at, at)), up(&span(at + 1, at))], [1, 0, 0]);
    // The last moment of the ledger, in 2262, stands for all later ones.
    let last = i64::MAX as u64;
    assert_eq!(
        [up(&since(last)), up(&since(u64::MAX)), up(&until(u64::MAX)), up(&until(last - 1))],
        [4, 4, 7, 3]
    );
}

pub(super) fn every_field_of_a_filter_is_met(fixture: &mut impl UsageFixture) {
    let flows = [
        flow(1, EVENING, 1, 0),
        Flow { user: "ops", ..flow(2, EVENING, 2, 0) },
        Flow { host: "b.example", ..flow(3, EVENING, 4, 0) },
        Flow { class: Class::Internal, ..flow(4, EVENING, 8, 0) },
        Flow { set: 1, rule: "@corp[0] example.com", ..flow(5, EVENING, 16, 0) },
        flow(6, FEBRUARY, 32, 0),
    ];
    fixture.apply(1, &flows.map(end));
    let usage = fixture.usage(&[]);
    let up = |filter: Filter| total(&usage, &filter)[2];
    assert_eq!(up(of_user("ci")), 63 - 2);
    assert_eq!(up(of_host("example.com")), 63 - 4);
    assert_eq!([up(of_class(Class::Internal)), up(of_class(Class::External))], [8, 63 - 8]);
    assert_eq!(up(of_set("corp")), 16);
    let every = Filter {
        user: Some("ci".to_owned()),
        host: Some("example.com".to_owned()),
        class: Some(Class::External),
        set: Some("corp".to_owned()),
        ..span(EVENING, FEBRUARY)
    };
    assert_eq!(up(every.clone()), 16);
    for none in [
        Filter { user: Some("ops".to_owned()), ..every.clone() },
        Filter { team: Some("none".to_owned()), ..every.clone() },
        Filter { host: Some("b.example".to_owned()), ..every.clone() },
        Filter { class: Some(Class::Internal), ..every.clone() },
        Filter { set: Some("lab".to_owned()), ..every.clone() },
        Filter { until: Some(WallNanos(EVENING)), ..every },
        // Names that have no number, and hosts without a flow.
        of_user("none"),
        of_set("none"),
        of_host("EXAMPLE.com"),
        of_host(""),
    ] {
        assert_eq!(total(&usage, &none), [0; 4], "{none:?}");
        assert_rows(&usage, &none, &[GroupBy::Host], &[]);
        assert_eq!(usage.flows(&none, 9).unwrap(), [], "{none:?}");
    }
}
