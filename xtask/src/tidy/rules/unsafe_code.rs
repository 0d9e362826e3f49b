//! Rules on `unsafe`: the crate that may contain it, and the reason beside each use.

use crate::tidy::{Finding, source::Source, tree::Tree};

/// The one crate with unsafe code.
const UNSAFE_CRATE: &str = "sys";

/// By how many lines the reason of an `unsafe` may precede it.
const REASON_LINES_MAX: usize = 12;

/// Only `sys` contains unsafe code, tests included.
pub(super) fn outside_sys(tree: &Tree) -> Vec<Finding> {
    let text = "`unsafe` outside `sys`: add a safe function to `sys`, and call that";
    let others = tree.sources.iter().filter(|source| source.crate_name() != UNSAFE_CRATE);
    others
        .flat_map(|source| unsafe_lines(source).map(|line| Finding::new(&source.path, line, text)))
        .collect()
}

/// The root of every other crate has the compiler enforce this.
pub(super) fn forbid_attribute(tree: &Tree) -> Vec<Finding> {
    let is_root = |source: &&Source| {
        source.path.ends_with("/src/lib.rs")
            || source.path.ends_with("/src/main.rs")
            || source.path.contains("/src/bin/")
    };
    let roots = tree.sources.iter().filter(is_root).filter(|source| source.crate_name() != UNSAFE_CRATE);
    let violating = roots.filter(|source| source.first_attribute.as_deref() != Some("forbid(unsafe_code)"));
    let text = "write `#![forbid(unsafe_code)]` right after the header, before any other attribute";
    violating.map(|source| Finding::new(&source.path, 1, text)).collect()
}

/// Each unsafe block, implementation and function has the reason why it is sound.
pub(super) fn reason(tree: &Tree) -> Vec<Finding> {
    let text = "add a comment `// SAFETY:` above it: which fact makes this sound, and which code upholds it \
                (for an `unsafe fn`, its docs under `# Safety`: what a caller must uphold)";
    let mut findings = Vec::new();
    for source in &tree.sources {
        let lines: Vec<&str> = source.text.lines().collect();
        let missing = unsafe_lines(source).filter(|line| !has_reason(&lines[..*line]));
        findings.extend(missing.map(|line| Finding::new(&source.path, line, text)));
    }
    findings
}

fn unsafe_lines(source: &Source) -> impl Iterator<Item = usize> {
    source.tokens.iter().filter(|token| token.text == "unsafe").map(|token| token.line)
}

/// Whether the last of `lines` has a reason: on the line itself, or in the comments and attributes directly
/// above its statement.
fn has_reason(lines: &[&str]) -> bool {
    let (last, above) = lines.split_last().expect("a token has a line");
    if gives_reason(last) {
        return true;
    }
    for line in above.iter().rev().take(REASON_LINES_MAX).map(|line| line.trim()) {
        if gives_reason(line) {
            return true;
        }
        let ends_statement = line.is_empty() || line.ends_with([';', '{', '}', ',']);
        if ends_statement && !line.starts_with("//") {
            return false;
        }
    }
    false
}

fn gives_reason(line: &str) -> bool {
    let reason = line.split_once("// SAFETY:").map(|(_, reason)| reason.trim());
    reason.is_some_and(|reason| !reason.is_empty()) || line.starts_with("/// # Safety")
}
