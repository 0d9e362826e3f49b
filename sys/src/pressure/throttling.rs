//! Throttling: how often and how long the CPU quotas of control groups stopped our threads.
//!
//! The values are the sums over the `cpu.stat` of our group and all its ancestors, because the quota of any
//! of them stops us. Both versions of control groups are read.

use std::path::PathBuf;
use std::time::Duration;

use crate::limits::ProcRoot;
use crate::limits::cgroup::{Controller, Membership};

/// Throttling by quotas since the creation of the groups.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Throttling {
    /// Periods in which a thread of a group was runnable.
    pub periods: u64,
    /// Periods in which a quota was exhausted.
    pub throttled_periods: u64,
    /// Throttled time, summed over the CPUs on which threads would have run.
    pub throttled: Duration,
}

impl Throttling {
    /// Reads the throttling of our groups on the machine at `root`; `None` where no group can have a quota.
    pub fn read(root: &ProcRoot) -> Option<Throttling> {
        Throttling::sum(paths(root).iter().map(|path| root.read_text(path).unwrap_or_default()))
    }

    /// Adds up the files of several groups.
    pub(super) fn sum(texts: impl Iterator<Item = String>) -> Option<Throttling> {
        texts.filter_map(|text| Throttling::parse(&text)).reduce(|sum, next| Throttling {
            periods: sum.periods.saturating_add(next.periods),
            throttled_periods: sum.throttled_periods.saturating_add(next.throttled_periods),
            throttled: sum.throttled.saturating_add(next.throttled),
        })
    }

    fn parse(text: &str) -> Option<Throttling> {
        let field = |name: &str| {
            let fields = text.lines().filter_map(|line| line.split_once(' '));
            fields
                .into_iter()
                .find_map(|(key, value)| (key == name).then(|| value.trim().parse::<u64>()))?
                .ok()
        };
        let throttled = match (field("throttled_usec"), field("throttled_time")) {
            (Some(us), _) => Duration::from_micros(us),
            (None, Some(ns)) => Duration::from_nanos(ns),
            (None, None) => return None,
        };
        Some(Throttling {
            periods: field("nr_periods")?,
            throttled_periods: field("nr_throttled")?,
            throttled,
        })
    }

    /// The growth since `earlier`.
    pub fn since(self, earlier: Throttling) -> Throttling {
        Throttling {
            periods: self.periods.saturating_sub(earlier.periods),
            throttled_periods: self.throttled_periods.saturating_sub(earlier.throttled_periods),
            throttled: self.throttled.saturating_sub(earlier.throttled),
        }
    }
}

/// The `cpu.stat` files of our groups.
pub(super) fn paths(root: &ProcRoot) -> Vec<PathBuf> {
    let groups = Membership::read(root).groups(Controller::Cpu).unwrap_or_default();
    groups.iter().map(|group| group.directory.join("cpu.stat")).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limits::fixture::ample;

    #[test]
    fn both_versions_are_parsed_ancestors_added() {
        let machine = ample();
        let throttling = |periods, throttled_periods, us| Throttling {
            periods,
            throttled_periods,
            throttled: Duration::from_micros(us),
        };
        assert_eq!(Throttling::read(&machine.root()), Some(throttling(0, 0, 0)));
        machine.write(
            "sys/fs/cgroup/own/cpu.stat",
            "usage_usec 9\nnr_periods 10\nnr_throttled 3\nthrottled_usec 40\n",
        );
        assert_eq!(Throttling::read(&machine.root()), Some(throttling(10, 3, 40)));
        machine.write("sys/fs/cgroup/cpu.stat", "nr_periods 5\nnr_throttled 1\nthrottled_time 2000\n");
        let sum = Throttling::read(&machine.root()).unwrap();
        assert_eq!(sum, throttling(15, 4, 42));
        assert_eq!(sum.since(throttling(10, 3, 40)), throttling(5, 1, 2));
        for bad in ["", "usage_usec 9\n", "nr_periods x\nnr_throttled 1\nthrottled_usec 1\n", "\u{0}"] {
            machine.write("sys/fs/cgroup/cpu.stat", bad);
            assert_eq!(Throttling::read(&machine.root()), Some(throttling(10, 3, 40)), "{bad:?}");
        }
        machine.write("proc/self/cgroup", "");
        assert_eq!(Throttling::read(&machine.root()), None);
    }
}
