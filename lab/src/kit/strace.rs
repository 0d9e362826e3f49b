//! System calls of programs as strace reports them: their counts, or a trace of chosen calls.
//!
//! Guarantees: no other figure comes from a traced run, since tracing slows it down. The counts include some
//! hundred calls by which a process begins and ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::kit::child::{self, Child, ChildSettings};
use crate::kit::measurements::{Row, Run};

/// Calls that no target makes this often are left out of the table.
const CALLS_MIN: u64 = 100;

/// How long strace may take to attach.
const ATTACH_POLLS_MAX: usize = 100;
const POLL: Duration = Duration::from_millis(20);

/// The part of the report.
const PART: &str = "system-calls";

/// Calls and failed ones among them, by name.
pub(crate) type SyscallCounts = BTreeMap<String, (u64, u64)>;

/// Whether strace is installed; the experiment goes on without it.
pub(crate) fn is_installed() -> bool {
    std::process::Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success())
}

/// The arguments with which strace counts the calls of a program and all its threads and processes into
/// `file`.
pub(crate) fn counting_arguments(file: &Path) -> Vec<OsString> {
    let words = ["-f", "-c", "-qq", "-o"].map(Into::into);
    words.into_iter().chain([file.as_os_str().to_owned()]).collect()
}

/// Reads the counts that strace wrote to `file`.
///
/// # Errors
/// strace wrote no file.
pub(crate) fn read_counts(file: &Path) -> Result<SyscallCounts> {
    let summary = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(parse(&summary))
}

/// strace attached to running processes; ending or dropping it detaches.
#[derive(Debug)]
pub(crate) struct Tracer {
    strace: Child,
    file: PathBuf,
}

impl Tracer {
    /// Attaches to every thread of `processes`; `arguments` select what is traced, and the trace goes to
    /// `file`.
    ///
    /// # Errors
    /// strace may not attach, or takes too long.
    pub(crate) fn attach(processes: &[i32], arguments: &[&str], file: &Path) -> Result<Self> {
        let mut words: Vec<OsString> = ["-f", "-qq", "-o"].map(Into::into).into();
        words.push(file.into());
        words.extend(arguments.iter().map(Into::into));
        words.extend(processes.iter().flat_map(|process| ["-p".into(), process.to_string().into()]));
        let output = file.with_extension("log");
        let strace = Child::start(Path::new("strace"), &words, &ChildSettings::default(), &output)?;
        let mut tracer = Self { strace, file: file.to_owned() };
        tracer.wait_until_attached(processes)?;
        Ok(tracer)
    }

    /// Ends strace, and returns the file of its trace.
    pub(crate) fn stop(mut self) -> PathBuf {
        self.strace.stop();
        self.file.clone()
    }

    fn wait_until_attached(&mut self, processes: &[i32]) -> Result<()> {
        for _ in 0..ATTACH_POLLS_MAX {
            if processes.iter().all(|&process| is_traced(process)) {
                return Ok(());
            }
            ensure!(self.strace.is_alive(), "strace may not attach to it");
            child::pause(POLL)?;
        }
        anyhow::bail!("strace did not attach in time")
    }
}

fn is_traced(process: i32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    tasks.flatten().all(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && line != "TracerPid:\t0")
    })
}

/// Lines of `% time, seconds, usecs/call, calls, [errors,] name`.
fn parse(summary: &str) -> SyscallCounts {
    let call = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (calls, errors, name) = match *words.as_slice() {
            [_, _, _, calls, errors, name] => (calls, errors.parse().ok()?, name),
            [_, _, _, calls, name] => (calls, 0, name),
            _ => return None,
        };
        let calls = calls.parse().ok()?;
        (name != "total").then(|| (name.to_owned(), (calls, errors)))
    };
    summary.lines().filter_map(call).collect()
}

/// Rows with the same numbers each: the sum, then the calls that count, the most frequent first.
pub(crate) fn rows(counted: &[(String, SyscallCounts)]) -> Vec<Row> {
    let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, (calls, errors)) in counted.iter().flat_map(|(_, calls)| calls) {
        let total = totals.entry(name).or_default();
        *total = (total.0.max(*calls), total.1.max(*errors));
    }
    let mut shown: Vec<(&str, u64, u64)> =
        totals.into_iter().map(|(name, (calls, errors))| (name, calls, errors)).collect();
    shown.retain(|(_, calls, _)| *calls >= CALLS_MIN);
    shown.sort_by_key(|(_, calls, _)| std::cmp::Reverse(*calls));
    counted.iter().map(|(target, calls)| row(target, calls, &shown)).collect()
}

fn row(target: &str, calls: &SyscallCounts, shown: &[(&str, u64, u64)]) -> Row {
    let sum = |number: fn(&(u64, u64)) -> u64| calls.values().map(number).sum::<u64>() as f64;
    let mut numbers = vec![("all", sum(|call| call.0)), ("all_errors", sum(|call| call.1))];
    for (name, _, errors) in shown {
        let (own_calls, own_errors) = calls.get(*name).copied().unwrap_or_default();
        numbers.push((static_name(name, ""), own_calls as f64));
        if *errors > 0 {
            numbers.push((static_name(name, "_errors"), own_errors as f64));
        }
    }
    Row { part: PART, target: target.to_owned(), runs: vec![Run { round: 0, marks: Vec::new(), numbers }] }
}

/// A name with the lifetime that reports need: the program's. There are a few dozen.
fn static_name(name: &str, suffix: &str) -> &'static str {
    String::leak(format!("{name}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.600000           6     10000       250 futex
 30.00    0.300000          30      1000           clone3
 10.00    0.100000          50        20         1 openat
------ ----------- ----------- --------- --------- ----------------
100.00    1.000000          90     11020       251 total
";

    #[test]
    fn strace_summary_is_parsed() {
        let calls = parse(SUMMARY);
        let expected = [("clone3", (1_000, 0)), ("futex", (10_000, 250)), ("openat", (20, 1))];
        assert_eq!(calls, expected.map(|(name, call)| (name.to_owned(), call)).into());
        assert!(parse("").is_empty());
    }

    #[test]
    fn rows_have_the_same_calls() {
        let few: SyscallCounts = [("futex".to_owned(), (3, 0)), ("read".to_owned(), (100, 0))].into();
        let rows = rows(&[("batches".to_owned(), parse(SUMMARY)), ("event".to_owned(), few)]);
        let names = ["all", "all_errors", "futex", "futex_errors", "clone3", "read"];
        assert_eq!(rows[0].names(), names);
        assert_eq!(rows[1].names(), names);
        let values = |row: &Row| names.map(|name| row.median(name).expect("each row has all numbers"));
        assert_eq!(values(&rows[0]), [11_020.0, 251.0, 10_000.0, 250.0, 1_000.0, 0.0]);
        assert_eq!(values(&rows[1]), [103.0, 0.0, 3.0, 0.0, 0.0, 100.0]);
    }
}
