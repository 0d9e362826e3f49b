//! git: a clone over HTTPS through the gateway.

use super::gateway_to;
use super::services::{run, service};

/// The sample is made of random bytes, which no compression makes smaller than this.
const CLONE_BYTES_MIN: u64 = 1_000_000;

fn check_clone(proxy_scheme: &str) {
    let mut gateway = gateway_to(format!("localhost:{}", service("WEB_PORT")));
    let proxy = format!("http.proxy={proxy_scheme}://ci:right-one@{}", gateway.listeners[0]);
    let trust = format!("http.sslCAInfo={}", service("WEB_CERTIFICATE"));
    let room = tempfile::tempdir().unwrap();
    let clone = room.path().join("clone").display().to_string();
    let settings = ["-c", &proxy, "-c", &trust];
    run("git", &[&settings[..], &["clone", "--quiet", &service("GIT_URL"), &clone]].concat()).success();
    assert_eq!(run("git", &["-C", &clone, "rev-parse", "HEAD"]).text(), service("GIT_COMMIT"));
    run("git", &["-C", &clone, "fsck", "--strict"]).success();

    gateway.stop();
    let (flows, up, down) = gateway.usage_of("ci");
    assert!(flows >= 1 && down >= CLONE_BYTES_MIN, "{flows} {up} {down}");
}

#[test]
#[ignore = "needs git, web: cargo xtask services"]
fn a_clone_comes_through_connect() {
    check_clone("http");
}

#[test]
#[ignore = "needs git, web: cargo xtask services"]
fn a_clone_comes_through_socks5() {
    check_clone("socks5h");
}
