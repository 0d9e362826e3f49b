//! `cargo xtask sim`: builds the seeded simulation of the ledger (ledger/src/simulation) and runs seeds.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Runs `count` seeds, starting with `seed`. The example prints a failing seed with the command that
/// reproduces it.
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
        bail!("the output above has the seed that failed");
    }
    Ok(())
}
