//! The crates of the workspace and of `fuzz`: their folders, their dependencies on each other, and the files
//! outside their folders that they read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A crate of this repository.
#[derive(Default)]
pub(super) struct Crate {
    /// Its folder, relative to the root.
    pub(super) folder: String,
    /// The crates of this repository on which it, or a test of it, depends.
    pub(super) dependencies: BTreeSet<String>,
    /// Whether it has a folder `tests`.
    pub(super) has_integration_tests: bool,
    /// The files outside its folder that its code reads, such as `docs/settings.md`.
    pub(super) outside_files: BTreeSet<String>,
}

/// The crates by name.
pub(super) struct Workspace {
    pub(super) crates: BTreeMap<String, Crate>,
    /// The package of the fuzz targets, which is outside the workspace.
    pub(super) fuzz: Crate,
}

impl Workspace {
    /// Reads the manifests and sources of the checkout at `root`.
    pub(super) fn read(root: &Path) -> Result<Workspace> {
        let fuzz = read_crates(root, "fuzz/Cargo.toml")?.remove("fuzz");
        Ok(Workspace {
            crates: read_crates(root, "Cargo.toml")?,
            fuzz: fuzz.context("fuzz/Cargo.toml has no package `fuzz`")?,
        })
    }

    /// The crates on which `name` depends, directly or not.
    pub(super) fn dependencies(&self, name: &str) -> BTreeSet<&str> {
        let direct = self.crates.get(name).into_iter().flat_map(|package| &package.dependencies);
        direct.flat_map(|other| self.dependencies(other).into_iter().chain([other.as_str()])).collect()
    }
}

fn read_crates(root: &Path, manifest: &str) -> Result<BTreeMap<String, Crate>> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--format-version=1", "--no-deps", "--manifest-path", manifest]);
    let output = command.current_dir(root).output().context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("the metadata has no packages")?;
    packages.iter().map(|package| read_crate(root, package)).collect()
}

fn read_crate(root: &Path, package: &Value) -> Result<(String, Crate)> {
    let name = package["name"].as_str().context("a package has no name")?;
    let manifest = Path::new(package["manifest_path"].as_str().context("a package has no manifest")?);
    let folder = manifest.parent().context("a manifest is in a folder")?;
    let mut outside_files = BTreeSet::new();
    collect_outside_files(folder, &mut outside_files)?;
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let by_path = dependencies.filter(|dependency| dependency["path"].is_string());
    let found = Crate {
        folder: folder.strip_prefix(root).context("a crate is outside the repository")?.display().to_string(),
        dependencies: by_path.filter_map(|other| Some(other["name"].as_str()?.to_owned())).collect(),
        has_integration_tests: folder.join("tests").is_dir(),
        outside_files,
    };
    Ok((name.to_owned(), found))
}

/// Adds the paths of the sources below `folder` that [`outside_paths`] finds.
fn collect_outside_files(folder: &Path, files: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect_outside_files(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            files.extend(outside_paths(&text));
        }
    }
    Ok(())
}

/// The paths that begin with `../` in `text`, without that: `"/../docs/a.md"` and `"../../docs/a.md"` give
/// `docs/a.md`.
fn outside_paths(text: &str) -> impl Iterator<Item = String> {
    let behind = text.match_indices("../").map(|(at, parent)| &text[at + parent.len()..]);
    let last = behind.filter(|rest| !rest.starts_with("../"));
    last.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_read() {
        let root = crate::root();
        let workspace = Workspace::read(&root).expect("the manifests are valid");
        let gateway = &workspace.crates["gateway"];
        assert_eq!((gateway.folder.as_str(), gateway.has_integration_tests), ("gateway", false));
        assert!(gateway.outside_files.contains("docs/settings.md"), "{:?}", gateway.outside_files);
        assert!(gateway.dependencies.contains("policy") && !gateway.dependencies.contains("admin"));
        assert!(workspace.dependencies("tollgate").contains("engine"), "through gateway");
        assert!(workspace.fuzz.dependencies.contains("proto"));
    }

    #[test]
    fn paths_behind_parent_folders_are_found() {
        let text = r#"const A: &str = include_str!("../../docs/a.md"); f(concat!("x", "/../b.md"), "c.md");"#;
        assert_eq!(outside_paths(text).collect::<Vec<_>>(), ["docs/a.md", "b.md"]);
    }
}
