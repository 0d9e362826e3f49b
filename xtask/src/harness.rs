//! The harnesses that kill gateways or damage what they leave: builds the gateway with its crash points and a
//! harness, and runs that.
//! Promises: the same build flavour as the other tests; its options are the harness's own (`--help`). Leaves
//! to others: everything that is tested (tollgate/tests/crash, tollgate/tests/damage). Power failures mount a
//! disk of the tests' own, which takes root and /dev/fuse; else they are left out, and a line says so.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Runs the harness `name`, a test target of the crate tollgate, with `options`.
pub(crate) fn run(root: &Path, name: &str, options: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "--package", "tollgate", "--features", "crash", "--test", name, "--"]);
    let status = cargo.args(options).current_dir(root).status().context("running cargo")?;
    if !status.success() {
        bail!("see above for what was found and for the command that runs it again");
    }
    Ok(())
}
