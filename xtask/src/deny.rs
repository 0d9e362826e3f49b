//! `cargo xtask deny`: checks the dependencies against deny.toml: licences, bans, sources, advisories.
//!
//! Guarantees: a key of deny.toml that this check does not enforce is an error. An advisory database that
//! cannot be fetched is reported and is no error.
//! Not handled here: yanked releases, for which cargo-deny queries the registry.

mod advisories;
mod config;
mod database;
mod packages;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use config::Config;
use packages::Package;
use spdx::{Expression, Licensee, ParseMode};

/// Checks the workspace at `root`; prints each finding.
pub(crate) fn run(root: &Path) -> Result<()> {
    let text = fs::read_to_string(root.join("deny.toml")).context("reading deny.toml")?;
    let config = Config::parse(&text).context("deny.toml")?;
    let packages = packages::workspace_packages(root, &config)?;
    let mut findings = check(&config, &packages)?;
    findings.extend(check_advisories(root, &config)?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    println!("deny: {} packages comply with deny.toml", packages.len());
    Ok(())
}

/// The advisories on packages of Cargo.lock; none if the database cannot be fetched.
fn check_advisories(root: &Path, config: &Config) -> Result<Vec<String>> {
    let database = match database::obtain(root, &config.advisories_url)? {
        Ok(database) => database,
        Err(cause) => {
            println!(
                "deny: advisories are not checked: {cause}; set {} to the path of a copy",
                database::PATH_VARIABLE
            );
            return Ok(Vec::new());
        }
    };
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("reading Cargo.lock")?;
    let locked = packages::locked_packages(&lock).context("Cargo.lock")?;
    println!("deny: {} packages of Cargo.lock, checked against {}", locked.len(), database.display());
    advisories::check(&database, &config.ignored_advisories, &locked)
}

/// Each violation of the configuration by a package, and each entry of the configuration that is unused.
fn check(config: &Config, packages: &[Package]) -> Result<Vec<String>> {
    let mut findings = check_licences(config, packages)?;
    findings.extend(check_bans(config, packages));
    findings.extend(packages.iter().filter_map(check_source));
    Ok(findings)
}

fn check_licences(config: &Config, packages: &[Package]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let mut unused: BTreeMap<&str, Licensee> = BTreeMap::new();
    for licence in &config.allowed_licences {
        let licensee = Licensee::parse(licence).with_context(|| format!("deny.toml: licence `{licence}`"))?;
        unused.insert(licence, licensee);
    }
    let allowed: Vec<Licensee> = unused.values().cloned().collect();
    for package in packages {
        let Some(text) = &package.licence else {
            findings.push(format!("{package}: declares no licence: remove it"));
            continue;
        };
        // In old manifests a slash means OR, for cargo too.
        let expression = match Expression::parse_mode(text, ParseMode::LAX) {
            Ok(expression) => expression,
            Err(error) => {
                findings.push(format!("{package}: licence `{text}` is no SPDX expression: {}", error.reason));
                continue;
            }
        };
        if !expression.evaluate(|wanted| allowed.iter().any(|licensee| licensee.satisfies(wanted))) {
            findings.push(format!(
                "{package}: licence `{text}` is not allowed: remove it, or add the licence to deny.toml"
            ));
        }
        let wanted = || expression.requirements().map(|requirement| &requirement.req);
        unused.retain(|_, licensee| !wanted().any(|wanted| licensee.satisfies(wanted)));
    }
    findings.extend(
        unused.keys().map(|licence| format!("deny.toml: no package has the licence `{licence}`: remove it")),
    );
    Ok(findings)
}

fn check_bans(config: &Config, packages: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(package);
        if let Some(instead) = config.banned.get(&package.name) {
            findings.push(format!("{package}: banned, use {instead} instead"));
        }
        for dependency in &package.wildcards {
            findings.push(format!("{package}: `{dependency} = \"*\"` takes any version: name one"));
        }
    }
    let mut unused: BTreeSet<&String> = config.skipped.iter().collect();
    for same in versions.values().filter(|same| same.len() > 1) {
        let (skipped, counted): (Vec<String>, Vec<String>) =
            same.iter().map(ToString::to_string).partition(|name| config.skipped.contains(name));
        unused.retain(|name| !skipped.contains(name));
        if counted.len() > 1 {
            let list = counted.join(", ");
            findings.push(format!(
                "{list}: one version is enough: align them, or skip one with a reason in deny.toml"
            ));
        }
    }
    findings
        .extend(unused.iter().map(|name| format!("deny.toml: the skip of `{name}` is unused: remove it")));
    findings
}

/// The finding for a package that comes neither from this workspace nor from cargo's default registry.
fn check_source(package: &Package) -> Option<String> {
    let source = package.source.as_deref()?;
    // Cargo's name for its default registry, also where a mirror serves it.
    let is_default = source == concat!("registry+https://github.com/rust-lang/crates", ".io-index");
    (!is_default).then(|| format!("{package}: comes from {source}: use a release from the registry"))
}
