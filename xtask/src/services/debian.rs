//! A small Debian repository: packages of random bytes, each longer than the one before, and apt's index.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
    process::Command,
};

use anyhow::Result;

use super::{Instance, tool};

/// Twice as many as apt requests at once: it pipelines ten requests.
const PACKAGES: u64 = 20;
/// By how much each package is longer than the one before.
const STEP_BYTES: u64 = 50_021;

/// Creates the repository in the folder `site/apt` of a web server, unless it exists.
pub(super) fn make(instance: &Instance) -> Result<()> {
    if Path::new(&instance.path("site/apt")).exists() {
        return Ok(());
    }
    let draft = instance.path("apt-draft");
    for number in 1..=PACKAGES {
        make_package(instance, &draft, number)?;
    }
    for (kind, file) in [("packages", "Packages"), ("release", "Release")] {
        let index = tool::run(Command::new("apt-ftparchive").args([kind, "."]).current_dir(&draft))?;
        fs::write(format!("{draft}/{file}"), index)?;
    }
    fs::create_dir_all(instance.path("site"))?;
    // Renamed last, so that an interrupted run leaves no incomplete repository.
    Ok(fs::rename(draft, instance.path("site/apt"))?)
}

fn make_package(instance: &Instance, draft: &str, number: u64) -> Result<()> {
    let name = format!("sample-{number}");
    let tree = instance.path(&format!("apt-trees/{name}"));
    fs::create_dir_all(format!("{tree}/DEBIAN"))?;
    fs::create_dir_all(draft)?;
    let control = format!(
        "Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: Sample <sample@example.com>\n\
         Description: A sample\n"
    );
    fs::write(format!("{tree}/DEBIAN/control"), control)?;
    let mut random = File::open("/dev/urandom")?.take(number * STEP_BYTES);
    io::copy(&mut random, &mut File::create(format!("{tree}/content"))?)?;
    let package = format!("{draft}/{name}_1.0_all.deb");
    tool::run(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "--build", &tree, &package]))?;
    Ok(())
}
