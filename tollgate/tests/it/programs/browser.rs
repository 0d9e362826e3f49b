//! A browser that is told of nothing but `--proxy-server`.

use super::gateway::Gateway;
use super::services::{run, service};

#[test]
#[ignore = "needs web, chromium: cargo xtask services"]
fn chromium_renders_a_page_through_connect() {
    let web: u16 = service("WEB_PORT").parse().expect("a port");
    let gateway = Gateway::start(&format!(
        r#"
[[listener]]
address = "127.0.0.1:0"
[destinations.local]
to = ["localhost:{web}"]
class = "internal"
[[user]]
name = "ci"
from = ["127.0.0.0/8"]
allow = ["@local"]
"#
    ));
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

    let stopped = gateway.stop();
    let usage = stopped.usage("ci");
    assert!(usage.flows >= 1 && usage.down > 0, "{usage:?}");
    let decisions = stopped.log("decision");
    let to_page = decisions
        .iter()
        .find(|line| line["decision"] == "allow" && line["requested_port"] == web && line["user"] == "ci");
    let line = to_page.unwrap_or_else(|| panic!("{decisions:#?}"));
    assert_eq!((&line["requested_host"], &line["protocol"]), (&"localhost".into(), &"http_connect".into()));
}
