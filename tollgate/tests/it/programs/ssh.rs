//! ssh with a `ProxyCommand`: a command, and bytes in both directions at once.

use super::gateway::Gateway;
use super::services::{run_with, service};

const BYTES: usize = 8_000_000;

fn check_session(proxy_type: &str) {
    let port = service("SSH_PORT");
    let configuration = format!(
        r#"
[[listener]]
address = "127.0.0.1:0"
[destinations.local]
to = ["127.0.0.1:{port}"]
class = "internal"
"#
    );
    let gateway = Gateway::start_with_users(&configuration, &[("ci", "right-one", &["--allow", "@local"])]);
    let proxy = gateway.listeners[0];
    let options = [
        format!(
            "ProxyCommand=ncat --proxy {proxy} --proxy-type {proxy_type} --proxy-auth ci:right-one %h %p"
        ),
        format!("UserKnownHostsFile={}", service("SSH_KNOWN_HOSTS")),
        format!("IdentityFile={}", service("SSH_KEY")),
        "GlobalKnownHostsFile=/dev/null".to_owned(),
        "StrictHostKeyChecking=yes".to_owned(),
        "BatchMode=yes".to_owned(),
        "IdentitiesOnly=yes".to_owned(),
    ];
    let mut arguments = vec!["-F", "none", "-p", &port];
    options.iter().for_each(|option| arguments.extend(["-o", option]));
    let host = format!("{}@127.0.0.1", service("SSH_USER"));
    arguments.push(&host);

    let session = |remote: &str, input: &[u8]| run_with("ssh", &[&arguments[..], &[remote]].concat(), input);
    assert_eq!(session("echo here", b"").text(), "here");
    let sent = bytes();
    // Compared whole on the way back; the sum shows what arrived there.
    let echoed = session("cat", &sent).success();
    assert!(echoed == sent, "{} of {} bytes came back, or other ones", echoed.len(), sent.len());
    assert_eq!(session("cksum", &sent).text(), run_with::<&str>("cksum", &[], &sent).text());

    let usage = gateway.stop().usage("ci");
    assert_eq!(usage.flows, 3);
    assert!(usage.up >= 2 * BYTES as u64 && usage.down >= BYTES as u64, "{usage:?}");
}

/// Words that count: no two stretches are alike.
fn bytes() -> Vec<u8> {
    (0..BYTES as u64 / 8).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

#[test]
#[ignore = "needs ssh, ncat: cargo xtask services"]
fn a_session_comes_through_connect() {
    check_session("http");
}

#[test]
#[ignore = "needs ssh, ncat: cargo xtask services"]
fn a_session_comes_through_socks5() {
    check_session("socks5");
}
