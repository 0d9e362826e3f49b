//! A browser that is configured by `--proxy-server` alone.

use super::bill;
use super::gateway_to;
use super::services::{ProgramOutput, run, service};
use super::site::Site;
use crate::harness::{EVERY_CPU, Gateway};

#[test]
#[ignore = "needs web, chromium: cargo xtask services"]
fn chromium_renders_a_page_through_each_tunnel() {
    let web: u16 = service("WEB_PORT").parse().expect("a port");
    for (scheme, protocol) in [("http", "http_connect"), ("socks5", "socks5")] {
        let mut gateway = Gateway::local(EVERY_CPU);
        let document = dump(scheme, &gateway.listeners[0].to_string(), &service("PAGE_URL")).text();
        assert!(document.contains(&service("PAGE_TEXT")), "{document}");

        // The browser's own requests are denied.
        let (_, up, down) = bill::total(&mut gateway, ("me", protocol, "localhost", web));
        assert!(up > 0 && down > document.len() as u64, "{up} {down}");
    }
}

#[test]
#[ignore = "needs web, chromium: cargo xtask services"]
fn chromium_without_credentials_shows_an_error() {
    let errors = [("http", "ERR_INVALID_AUTH_CREDENTIALS"), ("socks5", "ERR_SOCKS_CONNECTION_FAILED")];
    for (scheme, error) in errors {
        let mut gateway = gateway_to(format!("localhost:{}", service("WEB_PORT")));
        let output = dump(scheme, &gateway.listeners[0].to_string(), &service("PAGE_URL"));
        assert!(output.err.contains(error), "{}", output.err);
        bill::check_refused(&mut gateway);
    }
}

#[test]
#[ignore = "needs plain, chromium: cargo xtask services"]
fn chromium_loads_a_page_of_a_hundred_parts() {
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"http\"\n";
    let site = Site::through(Gateway::local(&format!("{EVERY_CPU}{listener}")), "me");
    let document = dump("http", &site.tap.address().to_string(), &site.url("page/parts.html")).text();
    // The parts' numbers are 1 to 100, and each is 997 times its number long.
    let (parts, length) = (service("PLAIN_PARTS"), 997 * (1..=100).sum::<u64>());
    assert!(document.contains(&format!("{parts} parts, {length} long")), "{document}");
    let entries = site.finish();
    assert_eq!(entries.len(), 101, "{entries:#?}");
    assert!(entries.iter().all(|entry| entry.status == 200), "{entries:#?}");
}

/// The complete document of `page`, from a browser that uses `proxy`.
fn dump(scheme: &str, proxy: &str, page: &str) -> ProgramOutput {
    let profile = tempfile::tempdir().unwrap();
    let proxy = format!("--proxy-server={scheme}://{proxy}");
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
        // Without it a browser connects to its own machine directly.
        "--proxy-bypass-list=<-loopback>",
        &proxy,
        &profile,
        "--dump-dom",
        page,
    ];
    run("chromium", &arguments)
}
