//! apt-get: an index, and packages that it requests in a pipeline.

use std::fs;
use std::path::Path;

use super::services::{ProgramOutput, run, service};
use super::site::{Site, connections};

/// Excludes this machine's apt: its configuration, its state, and its sandbox user.
fn configuration(dir: &Path, site: &Site) -> String {
    let dir = dir.display();
    format!(
        "Dir \"{dir}\";\nDir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n\
         Dir::Etc::sourceparts \"/dev/null\";\nDir::State::status \"{dir}/status\";\n\
         Dir::State \"{dir}/state\";\nDir::Cache \"{dir}/cache\";\n\
         Dir::Bin::methods \"/usr/lib/apt/methods\";\nAPT::Sandbox::User \"\";\n\
         Acquire::http::Proxy \"{}\";\nAcquire::Languages \"none\";\n",
        site.proxy()
    )
}

#[test]
#[ignore = "needs plain, apt-utils: cargo xtask services"]
fn index_and_packages_are_downloaded() {
    let site = Site::start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for folder in ["etc/apt", "downloads", "state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(path(folder)).unwrap();
    }
    fs::write(path("status"), "").unwrap();
    fs::write(path("apt.conf"), configuration(dir.path(), &site)).unwrap();
    fs::write(path("etc/apt/sources.list"), format!("deb [trusted=yes] {} ./\n", site.url("apt"))).unwrap();
    let settings = format!("APT_CONFIG={}", path("apt.conf").display());
    let directory = format!("--chdir={}", path("downloads").display());
    let apt_get = |words: &[&str]| -> ProgramOutput {
        run("env", &[&[&*directory, &*settings, "apt-get", "--quiet"], words].concat())
    };
    apt_get(&["update"]).success();
    let packages: Vec<String> = site.names("apt").into_iter().filter(|name| name.ends_with(".deb")).collect();
    let names: Vec<&str> = packages.iter().map(|package| package.split('_').next().unwrap()).collect();
    apt_get(&[&["download"], &names[..]].concat()).success();
    for package in &packages {
        let arrived = fs::read(path("downloads").join(package)).unwrap();
        assert!(arrived == site.file(&format!("apt/{package}")), "{package} differs");
    }
    // Nothing has changed, so the response is 304.
    apt_get(&["update"]).success();

    let entries = site.finish();
    let fetched = entries.iter().filter(|entry| entry.path.ends_with(".deb"));
    assert_eq!((fetched.count(), packages.len()), (20, 20), "{}", service("PLAIN_SITE"));
    assert!(entries.iter().any(|entry| entry.status == 304), "{entries:#?}");
    assert!(connections(&entries) < packages.len(), "they are reused: {entries:#?}");
}
