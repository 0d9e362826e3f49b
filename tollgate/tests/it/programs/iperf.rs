//! iperf3 through a `forward` listener: several streams at once, in both directions.

use serde_json::Value;

use super::forwarding;
use super::services::{run, service};

const STREAMS: &str = "4";
const BYTES: u64 = 400_000_000;

#[test]
#[ignore = "needs iperf: cargo xtask services"]
fn parallel_streams_through_forward_are_billed() {
    let (mut gateway, [host, port]) = forwarding(&service("IPERF_PORT"));
    let bytes = BYTES.to_string();
    let received = |direction: &[&str]| {
        let measured = ["-c", &host, "-p", &port, "-P", STREAMS, "-n", &bytes, "--json"];
        let report = run("iperf3", &[&measured[..], direction].concat()).success();
        let report: Value = serde_json::from_slice(&report).unwrap();
        report["end"]["sum_received"]["bytes"].as_u64().unwrap_or_else(|| panic!("{report:#}"))
    };
    let (up, down) = (received(&[]), received(&["--reverse"]));
    // A sender reports its end on the control connection, and bytes in flight are not read any more.
    assert!(up >= BYTES / 2 && down >= BYTES / 2, "{up} {down}");

    gateway.stop();
    let (flows, billed_up, billed_down) = gateway.usage_of("me");
    // A control connection and the streams, twice.
    assert_eq!(flows, 10);
    assert!(billed_up >= up && billed_down >= down, "{billed_up} {billed_down} {up} {down}");
}
