//! Rules on Markdown: the width of its lines, and the files that it names.

use crate::tidy::{Finding, tree::Tree};

/// The width at which prose wraps.
const CHARACTERS_MAX: usize = 110;

/// Prose wraps. Code, tables, headings, and lines with a comment or a link cannot always.
pub(super) fn width(tree: &Tree) -> Vec<Finding> {
    let is_exempt = |line: &str| {
        line.starts_with(['|', '#'])
            || line.contains("<!--")
            || line.contains("](")
            || !line.trim().contains(' ')
    };
    let mut findings = Vec::new();
    each_line(tree, |path, number, line, is_code| {
        let characters = line.chars().count();
        if characters > CHARACTERS_MAX && !is_code && !is_exempt(line) {
            let text = format!("{characters} characters, at most {CHARACTERS_MAX}: wrap the paragraph");
            findings.push(Finding::new(path, number, text));
        }
    });
    findings
}

/// A path in backticks that begins with one of the repository's folders leads to a file or a folder.
pub(super) fn paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    each_line(tree, |path, number, line, is_code| {
        let spans = line.split('`').skip(1).step_by(2).filter(|span| !is_code && is_path(tree, span));
        for span in spans.filter(|span| !exists(tree, span)) {
            let text = format!("`{span}` does not exist: name the file that has it now");
            findings.push(Finding::new(path, number, text));
        }
    });
    findings
}

/// Calls `each` with the lines of all Markdown files: path, number, text, and whether a fence encloses it.
fn each_line(tree: &Tree, mut each: impl FnMut(&str, usize, &str, bool)) {
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        let mut is_code = false;
        for (index, line) in file.text.lines().enumerate() {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            each(&file.path, index + 1, line, is_code || is_fence);
        }
    }
}

/// Whether `span` is a path below a folder of the repository that has code.
fn is_path(tree: &Tree, span: &str) -> bool {
    let is_plain = span.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
    let Some((folder, _)) = span.split_once('/').filter(|_| is_plain) else { return false };
    tree.file(&format!("{folder}/Cargo.toml")).is_some()
}

fn exists(tree: &Tree, span: &str) -> bool {
    let folder = format!("{}/", span.trim_end_matches('/'));
    tree.files.iter().any(|file| file.path == span || file.path.starts_with(&folder))
}
