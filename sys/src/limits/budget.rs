//! How many more threads this process may start before a limit refuses one.
//!
//! Guarantees: the budget is the minimum over every limit on threads or on what a thread takes, less a
//! reserve. A file that cannot be read takes only its own limit out of that minimum.

use super::footprint::{Footprint, footprint};
use super::root::ProcRoot;
use super::values::{Limit, LimitReader, LimitValue};

/// One fifth of the free threads is the reserve: other processes start threads too, and a refused thread
/// loses a job.
const RESERVE_DIVISOR: u64 = 5;

/// Memory of a thread: 10 to 30 KB of kernel memory, and the pages of its stack that it touches.
pub const THREAD_MEMORY_BYTES: u64 = 64 * 1024;

/// The limits on threads, or on what each of them takes.
const LIMITS: [Limit; 10] = [
    Limit::Threads,
    Limit::ThreadIds,
    Limit::UserThreads,
    Limit::GroupThreads,
    Limit::Mappings,
    Limit::AddressSpace,
    Limit::Data,
    Limit::Commit,
    Limit::Memory,
    Limit::GroupMemory,
];

/// How many more threads may be started, and the limit that bounds them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ThreadBudget {
    /// The number of further threads; `u64::MAX` where no limit is known.
    pub threads: u64,
    /// The kernel's name of the limit that would be reached first; `none` without any.
    pub limit: &'static str,
}

/// How many more threads this process may start now. It reads a dozen kernel files, the list of mappings
/// among them: 0.3 ms, and some microseconds more for each thread of this process. The first call also
/// measures what a thread takes (see [`footprint`]).
pub fn thread_budget() -> ThreadBudget {
    let footprint = footprint();
    let root = ProcRoot::machine();
    let reader = LimitReader::new(&root);
    ThreadBudget::from_values(LIMITS.map(|limit| reader.read_quickly(limit)).iter(), footprint)
}

impl ThreadBudget {
    /// The budget under the limits `values`, where each thread takes `footprint`.
    pub fn from_values<'a>(
        values: impl Iterator<Item = &'a LimitValue>,
        footprint: Footprint,
    ) -> ThreadBudget {
        let mut budget = ThreadBudget { threads: u64::MAX, limit: "none" };
        for value in values {
            let Some(threads) = threads_within(value, footprint) else { continue };
            if threads < budget.threads {
                budget = ThreadBudget { threads, limit: value.limit.setting() };
            }
        }
        budget.threads = match budget.threads {
            u64::MAX => u64::MAX,
            threads => threads - threads.div_ceil(RESERVE_DIVISOR),
        };
        budget
    }
}

/// How many threads fit into what is free of a limit; `None` where it does not bound threads.
pub fn threads_within(value: &LimitValue, footprint: Footprint) -> Option<u64> {
    let free = value.free()?;
    Some(match value.limit {
        Limit::Threads | Limit::ThreadIds | Limit::UserThreads | Limit::GroupThreads => free,
        Limit::Mappings => (free as f64 / footprint.maps.max(1.0)) as u64,
        Limit::AddressSpace | Limit::Data | Limit::Commit => free / footprint.address_bytes.max(1),
        Limit::Memory | Limit::GroupMemory => free / THREAD_MEMORY_BYTES,
        _ => return None,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limits::fixture::ample;
    use crate::limits::read_all_quickly;

    fn budget(root: &ProcRoot) -> ThreadBudget {
        ThreadBudget::from_values(read_all_quickly(root).iter(), FOOTPRINT)
    }

    const FOOTPRINT: Footprint = Footprint { maps: 4.0, address_bytes: 2 << 20 };

    #[test]
    fn tightest_limit_is_named_and_fifth_reserved() {
        let check = |path: &str, text: &str, expected: (u64, &str)| {
            let machine = ample();
            machine.write(path, text);
            let ThreadBudget { threads, limit } = budget(&machine.root());
            assert_eq!((threads, limit), expected, "{path} = {text}");
        };
        // 1,000 threads are in use, 200 mappings, 4 tasks in the group.
        check("proc/sys/kernel/threads-max", "1100", (80, "kernel.threads-max"));
        check("proc/sys/kernel/pid_max", "1010", (8, "kernel.pid_max"));
        check("proc/sys/vm/max_map_count", "240", (8, "vm.max_map_count"));
        check("proc/sys/vm/max_map_count", "100", (0, "vm.max_map_count"));
        check("sys/fs/cgroup/own/pids.max", "104", (80, "pids.max"));
        check("sys/fs/cgroup/pids.max", "60", (4, "pids.max"));
        check("sys/fs/cgroup/own/memory.max", "10485760", (112, "memory.max"));
    }

    #[test]
    fn user_threads_are_counted_only_near_the_limit() {
        let machine = ample();
        machine.write_rlimit("Max processes", 4000);
        machine.write("proc/77/status", "Uid:\t1000\t1000\t1000\t1000\nThreads:\t300\n");
        machine.write("proc/78/status", "Uid:\t0\t0\t0\t0\nThreads:\t900\n");
        machine.write("proc/79/status", "");
        let tight = budget(&machine.root());
        assert_eq!(tight, ThreadBudget { threads: (4000 - 300) * 4 / 5, limit: "RLIMIT_NPROC" });
        machine.write_rlimit("Max processes", 6000);
        assert_eq!(budget(&machine.root()).threads, (6000 - 1000) * 4 / 5);
        machine.replace("proc/self/status", "CapEff:\t0000000000000000", "CapEff:\t0000000001000000");
        assert_ne!(budget(&machine.root()).limit, "RLIMIT_NPROC");
    }

    #[test]
    fn unreadable_files_leave_other_limits() {
        let empty = tempfile::tempdir().unwrap();
        let unbounded = budget(&ProcRoot::at(empty.path()));
        assert_eq!(unbounded, ThreadBudget { threads: u64::MAX, limit: "none" });
        let machine = ample();
        machine.write("proc/sys/kernel/pid_max", "1010");
        for path in ["proc/self/maps", "proc/self/limits", "proc/sys/vm/max_map_count", "proc/meminfo"] {
            machine.write(path, "\u{0}?");
            assert_eq!(budget(&machine.root()).threads, 8, "{path}");
        }
    }

    #[test]
    fn this_machine_has_a_thread_budget() {
        let budget = thread_budget();
        assert!(budget.threads > 0, "{budget:?}");
    }
}
