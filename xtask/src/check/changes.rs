//! The files that differ between a revision and the checkout.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// The paths that differ from the merge base of `base` and `HEAD`: committed, staged, unstaged and untracked
/// changes. A renamed file counts with both paths.
pub(super) fn paths_since(root: &Path, base: &str) -> Result<BTreeSet<String>> {
    let start = git(root, &["merge-base", base, "HEAD"])
        .with_context(|| format!("no common history with `{base}`: name another revision with --base"))?;
    let changed = git(root, &["diff", "--name-only", "--no-renames", "-z", start.trim()])?;
    let untracked = git(root, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    Ok([changed, untracked]
        .iter()
        .flat_map(|paths| paths.split_terminator('\0'))
        .map(str::to_owned)
        .collect())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output().context("running git")?;
    if !output.status.success() {
        bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim_end());
    }
    String::from_utf8(output.stdout).context("a path is not UTF-8: rename the file")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn all_kinds_of_changes_are_found() {
        let directory = tempfile::tempdir().expect("a folder is created");
        let root = directory.path();
        let run = |arguments: &[&str]| {
            let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"];
            git(root, &[&identity[..], arguments].concat()).expect("git succeeds");
        };
        let write = |name: &str, text: &str| fs::write(root.join(name), text).expect("a file is written");
        run(&["init", "--quiet", "--initial-branch=main"]);
        write(".gitignore", "ignored\n");
        for name in ["kept", "committed", "staged", "unstaged", "renamed", "deleted"] {
            write(name, name);
        }
        run(&["add", "--all"]);
        run(&["commit", "--quiet", "--message", "base"]);
        run(&["switch", "--quiet", "--create", "topic"]);
        write("committed", "new");
        run(&["mv", "renamed", "moved"]);
        run(&["commit", "--quiet", "--all", "--message", "topic"]);
        // Commits on the base since the branch began are no changes of the branch.
        run(&["switch", "--quiet", "main"]);
        write("kept", "new");
        run(&["commit", "--quiet", "--all", "--message", "main"]);
        run(&["switch", "--quiet", "topic"]);
        write("staged", "new");
        run(&["add", "staged"]);
        for name in ["unstaged", "untracked", "ignored"] {
            write(name, "new");
        }
        fs::remove_file(root.join("deleted")).expect("the file is removed");

        let found = paths_since(root, "main").expect("git succeeds");
        let expected = ["committed", "deleted", "moved", "renamed", "staged", "unstaged", "untracked"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn unknown_base_error_names_the_option() {
        let directory = tempfile::tempdir().expect("a folder is created");
        git(directory.path(), &["init", "--quiet"]).expect("git succeeds");
        let error = paths_since(directory.path(), "nowhere").expect_err("there is no such revision");
        assert_eq!(error.to_string(), "no common history with `nowhere`: name another revision with --base");
    }
}
