//! The CPUs that this process may use, and which of them share a core.
//!
//! Promises: affinity as the kernel gives it, cores as `/sys` tells them. Leaves to others: how much of a
//! CPU's time there is (`cgroup`), and what two threads on one core get (measured by `tollgate doctor`).

use std::collections::BTreeSet;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::root::ProcRoot;

/// The CPUs that the calling thread may run on, in ascending order; at least one.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Lets the calling thread run on `cpu` alone.
///
/// # Errors
/// `EINVAL` for one that there is not, or that is not ours.
pub fn pin_thread(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Moves the calling thread to a CPU that it may use and for which `is_wanted` is true, the first behind its
/// own if there is one. A nudge, where [`pin_thread`] binds: it may be moved on, and is moved when its
/// cpuset changes. Only a narrower choice than the cpuset's (`taskset`, a pin of its own) is put back as it
/// was, and is then what the kernel holds it to, as before. Three system calls or four, some 10 us.
///
/// Where none is wanted or the kernel refuses, nothing is changed.
#[cfg(not(shuttle))]
pub fn nudge_thread(is_wanted: impl Fn(usize) -> bool) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let own = rustix::thread::sched_getcpu();
    let candidates = (own + 1..CpuSet::MAX_CPU).chain(0..own.min(CpuSet::MAX_CPU));
    let target = candidates.into_iter().find(|cpu| allowed.is_set(*cpu) && is_wanted(*cpu));
    if target.is_none_or(|cpu| pin_thread(cpu).is_err()) {
        return;
    }
    // The kernel remembers what a thread has asked for and cuts it with each later cpuset (since 6.2). All
    // CPUs is to have asked for nothing; those of this moment would be kept from the ones that come later.
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    let is_reset = sched_setaffinity(None, &all).is_ok();
    if !is_reset || sched_getaffinity(None).is_ok_and(|current| current != allowed) {
        // Refused only if none of these is ours any more; then the kernel has chosen others.
        let _ = sched_setaffinity(None, &allowed);
    }
}

/// As above, of a thread of a model, which is where chance has it anyway.
#[cfg(shuttle)]
pub fn nudge_thread(_is_wanted: impl Fn(usize) -> bool) {}

/// The CPUs of `allowed` by the core that they belong to, in ascending order. A CPU of which the kernel does
/// not say so is a core of its own.
pub fn cores(root: &ProcRoot, allowed: &[usize]) -> Vec<Vec<usize>> {
    let mut cores: Vec<Vec<usize>> = Vec::new();
    let mut known = BTreeSet::new();
    for cpu in allowed {
        if known.contains(cpu) {
            continue;
        }
        let siblings = root.text(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
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

/// A list as `/sys` writes it: `0-3,8`. What is no number is passed over, and what is beyond the greatest
/// CPU.
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
