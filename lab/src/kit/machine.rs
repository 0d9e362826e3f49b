//! Facts about the machine, for the record of a run.

use std::fs;

use serde_json::{Map, Value, json};

use sys::limits::ProcRoot;
use sys::limits::cgroup::Membership;
use sys::pressure::{Resource, Stall, Throttling};

use crate::kit::usage;

/// Facts that do not change during an experiment, by name.
pub(crate) fn facts() -> Map<String, Value> {
    let mut facts = Map::new();
    let mut put = |name: &str, value: Value| drop(facts.insert(name.to_owned(), value));
    put("kernel", text_of_file("/proc/sys/kernel/osrelease"));
    put("cpu_model", json!(cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())));
    put("cpus", json!(allowed_cpus().len()));
    put("smt", json!(number_of_file("/sys/devices/system/cpu/smt/active").map(|active| active == 1)));
    put("memory_bytes", json!(memory_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default())));
    put("sched_autogroup_enabled", json!(number_of_file("/proc/sys/kernel/sched_autogroup_enabled")));
    put("tcp_congestion_control", text_of_file("/proc/sys/net/ipv4/tcp_congestion_control"));
    put("clock_source", text_of_file("/sys/devices/system/clocksource/clocksource0/current_clocksource"));
    put("limits", limits());
    put("load_average_1_min_before", json!(first_number_of_file("/proc/loadavg")));
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

fn limits() -> Value {
    json!({
        "descriptors_max": sys::limits::descriptor_limits().0,
        "somaxconn": number_of_file("/proc/sys/net/core/somaxconn"),
        "ip_local_port_range": text_of_file("/proc/sys/net/ipv4/ip_local_port_range"),
        "tcp_max_tw_buckets": number_of_file("/proc/sys/net/ipv4/tcp_max_tw_buckets"),
        "tcp_tw_reuse": number_of_file("/proc/sys/net/ipv4/tcp_tw_reuse"),
        "pipe_user_pages_soft": number_of_file("/proc/sys/fs/pipe-user-pages-soft"),
    })
}

/// Pressure stalls so far and lately, for each resource; null where the kernel does not report them.
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

/// CPUs' worth of time that our control groups may use; `None` is without a quota.
fn cpu_quota() -> Option<f64> {
    Some(Membership::read(&ProcRoot::machine()).cpu_quota().ok()??.cpus)
}

fn throttling() -> Value {
    json!(Throttling::read(&ProcRoot::machine()).map(|it| json!({
        "periods": it.periods,
        "throttled_periods": it.throttled_periods,
        "throttled_s": it.throttled.as_secs_f64(),
    })))
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    usage::parse_status_bytes(meminfo, "MemTotal")
}

fn text_of_file(path: &str) -> Value {
    json!(fs::read_to_string(path).ok().map(|text| text.trim().replace('\t', " ")))
}

fn number_of_file(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn first_number_of_file(path: &str) -> Option<f64> {
    fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_include_pressure_and_throttling() {
        let facts = facts();
        let psi = facts["psi"].as_object().unwrap();
        assert_eq!(psi.keys().collect::<Vec<_>>(), ["cpu", "io", "memory"]);
        assert!(facts.contains_key("cpu_quota_cpus") && facts.contains_key("cpu_throttling_before"));
    }

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(memory_bytes("MemTotal:       24683260 kB\nMemFree: 1 kB\n"), Some(24_683_260 * 1024));
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n"),
            Some("A CPU @ 2 GHz".to_owned())
        );
        assert_eq!(cpu_model(""), None);
    }
}
