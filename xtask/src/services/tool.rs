//! Runs a program to its end without input; the error of a failed one contains its standard error.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs the command and returns its standard output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} exited with {}\n{}", output.status, stderr.trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("reading the output of {command:?}"))
}
