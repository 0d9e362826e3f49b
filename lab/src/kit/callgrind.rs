//! The instructions of a whole process, where hardware counters are missing: callgrind counts every
//! instruction outside the kernel.
//!
//! Guarantees: two runs that differ only in their amount of work can be subtracted, which removes start and
//! end.
//!
//! Not handled here: what callgrind does not see, which is the kernel and the vDSO: under valgrind a clock
//! read is a system call. Valgrind also runs one thread at a time, so more work shares a pass of a loop than
//! it does otherwise.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::kit::child::{Child, ChildSettings};

/// A process under callgrind.
pub(crate) struct CallgrindRun {
    valgrind: Child,
    profile: PathBuf,
    log: PathBuf,
}

impl CallgrindRun {
    /// Starts `program` under callgrind, which writes its files into `directory`.
    ///
    /// # Errors
    /// Valgrind is not installed, or the process could not be created.
    pub(crate) fn start(program: &Path, arguments: Vec<OsString>, directory: &Path) -> Result<Self> {
        if !is_installed() {
            bail!("valgrind is not installed");
        }
        let (profile, log) = (directory.join("profile"), directory.join("log"));
        let mut words: Vec<OsString> = ["--tool=callgrind", "--fair-sched=yes"].map(Into::into).into();
        let mut file = OsString::from("--callgrind-out-file=");
        file.push(&profile);
        words.extend([file, program.into()]);
        words.extend(arguments);
        let valgrind = Child::start(Path::new("valgrind"), &words, &ChildSettings::default(), &log)?;
        Ok(Self { valgrind, profile, log })
    }

    /// Whether the process still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.valgrind.is_alive()
    }

    /// Asks the process to end with SIGTERM; `finish` waits for the end.
    pub(crate) fn request_stop(&self) {
        self.valgrind.request_stop();
    }

    /// Waits until the process ends by itself, and returns its number of instructions.
    ///
    /// # Errors
    /// The process or callgrind failed.
    pub(crate) fn finish(mut self) -> Result<u64> {
        let ended = self.valgrind.wait();
        ended.with_context(|| format!("under valgrind, which printed: {}", self.last_output_line()))?;
        let profile = fs::read_to_string(&self.profile).context("reading callgrind's counts")?;
        parse(&profile).context("callgrind writes a summary")
    }

    /// The last line that the process or valgrind printed.
    pub(crate) fn last_output_line(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().last().unwrap_or("nothing").to_owned()
    }
}

fn is_installed() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The number of the line `summary: N`, or of `totals: N` where there is no summary.
fn parse(profile: &str) -> Option<u64> {
    let number = |name| profile.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    number("summary:").or_else(|| number("totals:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrind_summary_is_parsed() {
        assert_eq!(parse("events: Ir\nsummary: 130714\n\nfn=(1)\n0 5\ntotals: 130714\n"), Some(130_714));
        assert_eq!(parse("events: Ir\nfn=(1)\n0 5\ntotals: 7\n"), Some(7));
        assert_eq!(parse("events: Ir\n"), None);
    }
}
