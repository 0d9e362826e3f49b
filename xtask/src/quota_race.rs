//! `cargo xtask quota-race`: runs the race for quotas of tollgate/tests/quota_race for many rounds.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Rounds without an option: half a minute.
const ROUNDS: &str = "60";

/// Runs the test target `quota_race` as `options` say: see `cargo xtask --help`.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "--package", "tollgate", "--test", "quota_race", "--", "--nocapture"]);
    cargo.env("TOLLGATE_QUOTA_ROUNDS", ROUNDS);
    for (variable, value) in variables(options)? {
        cargo.env(variable, value);
    }
    let status = cargo.current_dir(root).status().context("running cargo")?;
    if !status.success() {
        bail!("the output above has the fault and the command that reproduces it");
    }
    Ok(())
}

/// The variables by which the test gets `options`.
fn variables<'a>(options: &[&'a str]) -> Result<Vec<(&'static str, &'a str)>> {
    let variable = |pair: &[&'a str]| {
        let &[option, value] = pair else { bail!("`{}` needs a number", pair[0]) };
        let variable = match option {
            "--rounds" => "TOLLGATE_QUOTA_ROUNDS",
            "--seed" => "TOLLGATE_QUOTA_SEED",
            "--round" => "TOLLGATE_QUOTA_ROUND",
            other => bail!("unknown option `{other}`: see `cargo xtask --help`"),
        };
        value.parse::<u64>().with_context(|| format!("`{option} {value}` is not a number"))?;
        Ok((variable, value))
    };
    options.chunks(2).map(variable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_variables() {
        let variables = variables(&["--rounds", "9", "--seed", "3"]).unwrap();
        assert_eq!(variables, [("TOLLGATE_QUOTA_ROUNDS", "9"), ("TOLLGATE_QUOTA_SEED", "3")]);
    }

    #[test]
    fn wrong_options_are_refused() {
        for options in [&["--rounds"][..], &["--rounds", "many"], &["--kills", "1"]] {
            variables(options).unwrap_err();
        }
    }
}
