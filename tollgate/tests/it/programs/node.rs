//! Node.js: requests in absolute form over kept connections, and bodies as streams.

use super::services::run;
use super::site::{Site, connections, testdata};

#[test]
#[ignore = "needs plain, nodejs: cargo xtask services"]
fn streams_use_kept_connections() {
    let site = Site::start();
    let (script, file) = (testdata("client.js"), site.new_file("node"));
    let words = [&script, &site.proxy(), &site.url(""), &file];
    assert_eq!(run("/usr/bin/node", &words).text(), "54 requests");
    assert!(site.tap.accepted() <= 4, "{}", site.tap.accepted());
    let entries = site.finish();
    assert_eq!(entries.len(), 54);
    assert!(connections(&entries) < 10, "they are reused: {}", connections(&entries));
}
