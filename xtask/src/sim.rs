//! The seeded simulation of the ledger: builds it and runs seeds. Promises: a seed that fails is printed
//! with the command that runs it again. Leaves to others: the world itself (ledger/src/simulation).

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Runs `count` seeds from `seed` on.
pub(crate) fn run(root: &Path, seed: &str, count: &str) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "run",
        "--quiet",
        "--package",
        "ledger",
        "--features",
        "simulation",
        "--example",
        "sim",
        "--",
    ]);
    let status = cargo.args([seed, count]).current_dir(root).status().context("running cargo")?;
    if !status.success() {
        bail!("see above");
    }
    Ok(())
}
