//! iperf3 through a `forward` listener: several streams at once, in both directions.

use serde_json::Value;

use super::gateway::Gateway;
use super::services::{run, service};

const STREAMS: &str = "4";
const BYTES: u64 = 400_000_000;

#[test]
#[ignore = "needs iperf: cargo xtask services"]
fn parallel_streams_come_through_forward() {
    let server = service("IPERF_PORT");
    let gateway = Gateway::start(&format!(
        r#"
[[listener]]
address = "127.0.0.1:0"
kind = "forward"
to = "127.0.0.1:{server}"
user = "ci"
[[user]]
name = "ci"
allow = ["127.0.0.1:{server}"]
"#
    ));
    let port = gateway.listeners[0].port().to_string();
    let bytes = BYTES.to_string();
    let received = |direction: &[&str]| {
        let measured = ["-c", "127.0.0.1", "-p", &port, "-P", STREAMS, "-n", &bytes, "--json"];
        let report = run("iperf3", &[&measured[..], direction].concat()).success();
        let report: Value = serde_json::from_slice(&report).unwrap();
        report["end"]["sum_received"]["bytes"].as_u64().unwrap_or_else(|| panic!("{report:#}"))
    };
    let (up, down) = (received(&[]), received(&["--reverse"]));
    // A sender says on the control connection that it is done, and what is still under way then is not read.
    assert!(up >= BYTES / 2 && down >= BYTES / 2, "{up} {down}");

    let usage = gateway.stop().usage("ci");
    // A control connection and the streams, twice.
    assert_eq!(usage.flows, 10);
    assert!(usage.up >= up && usage.down >= down, "{usage:?} {up} {down}");
}
