//! ssh with a `ProxyCommand`: a command, and bytes in both directions at once.

use super::bill;
use super::gateway_to;
use super::services::{ProgramOutput, run_with, service};
use crate::harness::Gateway;
use crate::peers::pattern;

const BYTES: usize = 8_000_000;

/// Runs `remote` at the server, through `command`, in which `GATEWAY` stands for an address.
fn session(gateway: &Gateway, command: &str, remote: &str, input: &[u8]) -> ProgramOutput {
    let port = service("SSH_PORT");
    let options = [
        format!("ProxyCommand={}", command.replace("GATEWAY", &gateway.listeners[0].to_string())),
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
    arguments.extend([&*host, remote]);
    run_with("ssh", &arguments, input)
}

fn check_session(protocol: &str, command: &str) {
    let port: u16 = service("SSH_PORT").parse().expect("a port");
    let mut gateway = gateway_to(format!("127.0.0.1:{port}"));
    let session = |remote: &str, input: &[u8]| session(&gateway, command, remote, input);
    assert_eq!(session("echo here", b"").text(), "here");
    let sent = pattern(6, BYTES);
    // The bytes are compared on their way back; the checksum shows what arrived there.
    let echoed = session("cat", &sent).success();
    assert!(echoed == sent, "{} of {} bytes came back, or other ones", echoed.len(), sent.len());
    assert_eq!(session("cksum", &sent).text(), run_with::<&str>("cksum", &[], &sent).text());

    let (flows, up, down) = bill::total(&mut gateway, ("ci", protocol, "127.0.0.1", port));
    assert_eq!(flows, 3);
    assert!(up >= 2 * BYTES as u64 && down >= BYTES as u64, "{up} {down}");
}

#[test]
#[ignore = "needs ssh, ncat: cargo xtask services"]
fn session_through_connect_succeeds() {
    check_session("http_connect", "ncat --proxy GATEWAY --proxy-type http --proxy-auth ci:right-one %h %p");
}

#[test]
#[ignore = "needs ssh, ncat: cargo xtask services"]
fn session_through_socks5_succeeds() {
    check_session("socks5", "ncat --proxy GATEWAY --proxy-type socks5 --proxy-auth ci:right-one %h %p");
}

#[test]
#[ignore = "needs ssh, connect-proxy: cargo xtask services"]
fn session_after_a_challenge_succeeds() {
    check_session("http_connect", "env HTTP_PROXY_PASSWORD=right-one connect-proxy -H ci@GATEWAY %h %p");
}

#[test]
#[ignore = "needs ssh, connect-proxy: cargo xtask services"]
fn session_through_socks5_of_connect_proxy_succeeds() {
    check_session("socks5", "env SOCKS5_PASSWORD=right-one connect-proxy -S ci@GATEWAY -R remote %h %p");
}

#[test]
#[ignore = "needs ssh, ncat, connect-proxy: cargo xtask services"]
fn proxy_command_without_credentials_prints_the_cause() {
    let mut gateway = gateway_to(format!("127.0.0.1:{}", service("SSH_PORT")));
    for (command, text) in [
        ("ncat --proxy GATEWAY --proxy-type http %h %p", "Proxy returned status code 407."),
        ("ncat --proxy GATEWAY --proxy-type socks5 %h %p", "no acceptable authentication method"),
        ("connect-proxy -H GATEWAY %h %p", "failed to begin relaying via HTTP"),
        ("connect-proxy -S GATEWAY -R remote %h %p", "Authentication failed"),
    ] {
        let output = session(&gateway, command, "true", b"");
        assert!(output.code != Some(0) && output.err.contains(text), "{command}: {}", output.err);
    }
    bill::check_refused(&mut gateway);
}
