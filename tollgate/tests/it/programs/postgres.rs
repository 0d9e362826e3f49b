//! psql through a `forward` listener.

use super::forwarding;
use super::services::{ProgramOutput, run, service};

const QUERY: &str = "select i, md5(i::text), repeat('x', 60) from generate_series(1, 200000) i";

#[test]
#[ignore = "needs postgres: cargo xtask services"]
fn large_result_through_forward_arrives() {
    let server = service("POSTGRES_PORT");
    let (mut gateway, [host, port]) = forwarding(&server);
    let psql = |host: &str, port: &str, query: &str| -> ProgramOutput {
        let (user, database) = (service("POSTGRES_USER"), service("POSTGRES_DATABASE"));
        let endpoint = ["-h", host, "-p", port, "-U", &user, "-d", &database];
        run("psql", &[&endpoint[..], &["-X", "-w", "-A", "-t", "-c", query]].concat())
    };
    assert_eq!(psql(&host, &port, "select 6 * 7").text(), "42");
    let result = psql(&host, &port, QUERY).success();
    let direct = psql("127.0.0.1", &server, QUERY).success();
    assert!(result == direct, "the result differs from the server's own");
    assert_eq!(result.iter().filter(|byte| **byte == b'\n').count(), 200_000);

    gateway.stop();
    let (flows, up, down) = gateway.usage_of("me");
    assert_eq!(flows, 2);
    assert!(down > result.len() as u64, "{up} {down}");
}
