//! Groups of fixture machines: version 1, version 2, both, containers, and broken files.

use super::*;
use crate::limits::fixture::Machine;

/// A machine with both versions: tasks and CPU by version 1, memory by version 2.
fn hybrid_machine() -> Machine {
    Machine::new(&[
        ("proc/self/cgroup", "9:name=systemd:/\n8:pids:/a/b\n4:cpu,cpuacct:/a\n0::/u/v\n"),
        (
            "proc/self/mountinfo",
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
             39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:7 - cgroup cgroup rw,pids\n\
             32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n",
        ),
    ])
}

const PIDS: &str = "sys/fs/cgroup/pids";
const UNIFIED: &str = "sys/fs/cgroup/unified";

fn directories(machine: &Machine, controller: Controller) -> Vec<String> {
    let root = machine.root();
    let groups = Membership::read(&root).groups(controller).unwrap();
    groups.iter().map(|group| group.directory.display().to_string()).collect()
}

#[test]
fn controllers_resolve_to_group_and_ancestors() {
    let machine = hybrid_machine();
    let expected = ["/sys/fs/cgroup/pids/a/b", "/sys/fs/cgroup/pids/a", "/sys/fs/cgroup/pids"];
    assert_eq!(directories(&machine, Controller::Pids), expected);
    assert_eq!(directories(&machine, Controller::Cpu), ["/sys/fs/cgroup/cpu/a", "/sys/fs/cgroup/cpu"]);
    let expected = ["/sys/fs/cgroup/unified/u/v", "/sys/fs/cgroup/unified/u", "/sys/fs/cgroup/unified"];
    assert_eq!(directories(&machine, Controller::Memory), expected);
}

#[test]
fn container_mount_is_the_topmost_group() {
    let check = |path: &str, mounted: &str, expected: &[&str]| {
        let machine = Machine::new(&[
            ("proc/self/cgroup", format!("0::{path}\n").as_str()),
            ("proc/self/mountinfo", &format!("1 2 0:3 {mounted} /sys/fs/cg\\040x rw - cgroup2 cgroup rw\n")),
        ]);
        assert_eq!(directories(&machine, Controller::Pids), expected, "{path} in {mounted}");
    };
    check("/", "/", &["/sys/fs/cg x"]);
    check("/docker/1", "/docker/1", &["/sys/fs/cg x"]);
    check("/docker/1/in", "/docker/1", &["/sys/fs/cg x/in", "/sys/fs/cg x"]);
    check("/elsewhere", "/docker/1", &["/sys/fs/cg x"]);
    check("/../../etc", "/", &["/sys/fs/cg x"]);
}

#[test]
fn group_with_least_headroom_wins() {
    let machine = hybrid_machine();
    assert_eq!(Membership::read(&machine.root()).tasks(), TightestBound::default(), "no file, no bound");
    machine.write(&format!("{PIDS}/a/b/pids.max"), "max\n");
    machine.write(&format!("{PIDS}/a/pids.max"), "100\n");
    machine.write(&format!("{PIDS}/a/pids.current"), "60\n");
    let absolute = |path: &str| PathBuf::from(format!("/{path}"));
    let bound = Some((100, 60, absolute(&format!("{PIDS}/a/pids.max"))));
    assert_eq!(Membership::read(&machine.root()).tasks(), TightestBound { bound, error: None });
    machine.write(&format!("{PIDS}/a/b/pids.max"), "50\n");
    machine.write(&format!("{PIDS}/a/b/pids.current"), "5\n");
    assert_eq!(Membership::read(&machine.root()).tasks().bound.unwrap().0, 100, "40 are less than 45");
    machine.write(&format!("{PIDS}/a/b/pids.current"), "11\n");
    assert_eq!(Membership::read(&machine.root()).tasks().bound.unwrap().0, 50, "39 are less than 40");
}

#[test]
fn inactive_file_cache_is_not_used_memory() {
    let machine = hybrid_machine();
    machine.write(&format!("{UNIFIED}/u/memory.max"), "1000\n");
    machine.write(&format!("{UNIFIED}/u/memory.current"), "900\n");
    machine.write(&format!("{UNIFIED}/u/memory.stat"), "anon 3\ninactive_file 300\nactive_file 9\n");
    let (bound, used, file) = Membership::read(&machine.root()).memory().bound.unwrap();
    assert_eq!((bound, used), (1000, 600));
    assert_eq!(file, PathBuf::from("/sys/fs/cgroup/unified/u/memory.max"));
    // Version 1 writes "without limit" as the greatest number of whole pages.
    machine.write("proc/self/cgroup", "4:memory:/a\n0::/\n");
    machine.write("proc/self/mountinfo", "1 2 0:3 / /sys/m rw - cgroup cgroup rw,memory\n");
    machine.write("sys/m/a/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(Membership::read(&machine.root()).memory(), TightestBound::default());
    machine.write("sys/m/memory.limit_in_bytes", "4096\n");
    machine.write("sys/m/memory.usage_in_bytes", "1024\n");
    assert_eq!(Membership::read(&machine.root()).memory().bound.unwrap().1, 1024);
}

#[test]
fn broken_file_is_reported_beside_a_known_bound() {
    let machine = hybrid_machine();
    machine.write(&format!("{PIDS}/a/pids.max"), "100\n");
    machine.write(&format!("{PIDS}/a/pids.current"), "60\n");
    for bad in ["", "many", "-5", "\u{0}"] {
        machine.write(&format!("{PIDS}/a/b/pids.max"), bad);
        let found = Membership::read(&machine.root()).tasks();
        assert_eq!(found.bound.unwrap().0, 100);
        assert!(found.error.unwrap().contains("/sys/fs/cgroup/pids/a/b/pids.max"));
    }
    machine.write(&format!("{PIDS}/a/b/pids.max"), "99999999999999999999999");
    assert_eq!(Membership::read(&machine.root()).tasks().error, None, "beyond 64 bits is no bound");
    for missing in ["proc/self/mountinfo", "proc/self/cgroup"] {
        machine.remove(missing);
        assert!(Membership::read(&machine.root()).tasks().error.unwrap().contains(missing));
    }
    machine.write("proc/self/mountinfo", "1 2 3\n - \n1 2 0:3 / /sys/x rw - cgroup\n");
    machine.write("proc/self/cgroup", ":\n:::\n8:pids\nx\n");
    assert_eq!(Membership::read(&machine.root()).tasks(), TightestBound::default(), "no line is ours");
}

#[test]
fn tightest_cpu_quota_wins_in_both_versions() {
    let machine = hybrid_machine();
    let quota = |machine: &Machine| Membership::read(&machine.root()).cpu_quota();
    assert_eq!(quota(&machine).unwrap(), None);
    machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
    machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    assert_eq!(quota(&machine).unwrap(), None);
    machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n");
    let found = quota(&machine).unwrap().unwrap();
    assert_eq!((found.cpus, found.file.to_str().unwrap()), (1.5, "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us"));
    machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "0\n");
    assert!(quota(&machine).unwrap_err().to_string().contains("cpu.cfs_quota_us"));
    machine.write("proc/self/cgroup", "0::/u/v\n");
    machine.write(&format!("{UNIFIED}/u/v/cpu.max"), "max 100000\n");
    machine.write(&format!("{UNIFIED}/u/cpu.max"), "50000 100000\n");
    assert_eq!(quota(&machine).unwrap().unwrap().cpus, 0.5);
    for bad in ["", "50000", "x 100000", "1 0"] {
        machine.write(&format!("{UNIFIED}/u/v/cpu.max"), bad);
        assert!(quota(&machine).is_err(), "{bad:?}");
    }
}
