//! A browser that is told of nothing but `--proxy-server`.

use super::services::{run, service};
use super::site::Site;
use crate::harness::{EVERY_CPU, Gateway};

#[test]
#[ignore = "needs web, chromium: cargo xtask services"]
fn chromium_renders_a_page_through_connect() {
    let web: u16 = service("WEB_PORT").parse().expect("a port");
    let mut gateway = Gateway::local(EVERY_CPU);
    let document = dump(&gateway.listeners[0].to_string(), &service("PAGE_URL"));
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

#[test]
#[ignore = "needs plain, chromium: cargo xtask services"]
fn chromium_loads_a_page_of_a_hundred_parts() {
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"http\"\n";
    let site = Site::through(Gateway::local(&format!("{EVERY_CPU}{listener}")), "me");
    let document = dump(&site.tap.address().to_string(), &site.url("page/parts.html"));
    // The parts' numbers are 1 to 100, and each is as many times 997 long.
    let (parts, length) = (service("PLAIN_PARTS"), 997 * (1..=100).sum::<u64>());
    assert!(document.contains(&format!("{parts} parts, {length} long")), "{document}");
    let entries = site.finish();
    assert_eq!(entries.len(), 101, "{entries:#?}");
    assert!(entries.iter().all(|entry| entry.status == 200), "{entries:#?}");
}

/// The document of `page` when it is complete, from a browser that goes by `proxy`.
fn dump(proxy: &str, page: &str) -> String {
    let profile = tempfile::tempdir().unwrap();
    let proxy = format!("--proxy-server=http://{proxy}");
    let profile = format!("--user-data-dir={}", profile.path().display());
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
        page,
    ];
    run("chromium", &arguments).text()
}
