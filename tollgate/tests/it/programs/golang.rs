//! Go's net/http, told of the gateway by the environment: many requests at a time, and bodies of unknown
//! length.

use super::services::{ProgramOutput, run};
use super::site::{Site, connections, testdata};

/// `go` with these words.
pub(crate) fn go(words: &[&str]) -> ProgramOutput {
    go_with("HTTP_PROXY=", words)
}

/// The same with one more setting in its environment. It fetches nothing.
fn go_with(setting: &str, words: &[&str]) -> ProgramOutput {
    // What it has compiled stays beside what cargo has, for the next run.
    let cache = format!("GOCACHE={}/go", env!("CARGO_TARGET_TMPDIR"));
    let offline =
        [&*cache, "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=", "GOTOOLCHAIN=local", "GO111MODULE=off"];
    run("env", &[&offline[..], &[setting, "/usr/bin/go"], words].concat())
}

#[test]
#[ignore = "needs plain, golang-go: cargo xtask services"]
fn a_client_asks_for_many_at_a_time() {
    let site = Site::start();
    let (program, proxy) = (testdata("client.go"), format!("HTTP_PROXY={}", site.proxy()));
    // Go asks no proxy for `localhost`, whatever the environment says, but knows it in small letters only.
    let (address, file) = (site.url("").replace("localhost", "LOCALHOST"), site.new_file("go"));
    assert_eq!(go_with(&proxy, &["run", &program, &address, &file]).text(), "205 requests");
    // As many at once as there are clients, each over a connection of its own, and one more for what follows.
    let accepted = site.tap.accepted();
    assert!(accepted <= 9, "{accepted}");
    let entries = site.finish();
    assert_eq!(entries.len(), 205);
    assert!(connections(&entries) < 50, "they are kept: {}", connections(&entries));
}
