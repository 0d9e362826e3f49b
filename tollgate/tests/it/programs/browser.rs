//! A browser that is told of nothing but `--proxy-server`.

use super::services::{run, service};
use crate::harness::{EVERY_CPU, Gateway};

#[test]
#[ignore = "needs web, chromium: cargo xtask services"]
fn chromium_renders_a_page_through_connect() {
    let web: u16 = service("WEB_PORT").parse().expect("a port");
    let mut gateway = Gateway::local(EVERY_CPU);
    let profile = tempfile::tempdir().unwrap();
    let proxy = format!("--proxy-server=http://{}", gateway.listeners[0]);
    let profile = format!("--user-data-dir={}", profile.path().display());
    let page = service("PAGE_URL");
    let arguments = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--ignore-certificate-errors",
        // Without it a browser goes to its own machine directly.
        "--proxy-bypass-list=<-loopback>",
        &proxy,
        &profile,
        "--dump-dom",
        &page,
    ];
    let document = run("chromium", &arguments).text();
    assert!(document.contains(&service("PAGE_TEXT")), "{document}");

    gateway.stop();
    let (flows, up, down) = gateway.usage_of("me");
    assert!(flows >= 1 && down > 0, "{flows} {up} {down}");
    let decisions = gateway.events("decision");
    let to_page = decisions
        .iter()
        .find(|line| line["decision"] == "allow" && line["requested_port"] == web && line["user"] == "me");
    let line = to_page.unwrap_or_else(|| panic!("{decisions:#?}"));
    assert_eq!((&line["requested_host"], &line["protocol"]), (&"localhost".into(), &"http_connect".into()));
}
