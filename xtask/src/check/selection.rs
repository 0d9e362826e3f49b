//! The crates whose tests a change needs, from the paths of its files.

use std::{collections::BTreeSet, fmt};

use super::workspace::{Crate, Workspace};

/// Files that affect every crate. Clippy compiles all of them; their tests are left to `.ci/run`.
const GLOBAL_FILES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo/config.toml"];

/// The crate whose integration tests are experiments, which take minutes. They run only if one of them
/// changed.
const EXPERIMENTS: (&str, &str) = ("lab", "lab/tests/");

/// The dependents of a changed crate whose tests run too. Clippy compiles the others.
#[derive(Clone, Copy)]
pub(super) enum Dependents {
    /// The direct dependents without integration tests: unit tests take seconds, while integration tests
    /// start processes.
    Cheap,
    /// All, the indirect ones included.
    All,
}

/// The crates to test.
#[derive(Debug, PartialEq)]
pub(super) struct Selection {
    /// Dependencies come before their dependents, so that the first failure is near its cause.
    pub(super) crates: Vec<String>,
    /// Whether the integration tests of [`EXPERIMENTS`] run too.
    has_experiments: bool,
    /// Whether the change affects the fuzz targets.
    pub(super) has_fuzz: bool,
    /// Whether a file of [`GLOBAL_FILES`] changed.
    pub(super) affects_all: bool,
}

impl Selection {
    /// The selection for the changed `paths`, which are relative to the root.
    pub(super) fn of_changes(
        workspace: &Workspace,
        paths: &BTreeSet<String>,
        dependents: Dependents,
    ) -> Selection {
        let is_changed = |package: &Crate| paths.iter().any(|path| contains(package, path));
        let crates = workspace.crates.iter();
        let changed: BTreeSet<&str> = crates
            .clone()
            .filter(|(_, package)| is_changed(package))
            .map(|(name, _)| name.as_str())
            .collect();
        let depends_on_changed = |name: &str, package: &Crate| match dependents {
            Dependents::Cheap => {
                let mut direct = package.dependencies.iter();
                !package.has_integration_tests && direct.any(|other| changed.contains(other.as_str()))
            }
            Dependents::All => !workspace.dependencies(name).is_disjoint(&changed),
        };
        let selected = crates
            .filter(|(name, package)| changed.contains(name.as_str()) || depends_on_changed(name, package));
        let mut crates: Vec<String> = selected.map(|(name, _)| name.clone()).collect();
        crates.sort_by_cached_key(|name| workspace.dependencies(name).len());
        let affects_fuzz = |name: &String| {
            changed.contains(name.as_str()) || !workspace.dependencies(name).is_disjoint(&changed)
        };
        Selection {
            crates,
            has_experiments: matches!(dependents, Dependents::All)
                || paths.iter().any(|path| path.starts_with(EXPERIMENTS.1)),
            has_fuzz: is_changed(&workspace.fuzz) || workspace.fuzz.dependencies.iter().any(affects_fuzz),
            affects_all: GLOBAL_FILES.iter().any(|file| paths.contains(*file)),
        }
    }
}

impl Selection {
    /// The arguments of `cargo test` for a crate of the selection.
    pub(super) fn test_arguments<'a>(&self, name: &'a str) -> Vec<&'a str> {
        let mut arguments = vec!["test", "--quiet", "--package", name];
        if name == EXPERIMENTS.0 && !self.has_experiments {
            arguments.push("--bins");
        }
        arguments
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.crates.is_empty() { f.write_str("no crate") } else { f.write_str(&self.crates.join(", ")) }
    }
}

/// Whether the file at `path` belongs to the crate, or is read by its code.
fn contains(package: &Crate, path: &str) -> bool {
    let inside = path.strip_prefix(&package.folder).is_some_and(|rest| rest.starts_with('/'));
    inside || package.outside_files.contains(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The drawing of ARCHITECTURE.md in small: `core` and `parser` below `library`, `program` on top.
    fn workspace() -> Workspace {
        let package = |folder: &str, dependencies: &[&str], has_integration_tests: bool| Crate {
            folder: folder.to_owned(),
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
            has_integration_tests,
            outside_files: BTreeSet::new(),
        };
        let mut parser = package("parser", &[], true);
        parser.outside_files.insert("docs/syntax.md".to_owned());
        let crates = [
            ("core", package("core", &[], true)),
            ("program", package("program", &["library"], true)),
            ("library", package("library", &["core", "parser"], false)),
            ("parser", parser),
            ("parser-tool", package("parser-tool", &[], false)),
        ];
        Workspace {
            crates: crates.map(|(name, package)| (name.to_owned(), package)).into(),
            fuzz: package("fuzz", &["parser"], false),
        }
    }

    #[test]
    fn changed_paths_select_their_crates() {
        let cases: [(&[&str], &[&str], bool, bool); 10] = [
            (&[], &[], false, false),
            (&["README.md", "docs/other.md", ".ci/run"], &[], false, false),
            (&["program/src/main.rs"], &["program"], false, false),
            (&["program/tests/it/main.rs", "program/Cargo.toml"], &["program"], false, false),
            // A direct dependent without integration tests is cheap; `program` has some.
            (&["core/src/lib.rs"], &["core", "library"], false, false),
            (&["parser/src/lib.rs"], &["parser", "library"], true, false),
            // A file that the code of a crate reads.
            (&["docs/syntax.md"], &["parser", "library"], true, false),
            // A folder's name that begins with another one's.
            (&["parser-tool/src/lib.rs"], &["parser-tool"], false, false),
            (&["fuzz/src/lib.rs"], &[], true, false),
            (&["Cargo.lock"], &[], false, true),
        ];
        for (paths, crates, has_fuzz, affects_all) in cases {
            let paths = paths.iter().map(ToString::to_string).collect();
            let selection = Selection::of_changes(&workspace(), &paths, Dependents::Cheap);
            let crates = crates.iter().map(ToString::to_string).collect();
            let expected = Selection { crates, has_experiments: false, has_fuzz, affects_all };
            assert_eq!(selection, expected, "{paths:?}");
        }
    }

    #[test]
    fn experiments_run_if_one_of_them_changed() {
        for (path, has_bins_only) in [("lab/src/main.rs", true), ("lab/tests/it/relay.rs", false)] {
            let paths = BTreeSet::from([path.to_owned()]);
            let selection = Selection::of_changes(&workspace(), &paths, Dependents::Cheap);
            assert_eq!(selection.test_arguments("lab").contains(&"--bins"), has_bins_only, "{path}");
            assert!(!selection.test_arguments("core").contains(&"--bins"));
        }
    }

    #[test]
    fn all_dependents_include_the_indirect_ones() {
        let paths = BTreeSet::from(["core/src/lib.rs".to_owned()]);
        let selection = Selection::of_changes(&workspace(), &paths, Dependents::All);
        assert_eq!(selection.crates, ["core", "library", "program"]);
    }
}
