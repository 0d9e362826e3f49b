//! The limits that a program meets which creates threads without end, read where the kernel tells them.
//! Promises: a limit is named as the cause only while what it counts is at its bound. Leaves to others: the
//! program (`creation.rs`), and moments at which to look.

use std::fs;
use std::path::{Path, PathBuf};

/// Maps that may be missing at a death by maps: one thread needs four (its stack and the guard below it, and
/// the same for its signals), and threads that were about to end have given back two each until the lab has
/// counted: on a machine with ten others for each CPU, 21 were missing. It is 0.3 % of the usual bound.
const MAPS_MISSING_MAX: u64 = 200;

/// What `/proc/PID/maps` shows and the kernel does not count: `[vsyscall]`.
const MAPS_UNCOUNTED: u64 = 1;

/// Process ids that the kernel gives to nobody once it has been through all of them (kernel/pid.c).
const RESERVED_PIDS: u64 = 300;

/// Ids that are in use without a task: those of process groups and sessions whose leaders are gone.
const PIDS_UNSEEN_MAX: u64 = 64;

/// Something that the kernel counts, beside its bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) name: &'static str,
    pub(super) used: u64,
    pub(super) bound: u64,
    /// What may be left of it where one more thread is refused.
    slack: u64,
}

impl Limit {
    /// One that is met when all of it is used.
    pub(super) fn new(name: &'static str, used: u64, bound: u64) -> Self {
        Self { name, used, bound, slack: 0 }
    }

    /// Whether it leaves no room for a thread.
    pub(super) fn is_met(&self) -> bool {
        self.used + self.slack >= self.bound
    }

    /// The share of the bound that is used.
    pub(super) fn share(&self) -> f64 {
        self.used as f64 / self.bound as f64
    }
}

/// What a process has, and the machine, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// Memory maps of the process.
    pub(super) maps: u64,
    /// Its threads that live, the main one included.
    pub(super) threads: u64,
    /// Threads of all processes.
    pub(super) tasks: u64,
    pub(super) limits: Vec<Limit>,
}

impl Moment {
    /// Looks at process `id`; `None` if it is gone.
    pub(super) fn of(id: i32) -> Option<Self> {
        let process = PathBuf::from(format!("/proc/{id}"));
        let maps = fs::read_to_string(process.join("maps")).ok()?.lines().count() as u64;
        let threads = parse_field(&fs::read_to_string(process.join("status")).ok()?, "Threads:")?;
        let tasks = parse_tasks(&fs::read_to_string("/proc/loadavg").ok()?)?;
        let mut limits = vec![Limit {
            name: "vm.max_map_count",
            used: maps.saturating_sub(MAPS_UNCOUNTED),
            bound: max_map_count()?,
            slack: MAPS_MISSING_MAX,
        }];
        limits.extend(number("/proc/sys/kernel/pid_max").map(|bound| Limit {
            name: "kernel.pid_max",
            used: tasks + RESERVED_PIDS,
            bound,
            slack: PIDS_UNSEEN_MAX,
        }));
        let threads_max = number("/proc/sys/kernel/threads-max");
        limits.extend(threads_max.map(|bound| Limit::new("kernel.threads-max", tasks, bound)));
        if !rustix::process::geteuid().is_root() {
            let text = fs::read_to_string(process.join("limits")).ok()?;
            let bound = parse_processes_max(&text);
            limits.extend(bound.map(|bound| Limit::new("RLIMIT_NPROC", threads, bound)));
        }
        let cgroups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        limits.extend(cgroup_pids(Path::new("/sys/fs/cgroup"), &cgroups));
        Some(Self { maps, threads, tasks, limits })
    }

    /// The limit that is at its bound; `None` if none is, or if several are, which proves nothing.
    pub(super) fn proven(&self) -> Option<&Limit> {
        let mut met = self.limits.iter().filter(|limit| limit.is_met());
        let first = met.next()?;
        met.next().is_none().then_some(first)
    }
}

/// The most memory maps that a process may have.
pub(super) fn max_map_count() -> Option<u64> {
    number("/proc/sys/vm/max_map_count")
}

/// Process ids that nobody has; `None` where the machine does not tell.
pub(super) fn pids_left() -> Option<u64> {
    let tasks = parse_tasks(&fs::read_to_string("/proc/loadavg").ok()?)?;
    Some(number("/proc/sys/kernel/pid_max")?.saturating_sub(tasks + RESERVED_PIDS))
}

/// Memory that can be had without swapping.
pub(super) fn memory_left_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some(parse_field(&text, "MemAvailable:")? * 1024)
}

/// The tightest `pids.max` among the process's cgroup and those above it, of either version.
fn cgroup_pids(root: &Path, cgroups: &str) -> Option<Limit> {
    let limit = |directory: &Path| {
        let read = |file: &str| fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok();
        Some(Limit::new("pids.max", read("pids.current")?, read("pids.max")?))
    };
    let levels = cgroups.lines().filter_map(pids_directory).flat_map(|directory| {
        let whole = root.join(directory);
        let levels: Vec<PathBuf> = whole.ancestors().map(Path::to_owned).collect();
        levels.into_iter().filter(|level| level.starts_with(root))
    });
    levels.filter_map(|level| limit(&level)).min_by_key(|limit| limit.bound - limit.used.min(limit.bound))
}

/// A line of `/proc/PID/cgroup`: `ID:CONTROLLERS:PATH`, without controllers in version 2.
fn pids_directory(line: &str) -> Option<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
    if controllers.is_empty() {
        return Some(PathBuf::from(path));
    }
    let has_pids = controllers.split(',').any(|controller| controller == "pids");
    has_pids.then(|| Path::new("pids").join(path))
}

/// The fourth field of `/proc/loadavg` is `RUNNABLE/TASKS` (proc(5)).
fn parse_tasks(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// The first word after the name of a line.
fn parse_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The soft limit; `None` where there is none.
fn parse_processes_max(limits: &str) -> Option<u64> {
    parse_field(limits, "Max processes")
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &'static str, used: u64, bound: u64, slack: u64) -> Limit {
        Limit { name, used, bound, slack }
    }

    #[test]
    fn a_limit_is_proven_when_it_alone_is_at_its_bound() {
        let check = |limits: &[Limit], expected: Option<&str>| {
            let moment = Moment { maps: 0, threads: 0, tasks: 0, limits: limits.to_vec() };
            assert_eq!(moment.proven().map(|limit| limit.name), expected, "{limits:?}");
        };
        let maps = |used| limit("maps", used, 65_530, 4);
        let pids = |used| limit("pids", used, 32_768, 64);
        check(&[maps(65_526), pids(400)], Some("maps"));
        check(&[maps(65_531), pids(400)], Some("maps"));
        check(&[maps(65_525), pids(400)], None);
        check(&[maps(40_000), pids(32_704)], Some("pids"));
        check(&[maps(65_530), pids(32_768)], None);
        check(&[], None);
    }

    #[test]
    fn proc_files_are_read() {
        assert_eq!(parse_tasks("4.39 3.94 2.32 3/100 5738\n"), Some(100));
        assert_eq!(parse_tasks(""), None);
        assert_eq!(parse_field("Name:\tlab\nThreads:\t32731\n", "Threads:"), Some(32_731));
        let limits = "Limit   Soft Limit   Hard Limit   Units\nMax processes   96365   96365   processes\n";
        assert_eq!(parse_processes_max(limits), Some(96_365));
        assert_eq!(parse_processes_max("Max processes   unlimited   unlimited   processes\n"), None);
    }

    #[test]
    fn the_tightest_cgroup_counts_in_both_versions() {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it is a file in a directory")).expect("it is ours");
            fs::write(path, text).expect("it is ours");
        };
        for (path, current, max) in [("a", "90", "100"), ("a/b", "80", "max"), ("pids/c", "8", "10")] {
            write(&format!("{path}/pids.current"), &format!("{current}\n"));
            write(&format!("{path}/pids.max"), &format!("{max}\n"));
        }
        let check = |cgroups: &str, expected: Option<(u64, u64)>| {
            let limit = cgroup_pids(root.path(), cgroups);
            assert_eq!(limit.map(|limit| (limit.used, limit.bound)), expected, "{cgroups:?}");
        };
        check("0::/a/b\n", Some((90, 100)));
        check("9:name=systemd:/\n8:pids:/c\n0::/\n", Some((8, 10)));
        check("0::/\n", None);
        check("", None);
    }

    #[test]
    fn this_process_has_maps_and_threads() {
        let moment = Moment::of(std::process::id() as i32).expect("a process may look at itself");
        assert!(moment.maps > 0 && moment.threads > 0 && moment.tasks >= moment.threads);
        assert!(moment.limits.iter().any(|limit| limit.name == "vm.max_map_count"));
        assert_eq!(Moment::of(i32::MAX), None);
    }
}
