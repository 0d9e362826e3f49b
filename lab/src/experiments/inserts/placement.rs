//! Where writers and hogs run. Promises: a placement that this machine cannot have is `None`. Leaves to
//! others: how many of each there are.

use std::fs;

use anyhow::{Context, Result};
use rustix::thread::CpuSet;

use crate::kit::machine;

/// Who is bound to which CPU.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Everybody runs where the scheduler likes.
    Free,
    /// Writers on a CPU each in turn, and the hogs on the same ones, so that no balancing helps.
    Pinned,
    /// Writers on one thread of each core in turn, and the hogs on the other ones.
    Siblings,
}

/// One entry for each thread or process: the CPU that it is pinned to, or `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuAssignment {
    pub(super) writers: Vec<Option<usize>>,
    pub(super) hogs: Vec<Option<usize>>,
}

impl Placement {
    /// The seats of so many writers and hogs; `None` where there are no siblings to sit on.
    pub(super) fn assign(self, writers: usize, hogs: usize) -> Option<CpuAssignment> {
        let cpus = machine::allowed_cpus();
        match self {
            Self::Free => Some(CpuAssignment { writers: vec![None; writers], hogs: vec![None; hogs] }),
            Self::Pinned => Some(assign(&cpus, &cpus, writers, hogs)),
            Self::Siblings => {
                let (first, second) = cores(&cpus, siblings);
                (!second.is_empty()).then(|| assign(&first, &second, writers, hogs))
            }
        }
    }
}

/// Binds the calling thread to a CPU.
///
/// # Errors
/// It is not one of this process's.
pub(super) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("choosing CPU {cpu}"))
}

/// Writers and hogs in turn on their CPUs: hog `j` meets writer `j`.
fn assign(writers_on: &[usize], hogs_on: &[usize], writers: usize, hogs: usize) -> CpuAssignment {
    let in_turn = |cpus: &[usize], count: usize| cpus.iter().copied().cycle().take(count).map(Some).collect();
    // Hogs stay beside writers where there are fewer writers than CPUs.
    let met = hogs_on.len().min(writers.max(1));
    CpuAssignment { writers: in_turn(writers_on, writers), hogs: in_turn(&hogs_on[..met], hogs) }
}

/// Of each core with two threads that are both ours, the first and the second.
fn cores(cpus: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> (Vec<usize>, Vec<usize>) {
    let pair = |&cpu: &usize| {
        let shared = siblings(cpu);
        let other = shared.into_iter().find(|other| *other > cpu && cpus.contains(other))?;
        Some((cpu, other))
    };
    cpus.iter().filter_map(pair).unzip()
}

fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    parse_list(&fs::read_to_string(path).unwrap_or_default())
}

/// CPUs as the kernel lists them: numbers and ranges between commas.
fn parse_list(text: &str) -> Vec<usize> {
    let part = |part: &str| -> Vec<usize> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) => (first..=last).collect(),
            _ => Vec::new(),
        }
    };
    text.trim().split(',').flat_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_numbers_and_ranges() {
        let check = |text, expected: &[usize]| assert_eq!(parse_list(text), expected, "{text:?}");
        check("0,4\n", &[0, 4]);
        check("2-3", &[2, 3]);
        check("0-1,8", &[0, 1, 8]);
        check("", &[]);
    }

    #[test]
    fn a_core_is_found_once_and_only_where_both_its_threads_are_ours() {
        let siblings = |cpu: usize| vec![cpu % 4, cpu % 4 + 4];
        assert_eq!(cores(&[0, 1, 2, 4, 5], siblings), (vec![0, 1], vec![4, 5]));
        assert_eq!(cores(&[0, 1], |cpu| vec![cpu]), (vec![], vec![]));
    }

    #[test]
    fn hogs_sit_beside_writers() {
        let all = [0, 1, 2, 3];
        let expected =
            CpuAssignment { writers: vec![Some(0), Some(1)], hogs: vec![Some(0), Some(1), Some(0)] };
        assert_eq!(assign(&all, &all, 2, 3), expected);
        let expected = CpuAssignment { writers: vec![Some(0), Some(1), Some(0)], hogs: vec![Some(2)] };
        assert_eq!(assign(&[0, 1], &[2, 3], 3, 1), expected);
    }
}
