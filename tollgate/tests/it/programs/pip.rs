//! pip: an index, a wheel and a source distribution.

use std::fs;

use super::services::run;
use super::site::{Site, names};

#[test]
#[ignore = "needs plain, python3-pip: cargo xtask services"]
fn wheel_and_source_distribution_are_downloaded() {
    let site = Site::start();
    let dir = tempfile::tempdir().unwrap();
    let (proxy, index, into) = (site.proxy(), site.url("simple"), dir.path().display().to_string());
    let download = |kind: &str| {
        let words = ["-m", "pip", "--isolated", "--proxy", &proxy, "--disable-pip-version-check", "download"];
        let options = ["--no-cache-dir", "--no-deps", "--no-build-isolation", "--index-url", &index];
        let wanted = [kind, ":all:", "--dest", &into, "sample"];
        run("/usr/bin/python3", &[&words[..], &options, &wanted].concat()).success()
    };
    download("--only-binary");
    download("--no-binary");
    let distributions = site.names("simple/sample");
    assert_eq!((names(dir.path()), distributions.len()), (distributions.clone(), 2));
    for name in distributions {
        let arrived = fs::read(dir.path().join(&name)).unwrap();
        assert!(arrived == site.file(&format!("simple/sample/{name}")), "{name} differs");
    }
    assert_eq!(site.finish().len(), 4);
}
