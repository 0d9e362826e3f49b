//! Locates the advisory database: a copy that the environment names, or a clone that git fetches.
//!
//! Guarantees: a fetch ends within [`FETCH_SECONDS_MAX`] and never prompts for a password. A missing copy
//! that the environment names is an error. An earlier fetch is never reused, since it may lack advisories.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The environment variable with the path of a copy of the database.
pub(super) const PATH_VARIABLE: &str = "TOLLGATE_ADVISORIES";

/// Enough for a shallow clone of about 10 MB.
const FETCH_SECONDS_MAX: u32 = 60;

/// The folder of the database, or the cause, in one line, why it cannot be fetched.
pub(super) fn obtain(root: &Path, url: &str) -> Result<Result<PathBuf, String>> {
    let configured = env::var_os(PATH_VARIABLE).filter(|value| !value.is_empty());
    let database = match configured {
        Some(folder) => PathBuf::from(folder),
        None => match fetch(url, &root.join("target/advisories"))? {
            Ok(folder) => folder,
            Err(cause) => return Ok(Err(cause)),
        },
    };
    if !database.join("crates").is_dir() {
        bail!("{} is no advisory database: it has no folder `crates`", database.display());
    }
    Ok(Ok(database))
}

/// Clones the latest state of the database into `folder`, which it empties first.
fn fetch(url: &str, folder: &Path) -> Result<Result<PathBuf, String>> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    // timeout(1) signals its process group, so git's child processes end too.
    let mut command = Command::new("timeout");
    command.arg(FETCH_SECONDS_MAX.to_string()).args(["git", "clone", "--quiet", "--depth=1", "--", url]);
    command.arg(folder).env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().context("running timeout and git")?;
    if output.status.success() {
        return Ok(Ok(folder.to_owned()));
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    // git's first line has the cause, the others are advice. timeout(1) prints nothing.
    let first_line = stderr.lines().next().unwrap_or("timed out");
    Ok(Err(format!("{url} cannot be fetched ({first_line})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(folder: &Path, arguments: &[&str]) {
        let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"];
        let status = Command::new("git").args(identity).args(arguments).current_dir(folder).status();
        assert!(status.expect("git runs").success(), "git {arguments:?}");
    }

    #[test]
    fn fetch_replaces_the_previous_copy() {
        let directory = tempfile::tempdir().expect("a folder is created");
        let (origin, copy) = (directory.path().join("origin"), directory.path().join("copy"));
        fs::create_dir_all(origin.join("crates")).expect("a folder is created");
        git(&origin, &["init", "--quiet"]);
        for content in ["old", "new"] {
            fs::write(origin.join("crates/file"), content).expect("a file is written");
            git(&origin, &["add", "--all"]);
            git(&origin, &["commit", "--quiet", "--message", content]);
            let url = format!("file://{}", origin.display());
            assert_eq!(fetch(&url, &copy).expect("git runs"), Ok(copy.clone()));
            assert_eq!(
                fs::read_to_string(copy.join("crates/file")).expect("the fetched file is readable"),
                content
            );
        }
    }

    #[test]
    fn failed_fetch_is_reported_in_one_line() {
        let directory = tempfile::tempdir().expect("a folder is created");
        let url = format!("file://{}/missing", directory.path().display());
        let cause = fetch(&url, &directory.path().join("copy"))
            .expect("git runs")
            .expect_err("the repository is missing");
        assert!(cause.starts_with(&format!("{url} cannot be fetched (fatal: ")), "{cause}");
        assert_eq!(cause.lines().count(), 1, "{cause}");
    }
}
