//! A small npm registry as static files: two packages, of which one depends on the other.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Instance, tool};

/// Bytes of content of each package.
const CONTENT_BYTES: u64 = 2_000_003;

/// A placeholder in the archives' URLs. A client sets `replace-registry-host`, so that npm requests them from
/// the registry instead: the files need no port, which may differ on another day.
const HOST: &str = "http://registry.example";

/// Creates the registry in the folder `site/npm` of a web server, unless it exists.
pub(super) fn make(instance: &Instance) -> Result<()> {
    if Path::new(&instance.path("site/npm")).exists() {
        return Ok(());
    }
    let draft = instance.path("npm-draft");
    fs::create_dir_all(format!("{draft}/archives"))?;
    make_package(&draft, "sample", json!({ "sample-part": "^1.0.0" }))?;
    make_package(&draft, "sample-part", json!({}))?;
    fs::create_dir_all(instance.path("site"))?;
    // Renamed last, so that an interrupted run leaves no incomplete registry.
    Ok(fs::rename(draft, instance.path("site/npm"))?)
}

/// Creates a package's tree, its archive and its metadata, a file with the package's name.
fn make_package(draft: &str, name: &str, dependencies: Value) -> Result<()> {
    let tree = format!("{draft}/trees/{name}");
    fs::create_dir_all(&tree)?;
    let mut package = json!({ "name": name, "version": "1.0.0", "dependencies": dependencies });
    fs::write(format!("{tree}/package.json"), package.to_string())?;
    let mut random = File::open("/dev/urandom")?.take(CONTENT_BYTES);
    io::copy(&mut random, &mut File::create(format!("{tree}/content"))?)?;
    let mut pack = Command::new("/usr/bin/npm");
    pack.args(["pack", "--json", "--ignore-scripts", "--pack-destination"]);
    pack.arg(format!("{draft}/archives")).current_dir(&tree);
    let packed: Value = serde_json::from_str(&tool::run(&mut pack)?).context("npm pack")?;
    // npm prints a list; newer releases print an object keyed by name.
    let packed = packed.get(0).or_else(|| packed.get(name)).context("npm pack returned no package")?;
    let file = packed["filename"].as_str().context("npm pack returned no file name")?;
    package["dist"] = json!({
        "tarball": format!("{HOST}/npm/archives/{file}"),
        "shasum": packed["shasum"],
        "integrity": packed["integrity"],
    });
    let metadata =
        json!({ "name": name, "dist-tags": { "latest": "1.0.0" }, "versions": { "1.0.0": package } });
    Ok(fs::write(format!("{draft}/{name}"), metadata.to_string())?)
}
