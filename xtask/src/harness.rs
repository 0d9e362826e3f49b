//! `cargo xtask crash` and `damage`: builds the gateway with its crash points (feature `crash`) and a harness
//! of tollgate/tests, and runs the harness with its options.
//!
//! Guarantees: the build profile is that of the other tests.
//!
//! Power failures need a file system of the tests' own, which takes root and /dev/fuse. Elsewhere the harness
//! skips them and prints a line that says so.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Runs the harness `name`, a test target of the crate tollgate, with `options`.
pub(crate) fn run(root: &Path, name: &str, options: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "--package", "tollgate", "--features", "crash", "--test", name, "--"]);
    let status = cargo.args(options).current_dir(root).status().context("running cargo")?;
    if !status.success() {
        bail!("the output above has the fault and the command that reproduces it");
    }
    Ok(())
}
