//! A program run to its end without input; its failure carries what it stderr.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs the command and returns what it wrote to its standard output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}\n{}", output.status, stderr.trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("reading the output of {command:?}"))
}
