//! Stacks of a process's threads, sampled by `perf` in a run of its own.
//!
//! Guarantees: kernel and user frames both, where the machine permits it; only samples of the process itself
//! are kept, and equal stacks are counted once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::kit::child::{self, Child, ChildSettings};

/// Samples per second on each CPU, odd so that they do not keep step with ticks of 100, 250 or 1,000. The
/// least CPU time of a trial, 0.7 s, gives some 700 samples.
const SAMPLES_PER_S: &str = "997";

/// Copies this much of the stack with each sample and unwinds it later: neither the lab nor the C library
/// keeps frame pointers.
const CALL_GRAPH: &str = "dwarf,8192";

/// How long perf may take to attach to a running process.
const BEGIN_POLLS_MAX: usize = 50;
const POLL: Duration = Duration::from_millis(100);

/// What perf is permitted to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleScope {
    /// All CPUs while the strategy runs, so that following its threads costs them nothing.
    Machine,
    /// The strategy's process in user mode, which users other than root usually may sample. Each new thread
    /// pays for being followed.
    Process,
}

/// The samples of one strategy.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) stacks: Vec<Stack>,
}

/// One stack, and how often it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stack {
    /// Whether the stack is of the process's first thread.
    pub(crate) is_main: bool,
    /// From the root to the leaf.
    pub(crate) frames: Vec<Frame>,
    pub(crate) samples: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frame {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
}

impl SampleScope {
    /// Finds out what perf may sample here.
    ///
    /// # Errors
    /// perf is not installed, or may sample nothing.
    pub(crate) fn permitted(directory: &Path) -> Result<Self> {
        let file = directory.join("perf.try");
        let mut answer = None;
        for scope in [Self::Machine, Self::Process] {
            let mut command = Command::new("perf");
            command.arg("record").args(scope.arguments()).arg("-o").arg(&file).args(["--", "true"]);
            let output = command.output().context("perf does not run")?;
            if output.status.success() {
                return Ok(scope);
            }
            answer = Some(output);
        }
        let message = answer.map(|output| last_line(&output)).unwrap_or_default();
        anyhow::bail!("perf may not sample: {message}")
    }

    fn arguments(self) -> Vec<&'static str> {
        let common = ["-q", "-F", SAMPLES_PER_S, "--call-graph", CALL_GRAPH];
        // Modifiers: `I` leaves idle CPUs out, `u` is user mode alone.
        let own: &[&str] = match self {
            Self::Machine => &["-a", "-e", "cpu-clock:I"],
            Self::Process => &["-e", "cpu-clock:u"],
        };
        common.iter().chain(own).copied().collect()
    }

    fn record_arguments(self, file: &Path) -> Vec<OsString> {
        let words = ["record"].into_iter().chain(self.arguments()).map(OsString::from);
        words.chain(["-o".into(), file.into()]).collect()
    }
}

impl Profile {
    /// Samples a process that perf starts: `run` starts `perf` with these arguments and the process's own
    /// behind them, and returns the process's id when it has ended.
    ///
    /// # Errors
    /// perf or the process failed, or the user interrupted.
    pub(crate) fn sample_started(
        name: String,
        scope: SampleScope,
        directory: &Path,
        run: impl FnOnce(Vec<OsString>) -> Result<u32>,
    ) -> Result<Self> {
        let file = directory.join("perf.data");
        let mut arguments = scope.record_arguments(&file);
        arguments.push("--".into());
        let process = run(arguments)?;
        child::fail_if_interrupted()?;
        Self::read(name, &file, process)
    }

    /// Samples a running process while `work` is done.
    ///
    /// # Errors
    /// perf or the work failed, or the user interrupted.
    pub(crate) fn sample_running(
        name: String,
        scope: SampleScope,
        directory: &Path,
        process: u32,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let file = directory.join("perf.data");
        let mut arguments = scope.record_arguments(&file);
        if scope == SampleScope::Process {
            arguments.extend(["-p".into(), process.to_string().into()]);
        }
        let output = file.with_extension("log");
        let mut perf = Child::start(Path::new("perf"), &arguments, &ChildSettings::default(), &output)?;
        for _ in 0..BEGIN_POLLS_MAX {
            ensure!(perf.is_alive(), "perf ended at once");
            if file.exists() {
                break;
            }
            child::pause(POLL)?;
        }
        // perf creates its file shortly before it samples.
        child::pause(POLL)?;
        let worked = work();
        perf.stop();
        worked?;
        Self::read(name, &file, process)
    }

    fn read(name: String, file: &Path, process: u32) -> Result<Self> {
        let stacks = read(file, process)?;
        ensure!(!stacks.is_empty(), "perf has no sample of the process");
        Ok(Self { name, stacks })
    }
}

/// Whether a frame's name matches a pattern: the whole name, or with `*` for any part.
pub(crate) fn matches(name: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        let Some(start) = rest.find(part) else { return false };
        rest = &rest[start + part.len()..];
        last = Some(part);
    }
    match last {
        None => rest.is_empty(),
        Some(part) => part.is_empty() || name.ends_with(part),
    }
}

/// A process's stacks in perf's file.
fn read(file: &Path, process: u32) -> Result<Vec<Stack>> {
    let mut command = Command::new("perf");
    // Without `--no-inline` perf runs another program for each address, which takes minutes.
    command.args(["script", "--no-inline", "-F", "pid,tid,ip,sym", "--pid"]).arg(process.to_string());
    let output = command.arg("-i").arg(file).output().context("perf does not run")?;
    ensure!(output.status.success(), "perf cannot read its own file: {}", last_line(&output));
    Ok(parse(&String::from_utf8_lossy(&output.stdout), process))
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

/// The samples of a process. Each begins with a line of `pid/tid`; its frames follow from the leaf to the
/// root, an address and a name on each line; an empty line ends it.
fn parse(text: &str, process: u32) -> Vec<Stack> {
    let mut counts: BTreeMap<(bool, Vec<Frame>), u64> = BTreeMap::new();
    for sample in text.split("\n\n") {
        let mut lines = sample.lines().skip_while(|line| line.trim().is_empty());
        let Some((process_id, thread)) = lines.next().and_then(identity) else { continue };
        if process_id != process {
            continue;
        }
        let mut frames: Vec<Frame> = lines.filter_map(frame).collect();
        frames.reverse();
        *counts.entry((thread == process, frames)).or_default() += 1;
    }
    let stack = |((is_main, frames), samples)| Stack { is_main, frames, samples };
    counts.into_iter().map(stack).collect()
}

fn identity(line: &str) -> Option<(u32, u32)> {
    let (process, thread) = line.trim().split_once('/')?;
    Some((process.trim().parse().ok()?, thread.trim().parse().ok()?))
}

fn frame(line: &str) -> Option<Frame> {
    let (address, name) = line.trim().split_once(' ')?;
    // The kernel has the upper half of the addresses.
    let is_kernel = u64::from_str_radix(address, 16).ok()? >> 63 == 1;
    Some(Frame { name: name.trim().to_owned(), is_kernel })
}

#[cfg(test)]
impl Stack {
    pub(crate) fn new<'a>(is_main: bool, frames: impl Iterator<Item = &'a str>, samples: u64) -> Self {
        let frame = |name: &str| Frame { name: name.to_owned(), is_kernel: false };
        Self { is_main, frames: frames.map(frame).collect(), samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "   70/71
\tffffffff8143d42d do_futex
\t          86013 <std::thread::Scope>::spawn::{closure#0}
\t              0 [unknown]

   70/70
\t         1098d9 clone3

    8/8
\t         1098d9 clone3

   70/71
\tffffffff8143d42d do_futex
\t          86099 <std::thread::Scope>::spawn::{closure#0}
\t              0 [unknown]

   70/72
";

    #[test]
    fn equal_stacks_of_a_process_are_merged() {
        let frame = |name: &str, is_kernel| Frame { name: name.to_owned(), is_kernel };
        let futex = vec![
            frame("[unknown]", false),
            frame("<std::thread::Scope>::spawn::{closure#0}", false),
            frame("do_futex", true),
        ];
        let stack = |is_main, frames, samples| Stack { is_main, frames, samples };
        let expected = [
            stack(false, Vec::new(), 1),
            stack(false, futex, 2),
            stack(true, vec![frame("clone3", false)], 1),
        ];
        assert_eq!(parse(SCRIPT, 70), expected);
        assert_eq!(parse(SCRIPT, 9), []);
        assert_eq!(parse("", 70), []);
        assert_eq!(parse("no sample\n\n12 frames\n\n/\n", 70), []);
    }

    #[test]
    fn patterns_match_whole_names_or_stars() {
        let check =
            |name, pattern, expected| assert_eq!(matches(name, pattern), expected, "{name} {pattern}");
        check("clone3", "clone3", true);
        check("clone31", "clone3", false);
        check("__clone", "clone", false);
        check("a::mutex::b", "*::mutex::*", true);
        check("mutex", "*::mutex::*", false);
        check("do_futex_wait", "*futex*", true);
        check("x::unpark", "*::unpark", true);
        check("x::unparked", "*::unpark", false);
        check("x::unpark::unpark", "*::unpark", true);
        check("std::thread::scoped::Scope::spawn_inner", "*::thread::*::spawn*", true);
    }

    #[test]
    #[ignore = "needs perf: cargo xtask services"]
    fn perf_samples_a_process() {
        let directory = tempfile::tempdir().expect("a directory can be created");
        let scope = SampleScope::permitted(directory.path()).expect("perf is permitted");
        let file = directory.path().join("perf.data");
        let mut record = Command::new("perf");
        record.arg("record").args(scope.arguments()).arg("-o").arg(&file);
        record.args(["--", "sh", "-c", "echo $$; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"]);
        let output = record.output().expect("perf runs");
        let process =
            String::from_utf8_lossy(&output.stdout).trim().parse().expect("the shell printed its id");
        let stacks = read(&file, process).expect("perf reads its own file");
        assert!(stacks.iter().any(|stack| stack.is_main && !stack.frames.is_empty()), "{stacks:?}");
    }
}
