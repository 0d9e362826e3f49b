//! Go's net/http, configured by the environment: many requests at a time, and bodies of unknown length.

use super::services::{ProgramOutput, run};
use super::site::{Site, connections, testdata};

/// Runs `go` with these arguments.
pub(crate) fn go(words: &[&str]) -> ProgramOutput {
    go_with("HTTP_PROXY=", words)
}

/// Runs it with one more variable in its environment. It downloads nothing.
fn go_with(setting: &str, words: &[&str]) -> ProgramOutput {
    // The cache of compiled packages lies beside cargo's, for the next run.
    let cache = format!("GOCACHE={}/go", env!("CARGO_TARGET_TMPDIR"));
    let offline =
        [&*cache, "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=", "GOTOOLCHAIN=local", "GO111MODULE=off"];
    run("env", &[&offline[..], &[setting, "/usr/bin/go"], words].concat())
}

#[test]
#[ignore = "needs plain, golang-go: cargo xtask services"]
fn client_sends_many_requests_at_a_time() {
    let site = Site::start();
    let (program, proxy) = (testdata("client.go"), format!("HTTP_PROXY={}", site.proxy()));
    // Go uses no proxy for `localhost`, whatever the environment contains, but compares it in small letters.
    let (address, file) = (site.url("").replace("localhost", "LOCALHOST"), site.new_file("go"));
    assert_eq!(go_with(&proxy, &["run", &program, &address, &file]).text(), "205 requests");
    // As many at once as there are clients, each on a connection of its own, and one more for what follows.
    let accepted = site.tap.accepted();
    assert!(accepted <= 9, "{accepted}");
    let entries = site.finish();
    assert_eq!(entries.len(), 205);
    assert!(connections(&entries) < 50, "they are reused: {}", connections(&entries));
}
