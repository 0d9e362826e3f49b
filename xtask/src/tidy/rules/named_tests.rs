//! Tests that a table of the docs names by their path must exist.

use crate::tidy::{
    Finding,
    tree::{File, Tree},
};

/// The roots of a crate's tests: integration tests, then unit tests beside the code.
const TEST_ROOTS: [&str; 2] = ["tests/it", "src"];

/// Each `crate::module::test` in a row of a table in `docs` names an existing test.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_document = |path: &str| path.starts_with("docs/") && path.ends_with(".md");
    for file in tree.files.iter().filter(|file| is_document(&file.path)) {
        for (index, row) in file.text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
            for path in row.split('`').skip(1).step_by(2).filter(|span| is_path(span)) {
                if !is_test(tree, path) {
                    let text = format!("`{path}` is no test: name the test that proves it now");
                    findings.push(Finding::new(&file.path, index + 1, text));
                }
            }
        }
    }
    findings
}

/// Whether `span` is a path `crate::module::test`, with one or more modules.
fn is_path(span: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
    };
    span.split("::").count() >= 3 && span.split("::").all(is_name)
}

fn is_test(tree: &Tree, path: &str) -> bool {
    let Some((modules, name)) = path.rsplit_once("::") else { return false };
    let Some((package, modules)) = modules.split_once("::") else { return false };
    // An inline `mod tests` has no file of its own.
    let in_file = modules.strip_suffix("::tests").unwrap_or(modules);
    [modules, in_file].iter().flat_map(|modules| TEST_ROOTS.map(|root| (root, modules))).any(
        |(root, modules)| {
            let file = tree.file(&format!("{package}/{root}/{}.rs", modules.replace("::", "/")));
            file.is_some_and(|file| has_test(file, name))
        },
    )
}

fn has_test(file: &File, name: &str) -> bool {
    let mut lines = file.text.lines().map(str::trim_start).peekable();
    let opening = format!("fn {name}(");
    while let Some(line) = lines.next() {
        if line == "#[test]" && lines.peek().is_some_and(|next| next.starts_with(&opening)) {
            return true;
        }
    }
    false
}
