//! The dependencies checked against deny.toml: licences, bans, sources.
//! Promises: deny.toml stays the truth, for a key that this check does not know is an error. Leaves
//! advisories to cargo-deny, which reads the same file: they need a database from outside.

mod config;
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
    let packages = packages::of_workspace(root, &config)?;
    let findings = check(&config, &packages)?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    println!("deny: {} packages are as deny.toml wants them", packages.len());
    Ok(())
}

/// Each way in which the packages are not what the configuration wants.
fn check(config: &Config, packages: &[Package]) -> Result<Vec<String>> {
    let mut findings = licences(config, packages)?;
    findings.extend(bans(config, packages));
    findings.extend(packages.iter().filter_map(source));
    Ok(findings)
}

fn licences(config: &Config, packages: &[Package]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let mut unused: BTreeMap<&str, Licensee> = BTreeMap::new();
    for licence in &config.licences {
        let licensee = Licensee::parse(licence).with_context(|| format!("deny.toml: licence `{licence}`"))?;
        unused.insert(licence, licensee);
    }
    let allowed: Vec<Licensee> = unused.values().cloned().collect();
    for package in packages {
        let Some(text) = &package.licence else {
            findings.push(format!("{package}: declares no licence: do without it"));
            continue;
        };
        // The slash of old manifests means OR; cargo itself reads it so.
        let expression = match Expression::parse_mode(text, ParseMode::LAX) {
            Ok(expression) => expression,
            Err(error) => {
                findings.push(format!("{package}: licence `{text}` cannot be read: {}", error.reason));
                continue;
            }
        };
        if !expression.evaluate(|wanted| allowed.iter().any(|licensee| licensee.satisfies(wanted))) {
            findings
                .push(format!("{package}: licence `{text}` is not allowed: do without it, or argue for it"));
        }
        let wanted = || expression.requirements().map(|requirement| &requirement.req);
        unused.retain(|_, licensee| !wanted().any(|wanted| licensee.satisfies(wanted)));
    }
    findings.extend(unused.keys().map(|licence| format!("deny.toml: nobody uses `{licence}`: remove it")));
    Ok(findings)
}

fn bans(config: &Config, packages: &[Package]) -> Vec<String> {
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
            findings
                .push(format!("{list}: one is enough: align them, or skip one with a reason in deny.toml"));
        }
    }
    findings.extend(unused.iter().map(|name| format!("deny.toml: skipping `{name}` is needless: remove it")));
    findings
}

/// What comes from elsewhere than this workspace and cargo's own registry.
fn source(package: &Package) -> Option<String> {
    let source = package.source.as_deref()?;
    // Cargo's name for its own registry, whichever mirror serves it.
    let is_default = source == concat!("registry+https://github.com/rust-lang/crates", ".io-index");
    (!is_default).then(|| format!("{package}: comes from {source}: take a release from the registry"))
}
