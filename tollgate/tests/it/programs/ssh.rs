//! ssh with a `ProxyCommand`: a command, and bytes in both directions at once.

use super::gateway_to;
use super::services::{run_with, service};
use crate::peers::pattern;

const BYTES: usize = 8_000_000;

fn check_session(proxy_type: &str) {
    let port = service("SSH_PORT");
    let mut gateway = gateway_to(format!("127.0.0.1:{port}"));
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
    let sent = pattern(6, BYTES);
    // Compared whole on the way back; the sum shows what arrived there.
    let echoed = session("cat", &sent).success();
    assert!(echoed == sent, "{} of {} bytes came back, or other ones", echoed.len(), sent.len());
    assert_eq!(session("cksum", &sent).text(), run_with::<&str>("cksum", &[], &sent).text());

    gateway.stop();
    let (flows, up, down) = gateway.usage_of("ci");
    assert_eq!(flows, 3);
    assert!(up >= 2 * BYTES as u64 && down >= BYTES as u64, "{up} {down}");
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
