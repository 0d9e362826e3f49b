//! Detects disturbance of a run by other work on the machine.
//!
//! Guarantees: a run during which other processes used the CPUs, or the hypervisor or a quota withheld them,
//! is marked as contaminated.
//!
//! Run-queue delay marks nothing: the experiment's own threads compete for the CPUs on purpose, and the ticks
//! show what other processes used.

use std::time::{Duration, Instant};

use sys::limits::ProcRoot;
use sys::pressure::{CpuTicks, Throttling};

use crate::kit::usage::{self, CpuReading, TICKS_PER_S};

/// The share of the machine that processes outside the experiment may use before a run is marked. The
/// experiment's own share is known by the nanosecond, but the machine's only by sampled ticks, so a few
/// percent are noise.
const FOREIGN_SHARE_MAX: f64 = 0.05;

/// The share that the hypervisor may withhold before a run is marked.
const STEAL_SHARE_MAX: f64 = 0.02;

/// Fewer ticks than this on all CPUs together resolve no share that could be judged.
const TICKS_MIN: u64 = 50;

/// Compares the machine at the beginning and at the end of a run.
#[derive(Debug)]
pub(crate) struct DisturbanceWatch {
    ticks: CpuTicks,
    throttling: Option<Throttling>,
    ours: CpuReading,
    /// CPU time of ended processes, as far as the lab waited for them.
    reaped_before: Duration,
    /// Processes that work for the experiment without descending from the lab.
    extra_roots: Vec<i32>,
    started: Instant,
}

/// The result of a watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Disturbance {
    /// Share of all CPUs used by processes outside the experiment.
    pub(crate) foreign_share: f64,
    /// Share of all CPUs withheld by the hypervisor.
    pub(crate) steal_share: f64,
    /// Why the run is contaminated, one sentence each; empty when it is not.
    pub(crate) marks: Vec<String>,
}

impl DisturbanceWatch {
    /// Begins the watch.
    pub(crate) fn start() -> Self {
        Self::including(Vec::new())
    }

    /// Begins the watch. These processes, which the lab did not start, and their descendants count as the
    /// experiment's.
    pub(crate) fn including(processes: Vec<i32>) -> Self {
        let ours = experiment_cpu(&processes);
        let reaped_before = usage::reaped_children_cpu();
        let root = ProcRoot::machine();
        let (ticks, throttling) = (CpuTicks::read(&root).unwrap_or_default(), Throttling::read(&root));
        Self { ticks, throttling, ours, reaped_before, extra_roots: processes, started: Instant::now() }
    }

    /// Returns what happened since the start. A process that the lab started since then and waited for counts
    /// as its own; any other process that ends during a watch counts as foreign, so none may end.
    pub(crate) fn finish(self) -> Disturbance {
        let ours = experiment_cpu(&self.extra_roots).total_since(&self.ours);
        let ours = ours + usage::reaped_children_cpu().saturating_sub(self.reaped_before);
        let root = ProcRoot::machine();
        let ticks = CpuTicks::read(&root).unwrap_or_default().since(self.ticks);
        let throttling = Throttling::read(&root).zip(self.throttling).map(|(now, then)| now.since(then));
        let mut disturbance = disturbance(ticks, ours, self.started.elapsed());
        disturbance.marks.extend(throttling.and_then(throttled));
        disturbance
    }
}

/// The CPU time of the experiment's processes, and of the kernel threads that process their loopback packets
/// when there are many.
fn experiment_cpu(extra_roots: &[i32]) -> CpuReading {
    let mut ours = usage::process_tree(std::process::id() as i32);
    ours.extend(extra_roots.iter().flat_map(|&process| usage::process_tree(process)));
    ours.extend(usage::processes_named("ksoftirqd/"));
    CpuReading::read(&ours)
}

/// The mark of an exhausted CPU quota, even a single time: it stops every thread for the remainder of a
/// period, up to 100 ms.
fn throttled(throttling: Throttling) -> Option<String> {
    let Throttling { periods, throttled_periods, .. } = throttling;
    (throttled_periods > 0).then(|| {
        format!("a CPU quota (cpu.max) throttled the experiment in {throttled_periods} of {periods} periods")
    })
}

fn disturbance(ticks: CpuTicks, ours: Duration, elapsed: Duration) -> Disturbance {
    let all = ticks.all();
    if all < TICKS_MIN || elapsed.is_zero() {
        return Disturbance::default();
    }
    let own_ticks = ours.as_secs_f64() * TICKS_PER_S as f64;
    let foreign_share = ((ticks.busy as f64 - own_ticks) / all as f64).max(0.0);
    let steal_share = ticks.steal_share();
    let mut marks = Vec::new();
    if foreign_share > FOREIGN_SHARE_MAX {
        marks.push(format!("other processes used {:.0} % of the CPUs", foreign_share * 100.0));
    }
    if steal_share > STEAL_SHARE_MAX {
        marks.push(format!("the hypervisor withheld {:.0} % of the CPUs", steal_share * 100.0));
    }
    Disturbance { foreign_share, steal_share, marks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_work_or_steal_marks_a_run() {
        let check = |busy, steal, ours_ms, expected: &[&str]| {
            let ticks = CpuTicks { busy, idle: 400 - busy - steal, steal };
            let found = disturbance(ticks, Duration::from_millis(ours_ms), Duration::from_secs(2));
            assert_eq!(found.marks, expected, "busy {busy}, steal {steal}, ours {ours_ms} ms");
        };
        check(300, 0, 2_990, &[]);
        check(300, 0, 3_100, &[]);
        check(300, 0, 2_500, &["other processes used 12 % of the CPUs"]);
        check(300, 40, 3_000, &["the hypervisor withheld 10 % of the CPUs"]);
    }

    #[test]
    fn exhausted_quota_marks_even_a_short_run() {
        let check = |throttled_periods, expected: Option<&str>| {
            let throttling = Throttling { periods: 20, throttled_periods, throttled: Duration::ZERO };
            assert_eq!(throttled(throttling).as_deref(), expected);
        };
        check(0, None);
        check(3, Some("a CPU quota (cpu.max) throttled the experiment in 3 of 20 periods"));
    }

    #[test]
    fn run_with_few_ticks_is_not_marked() {
        let ticks = CpuTicks { busy: 20, idle: 0, steal: 20 };
        assert_eq!(disturbance(ticks, Duration::ZERO, Duration::from_millis(200)), Disturbance::default());
    }
}
