//! `cargo xtask check`: checks a change before it is committed: format, tidy, clippy, and the tests of the
//! crates that it changes.
//!
//! Each step prints its name and its time; the first step that fails ends the run. With a warm target folder
//! a run takes less than two minutes on two cores.
//!
//! Not handled here: tests of most dependents, docs, models, simulations, kill tests and real peers.
//! `.ci/run` runs them all.

mod changes;
mod selection;
mod workspace;

use std::{
    fmt::Display,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use selection::{Dependents, Selection};
use workspace::Workspace;

use crate::tidy;

/// The branch into which changes are merged.
const DEFAULT_BASE: &str = "main";

/// Runs all steps for the changes of the checkout at `root`.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let Options { base, dependents } = Options::parse(options)?;
    let workspace = Workspace::read(root)?;
    let paths = changes::paths_since(root, base)?;
    let selection = Selection::of_changes(&workspace, &paths, dependents);
    println!("check: {} changed files since {base}; tests of: {selection}", paths.len());
    let start = Instant::now();
    step("format", || {
        cargo(root, &["fmt", "--all", "--check"])?;
        cargo(root, &["fmt", "--check", "--manifest-path", "fuzz/Cargo.toml"])
    })?;
    step("tidy", || tidy::run(root))?;
    step("clippy", || {
        cargo(root, &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
    })?;
    if selection.has_fuzz {
        // The package is outside the workspace, so clippy does not notice a parser's renamed item.
        let target = "--target-dir=target/fuzz-check";
        step("fuzz targets compile", || {
            cargo(root, &["check", "--quiet", "--locked", target, "--manifest-path", "fuzz/Cargo.toml"])
        })?;
    }
    // One cargo run for each crate: cargo unifies the features of dependencies over a set of packages, so
    // each new set would compile them again. `cargo test --package` by hand has the same builds.
    for name in &selection.crates {
        step(format!("tests of {name}"), || cargo(root, &selection.test_arguments(name)))?;
    }
    println!("check: passed in {}", seconds(start.elapsed()));
    if selection.affects_all {
        println!("check: a change of manifests or the toolchain affects every crate: run .ci/run too");
    }
    Ok(())
}

struct Options<'a> {
    /// The revision with which the checkout is compared.
    base: &'a str,
    dependents: Dependents,
}

impl<'a> Options<'a> {
    fn parse(options: &[&'a str]) -> Result<Options<'a>> {
        let mut parsed = Options { base: DEFAULT_BASE, dependents: Dependents::Cheap };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match *option {
                "--base" => parsed.base = options.next().context("--base needs a revision")?,
                "--all-dependents" => parsed.dependents = Dependents::All,
                other => bail!("unknown option `{other}`: see `cargo xtask --help`"),
            }
        }
        Ok(parsed)
    }
}

/// Runs one step; prints its name before it, and its time after it.
fn step(name: impl Display, run: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("check: {name}");
    let start = Instant::now();
    let outcome = run();
    let verb = if outcome.is_ok() { "took" } else { "failed after" };
    println!("check: {name} {verb} {}", seconds(start.elapsed()));
    outcome.with_context(|| format!("step `{name}`"))
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = Command::new("cargo").args(arguments).current_dir(root).status();
    if !status.context("running cargo")?.success() {
        bail!("`cargo {}` failed: see its output above", arguments.join(" "));
    }
    Ok(())
}
