//! CPU time of the whole machine: busy, idle, or withheld by the hypervisor (the first line of `/proc/stat`).

use crate::limits::ProcRoot;

/// CPU time of all CPUs together since boot, in ticks of 10 ms (`USER_HZ`, 100 on every Linux).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CpuTicks {
    /// A task ran.
    pub busy: u64,
    /// No task ran, including the time in which one waited for a disk.
    pub idle: u64,
    /// A task was ready, and the hypervisor ran another guest on the CPU.
    pub steal: u64,
}

impl CpuTicks {
    /// Reads the ticks of the machine at `root`.
    pub fn read(root: &ProcRoot) -> Option<CpuTicks> {
        CpuTicks::parse(&root.read_text(CpuTicks::PATH).ok()?)
    }

    /// `USER_HZ`.
    pub const PER_SECOND: u64 = 100;

    pub(super) const PATH: &str = "/proc/stat";

    /// Parses the first line (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal. The guest
    /// times that follow are contained in the user time.
    pub(super) fn parse(text: &str) -> Option<CpuTicks> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = *fields.as_slice() else {
            return None;
        };
        let sum = |fields: &[u64]| fields.iter().fold(0, |sum: u64, field| sum.saturating_add(*field));
        let busy = sum(&[user, nice, system, irq, softirq]);
        Some(CpuTicks { busy, idle: sum(&[idle, iowait]), steal })
    }

    /// The growth since `earlier`.
    pub fn since(self, earlier: CpuTicks) -> CpuTicks {
        CpuTicks {
            busy: self.busy.saturating_sub(earlier.busy),
            idle: self.idle.saturating_sub(earlier.idle),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }

    /// The sum of all ticks.
    pub fn all(self) -> u64 {
        self.busy.saturating_add(self.idle).saturating_add(self.steal)
    }

    /// The share that the hypervisor withheld, 0 to 1.
    pub fn steal_share(self) -> f64 {
        if self.all() == 0 { 0.0 } else { self.steal as f64 / self.all() as f64 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ticks_split_into_busy_idle_and_steal() {
        let text = "cpu  10 1 5 200 8 0 2 4 3 0\ncpu0 5 0 2 100 4 0 1 2 1 0\n";
        let ticks = CpuTicks { busy: 18, idle: 208, steal: 4 };
        assert_eq!(CpuTicks::parse(text), Some(ticks));
        let later = CpuTicks { busy: 24, idle: 210, steal: 6 };
        assert_eq!(later.since(ticks), CpuTicks { busy: 6, idle: 2, steal: 2 });
        assert_eq!(later.since(ticks).steal_share(), 0.2);
        assert_eq!(ticks.since(later).steal_share(), 0.0);
        for bad in ["", "cpu0 1 2 3\n", "cpu  1 2 3\n", "cpu  1 2 3 4 5 6 7 x\n"] {
            assert_eq!(CpuTicks::parse(bad), None, "{bad:?}");
        }
    }
}
