//! The CPUs of writers and hogs; `None` for a placement that this machine cannot have.

use sys::limits::ProcRoot;
use sys::limits::cpus::cores;

use crate::kit::machine;

/// Which threads are pinned to which CPUs.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// All run where the scheduler places them.
    Free,
    /// Writers on a CPU each in turn, and the hogs on the same ones, so that no balancing helps.
    Pinned,
    /// Writers on one thread of each core in turn, and the hogs on the other ones.
    Siblings,
}

/// One entry for each thread or process: the CPU to which it is pinned, or `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuAssignment {
    pub(super) writers: Vec<Option<usize>>,
    pub(super) hogs: Vec<Option<usize>>,
}

impl Placement {
    /// The CPUs of these writers and hogs; `None` where siblings are wanted and there are none.
    pub(super) fn assign(self, writers: usize, hogs: usize) -> Option<CpuAssignment> {
        let cpus = machine::allowed_cpus();
        match self {
            Self::Free => Some(CpuAssignment { writers: vec![None; writers], hogs: vec![None; hogs] }),
            Self::Pinned => Some(assign(&cpus, &cpus, writers, hogs)),
            Self::Siblings => {
                let (first, second) = siblings(cores(&ProcRoot::machine(), &cpus));
                (!second.is_empty()).then(|| assign(&first, &second, writers, hogs))
            }
        }
    }
}

/// Writers and hogs in turn on their CPUs: hog `j` shares one with writer `j`.
fn assign(writers_on: &[usize], hogs_on: &[usize], writers: usize, hogs: usize) -> CpuAssignment {
    let in_turn = |cpus: &[usize], count: usize| cpus.iter().copied().cycle().take(count).map(Some).collect();
    // Hogs stay beside writers where there are fewer writers than CPUs.
    let met = hogs_on.len().min(writers.max(1));
    CpuAssignment { writers: in_turn(writers_on, writers), hogs: in_turn(&hogs_on[..met], hogs) }
}

/// Of each core with two threads, the first and the second.
fn siblings(cores: Vec<Vec<usize>>) -> (Vec<usize>, Vec<usize>) {
    cores.into_iter().filter_map(|core| Some((*core.first()?, *core.get(1)?))).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_need_both_threads_of_a_core() {
        assert_eq!(siblings(vec![vec![0, 4], vec![1, 5], vec![2]]), (vec![0, 1], vec![4, 5]));
        assert_eq!(siblings(vec![vec![0], vec![1]]), (vec![], vec![]));
    }

    #[test]
    fn hogs_share_the_cpus_of_writers() {
        let all = [0, 1, 2, 3];
        let expected =
            CpuAssignment { writers: vec![Some(0), Some(1)], hogs: vec![Some(0), Some(1), Some(0)] };
        assert_eq!(assign(&all, &all, 2, 3), expected);
        let expected = CpuAssignment { writers: vec![Some(0), Some(1), Some(0)], hogs: vec![Some(2)] };
        assert_eq!(assign(&[0, 1], &[2, 3], 3, 1), expected);
    }
}
