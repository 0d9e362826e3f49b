//! What the ledger has of a gateway, flow by flow.

use ledger::query::{Filter, FlowRow, Usage};

use crate::harness::Gateway;

/// More than any test here makes.
const FLOWS_MAX: usize = 1000;

/// Ends the gateway; all flows of its ledger.
pub(crate) fn flows(gateway: &mut Gateway) -> Vec<FlowRow> {
    gateway.stop();
    let usage = Usage::open(&gateway.path("tollgate-data")).unwrap();
    usage.flows(&Filter::default(), FLOWS_MAX).unwrap()
}

/// Ends the gateway and asserts that it has no flow, since what came had no user, which its log tells.
#[track_caller]
pub(crate) fn check_refused(gateway: &mut Gateway) {
    let flows = flows(gateway);
    assert!(flows.is_empty(), "{flows:#?}");
    check_denials(gateway);
}

/// Asserts that the log tells of denials, and that none has a user.
#[track_caller]
pub(crate) fn check_denials(gateway: &Gateway) {
    let decisions = gateway.events("decision");
    let denials: Vec<_> = decisions.iter().filter(|line| line["decision"] == "deny").collect();
    assert!(!denials.is_empty() && denials.iter().all(|line| line["user"].is_null()), "{decisions:#?}");
}

/// Ends the gateway and asserts that all its flows are `user`'s, by `protocol`, to `host` and `port`; how
/// many there were, and their bytes up and down.
#[track_caller]
pub(crate) fn total(
    gateway: &mut Gateway,
    (user, protocol, host, port): (&str, &str, &str, u16),
) -> (usize, u64, u64) {
    let flows = flows(gateway);
    let is_expected = |flow: &FlowRow| {
        (&*flow.user, &*flow.protocol, &*flow.host, flow.port) == (user, protocol, host, port) && !flow.live
    };
    assert!(!flows.is_empty() && flows.iter().all(is_expected), "{flows:#?}");
    (flows.len(), flows.iter().map(|flow| flow.up).sum(), flows.iter().map(|flow| flow.down).sum())
}
