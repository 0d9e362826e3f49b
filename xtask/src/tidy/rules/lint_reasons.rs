//! Every exception from a lint has its reason beside it.

use crate::tidy::{Finding, source::Source, tokens, tree::Tree};

/// `#[allow(...)]` and `#[expect(...)]` have a `reason = "..."`, or a comment on the line or above it.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let openings = ["#[allow", "#![allow", "#[expect", "#![expect"];
    // A lexer reads a bracket only with its closing bracket, which the pattern must not contain.
    let patterns = openings.map(|opening| {
        let mut pattern = tokens::lex(&format!("{opening}]")).expect("the pattern is valid Rust");
        pattern.pop();
        pattern
    });
    let text = "an exception without a reason: add `reason = \"...\"`, or a comment above it";
    let mut findings = Vec::new();
    for source in &tree.sources {
        for at in 0..source.tokens.len() {
            let rest = &source.tokens[at..];
            let opens = patterns.iter().any(|pattern| tokens::starts_with(rest, pattern));
            if opens && !has_reason(source, rest) {
                findings.push(Finding::new(&source.path, rest[0].line, text));
            }
        }
    }
    findings
}

fn has_reason(source: &Source, attribute: &[tokens::Token]) -> bool {
    let mut inside = attribute.iter().take_while(|token| token.text != "]");
    let line = attribute[0].line;
    inside.any(|token| token.text == "reason") || has_comment(source, line)
}

fn has_comment(source: &Source, line: usize) -> bool {
    let text = |line: usize| source.text.lines().nth(line - 1).unwrap_or("").trim();
    let is_plain_comment = |text: &str| text.starts_with("// ") && !text.starts_with("// SAFETY:");
    text(line).contains("// ") || (line > 1 && is_plain_comment(text(line - 1)))
}
