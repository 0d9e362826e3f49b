//! The packages of all builds of the workspace, from `cargo metadata`; and the packages of Cargo.lock that
//! come from a registry, whether a build uses them or not.

use std::{collections::BTreeMap, fmt, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use semver::Version;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::config::Config;

/// A package and the fields that the checks read. Displayed as `name@version`.
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) licence: Option<String>,
    /// Cargo's source identifier; `None` for a crate of the workspace.
    pub(super) source: Option<String>,
    /// Its dependencies with the requirement `*`, except those by path.
    pub(super) wildcards: Vec<String>,
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

/// The packages of all features on all targets of the configuration, each one once.
pub(super) fn workspace_packages(root: &Path, config: &Config) -> Result<Vec<Package>> {
    let mut packages = BTreeMap::new();
    for target in &config.targets {
        for package in target_packages(root, target)? {
            packages.insert(package.to_string(), package);
        }
    }
    Ok(packages.into_values().collect())
}

/// The packages in the output of `cargo metadata`.
pub(super) fn parse_metadata(metadata: &str) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata)?;
    let packages = metadata["packages"].as_array().context("the metadata has no packages")?;
    packages
        .iter()
        .map(read_package)
        .collect::<Option<Vec<_>>>()
        .context("a package of the metadata has no name or version")
}

/// Name and version of each registry package in the text of Cargo.lock.
pub(super) fn locked_packages(text: &str) -> Result<Vec<(String, Version)>> {
    let file = DeTable::parse(text)?.into_inner();
    let packages = file
        .get("package")
        .and_then(|value| value.get_ref().as_array())
        .context("the file has no packages")?;
    let field =
        |package: &DeValue<'_>, key: &str| Some(package.as_table()?.get(key)?.get_ref().as_str()?.to_owned());
    let mut locked = Vec::new();
    for package in packages.iter().map(|package| package.get_ref()) {
        // Workspace crates have no source. The registry may have unrelated packages with their names.
        if field(package, "source").is_some_and(|source| source.starts_with("registry+")) {
            let name = field(package, "name").context("a package has no name")?;
            let version =
                field(package, "version").with_context(|| format!("the package {name} has no version"))?;
            locked.push((name, version.parse()?));
        }
    }
    Ok(locked)
}

fn target_packages(root: &Path, target: &str) -> Result<Vec<Package>> {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--all-features",
        "--filter-platform",
        target,
    ]);
    let output = command.current_dir(root).output().context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    parse_metadata(&String::from_utf8(output.stdout)?)
}

fn read_package(value: &Value) -> Option<Package> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    Some(Package {
        name: text("name")?,
        version: text("version")?,
        licence: text("license"),
        source: text("source"),
        wildcards: wildcard_dependencies(value),
    })
}

fn wildcard_dependencies(package: &Value) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let is_wild = |dependency: &&Value| dependency["req"] == "*" && dependency["path"].is_null();
    dependencies
        .filter(is_wild)
        .filter_map(|dependency| Some(dependency["name"].as_str()?.to_owned()))
        .collect()
}
