//! Flows and accepted losses, one by one.

use super::*;

pub(super) fn flows_are_listed_in_their_order(fixture: &mut impl UsageFixture) {
    let opened = |at, of: Flow<'static>| Flow { opened: WallNanos(at), ..of };
    let described = Flow {
        user: "ops",
        host: "b.example",
        port: 22,
        address: Some("192.0.2.7".parse().unwrap()),
        client: "[2001:db8::1]:5000".parse().unwrap(),
        class: Class::Internal,
        protocol: Protocol::HttpConnect,
        rule: "@corp[1] 192.0.2.0/24",
        set: 1,
        reason: CloseReason::UpstreamReset,
        uncertain: Uncertain { up: 3, down: 4 },
        ..flow(7, FEBRUARY + QUARTER, 6, 60)
    };
    fixture.apply(
        1,
        &[
            open(opened(EVENING, flow(1, EVENING, 1, 10))),
            end(flow(2, FEBRUARY, 2, 20)),
            // The clock was back for a moment.
            end(flow(3, EVENING, 3, 30)),
            open(opened(EVENING + 1, flow(4, FEBRUARY, 4, 40))),
            open(Flow { closed: WallNanos(EVENING), legs: Legs::default(), ..described }),
            end(described),
            end(flow(5, FEBRUARY, 5, 50)),
        ],
    );
    let usage = fixture.usage(&[(1, end(flow(6, FEBRUARY, 7, 70)))]);
    let ids = |filter: &Filter, limit| -> Vec<u128> {
        usage.flows(filter, limit).unwrap().into_iter().map(|flow| flow.id).collect()
    };
    assert_eq!(ids(&all(), 9), [4, 1, 5, 7, 2, 3]);
    assert_eq!(ids(&all(), 4), [4, 1, 5, 7]);
    assert_eq!(ids(&all(), 1), [4]);
    assert_eq!(ids(&all(), 0), [0; 0]);
    assert_eq!(ids(&span(FEBRUARY, FEBRUARY + 1), 9), [4, 5, 2]);
    assert_eq!(ids(&Filter { host: Some("b.example".to_owned()), ..of_user("ops") }, 9), [7]);
    assert_eq!((ids(&of_set("corp"), 9), ids(&of_class(Class::External), 1)), (vec![7], vec![4]));
    let listed = usage.flows(&of_user("ops"), 9).unwrap().remove(0);
    assert_eq!(
        listed,
        FlowRow {
            id: 7,
            opened: WallNanos(EVENING),
            closed: WallNanos(FEBRUARY + QUARTER),
            live: false,
            user: "ops".to_owned(),
            host: "b.example".to_owned(),
            port: 22,
            address: Some("192.0.2.7".to_owned()),
            client: "[2001:db8::1]:5000".to_owned(),
            class: "internal".to_owned(),
            protocol: "http_connect".to_owned(),
            rule: "@corp[1] 192.0.2.0/24".to_owned(),
            reason: "upstream_reset".to_owned(),
            up: 6,
            down: 60,
            uncertain_up: 3,
            uncertain_down: 4,
        }
    );
    let open = usage.flows(&all(), 1).unwrap().remove(0);
    assert!(open.live && open.reason.is_empty() && open.closed == WallNanos(FEBRUARY));
}

pub(super) fn accepted_losses_are_told(fixture: &mut impl UsageFixture) {
    let accepted = |at, what| Entry::Accepted(Consent::new(1, WallNanos(at), (0, 0), "root", what));
    fixture.apply(1, &[accepted(FEBRUARY, "a segment is missing"), accepted(EVENING, "a table is missing")]);
    assert_eq!(
        fixture.usage(&[]).consents().unwrap(),
        [
            "2026-01-31T23:45:00Z by root: a table is missing",
            "2026-02-01T00:00:00Z by root: a segment is missing",
        ]
    );
}
