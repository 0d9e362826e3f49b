//! git: a clone over HTTPS through tunnels; a clone and a push over HTTP, as requests.

use std::fs;

use super::gateway_to;
use super::services::{run, service};
use super::site::Site;
use crate::peers::pattern;

/// The sample is made of random bytes, which no compression makes smaller than this.
const CLONE_BYTES_MIN: u64 = 1_000_000;

fn check_clone(proxy_scheme: &str) {
    let mut gateway = gateway_to(format!("localhost:{}", service("WEB_PORT")));
    let proxy = format!("http.proxy={proxy_scheme}://ci:right-one@{}", gateway.listeners[0]);
    let trust = format!("http.sslCAInfo={}", service("WEB_CERTIFICATE"));
    let dir = tempfile::tempdir().unwrap();
    let clone = dir.path().join("clone").display().to_string();
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
fn clone_through_connect_succeeds() {
    check_clone("http");
}

#[test]
#[ignore = "needs git, web: cargo xtask services"]
fn clone_through_socks5_succeeds() {
    check_clone("socks5h");
}

#[test]
#[ignore = "needs git, plain: cargo xtask services"]
fn clone_and_push_are_forwarded() {
    let site = Site::start();
    let proxy = format!("http.proxy={}", site.proxy());
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (first, second) = (path("first"), path("second"));
    let (sample, inbox) = (site.url("git/sample.git"), site.url("git/inbox.git"));
    let git = |words: &[&str]| {
        let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", &proxy];
        run("git", &[&identity[..], words].concat()).text()
    };
    git(&["clone", "--quiet", &sample, &first]);
    assert_eq!(git(&["-C", &first, "rev-parse", "HEAD"]), service("GIT_COMMIT"));

    // More than `http.postBuffer`, so that it is sent in chunks.
    fs::write(format!("{first}/more"), pattern(11, 2 * CLONE_BYTES_MIN as usize)).unwrap();
    git(&["-C", &first, "add", "more"]);
    git(&["-C", &first, "commit", "--quiet", "--message", "More"]);
    let branch = format!("run-{}", site.gateway.pid());
    git(&["-C", &first, "push", "--quiet", &inbox, &format!("HEAD:refs/heads/{branch}")]);
    git(&["clone", "--quiet", "--branch", &branch, &inbox, &second]);
    assert_eq!(git(&["-C", &second, "rev-parse", "HEAD"]), git(&["-C", &first, "rev-parse", "HEAD"]));
    git(&["-C", &second, "fsck", "--strict"]);
    git(&["-C", &second, "push", "--quiet", "origin", "--delete", &branch]);

    let entries = site.finish();
    let packs = entries.iter().filter(|entry| entry.method == "POST");
    assert!(packs.count() >= 4 && entries.iter().all(|entry| entry.status == 200), "{entries:#?}");
}
