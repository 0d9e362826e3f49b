//! `cargo xtask tidy`: checks the rules of this repository over every file that is, or would be, committed.
//!
//! Guarantees: a finding has its file and line, its rule, and the remedy.
//! Not handled here: checks of rustc and clippy (`[workspace.lints]`, clippy.toml), and layout (rustfmt).

mod prose;
mod rules;
mod source;
#[cfg(test)]
mod tests;
mod tokens;
mod tree;

use std::{fmt, path::Path};

use anyhow::{Result, bail};
use tree::Tree;

/// A line that breaks a rule.
struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    /// The fault and its remedy.
    text: String,
}

impl Finding {
    fn new(path: &str, line: usize, text: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// A rule: the name that findings and tests show, and its check.
struct Rule {
    name: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

/// Checks the checkout at `root`; prints each finding.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut finding_count = 0;
    for rule in &rules::RULES {
        for finding in (rule.check)(&tree) {
            eprintln!("{finding} [{}]", rule.name);
            finding_count += 1;
        }
    }
    if finding_count > 0 {
        bail!("{finding_count} findings");
    }
    println!("tidy: {} rules hold over {} files", rules::RULES.len(), tree.files.len());
    Ok(())
}
