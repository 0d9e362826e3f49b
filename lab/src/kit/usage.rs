//! The resource usage of processes: CPU time by thread in nanoseconds, memory as proportional set size.
//!
//! Guarantees: figures come from `/proc` only, so the measured process takes no part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Linux reports `/proc/PID/stat` times in this many ticks per second on every architecture (`USER_HZ`).
pub(crate) const TICKS_PER_S: u64 = 100;

/// The CPU time of some processes at one moment, thread by thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuReading {
    threads: BTreeMap<(i32, i32), Thread>,
    /// Whole processes, ended threads included, at the resolution of a tick.
    ticks: BTreeMap<i32, u64>,
    /// The CPU time of children that these processes waited for, and of those children's own.
    reaped_ticks: BTreeMap<i32, u64>,
}

/// One thread: its name, and its time on a CPU so far.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) process: i32,
    pub(crate) name: String,
    ran_ns: u64,
}

impl CpuReading {
    /// Reads all threads of `processes`; threads that ended meanwhile are left out.
    pub(crate) fn read(processes: &[i32]) -> Self {
        let mut reading = Self::default();
        for &process in processes {
            reading.add(process);
        }
        reading
    }

    fn add(&mut self, process: i32) {
        let Some(status) = read_stat(process) else { return };
        self.ticks.insert(process, status.ticks);
        self.reaped_ticks.insert(process, status.reaped_ticks);
        let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return };
        for task in tasks.flatten() {
            let Some(id) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(schedstat) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let Some(ran_ns) = parse_schedstat(&schedstat) else { continue };
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let thread = Thread { process, name: name.trim_end().to_owned(), ran_ns };
            self.threads.insert((process, id), thread);
        }
    }

    /// CPU time that the threads chosen by `counts` used since `earlier`. A thread that ended in between is
    /// missing here; `total_since` includes it.
    pub(crate) fn since(&self, earlier: &Self, counts: impl Fn(&Thread) -> bool) -> Duration {
        let ran = |(key, thread): (&(i32, i32), &Thread)| {
            let before = earlier.threads.get(key).map_or(0, |thread| thread.ran_ns);
            thread.ran_ns.saturating_sub(before)
        };
        let chosen = self.threads.iter().filter(|(_, thread)| counts(thread));
        Duration::from_nanos(chosen.map(ran).sum())
    }

    /// CPU time that the processes used since `earlier`: in nanoseconds where every thread lived through, at
    /// the resolution of a tick where a thread ended in between, even one that began in between; and that of
    /// processes that ended in between, if another of them waited for them.
    pub(crate) fn total_since(&self, earlier: &Self) -> Duration {
        let processes: BTreeSet<i32> = self.ticks.keys().copied().collect();
        let alive: Duration = processes.into_iter().map(|process| self.process_since(earlier, process)).sum();
        alive + self.exited_since(earlier)
    }

    /// CPU time since `earlier` of processes that have ended: their parents waited for them and have their
    /// whole time.
    fn exited_since(&self, earlier: &Self) -> Duration {
        let sum = |ticks: &BTreeMap<i32, u64>| ticks.values().sum::<u64>();
        let is_gone = |process: &i32| !self.ticks.contains_key(process);
        let used_before: u64 =
            earlier.ticks.iter().filter(|(process, _)| is_gone(process)).map(|it| it.1).sum();
        let ticks = sum(&self.reaped_ticks).saturating_sub(sum(&earlier.reaped_ticks) + used_before);
        Duration::from_millis(ticks * 1000 / TICKS_PER_S)
    }

    fn process_since(&self, earlier: &Self, process: i32) -> Duration {
        let by_threads = self.since(earlier, |thread| thread.process == process);
        let before = earlier.ticks.get(&process).copied().unwrap_or(0);
        let ticks = self.ticks[&process].saturating_sub(before);
        // The ticks include ended threads. Both ends of the span are rounded to a tick, so an excess over the
        // threads counts from two ticks on.
        let by_ticks = Duration::from_millis(ticks * 1000 / TICKS_PER_S);
        let rounding = Duration::from_millis(2 * 1000 / TICKS_PER_S);
        if by_ticks > by_threads + rounding { by_ticks } else { by_threads }
    }
}

/// The process and all its descendants, the process first.
pub(crate) fn process_tree(root: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = all_processes()
        .into_iter()
        .filter_map(|process| read_stat(process).map(|status| (process, status.parent)))
        .collect();
    let mut process_tree = vec![root];
    let mut next = 0;
    while let Some(&parent) = process_tree.get(next) {
        process_tree.extend(parents.iter().filter(|entry| entry.1 == parent).map(|entry| entry.0));
        next += 1;
    }
    process_tree
}

/// CPU time of all processes that this one has started and waited for, at the resolution of a tick.
pub(crate) fn reaped_children_cpu() -> Duration {
    let ticks = read_stat(std::process::id() as i32).map_or(0, |status| status.reaped_ticks);
    Duration::from_millis(ticks * 1000 / TICKS_PER_S)
}

/// The process that started this one; `None` when this one has ended.
pub(crate) fn parent_of(process: i32) -> Option<i32> {
    Some(read_stat(process)?.parent)
}

/// The processes whose names begin with `prefix`, kernel threads among them.
pub(crate) fn processes_named(prefix: &str) -> Vec<i32> {
    let is_named = |&process: &i32| {
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        name.starts_with(prefix)
    };
    all_processes().into_iter().filter(is_named).collect()
}

/// The proportional set size of all `processes` in bytes: private pages, and each one's share of what they
/// map together, shared memory and tmpfs included.
///
/// # Errors
/// A process has ended, or its memory map may not be read.
pub(crate) fn pss_bytes(processes: &[i32]) -> Result<u64> {
    let mut bytes = 0;
    for process in processes {
        let path = format!("/proc/{process}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        bytes += parse_pss_bytes(&text).with_context(|| format!("{path} has no Pss line"))?;
    }
    Ok(bytes)
}

struct ProcStat {
    parent: i32,
    ticks: u64,
    reaped_ticks: u64,
}

/// A line of the calling process's status that is an amount of memory: `VmRSS` is resident now, `VmHWM` was
/// the peak.
///
/// # Errors
/// There is no such line, or no `/proc`.
pub(crate) fn own_memory_bytes(name: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    parse_status_bytes(&status, name).with_context(|| format!("a process's status has {name}"))
}

/// An amount of memory in a file of `/proc` that has lines of `Name: N kB`.
pub(crate) fn parse_status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn all_processes() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn read_stat(process: i32) -> Option<ProcStat> {
    parse_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Fields of `/proc/PID/stat` (proc(5)): 4 is the parent, 14 and 15 are user and system ticks, 16 and 17
/// those of awaited children. The name in field 2 may hold spaces and parentheses, so fields are counted from
/// its last `)`.
fn parse_stat(text: &str) -> Option<ProcStat> {
    let after_name = text.get(text.rfind(')')? + 1..)?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let [user, system, children_user, children_system] = *fields.get(11..15)? else { return None };
    let sum = |one: &str, other: &str| Some(one.parse::<u64>().ok()? + other.parse::<u64>().ok()?);
    Some(ProcStat {
        parent: fields.get(1)?.parse().ok()?,
        ticks: sum(user, system)?,
        reaped_ticks: sum(children_user, children_system)?,
    })
}

/// The first field of `/proc/PID/task/TID/schedstat` is the time spent on a CPU in nanoseconds.
fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn parse_pss_bytes(rollup: &str) -> Option<u64> {
    parse_status_bytes(rollup, "Pss")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_an_odd_name_is_parsed() {
        let line = "812 (a) b (c) S 77 812 812 0 -1 4194560 1201 0 0 0 250 50 7 2 20 0 3 0 1 2 3";
        let status = parse_stat(line).expect("the line is whole");
        assert_eq!((status.parent, status.ticks, status.reaped_ticks), (77, 300, 9));
        assert!(parse_stat("812 (cut) S 77").is_none());
    }

    #[test]
    fn schedstat_time_on_cpu_is_parsed() {
        assert_eq!(parse_schedstat("110560 17 3\n"), Some(110_560));
        assert_eq!(parse_schedstat(""), None);
    }

    #[test]
    fn pss_total_is_parsed() {
        let rollup =
            "55d5-7ffc ---p 00000000 00:00 0 [rollup]\nRss:  1648 kB\nPss:   329 kB\nPss_Dirty: 112 kB\n";
        assert_eq!(parse_pss_bytes(rollup), Some(329 * 1024));
        assert_eq!(parse_pss_bytes("Rss: 12 kB\nPss_Anon: 3 kB\n"), None);
    }

    fn reading(threads: &[(i32, i32, &str, u64)], ticks: &[(i32, u64)]) -> CpuReading {
        let thread = |&(process, id, name, ran_ns): &(i32, i32, &str, u64)| {
            ((process, id), Thread { process, name: name.to_owned(), ran_ns })
        };
        let threads = threads.iter().map(thread).collect();
        CpuReading { threads, ticks: ticks.iter().copied().collect(), ..CpuReading::default() }
    }

    #[test]
    fn cpu_time_is_selected_by_thread() {
        let before = reading(&[(1, 1, "main", 100), (1, 2, "reactor-0", 1_000)], &[(1, 0)]);
        let after = reading(&[(1, 1, "main", 150), (1, 2, "reactor-0", 4_000), (1, 3, "late", 7)], &[(1, 0)]);
        let plane = after.since(&before, |thread| thread.name.starts_with("reactor-"));
        assert_eq!(plane, Duration::from_nanos(3_000));
        assert_eq!(after.total_since(&before), Duration::from_nanos(3_057));
    }

    #[test]
    fn ended_thread_is_counted_by_ticks() {
        let before = reading(&[(1, 1, "main", 0), (1, 2, "pool-0", 5_000_000)], &[(1, 10)]);
        let after = reading(&[(1, 1, "main", 2_000_000)], &[(1, 40)]);
        assert_eq!(after.total_since(&before), Duration::from_millis(300));
    }

    #[test]
    fn ended_process_is_counted_at_its_parent() {
        let mut before = reading(&[], &[(1, 10), (2, 5), (3, 7)]);
        before.reaped_ticks.extend([(1, 100), (2, 0), (3, 20)]);
        let mut after = reading(&[], &[(1, 10), (2, 5)]);
        // Process 3 ended with 9 further ticks of its own, and a child of it with 4.
        after.reaped_ticks.extend([(1, 100 + 7 + 20 + 9 + 4), (2, 0)]);
        assert_eq!(after.total_since(&before), Duration::from_millis(130));
        assert_eq!(before.total_since(&before), Duration::ZERO);
    }

    #[test]
    fn this_process_is_measurable() {
        let own = std::process::id() as i32;
        assert_eq!(process_tree(own).first(), Some(&own));
        assert!(pss_bytes(&[own]).expect("own memory is readable") > 0);
        let reading = CpuReading::read(&[own]);
        assert!(reading.threads.keys().any(|key| key.0 == own));
        assert!(CpuReading::read(&[i32::MAX]).threads.is_empty());
        let name = fs::read_to_string("/proc/self/comm").expect("a process may read its name");
        assert!(processes_named(name.trim_end()).contains(&own));
    }

    #[test]
    fn memory_is_that_of_the_process() {
        let status = "VmPeak:\t  900 kB\nVmHWM:\t   300 kB\nVmRSS:\t   200 kB\n";
        assert_eq!(parse_status_bytes(status, "VmHWM"), Some(300 * 1024));
        assert_eq!(parse_status_bytes(status, "VmRSS"), Some(200 * 1024));
        assert_eq!(parse_status_bytes("VmRSS: 1 kB\n", "VmHWM"), None);
        assert!(own_memory_bytes("VmHWM").expect("a process may read its status") > 0);
    }
}
