//! What the machine is, and whether it left the experiment alone: facts for the record, and a watch over
//! each run. Promises: a run during which others used the CPUs, or the hypervisor or a quota took them, is
//! marked as contaminated. Leaves to others: what a marked run may still be used for. Run-queue delay marks
//! nothing: the experiment's own threads compete for the CPUs on purpose, and what others took shows in the
//! ticks.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use sys::limits::ProcRoot;
use sys::limits::cgroup::Membership;
use sys::pressure::{CpuTicks, Resource, Stall, Throttling};

use crate::kit::measure::{self, CpuReading, TICKS_PER_S};

/// The share of the machine that processes outside the experiment may use before a run is marked. The
/// experiment's own share is known by the nanosecond, but the machine's only by sampled ticks, so a few
/// percent are noise.
const FOREIGN_SHARE_MAX: f64 = 0.05;

/// The share that the hypervisor may withhold before a run is marked.
const STEAL_SHARE_MAX: f64 = 0.02;

/// Fewer ticks than this on all CPUs together resolve no share worth judging.
const TICKS_MIN: u64 = 50;

/// Facts that do not change during an experiment, by name.
pub(crate) fn facts(descriptors_max: u64) -> Map<String, Value> {
    let mut facts = Map::new();
    let mut put = |name: &str, value: Value| drop(facts.insert(name.to_owned(), value));
    put("kernel", text("/proc/sys/kernel/osrelease"));
    put("cpu_model", json!(cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())));
    put("cpus", json!(allowed_cpus().len()));
    put("smt", json!(number("/sys/devices/system/cpu/smt/active").map(|active| active == 1)));
    put("memory_bytes", json!(memory_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default())));
    put("sched_autogroup_enabled", json!(number("/proc/sys/kernel/sched_autogroup_enabled")));
    put("clock_source", text("/sys/devices/system/clocksource/clocksource0/current_clocksource"));
    put("limits", limits(descriptors_max));
    put("load_average_1_min_before", json!(first_number("/proc/loadavg")));
    put("cpu_pressure_some_10_s_percent_before", json!(pressure_percent(Resource::Cpu)));
    put("psi", psi());
    put("cpu_quota_cpus", json!(cpu_quota()));
    put("cpu_throttling_before", throttling());
    facts
}

/// The CPUs that this process may use.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    sys::limits::cpus::allowed_cpus()
}

/// Whether this process may raise its priority above the usual.
pub(crate) fn may_raise_priority() -> bool {
    rustix::process::geteuid().is_root()
}

fn limits(descriptors_max: u64) -> Value {
    json!({
        "descriptors_max": descriptors_max,
        "somaxconn": number("/proc/sys/net/core/somaxconn"),
        "ip_local_port_range": text("/proc/sys/net/ipv4/ip_local_port_range"),
        "tcp_max_tw_buckets": number("/proc/sys/net/ipv4/tcp_max_tw_buckets"),
        "tcp_tw_reuse": number("/proc/sys/net/ipv4/tcp_tw_reuse"),
        "pipe_user_pages_soft": number("/proc/sys/fs/pipe-user-pages-soft"),
    })
}

/// What waited so far, and lately, for each resource; none where the kernel does not tell.
fn psi() -> Value {
    let stalls = Resource::ALL.map(|resource| {
        let stall = Stall::read(&ProcRoot::machine(), resource).map(|stall| {
            json!({
                "some_last_10_s_percent": stall.some.last_10_s_percent,
                "some_s": stall.some.total.as_secs_f64(),
                "full_last_10_s_percent": stall.full.map(|full| full.last_10_s_percent),
                "full_s": stall.full.map(|full| full.total.as_secs_f64()),
            })
        });
        (resource.as_str().to_owned(), json!(stall))
    });
    Value::from_iter(stalls)
}

fn pressure_percent(resource: Resource) -> Option<f64> {
    Some(Stall::read(&ProcRoot::machine(), resource)?.some.last_10_s_percent)
}

/// CPUs' worth of time that our control groups may use; none is without a quota.
fn cpu_quota() -> Option<f64> {
    Some(Membership::of(&ProcRoot::machine()).cpu_quota().ok()??.cpus)
}

fn throttling() -> Value {
    json!(Throttling::read(&ProcRoot::machine()).map(|it| json!({
        "periods": it.periods,
        "throttled_periods": it.throttled_periods,
        "throttled_s": it.throttled.as_secs_f64(),
    })))
}

/// Looks at the machine from the beginning of a run to its end.
#[derive(Debug)]
pub(crate) struct Watch {
    ticks: CpuTicks,
    throttling: Option<Throttling>,
    ours: CpuReading,
    /// CPU time of processes that have ended, as far as the lab waited for them.
    ended: Duration,
    /// Processes that work for the experiment without descending from the lab.
    beside: Vec<i32>,
    started: Instant,
}

/// What a watch saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sighting {
    /// Share of all CPUs used by processes that are not the experiment's.
    pub(crate) foreign_share: f64,
    /// Share of all CPUs withheld by the hypervisor.
    pub(crate) steal_share: f64,
    /// Why the run is contaminated, one sentence each; empty when it is not.
    pub(crate) marks: Vec<String>,
}

impl Watch {
    /// Begins to look.
    pub(crate) fn start() -> Self {
        Self::beside(Vec::new())
    }

    /// Begins to look; the families of these processes, which the lab did not start, are the experiment's
    /// as well.
    pub(crate) fn beside(processes: Vec<i32>) -> Self {
        let ours = own_cpu(&processes);
        let ended = measure::waited_for();
        let root = ProcRoot::machine();
        let (ticks, throttling) = (CpuTicks::read(&root).unwrap_or_default(), Throttling::read(&root));
        Self { ticks, throttling, ours, ended, beside: processes, started: Instant::now() }
    }

    /// Says what happened since the start. A process that the lab has started since then and waited for
    /// counts as its own; any other that ends during a watch counts as foreign, so none may.
    pub(crate) fn finish(self) -> Sighting {
        let ours = own_cpu(&self.beside).whole_since(&self.ours);
        let ours = ours + measure::waited_for().saturating_sub(self.ended);
        let root = ProcRoot::machine();
        let ticks = CpuTicks::read(&root).unwrap_or_default().since(self.ticks);
        let throttling = Throttling::read(&root).zip(self.throttling).map(|(now, then)| now.since(then));
        let mut sighting = sighting(ticks, ours, self.started.elapsed());
        sighting.marks.extend(throttling.and_then(throttled));
        sighting
    }
}

/// The CPU time of the experiment's processes, and of the kernel threads that take over its loopback
/// packets when there are many.
fn own_cpu(beside: &[i32]) -> CpuReading {
    let mut ours = measure::family(std::process::id() as i32);
    ours.extend(beside.iter().flat_map(|&process| measure::family(process)));
    ours.extend(measure::named("ksoftirqd/"));
    CpuReading::of(&ours)
}

/// The mark of a quota that was used up, if only once: it stops every thread for what is left of a period,
/// up to 100 ms.
fn throttled(throttling: Throttling) -> Option<String> {
    let Throttling { periods, throttled_periods, .. } = throttling;
    (throttled_periods > 0)
        .then(|| format!("a CPU quota stopped the experiment in {throttled_periods} of {periods} periods"))
}

fn sighting(ticks: CpuTicks, ours: Duration, elapsed: Duration) -> Sighting {
    let all = ticks.all();
    if all < TICKS_MIN || elapsed.is_zero() {
        return Sighting::default();
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
    Sighting { foreign_share, steal_share, marks }
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn text(path: &str) -> Value {
    json!(fs::read_to_string(path).ok().map(|text| text.trim().replace('\t', " ")))
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn first_number(path: &str) -> Option<f64> {
    fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_work_and_steal_mark_a_run() {
        let check = |busy, steal, ours_ms, expected: &[&str]| {
            let ticks = CpuTicks { busy, idle: 400 - busy - steal, steal };
            let seen = sighting(ticks, Duration::from_millis(ours_ms), Duration::from_secs(2));
            assert_eq!(seen.marks, expected, "busy {busy}, steal {steal}, ours {ours_ms} ms");
        };
        check(300, 0, 2_990, &[]);
        check(300, 0, 3_100, &[]);
        check(300, 0, 2_500, &["other processes used 12 % of the CPUs"]);
        check(300, 40, 3_000, &["the hypervisor withheld 10 % of the CPUs"]);
    }

    #[test]
    fn a_quota_marks_a_run_however_short() {
        let check = |throttled_periods, expected: Option<&str>| {
            let throttling = Throttling { periods: 20, throttled_periods, throttled: Duration::ZERO };
            assert_eq!(throttled(throttling).as_deref(), expected);
        };
        check(0, None);
        check(3, Some("a CPU quota stopped the experiment in 3 of 20 periods"));
    }

    #[test]
    fn the_facts_hold_pressure_and_throttling() {
        let facts = facts(1024);
        let psi = facts["psi"].as_object().unwrap();
        assert_eq!(psi.keys().collect::<Vec<_>>(), ["cpu", "io", "memory"]);
        assert!(facts.contains_key("cpu_quota_cpus") && facts.contains_key("cpu_throttling_before"));
    }

    #[test]
    fn a_run_too_short_for_ticks_is_not_judged() {
        let ticks = CpuTicks { busy: 20, idle: 0, steal: 20 };
        assert_eq!(sighting(ticks, Duration::ZERO, Duration::from_millis(200)), Sighting::default());
    }

    #[test]
    fn proc_files_are_read() {
        assert_eq!(memory_bytes("MemTotal:       24683260 kB\nMemFree: 1 kB\n"), Some(24_683_260 * 1024));
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n"),
            Some("A CPU @ 2 GHz".to_owned())
        );
        assert_eq!(cpu_model(""), None);
    }
}
