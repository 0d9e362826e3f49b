//! Probes the limit of a thread for each request: how many threads a process creates until the kernel refuses
//! one, and which limit that proves.
//!
//! Guarantees: only a limit that is at its bound at the moment of the refusal is named as its cause; a mode
//! that would take most of the machine's process ids or memory from other processes is skipped unless it was
//! requested.
//!
//! | mode | its threads | maps of each | first limit |
//! |---|---|---|---|
//! | `finished` | do a request and end; they are not joined, so each keeps its stack | 2 | `max_map_count` |
//! | `finished-plain` | the same in a process that handles no SIGSEGV, as C programs do | 2 | `max_map_count` |
//! | `living` | wait for ever | 4: its stack, that for its signals, a guard for each | `max_map_count` |
//! | `living-plain` | the same without stacks for signals | 2 | the smaller of `max_map_count` and `pid_max` |
//!
//! A finished thread of std unmaps its stack for signals, so it counts for as much as one of C.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::super::work::REQUESTS;
use super::child::{DIED, LIVED};
use super::limits::{self, Limit, LimitSnapshot};
use crate::kit::child;
use crate::kit::measurements::Numbers;
use crate::kit::worker_process::{GO, READY, WorkerProcess};

/// The most memory of one thread: a stack in the kernel (16 KiB), and the pages that it and its start touch.
const THREAD_BYTES_MAX: u64 = 48 * 1024;

/// A way to create threads until the kernel refuses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiments::pipeline) struct CreationMode {
    /// Whether threads live on instead of doing a request.
    is_living: bool,
    /// Whether they have no stack for signals.
    is_plain: bool,
}

/// All modes.
pub(in crate::experiments::pipeline) const MODES: [CreationMode; 4] = [
    CreationMode { is_living: false, is_plain: false },
    CreationMode { is_living: false, is_plain: true },
    CreationMode { is_living: true, is_plain: false },
    CreationMode { is_living: true, is_plain: true },
];

/// The mode of the published program.
pub(in crate::experiments::pipeline) const PUBLISHED: CreationMode =
    CreationMode { is_living: false, is_plain: true };

/// What was measured when the kernel refused a thread.
#[derive(Clone, Debug)]
pub(in crate::experiments::pipeline) struct LimitHit {
    pub(in crate::experiments::pipeline) created: u64,
    /// The reason that the process reported, with an error's number in it.
    pub(in crate::experiments::pipeline) reason: String,
    /// The counts before the first thread.
    pub(in crate::experiments::pipeline) before: LimitSnapshot,
    pub(in crate::experiments::pipeline) at: LimitSnapshot,
}

impl fmt::Display for CreationMode {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(if self.is_living { "living" } else { "finished" })?;
        text.write_str(if self.is_plain { "-plain" } else { "" })
    }
}

impl CreationMode {
    /// Why the mode is skipped, if so. With `is_forced` the process ids of other processes do not matter.
    pub(in crate::experiments::pipeline) fn refusal(self, is_forced: bool) -> Option<String> {
        let Some(maps_max) = limits::max_map_count() else {
            return Some("this kernel has no vm.max_map_count".to_owned());
        };
        let expected = (maps_max / self.maps_of_thread()).min(u64::from(REQUESTS));
        let memory_bytes = expected * THREAD_BYTES_MAX;
        if limits::memory_left_bytes().is_none_or(|left| memory_bytes > left / 2) {
            let needed_mb = memory_bytes / 1_000_000;
            return Some(format!(
                "{expected} threads may take {needed_mb} MB, more than half of the available memory"
            ));
        }
        let would_starve = limits::pids_left().is_none_or(|left| expected > left / 2 + left / 4);
        (self.is_living && would_starve && !is_forced).then(|| {
            format!(
                "{expected} threads would leave other processes too few process ids: --confirm permits it"
            )
        })
    }

    fn maps_of_thread(self) -> u64 {
        if self.is_living && !self.is_plain { 4 } else { 2 }
    }

    /// Creates threads until the kernel refuses one; `None` if a thread for every request could be created.
    ///
    /// # Errors
    /// The process failed otherwise, or the user interrupted.
    pub(in crate::experiments::pipeline) fn run(self, text: Option<&PathBuf>) -> Result<Option<LimitHit>> {
        let own = child::own_program()?;
        let arguments = self.arguments(text);
        let mut worker = match self.is_plain {
            true => WorkerProcess::start(Path::new("sh"), &without_signal_stacks(&own, arguments))?,
            false => WorkerProcess::start(&own, &arguments)?,
        };
        worker.expect_line(READY)?;
        let read = |worker: &WorkerProcess| LimitSnapshot::read(worker.id()).context("the process has ended");
        let before = read(&worker)?;
        worker.send(GO)?;
        let line = worker.read_line()?;
        if line == LIVED {
            worker.finish()?;
            return Ok(None);
        }
        let Some((created, reason)) = parse_last_words(&line) else { bail!("the process printed {line:?}") };
        let at = read(&worker)?;
        worker.finish()?;
        Ok(Some(LimitHit { created, reason, before, at }))
    }

    fn arguments(self, text: Option<&PathBuf>) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["create-threads", "--threads"]
            .into_iter()
            .map(Into::into)
            .chain([REQUESTS.to_string().into()])
            .collect();
        if self.is_living {
            arguments.push("--living".into());
        }
        if let Some(text) = text {
            arguments.extend(["--text".into(), text.into()]);
        }
        arguments
    }
}

/// Rust's runtime gives threads a stack for signals where SIGSEGV and SIGBUS have their default action. A
/// shell that ignores them leaves them ignored for the program that it executes.
fn without_signal_stacks(program: &Path, arguments: Vec<OsString>) -> Vec<OsString> {
    let script = r#"trap "" SEGV BUS; exec "$0" "$@""#;
    ["-c".into(), script.into(), program.into()].into_iter().chain(arguments).collect()
}

fn parse_last_words(line: &str) -> Option<(u64, String)> {
    let (created, reason) = line.strip_prefix(DIED)?.split_once(": ")?;
    Some((created.parse().ok()?, reason.to_owned()))
}

impl LimitHit {
    /// The limit that it proves.
    pub(in crate::experiments::pipeline) fn cause(&self) -> Option<&Limit> {
        self.at.sole_exhausted()
    }

    /// The error's number, as the runtime and the C library print it.
    pub(in crate::experiments::pipeline) fn errno(&self) -> Option<u32> {
        let (_, number) = self.reason.rsplit_once("os error ")?;
        number.trim_end_matches(')').parse().ok()
    }

    /// Maps that each created thread has left.
    fn maps_of_thread(&self) -> f64 {
        (self.at.maps - self.before.maps) as f64 / self.created as f64
    }

    /// How many threads the same process would create under another `max_map_count`.
    pub(in crate::experiments::pipeline) fn predicted_under(&self, maps_max: u64) -> f64 {
        (maps_max as f64 - self.before.maps as f64) / self.maps_of_thread()
    }

    /// The numbers of the report.
    pub(in crate::experiments::pipeline) fn numbers(&self) -> Numbers {
        let mut numbers = vec![
            ("threads_created", self.created as f64),
            // Without the main one.
            ("threads_alive", self.at.threads as f64 - 1.0),
            ("maps", self.at.maps as f64),
            ("maps_per_thread", self.maps_of_thread()),
            ("tasks_of_the_machine", self.at.tasks as f64),
        ];
        numbers.extend(self.errno().map(|errno| ("errno", f64::from(errno))));
        numbers.extend(self.at.limits.iter().map(|limit| (limit_name(limit.name), limit.bound as f64)));
        numbers
    }

    /// In words.
    pub(in crate::experiments::pipeline) fn describe(&self) -> String {
        let created = self.created;
        match self.cause() {
            Some(Limit { name, used, bound, .. }) => {
                format!("{created} created, {name} at {used} of {bound}")
            }
            None => format!("{created} created, and no single limit at its bound"),
        }
    }
}

/// A limit's name in the report.
fn limit_name(limit: &'static str) -> &'static str {
    match limit {
        "vm.max_map_count" => "max_map_count",
        "kernel.pid_max" => "pid_max",
        "kernel.threads-max" => "threads_max",
        "pids.max" => "cgroup_pids_max",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(maps: u64, limits: &[Limit]) -> LimitSnapshot {
        LimitSnapshot { maps, threads: 301, tasks: 400, limits: limits.to_vec() }
    }

    fn hit(reason: &str, limits: &[Limit]) -> LimitHit {
        let (before, at) = (moment(30, &[]), moment(65_530, limits));
        LimitHit { created: 32_750, reason: reason.to_owned(), before, at }
    }

    #[test]
    fn failure_report_is_parsed() {
        let check = |line: &str, expected: Option<(u64, &str)>| {
            let expected = expected.map(|(created, reason)| (created, reason.to_owned()));
            assert_eq!(parse_last_words(line), expected, "{line:?}");
        };
        check("died after 32730: os error 11", Some((32_730, "os error 11")));
        check("died after many: os error 11", None);
        check("died after 3", None);
        check("lived", None);
    }

    #[test]
    fn limit_hit_has_errno_and_cause() {
        let check = |reason: &str, expected| assert_eq!(hit(reason, &[]).errno(), expected, "{reason}");
        check("os error 11", Some(11));
        check("failed to allocate an alternative stack: Cannot allocate memory (os error 12)", Some(12));
        check("a panic", None);
        let maps = Limit::new("vm.max_map_count", 65_530, 65_530);
        let pids = Limit::new("kernel.pid_max", 700, 32_768);
        let explained = hit("os error 11", &[maps.clone(), pids.clone()]);
        assert_eq!(explained.describe(), "32750 created, vm.max_map_count at 65530 of 65530");
        let unexplained = hit("os error 11", &[pids]);
        assert_eq!(unexplained.describe(), "32750 created, and no single limit at its bound");
        assert_eq!(explained.predicted_under(100_000), 49_985.0);
        let numbers = explained.numbers();
        for expected in [("threads_alive", 300.0), ("maps_per_thread", 2.0), ("pid_max", 32_768.0)] {
            assert!(numbers.contains(&expected), "{expected:?} is not in {numbers:?}");
        }
    }

    #[test]
    fn living_mode_is_refused_when_pids_are_short() {
        let plain = CreationMode { is_living: true, is_plain: true };
        let words = |mode: CreationMode| (mode.to_string(), mode.arguments(None).len());
        assert_eq!(words(plain), ("living-plain".to_owned(), 4));
        assert_eq!(words(PUBLISHED), ("finished-plain".to_owned(), 3));
        assert_eq!(MODES.iter().filter(|mode| mode.maps_of_thread() == 4).count(), 1);
    }
}
