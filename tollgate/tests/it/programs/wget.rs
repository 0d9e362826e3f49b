//! wget: a page with all that it needs, a file that had been fetched in part, and a form.

use std::fs;

use super::services::{ProgramOutput, run, service};
use super::site::{Site, connections};
use crate::peers::pattern;

/// Runs `wget` with these arguments.
fn wget(site: &Site, folder: &str, words: &[&str]) -> ProgramOutput {
    let proxy = format!("http_proxy=http://{}", site.tap.address());
    let settings =
        ["--no-config", "--quiet", "--tries=1", "--timeout=60", "-e", "use_proxy=on", "-e", &proxy];
    let credentials = ["--proxy-user=ci", "--proxy-password=right-one", "-P", folder];
    run("wget", &[&settings[..], &credentials, words].concat())
}

#[test]
#[ignore = "needs plain, wget: cargo xtask services"]
fn page_and_its_parts_use_one_connection() {
    let site = Site::start();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().display().to_string();
    let page = site.url("page/parts.html");
    wget(&site, &folder, &["--page-requisites", "--no-host-directories", "-e", "robots=off", &page])
        .success();
    let names = site.names("page");
    for name in &names {
        let path = format!("page/{name}");
        assert!(fs::read(dir.path().join(&path)).unwrap() == site.file(&path), "{name} differs");
    }
    assert_eq!(site.tap.accepted(), 1);
    let entries = site.finish();
    let parts: usize = service("PLAIN_PARTS").parse().unwrap();
    assert_eq!((entries.len(), names.len(), connections(&entries)), (parts + 1, parts + 1, 1));
}

#[test]
#[ignore = "needs plain, wget: cargo xtask services"]
fn partial_download_and_form_are_forwarded() {
    let site = Site::start();
    let dir = tempfile::tempdir().unwrap();
    let (folder, path) = (dir.path().display().to_string(), |name: &str| dir.path().join(name));
    let whole = site.file("page/99.js");
    fs::write(path("99.js"), &whole[..12_345]).unwrap();
    wget(&site, &folder, &["--continue", &site.url("page/99.js")]).success();
    assert!(fs::read(path("99.js")).unwrap() == whole, "the two parts differ from the whole");

    let form = pattern(7, 300_000);
    fs::write(path("form"), &form).unwrap();
    let (posted, response) = (path("form").display().to_string(), path("answer").display().to_string());
    let words = [&format!("--post-file={posted}"), "-O", &response, &site.url("echo")];
    wget(&site, &folder, &words).success();
    assert!(fs::read(&response).unwrap() == form, "the response differs from the form");
    let statuses: Vec<u16> = site.finish().iter().map(|entry| entry.status).collect();
    assert_eq!(statuses, [206, 200]);
}
