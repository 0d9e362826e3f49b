//! Reads the flows of a gateway from its ledger.

use ledger::SqliteUsage;
use ledger::query::{Filter, FlowRow, Usage};

use crate::harness::Gateway;

/// More than any test here makes.
const FLOWS_MAX: usize = 1000;

/// Stops the gateway; returns all flows of its ledger.
pub(crate) fn flows(gateway: &mut Gateway) -> Vec<FlowRow> {
    gateway.stop();
    let usage = SqliteUsage::open(&gateway.path("tollgate-data")).unwrap();
    usage.flows(&Filter::default(), FLOWS_MAX).unwrap()
}

/// Stops the gateway and asserts that it has no flow, since no request had a user, as its log shows.
#[track_caller]
pub(crate) fn check_refused(gateway: &mut Gateway) {
    let flows = flows(gateway);
    assert!(flows.is_empty(), "{flows:#?}");
    check_denials(gateway);
}

/// Asserts that the log has denials, and that none has a user.
#[track_caller]
pub(crate) fn check_denials(gateway: &Gateway) {
    let decisions = gateway.events("decision");
    let denials: Vec<_> = decisions.iter().filter(|line| line["decision"] == "deny").collect();
    assert!(!denials.is_empty() && denials.iter().all(|line| line["user"].is_null()), "{decisions:#?}");
}

/// Stops the gateway and asserts that all its flows are `user`'s, by `protocol`, to `host` and `port`;
/// returns their number, and their bytes up and down.
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
