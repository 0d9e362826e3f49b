//! The kill tests: builds the gateway with its crash points and the harness that kills it, and runs that.
//! Promises: the same build flavour as the other tests; its options are the harness's own (`--help`). Leaves
//! to others: everything that is tested (tollgate/tests/crash). Its power failures mount a disk of the tests'
//! own, which takes root and /dev/fuse; where that is not to be had they are left out, and a line says so.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Runs the kill tests with `options`.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "--package", "tollgate", "--features", "crash", "--test", "crash", "--"]);
    let status = cargo.args(options).current_dir(root).status().context("running cargo")?;
    if !status.success() {
        bail!("see above for what was found and for the command that runs it again");
    }
    Ok(())
}
