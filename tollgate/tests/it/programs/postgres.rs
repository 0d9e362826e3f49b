//! psql through a `forward` listener.

use super::gateway::Gateway;
use super::services::{Said, run, service};

const QUERY: &str = "select i, md5(i::text), repeat('x', 60) from generate_series(1, 200000) i";

#[test]
#[ignore = "needs postgres: cargo xtask services"]
fn a_large_result_comes_through_forward() {
    let server = service("POSTGRES_PORT");
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
    let psql = |port: &str, query: &str| -> Said {
        let (user, database) = (service("POSTGRES_USER"), service("POSTGRES_DATABASE"));
        let place = ["-h", "127.0.0.1", "-p", port, "-U", &user, "-d", &database];
        run("psql", &[&place[..], &["-X", "-w", "-A", "-t", "-c", query]].concat())
    };
    let port = gateway.listeners[0].port().to_string();
    assert_eq!(psql(&port, "select 6 * 7").text(), "42");
    let result = psql(&port, QUERY).success();
    assert!(result == psql(&server, QUERY).success(), "the result differs from the server's own");
    assert_eq!(result.iter().filter(|byte| **byte == b'\n').count(), 200_000);

    let usage = gateway.stop().usage("ci");
    assert_eq!(usage.flows, 2);
    assert!(usage.down > result.len() as u64, "{usage:?}");
}
