//! Rules on the manifests: which crate may depend on which, external dependencies and their reasons.

use std::{collections::BTreeSet, ops::Range};

use toml::de::{DeTable, DeValue};

use crate::tidy::{
    Finding,
    tree::{File, Tree},
};

/// The drawing in ARCHITECTURE.md: each crate, and the workspace crates that it may depend on. It also holds
/// for dev- and build-dependencies.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 10] = [
    ("sys", &[]),
    ("engine", &["sys"]),
    ("proto", &[]),
    ("policy", &[]),
    ("ledger", &["sys"]),
    ("gateway", &["engine", "ledger", "policy", "proto", "sys"]),
    ("admin", &["engine", "gateway", "ledger", "policy", "proto", "sys"]),
    ("tollgate", &["admin", "engine", "gateway", "ledger", "policy", "proto", "sys"]),
    ("lab", &["engine", "ledger", "policy", "proto", "sys"]),
    ("xtask", &[]),
];

const PURE_CRATES: [&str; 2] = ["policy", "proto"];

/// External crates through which a pure crate would reach a socket, a clock, a file or a random source.
const IMPURE_DEPENDENCIES: [&str; 8] =
    ["getrandom", "hickory-resolver", "jiff", "libc", "rustix", "signal-hook", "socket2", "tokio"];

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const ARCHITECTURE_LINES_MAX: usize = 150;

/// Workspace crates depend on each other only as drawn.
pub(super) fn dependency_direction(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in manifests(tree) {
        let name = manifest.crate_name;
        let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(crate_name, _)| *crate_name == name)
        else {
            let text = format!(
                "`{name}` is not drawn: add it to {ARCHITECTURE} and to ALLOWED_DEPENDENCIES of xtask"
            );
            findings.push(Finding::new(&manifest.file.path, 1, text));
            continue;
        };
        for Dependency { name: other, line, .. } in manifest.dependencies {
            let is_ours = ALLOWED_DEPENDENCIES.iter().any(|(name, _)| *name == other);
            if is_ours && !allowed.contains(&other.as_str()) {
                let text = format!(
                    "`{name}` must not depend on `{other}`: dependencies run downward only; pass a value as \
                     an argument, or move the code to a crate that depends on both"
                );
                findings.push(Finding::new(&manifest.file.path, line, text));
            }
        }
    }
    findings
}

/// The pure crates depend on no crate that does I/O.
pub(super) fn pure_crates(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in manifests(tree).filter(|manifest| PURE_CRATES.contains(&manifest.crate_name)) {
        for Dependency { name, line, is_product } in manifest.dependencies {
            if is_product && IMPURE_DEPENDENCIES.contains(&name.as_str()) {
                let text = format!("`{name}` does I/O and this crate is pure: call it in the gateway");
                findings.push(Finding::new(&manifest.file.path, line, text));
            }
        }
    }
    findings
}

/// Each declared dependency is used.
pub(super) fn dead_dependency(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used_anywhere = BTreeSet::new();
    for manifest in manifests(tree) {
        let sources = tree.sources.iter().filter(|source| source.crate_name() == manifest.crate_name);
        let words: BTreeSet<&str> =
            sources.flat_map(|source| &source.tokens).map(|token| token.text.as_str()).collect();
        for Dependency { name, line, .. } in manifest.dependencies {
            if !words.contains(name.replace('-', "_").as_str()) {
                let text = format!("no code of this crate uses `{name}`: remove it");
                findings.push(Finding::new(&manifest.file.path, line, text));
            }
            used_anywhere.insert(name);
        }
    }
    for (name, line) in workspace_dependencies(tree) {
        if !used_anywhere.contains(&name) {
            findings.push(Finding::new(
                "Cargo.toml",
                line,
                format!("no crate depends on `{name}`: remove it"),
            ));
        }
    }
    findings
}

/// ARCHITECTURE.md stays short, and has a reason for each external dependency.
pub(super) fn architecture_document(tree: &Tree) -> Vec<Finding> {
    let Some(File { text: map, .. }) = tree.file(ARCHITECTURE) else { return Vec::new() };
    let mut findings = Vec::new();
    let line_count = map.lines().count();
    if line_count > ARCHITECTURE_LINES_MAX {
        let text =
            format!("{line_count} lines, at most {ARCHITECTURE_LINES_MAX}: keep only what changes rarely");
        findings.push(Finding::new(ARCHITECTURE, line_count, text));
    }
    let is_ours = |name: &str| ALLOWED_DEPENDENCIES.iter().any(|(crate_name, _)| *crate_name == name);
    for (name, line) in workspace_dependencies(tree).into_iter().filter(|(name, _)| !is_ours(name)) {
        let continues = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-');
        if !map.split(|character| !continues(character)).any(|word| word == name) {
            let text = format!("`{name}` has no line in {ARCHITECTURE}: state its benefit and its cost");
            findings.push(Finding::new("Cargo.toml", line, text));
        }
    }
    findings
}

/// The manifest of a workspace crate.
struct Manifest<'a> {
    crate_name: &'a str,
    file: &'a File,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    line: usize,
    /// A normal dependency, neither of tests nor of the build script.
    is_product: bool,
}

/// The manifests of the workspace's members, so without `fuzz`, which is a workspace of its own.
fn manifests(tree: &Tree) -> impl Iterator<Item = Manifest<'_>> {
    tree.files.iter().filter_map(|file| {
        let crate_name = file.path.strip_suffix("/Cargo.toml")?;
        let is_member = !crate_name.contains('/') && crate_name != "fuzz";
        is_member.then(|| Manifest { crate_name, file, dependencies: dependencies(&file.text) })
    })
}

fn dependencies(text: &str) -> Vec<Dependency> {
    let manifest = parse(text);
    let mut found = Vec::new();
    collect(&manifest, text, &mut found);
    if let Some(targets) = manifest.get("target").and_then(|targets| targets.get_ref().as_table()) {
        for target in targets.values().filter_map(|target| target.get_ref().as_table()) {
            collect(target, text, &mut found);
        }
    }
    found
}

fn collect(table: &DeTable<'_>, text: &str, found: &mut Vec<Dependency>) {
    for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let names = table.get(section).map(|section| names(section.get_ref(), text)).unwrap_or_default();
        let is_product = section == "dependencies";
        found.extend(names.into_iter().map(|(name, line)| Dependency { name, line, is_product }));
    }
}

fn workspace_dependencies(tree: &Tree) -> Vec<(String, usize)> {
    let Some(File { text, .. }) = tree.file("Cargo.toml") else { return Vec::new() };
    let manifest = parse(text);
    let workspace = manifest.get("workspace").and_then(|workspace| workspace.get_ref().as_table());
    let listed = workspace.and_then(|workspace| workspace.get("dependencies"));
    listed.map(|listed| names(listed.get_ref(), text)).unwrap_or_default()
}

/// The keys of a table with their lines.
fn names(table: &DeValue<'_>, text: &str) -> Vec<(String, usize)> {
    let keys = table.as_table().into_iter().flat_map(|table| table.keys());
    keys.map(|key| (key.get_ref().to_string(), line_of(key.span(), text))).collect()
}

fn line_of(span: Range<usize>, text: &str) -> usize {
    text[..span.start].matches('\n').count() + 1
}

/// Parses a manifest. Cargo has parsed it before: xtask could not have been built otherwise.
fn parse(text: &str) -> DeTable<'_> {
    DeTable::parse(text).expect("cargo accepts the manifest").into_inner()
}
