//! Rules on the layout of a file: that it parses, its header, and the lengths of files, functions and lines.

use crate::tidy::{Finding, source::Source, tree::Tree};

/// A function fits a screen.
const FUNCTION_LINES_MAX: usize = 70;
/// A file can be read in one sitting; tests do not count.
const FILE_LINES_MAX: usize = 600;
/// Two files fit side by side on a screen. Holds for code and scripts; a viewer wraps prose.
const LINE_CHARACTERS_MAX: usize = 110;

/// Each Rust file parses: the other rules check only parsed files.
pub(super) fn parses(tree: &Tree) -> Vec<Finding> {
    tree.unparsed.iter().map(|finding| Finding::new(&finding.path, finding.line, &finding.text)).collect()
}

/// The first line states what the file is.
pub(super) fn header(tree: &Tree) -> Vec<Finding> {
    let has_header = |text: &str| text.strip_prefix("//! ").is_some_and(|rest| !rest.trim_start().is_empty());
    let text = "open with `//!` and one sentence that says what the file is";
    let missing = tree.sources.iter().filter(|source| !has_header(&source.text));
    missing.map(|source| Finding::new(&source.path, 1, text)).collect()
}

/// A file has a bounded number of lines outside tests.
pub(super) fn file_length(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let line_count = source.text.lines().count();
        let code_count = (1..=line_count).filter(|line| !source.is_test_line(*line)).count();
        if code_count > FILE_LINES_MAX {
            let text = format!(
                "{code_count} lines outside tests, at most {FILE_LINES_MAX}: move its second concept out"
            );
            findings.push(Finding::new(&source.path, 1, text));
        }
    }
    findings
}

/// A function outside tests has a bounded number of lines.
pub(super) fn function_length(tree: &Tree) -> Vec<Finding> {
    tree.sources.iter().flat_map(long_functions).collect()
}

fn long_functions(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for function in &source.functions {
        let (start, line_count) = (*function.lines.start(), function.lines.clone().count());
        if line_count > FUNCTION_LINES_MAX && !source.is_test_line(start) {
            let name = &function.name;
            let text = format!(
                "`{name}` has {line_count} lines, at most {FUNCTION_LINES_MAX}: \
                 keep the decisions here, and extract the plain work into functions"
            );
            findings.push(Finding::new(&source.path, start, text));
        }
    }
    findings
}

/// A line has a bounded number of characters, except a table row of a doc comment, which cannot be broken.
pub(super) fn line_length(tree: &Tree) -> Vec<Finding> {
    let is_checked = |path: &str| path.ends_with(".rs") || path.ends_with(".sh") || path.starts_with(".ci/");
    let is_row =
        |line: &str| line.trim_start().starts_with("//! |") || line.trim_start().starts_with("/// |");
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| is_checked(&file.path)) {
        for (index, line) in file.text.lines().enumerate().filter(|(_, line)| !is_row(line)) {
            let character_count = line.chars().count();
            if character_count > LINE_CHARACTERS_MAX {
                let text =
                    format!("{character_count} characters, at most {LINE_CHARACTERS_MAX}: break the line");
                findings.push(Finding::new(&file.path, index + 1, text));
            }
        }
    }
    findings
}
