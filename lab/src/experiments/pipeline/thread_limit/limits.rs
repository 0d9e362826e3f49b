//! The limits that stop a program which creates threads without end.
//!
//! Guarantees: a limit is named as the cause only while its count is at its bound.

use std::fs;

use sys::limits::{self as kernel, LimitValue, ProcRoot};

/// Maps that may be missing where the limit is the number of maps: 0.3 % of the usual bound. A thread needs
/// four: its stack, the guard below it, and the same for its signals. A thread that is about to end has
/// unmapped two of them when the lab counts. With ten other threads for each CPU, 21 maps were missing.
const MAPS_MISSING_MAX: u64 = 200;

/// What `/proc/PID/maps` shows and the kernel does not count: `[vsyscall]`.
const MAPS_UNCOUNTED: u64 = 1;

/// Process ids that the kernel no longer assigns once it has been through all of them (kernel/pid.c).
const RESERVED_PIDS: u64 = 300;

/// Ids in use without a task: those of process groups and sessions whose leaders have ended.
const PIDS_UNSEEN_MAX: u64 = 64;

/// A number that the kernel counts, beside its bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::experiments::pipeline) struct Limit {
    pub(in crate::experiments::pipeline) name: &'static str,
    pub(in crate::experiments::pipeline) used: u64,
    pub(in crate::experiments::pipeline) bound: u64,
    /// The limit counts as exhausted when at most this much is left.
    tolerance: u64,
}

impl Limit {
    /// A limit that is exhausted when all of it is used.
    pub(in crate::experiments::pipeline) fn new(name: &'static str, used: u64, bound: u64) -> Self {
        Self { name, used, bound, tolerance: 0 }
    }

    /// Whether at most the tolerance is left: the kernel refuses one more thread.
    pub(in crate::experiments::pipeline) fn is_exhausted(&self) -> bool {
        self.used + self.tolerance >= self.bound
    }

    /// The used share of the bound.
    pub(in crate::experiments::pipeline) fn share(&self) -> f64 {
        self.used as f64 / self.bound as f64
    }
}

/// The counts of a process and of the machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::experiments::pipeline) struct LimitSnapshot {
    /// Memory maps of the process.
    pub(in crate::experiments::pipeline) maps: u64,
    /// Its living threads, the main one included.
    pub(in crate::experiments::pipeline) threads: u64,
    /// Threads of all processes.
    pub(in crate::experiments::pipeline) tasks: u64,
    pub(in crate::experiments::pipeline) limits: Vec<Limit>,
}

impl LimitSnapshot {
    /// Reads the counts of process `id`, one of ours in our control group; `None` if it has ended.
    pub(in crate::experiments::pipeline) fn read(id: i32) -> Option<Self> {
        let maps = fs::read_to_string(format!("/proc/{id}/maps")).ok()?.lines().count() as u64;
        let threads = threads_in(&fs::read_to_string(format!("/proc/{id}/status")).ok()?)?;
        let readings = kernel::read_all(&ProcRoot::machine());
        let tasks = readings.iter().find(|reading| reading.limit == kernel::Limit::Threads)?.used?;
        let limits = readings.iter().filter_map(|reading| limit(reading, maps)).collect();
        Some(Self { maps, threads, tasks, limits })
    }

    /// The limit that is at its bound; `None` if none is, or if several are, which proves nothing.
    pub(in crate::experiments::pipeline) fn sole_exhausted(&self) -> Option<&Limit> {
        let mut met = self.limits.iter().filter(|limit| limit.is_exhausted());
        let first = met.next()?;
        met.next().is_none().then_some(first)
    }
}

/// A limit that threads can reach, for a process with `maps` maps; `None` where nothing bounds it.
fn limit(reading: &LimitValue, maps: u64) -> Option<Limit> {
    reading.free()?;
    let (name, used, bound) = (reading.limit.setting(), reading.used.unwrap_or(0), reading.bound?);
    match reading.limit {
        kernel::Limit::Mappings => {
            let used = maps.saturating_sub(MAPS_UNCOUNTED);
            Some(Limit { name, used, bound, tolerance: MAPS_MISSING_MAX })
        }
        kernel::Limit::ThreadIds => {
            Some(Limit { name, used: used + RESERVED_PIDS, bound, tolerance: PIDS_UNSEEN_MAX })
        }
        kernel::Limit::Threads | kernel::Limit::UserThreads | kernel::Limit::GroupThreads => {
            Some(Limit::new(name, used, bound))
        }
        _ => None,
    }
}

fn reading(limit: kernel::Limit) -> Option<LimitValue> {
    kernel::read_all(&ProcRoot::machine()).into_iter().find(|reading| reading.limit == limit)
}

/// The most memory maps that a process may have.
pub(in crate::experiments::pipeline) fn max_map_count() -> Option<u64> {
    reading(kernel::Limit::Mappings)?.bound
}

/// Unused process ids; `None` where the kernel does not report them.
pub(in crate::experiments::pipeline) fn pids_left() -> Option<u64> {
    Some(reading(kernel::Limit::ThreadIds)?.free()?.saturating_sub(RESERVED_PIDS))
}

/// Memory that is available without swapping.
pub(in crate::experiments::pipeline) fn memory_left_bytes() -> Option<u64> {
    reading(kernel::Limit::Memory)?.free()
}

/// The number of threads in `/proc/PID/status`.
fn threads_in(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &'static str, used: u64, bound: u64, tolerance: u64) -> Limit {
        Limit { name, used, bound, tolerance }
    }

    #[test]
    fn sole_limit_at_its_bound_is_the_cause() {
        let check = |limits: &[Limit], expected: Option<&str>| {
            let moment = LimitSnapshot { maps: 0, threads: 0, tasks: 0, limits: limits.to_vec() };
            assert_eq!(moment.sole_exhausted().map(|limit| limit.name), expected, "{limits:?}");
        };
        let maps = |used| limit("maps", used, 65_530, 4);
        let pids = |used| limit("pids", used, 32_768, 64);
        check(&[maps(65_526), pids(400)], Some("maps"));
        check(&[maps(65_531), pids(400)], Some("maps"));
        check(&[maps(65_525), pids(400)], None);
        check(&[maps(40_000), pids(32_704)], Some("pids"));
        check(&[maps(65_530), pids(32_768)], None);
        check(&[], None);
    }

    #[test]
    fn snapshot_of_this_process_has_maps_and_threads() {
        let moment =
            LimitSnapshot::read(std::process::id() as i32).expect("a process may read its own status");
        assert!(moment.maps > 0 && moment.threads > 0 && moment.tasks >= moment.threads);
        for name in ["vm.max_map_count", "kernel.pid_max", "kernel.threads-max"] {
            let limit = moment.limits.iter().find(|limit| limit.name == name);
            assert!(
                limit.is_some_and(|limit| limit.used > 0 && !limit.is_exhausted()),
                "{name} in {moment:?}"
            );
        }
        assert!(memory_left_bytes() > Some(0) && pids_left() > Some(0) && max_map_count() > Some(0));
        assert_eq!(LimitSnapshot::read(i32::MAX), None);
    }
}
