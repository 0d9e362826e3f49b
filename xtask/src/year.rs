//! `cargo xtask year`: makes a ledger as large as a company's after a year, and times questions to it.
//!
//! Guarantees: the product's own code writes the ledger (ledger/src/year.rs), and its release binary answers.

mod questions;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// Makes a ledger in a directory, or asks one: see `cargo xtask --help`.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    match Options::parse(options)? {
        Options::Make(year) => make(root, &year),
        Options::Ask(directory) => questions::ask(root, &directory),
    }
}

#[derive(Debug, Eq, PartialEq)]
enum Options {
    Make(Year),
    Ask(PathBuf),
}

/// The ledger to be made.
#[derive(Debug, Eq, PartialEq)]
struct Year {
    directory: PathBuf,
    seed: u64,
    users: u64,
    flows: u64,
    days: u64,
}

impl Options {
    fn parse(options: &[&str]) -> Result<Options> {
        let mut year =
            Year { directory: PathBuf::new(), seed: 1, users: 10_000, flows: 50_000_000, days: 365 };
        let (mut directory, mut is_question) = (None, false);
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let number = match *option {
                "--ask" => {
                    is_question = true;
                    continue;
                }
                "--seed" => &mut year.seed,
                "--users" => &mut year.users,
                "--flows" => &mut year.flows,
                "--days" => &mut year.days,
                other if !other.starts_with('-') && directory.is_none() => {
                    directory = Some(PathBuf::from(other));
                    continue;
                }
                other => bail!("unknown option `{other}`: see `cargo xtask --help`"),
            };
            let value = options.next().with_context(|| format!("{option} needs a number"))?;
            *number = value.parse().with_context(|| format!("{option}: {value:?} is no number"))?;
        }
        let directory = directory.context("a directory is needed: see `cargo xtask --help`")?;
        Ok(if is_question { Options::Ask(directory) } else { Options::Make(Year { directory, ..year }) })
    }
}

fn make(root: &Path, year: &Year) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--release", "--package", "ledger", "--features", "simulation", "--example", "year"]);
    cargo.arg("--").arg(std::path::absolute(&year.directory)?);
    cargo.args([year.seed, year.users, year.flows, year.days].map(|number| number.to_string()));
    if !cargo.current_dir(root).status().context("running cargo")?.success() {
        bail!("the ledger was not made: see the output above");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused() {
        let year = |flows, days| {
            let directory = PathBuf::from("d");
            Options::Make(Year { directory, seed: 1, users: 10_000, flows, days })
        };
        assert_eq!(Options::parse(&["d"]).unwrap(), year(50_000_000, 365));
        assert_eq!(Options::parse(&["--flows", "7", "d", "--days", "3"]).unwrap(), year(7, 3));
        assert_eq!(Options::parse(&["--ask", "d"]).unwrap(), Options::Ask(PathBuf::from("d")));
        for refused in
            [&["--flows", "7"][..], &["d", "e"], &["d", "--flows"], &["d", "--days", "x"], &["--x"]]
        {
            assert!(Options::parse(refused).is_err(), "{refused:?}");
        }
    }
}
