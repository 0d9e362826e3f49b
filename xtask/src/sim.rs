//! `cargo xtask sim`: runs seeds of the two simulations, of the ledger (ledger/src/simulation) and of whole
//! flows (gateway/src/simulation).

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// The test that runs the seeds which [`FLOW_SEEDS`] names.
const FLOW_TEST: &str = "simulation::flows_are_billed_as_they_moved";

/// The first seed and the number of seeds, as `FIRST COUNT`.
const FLOW_SEEDS: &str = "TOLLGATE_FLOW_SEEDS";

/// Runs `count` seeds of the ledger's simulation, starting with `seed`. The example prints a failing seed
/// with the command that reproduces it.
pub(crate) fn run_ledger(root: &Path, seed: &str, count: &str) -> Result<()> {
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
    run(cargo.args([seed, count]).current_dir(root))
}

/// Runs `count` seeds of the simulation of flows, starting with `seed`.
///
/// The whole workspace is named, so that the test's executable is that of `cargo test --workspace`: for one
/// package alone cargo would select other features of its dependencies, and compile them once more.
pub(crate) fn run_flows(root: &Path, seed: &str, count: &str) -> Result<()> {
    for number in [seed, count] {
        number.parse::<u64>().with_context(|| format!("{number:?} is no number"))?;
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "--workspace", "--lib", "--", "--exact", FLOW_TEST, "--nocapture"]);
    run(cargo.env(FLOW_SEEDS, format!("{seed} {count}")).current_dir(root))
}

fn run(cargo: &mut Command) -> Result<()> {
    let status = cargo.status().context("running cargo")?;
    if !status.success() {
        bail!("the output above has the seed that failed");
    }
    Ok(())
}
