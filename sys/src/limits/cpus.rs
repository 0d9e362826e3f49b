//! The CPUs that this process may use, and which of them share a core.
//!
//! Not handled here: quotas of CPU time (`cgroup`), and the throughput of two threads on one core, which
//! `tollgate doctor` measures.

use std::collections::BTreeSet;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::root::ProcRoot;

/// The CPUs that the calling thread may run on, in ascending order; at least one.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Binds the calling thread to `cpu`.
///
/// # Errors
/// `EINVAL` for a CPU that does not exist or that this process may not use.
pub fn pin_thread(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Moves the calling thread to an allowed CPU for which `is_wanted` is true: the first one after its current
/// CPU, in circular order. Unlike [`pin_thread`] it does not bind: the scheduler may move the thread on, and
/// does so when its cpuset changes. Only an affinity narrower than the cpuset (`taskset`, a pin) is restored
/// afterwards and stays in force. Three or four system calls, some 10 us.
///
/// If no CPU is wanted or the kernel refuses, nothing changes.
#[cfg(not(shuttle))]
pub fn nudge_thread(is_wanted: impl Fn(usize) -> bool) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let own = rustix::thread::sched_getcpu();
    let candidates = (own + 1..CpuSet::MAX_CPU).chain(0..own.min(CpuSet::MAX_CPU));
    let target = candidates.into_iter().find(|cpu| allowed.is_set(*cpu) && is_wanted(*cpu));
    if target.is_none_or(|cpu| pin_thread(cpu).is_err()) {
        return;
    }
    // Since Linux 6.2 the kernel remembers the requested affinity and intersects it with each later cpuset.
    // All CPUs amount to no request; the current set would exclude CPUs that a later cpuset adds.
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    let is_reset = sched_setaffinity(None, &all).is_ok();
    if !is_reset || sched_getaffinity(None).is_ok_and(|current| current != allowed) {
        // It fails only if none of these CPUs is allowed any more; then the kernel has chosen others.
        let _ = sched_setaffinity(None, &allowed);
    }
}

/// As above, in a model: its scheduler places threads at random anyway.
#[cfg(shuttle)]
pub fn nudge_thread(_is_wanted: impl Fn(usize) -> bool) {}

/// The CPUs of `allowed`, grouped by core, in ascending order. A CPU whose core the kernel does not state is
/// a core of its own.
pub fn cores(root: &ProcRoot, allowed: &[usize]) -> Vec<Vec<usize>> {
    let mut cores: Vec<Vec<usize>> = Vec::new();
    let mut known = BTreeSet::new();
    for cpu in allowed {
        if known.contains(cpu) {
            continue;
        }
        let siblings =
            root.read_text(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        let siblings = siblings.map_or(Vec::new(), |text| cpu_list(&text));
        let is_available = |other: &usize| allowed.contains(other) && !known.contains(other);
        let mut core: Vec<usize> = siblings.into_iter().filter(is_available).collect();
        if !core.contains(cpu) {
            core = vec![*cpu];
        }
        known.extend(core.iter().copied());
        cores.push(core);
    }
    cores
}

/// Parses a list of `/sys`: `0-3,8`. Items that are not numbers are skipped, and so are CPUs beyond the
/// maximum.
fn cpu_list(text: &str) -> Vec<usize> {
    let spans = text.trim().split(',').filter_map(|span| {
        let (low, high) = span.split_once('-').unwrap_or((span, span));
        Some((low.parse::<usize>().ok()?, high.parse::<usize>().ok()?.min(CpuSet::MAX_CPU - 1)))
    });
    spans.flat_map(|(low, high)| low..=high).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limits::fixture::Machine;

    #[test]
    fn cpus_are_grouped_by_core() {
        let check = |lists: &[&str], allowed: &[usize], expected: &[&[usize]]| {
            let machine = Machine::new(&[]);
            for (cpu, list) in lists.iter().enumerate() {
                let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
                machine.write(&path, list);
            }
            assert_eq!(cores(&machine.root(), allowed), expected, "{lists:?} {allowed:?}");
        };
        check(&["0\n", "1\n"], &[0, 1], &[&[0], &[1]]);
        check(&["0,2\n", "1,3\n", "0,2\n", "1,3\n"], &[0, 1, 2, 3], &[&[0, 2], &[1, 3]]);
        check(&["0-1\n", "0-1\n"], &[0, 1], &[&[0, 1]]);
        check(&["0-1\n", "0-1\n"], &[1], &[&[1]]);
        check(&[], &[0, 5], &[&[0], &[5]]);
        check(&["", "x-y,\u{0}"], &[0, 1], &[&[0], &[1]]);
        check(&["5-2", "0-99999999999"], &[0, 1], &[&[0], &[1]]);
    }

    #[test]
    fn pinning_needs_an_allowed_cpu() {
        let cpu = allowed_cpus()[0];
        std::thread::spawn(move || {
            pin_thread(cpu).unwrap();
            assert_eq!(allowed_cpus(), [cpu]);
            assert!(pin_thread(CpuSet::MAX_CPU - 1).is_err() || cpu == CpuSet::MAX_CPU - 1);
            assert!(pin_thread(usize::MAX).is_err());
        })
        .join()
        .unwrap();
    }
}
