//! Python's requests: a session that gets, puts and posts, from files and generators.

use super::services::run;
use super::site::{Site, connections, testdata};

#[test]
#[ignore = "needs plain, python3-requests: cargo xtask services"]
fn session_streams_in_both_directions() {
    let site = Site::start();
    let (script, file) = (testdata("session.py"), site.new_file("python"));
    let words = [&script, &site.proxy(), &site.url(""), &file];
    assert_eq!(run("/usr/bin/python3", &words).text(), "25 requests");
    assert_eq!(site.tap.accepted(), 1);
    let entries = site.finish();
    assert_eq!(entries.len(), 25);
    assert!(connections(&entries) < 10, "they are reused: {}", connections(&entries));
}
