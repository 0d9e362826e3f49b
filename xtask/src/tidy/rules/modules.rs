//! Rules on names of modules, and that a `mod` declares each file.

use std::collections::BTreeSet;

use crate::tidy::{Finding, tree::Tree};

/// Names that exclude nothing, so that such a module collects everything.
const VAGUE_NAMES: [&str; 8] =
    ["common", "helper", "helpers", "manager", "managers", "types", "util", "utils"];

/// A module has the name of the concept that it contains.
pub(super) fn name(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let stem = source.path.strip_suffix(".rs").unwrap_or(&source.path);
        for part in stem.split('/').filter(|part| VAGUE_NAMES.contains(part)) {
            findings.push(Finding::new(&source.path, 1, vague_name(part)));
        }
        if stem.ends_with("/mod") {
            let text = "`mod.rs`: name the file after its folder, and put it beside the folder";
            findings.push(Finding::new(&source.path, 1, text));
        }
        for module in source.modules.iter().filter(|module| VAGUE_NAMES.contains(&module.name.as_str())) {
            findings.push(Finding::new(&source.path, module.line, vague_name(&module.name)));
        }
    }
    findings
}

/// Each file is declared by a `mod`: the compiler does not warn about one that is not.
pub(super) fn dead_file(tree: &Tree) -> Vec<Finding> {
    let mut declared = BTreeSet::new();
    for source in &tree.sources {
        for module in source.modules.iter().filter(|module| !module.is_inline) {
            declared.insert(format!("{}/{}.rs", source.module_directory(), module.name));
        }
    }
    let is_dead = |path: &str| !declared.contains(path);
    let dead = tree.sources.iter().filter(|source| !source.is_crate_root() && is_dead(&source.path));
    dead.map(|source| Finding::new(&source.path, 1, "no `mod` declares this file: declare it, or delete it"))
        .collect()
}

fn vague_name(name: &str) -> String {
    format!("`{name}` is vague: name it by the concept that it contains; if none fits, split it otherwise")
}
