//! The files that the rules check: every text file that git tracks, or would add.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use super::{Finding, source::Source};

/// A text file; `path` is relative to the root, with `/` between its parts.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
}

/// All files, and the parsed Rust files.
pub(super) struct Tree {
    pub(super) files: Vec<File>,
    pub(super) sources: Vec<Source>,
    /// The Rust files that could not be parsed.
    pub(super) unparsed: Vec<Finding>,
}

impl Tree {
    /// Reads the checkout at `root`; git lists its files.
    pub(super) fn read(root: &Path) -> Result<Tree> {
        let mut command = Command::new("git");
        command.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let output = command.output().context("running git")?;
        if !output.status.success() {
            bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        let paths = String::from_utf8(output.stdout).context("a path is not UTF-8: rename the file")?;
        let paths: BTreeSet<&str> = paths.split_terminator('\0').collect();
        let mut files = Vec::new();
        for path in paths {
            // Deleted but still in the index, or a link to a folder.
            if !root.join(path).is_file() {
                continue;
            }
            let bytes = fs::read(root.join(path)).with_context(|| format!("reading {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(File { path: path.to_owned(), text });
            }
        }
        Ok(Tree::of(files))
    }

    /// A tree of the given files.
    pub(super) fn of(files: Vec<File>) -> Tree {
        let mut tree = Tree { files, sources: Vec::new(), unparsed: Vec::new() };
        for File { path, text } in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
            match Source::parse(path, text) {
                Ok(source) => tree.sources.push(source),
                Err((line, text)) => tree.unparsed.push(Finding::new(path, line, text)),
            }
        }
        tree.mark_test_modules();
        tree
    }

    /// The file at that path.
    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// A file whose `mod` line carries `#[cfg(test)]` is a test file, and so is all below it.
    fn mark_test_modules(&mut self) {
        let mut stems = Vec::new();
        for source in &self.sources {
            for module in source.modules.iter().filter(|module| module.is_test && !module.is_inline) {
                stems.push(format!("{}/{}", source.module_directory(), module.name));
            }
        }
        for source in &mut self.sources {
            let belongs = |stem: &String| {
                source
                    .path
                    .strip_prefix(stem.as_str())
                    .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            };
            source.is_test |= stems.iter().any(belongs);
        }
    }
}
