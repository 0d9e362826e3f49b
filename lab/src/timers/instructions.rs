//! Instructions per call of the echo, where hardware counters are missing: callgrind runs the echo in a
//! process of its own and counts every instruction outside the kernel.
//! Promises: the process's start and end are not counted, since two runs that differ in nothing but their
//! number of calls are subtracted. Leaves to others: what callgrind does not see. That is the kernel, and the
//! vDSO: under valgrind the clock is read by a system call. Its threads take turns, too, so that more calls
//! share a turn of a loop than they do otherwise.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::echo::{Deadlines, Echo};
use crate::child::{self, Child, Terms};

/// Calls of the two runs.
const CALLS_FEW: u64 = 5_000;
const CALLS_MANY: u64 = 25_000;

/// Counts the instructions of a call.
///
/// # Errors
/// Valgrind is not installed, the echo failed under it, or the user interrupts.
pub(super) fn per_call(in_flight: usize, deadlines: Deadlines) -> Result<f64> {
    if !is_installed() {
        bail!("valgrind is not installed");
    }
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let count = |calls| whole(&Echo::new(in_flight, deadlines, calls), directory.path());
    let (few, many) = (count(CALLS_FEW)?, count(CALLS_MANY)?);
    Ok((many as f64 - few as f64) / (CALLS_MANY - CALLS_FEW) as f64)
}

fn is_installed() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Instructions of a whole process. Its files go into `directory`.
fn whole(echo: &Echo, directory: &Path) -> Result<u64> {
    let (profile, log) = (directory.join("profile"), directory.join("log"));
    let mut arguments: Vec<OsString> = ["--tool=callgrind", "--fair-sched=yes"].map(Into::into).into();
    let mut file = OsString::from("--callgrind-out-file=");
    file.push(&profile);
    arguments.extend([file, child::own_program()?.into()]);
    arguments.extend(echo.arguments().into_iter().map(OsString::from));
    let mut valgrind = Child::start(Path::new("valgrind"), &arguments, &Terms::default(), &log)?;
    let ended = valgrind.wait();
    ended.with_context(|| format!("under valgrind, which said: {}", last_line(&log)))?;
    let profile = fs::read_to_string(&profile).context("reading what callgrind counted")?;
    parse(&profile).context("callgrind writes a summary")
}

fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("nothing").to_owned()
}

/// The one number of the line `summary: N`, or of `totals: N` where there is none.
fn parse(profile: &str) -> Option<u64> {
    let number = |name| profile.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    number("summary:").or_else(|| number("totals:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_tells_its_sum() {
        assert_eq!(parse("events: Ir\nsummary: 130714\n\nfn=(1)\n0 5\ntotals: 130714\n"), Some(130_714));
        assert_eq!(parse("events: Ir\nfn=(1)\n0 5\ntotals: 7\n"), Some(7));
        assert_eq!(parse("events: Ir\n"), None);
    }
}
