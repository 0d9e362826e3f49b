//! Lowers each limit of a machine fixture in turn: it is named first, with its error and its command.

use ledger::live_table::space::TableSpace;
use sys::limits::{FOOTPRINT_USUAL, Limit, ProcRoot, ThreadBudget, read_all};
use tempfile::TempDir;

use super::cpus::Cpus;
use super::finding::{Capacity, Finding, State, examine, first};
use super::load::Load;
use super::ports::ListeningPorts;
use super::remedy;
use super::report::{MachineReport, WIDTH, first_limit_line};
use super::space::LiveTableSpace;

/// A machine on which no limit is near: `== path` before each file's text.
const AMPLE: &str = include_str!("../../../../sys/testdata/ample-machine.txt");

const LOAD: Load = Load {
    handshakes: 2_000,
    connections: 9_000,
    reactors: 2,
    pool_threads: 5,
    listeners: 1,
    backlog: 4096,
    table_bytes: 26 * 1024 * 1024,
};

struct Machine(TempDir);

impl Machine {
    /// The ample machine with other texts in some files; `None` removes a file.
    fn new(files: &[(&str, Option<&str>)]) -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        for file in AMPLE.split("== ").skip(1) {
            let (path, text) = file.split_once('\n').unwrap();
            machine.write(path, text);
        }
        machine.write("proc/self/maps", &"7f0-7f1 rw-p 00000000 00:00 0\n".repeat(200));
        for (path, text) in files {
            match text {
                Some(text) => machine.write(path, text),
                None => std::fs::remove_file(machine.0.path().join(path)).unwrap(),
            }
        }
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Sets a row of `/proc/self/limits`.
    fn limited(row: &str, limit: u64) -> Machine {
        let machine = Machine::new(&[]);
        let text = std::fs::read_to_string(machine.0.path().join("proc/self/limits")).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with(row));
        let lines: Vec<_> =
            lines.map(str::to_owned).chain([format!("{row} {limit} {limit} units")]).collect();
        machine.write("proc/self/limits", &lines.join("\n"));
        machine
    }

    fn findings(&self) -> Vec<Finding> {
        examine(&LOAD, &read_all(&ProcRoot::at(self.0.path())), FOOTPRINT_USUAL)
    }

    fn report(&self) -> MachineReport {
        let root = ProcRoot::at(self.0.path());
        MachineReport {
            load: LOAD,
            findings: self.findings(),
            footprint: FOOTPRINT_USUAL,
            budget: ThreadBudget::from_values(read_all(&root).iter(), FOOTPRINT_USUAL),
            space: LiveTableSpace::from_space(table_space(1 << 30)),
            ports: ListeningPorts::read(&root, vec![3128, 9128, 0]),
            cpus: Cpus::read(&root),
        }
    }
}

fn table_space(free: u64) -> TableSpace {
    TableSpace { directory: "/dev/shm".into(), needed: 27_000_000, free, size: 30_000_000 }
}

#[test]
fn small_tmpfs_for_live_table_fails_with_remedy() {
    let machine = Machine::new(&[]);
    let small =
        MachineReport { space: LiveTableSpace::from_space(table_space(20 << 20)), ..machine.report() };
    assert!(!small.is_carried() && small.text().contains("mount -o remount,size=36028480 /dev/shm"));
    assert_eq!(small.json()["live_table"]["enough"], false);
    assert_eq!(machine.report().json()["live_table"]["enough"], true);
}

/// Expects that `limit` alone is met first, is in `state`, and has this error and command.
#[track_caller]
fn check(machine: &Machine, limit: Limit, state: State, error: &str, command: &str) {
    let findings = machine.findings();
    let met = first(&LOAD, &findings);
    let names: Vec<_> = met.iter().map(|finding| finding.limit()).collect();
    assert_eq!(names, [limit]);
    assert_eq!(met[0].state, state, "{:?}", met[0]);
    assert_eq!(remedy::command(met[0]).as_deref(), Some(command));
    assert!(remedy::error(limit).contains(error), "{:?}", remedy::error(limit));
    let report = machine.report();
    let text = report.text();
    for part in [limit.name(), limit.setting(), command] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(first_limit_line(&LOAD, &findings).starts_with(&format!("warning: {} (", limit.name())));
    let json = report.json();
    assert_eq!(
        (json["carried"] == false, json["first"]["what"] == limit.name()),
        (state == State::Fails, true)
    );
}

fn sysctl(path: &str, text: &str) -> Machine {
    Machine::new(&[(&format!("proc/sys/{path}"), Some(text))])
}

#[test]
fn failing_limits_come_first() {
    use Limit::*;
    let fails = |machine: &Machine, limit, error: &str, command: &str| {
        check(machine, limit, State::Fails, error, command);
    };
    let command = "ulimit -n 32768 # systemd: LimitNOFILE=32768";
    fails(&Machine::limited("Max open files", 256), Descriptors, "EMFILE", command);
    let command = "sysctl -w fs.nr_open=32768 && ulimit -n 32768 # systemd: LimitNOFILE=32768";
    fails(&sysctl("fs/nr_open", "1000"), Descriptors, "EMFILE", command);
    fails(&sysctl("fs/file-max", "9000"), OpenFiles, "ENFILE", "sysctl -w fs.file-max=32768");
    fails(&sysctl("kernel/threads-max", "1010"), Threads, "EAGAIN", "sysctl -w kernel.threads-max=1024");
    fails(&sysctl("kernel/pid_max", "1010"), ThreadIds, "EAGAIN", "sysctl -w kernel.pid_max=1024");
    let command = "ulimit -u 32 # systemd: LimitNPROC=32";
    fails(&Machine::limited("Max processes", 5), UserThreads, "EAGAIN", command);
    fails(&sysctl("vm/max_map_count", "300"), Mappings, "aborts", "sysctl -w vm.max_map_count=512");
    let command = "ulimit -v 524288 # systemd: LimitAS=536870912";
    fails(&Machine::limited("Max address space", 1 << 20), AddressSpace, "ENOMEM", command);
    let command = "ulimit -d 524288 # systemd: LimitDATA=536870912";
    fails(&Machine::limited("Max data size", 1 << 20), Data, "ENOMEM", command);
    let command = "ulimit -s 1024 # systemd: LimitSTACK=1048576";
    fails(&Machine::limited("Max stack size", 65_536), Stack, "SIGSEGV", command);
    let meminfo =
        "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\nCommitLimit: 10 kB\nCommitted_AS: 9 kB\n";
    let files = [("proc/sys/vm/overcommit_memory", Some("2")), ("proc/meminfo", Some(meminfo))];
    fails(&Machine::new(&files), Commit, "ENOMEM", "sysctl -w vm.overcommit_memory=0");
    let meminfo = [("proc/meminfo", Some("MemTotal: 64000000 kB\nMemAvailable: 6000 kB\n"))];
    let command = "no command does: lower [limits] connections, or add memory";
    fails(&Machine::new(&meminfo), Memory, "SIGKILL", command);
    let watches = sysctl("fs/epoll/max_user_watches", "1000");
    fails(&watches, EpollWatches, "ENOSPC", "sysctl -w fs.epoll.max_user_watches=32768");
    let conntrack = [
        ("proc/sys/net/netfilter/nf_conntrack_max", Some("4096")),
        ("proc/sys/net/netfilter/nf_conntrack_count", Some("96")),
    ];
    let command = "sysctl -w net.netfilter.nf_conntrack_max=32768";
    fails(&Machine::new(&conntrack), Conntrack, "table full", command);
}

#[test]
fn cgroup_limits_are_raised_at_their_own_path() {
    let fails = |machine: &Machine, limit, error: &str, command: &str| {
        check(machine, limit, State::Fails, error, command);
    };
    let pids = |group: &str| {
        let files = [
            ("proc/self/cgroup".to_owned(), format!("0::{group}\n")),
            (format!("sys/fs/cgroup{group}/pids.max"), "20\n".to_owned()),
            (format!("sys/fs/cgroup{group}/pids.current"), "10\n".to_owned()),
        ];
        let files = files.each_ref().map(|(path, text)| (path.as_str(), Some(text.as_str())));
        Machine::new(&files)
    };
    let limit = Limit::GroupThreads;
    fails(&pids("/own"), limit, "pids.events", "echo 32 > /sys/fs/cgroup/own/pids.max");
    let command = "systemctl set-property tollgate.service TasksMax=32";
    fails(&pids("/system.slice/tollgate.service"), limit, "EAGAIN", command);
    let memory = [("sys/fs/cgroup/own/memory.max", Some("1048576"))];
    let command = "echo 536870912 > /sys/fs/cgroup/own/memory.max";
    fails(&Machine::new(&memory), Limit::GroupMemory, "memory.events", command);
    // Version 1, where an ancestor has the tightest bound.
    let files = [
        ("proc/self/cgroup", Some("8:pids:/a/b\n")),
        ("proc/self/mountinfo", Some("39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n")),
        ("sys/fs/cgroup/pids/a/b/pids.max", Some("1000")),
        ("sys/fs/cgroup/pids/a/b/pids.current", Some("1")),
        ("sys/fs/cgroup/pids/a/pids.max", Some("12")),
        ("sys/fs/cgroup/pids/a/pids.current", Some("10")),
    ];
    fails(&Machine::new(&files), limit, "EAGAIN", "echo 32 > /sys/fs/cgroup/pids/a/pids.max");
}

#[test]
fn narrow_limits_come_first_where_none_fails() {
    use Limit::*;
    let narrow = |machine: &Machine, limit, error: &str, command: &str| {
        check(machine, limit, State::Narrow, error, command);
    };
    let command = "ulimit -l 32768 # systemd: LimitMEMLOCK=33554432";
    narrow(&Machine::limited("Max locked memory", 8 << 20), LockedMemory, "swapped", command);
    narrow(&sysctl("net/core/somaxconn", "128"), ListenQueue, "silent", "sysctl -w net.core.somaxconn=4096");
    let command = "sysctl -w net.ipv4.tcp_max_syn_backlog=4096";
    narrow(&sysctl("net/ipv4/tcp_max_syn_backlog", "128"), SynQueue, "silent", command);
    let ports = sysctl("net/ipv4/ip_local_port_range", "60000 65535");
    let command = "sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"";
    narrow(&ports, LocalPorts, "EADDRNOTAVAIL", command);
    let command = "sysctl -w net.ipv4.tcp_mem=\"16384 21844 32768\"";
    narrow(&sysctl("net/ipv4/tcp_mem", "1000 2000 4000"), TcpMemory, "out of memory", command);
    let command = "sysctl -w net.ipv4.tcp_max_orphans=16384";
    narrow(&sysctl("net/ipv4/tcp_max_orphans", "1000"), Orphans, "RST", command);
    let command = "sysctl -w net.ipv4.tcp_max_tw_buckets=16384";
    narrow(&sysctl("net/ipv4/tcp_max_tw_buckets", "1000"), TimeWait, "TIME_WAIT", command);
    let command = "sysctl -w fs.pipe-user-pages-soft=8192";
    narrow(&sysctl("fs/pipe-user-pages-soft", "1024"), PipePages, "two pages", command);
}

#[test]
fn first_limit_line_names_the_maximum_connections() {
    let findings = Machine::new(&[]).findings();
    assert!(findings.iter().all(|finding| finding.state == State::Fine), "{findings:?}");
    let once = LOAD.need(Limit::Descriptors, FOOTPRINT_USUAL).once;
    let most = (1_048_576 - once) / 2;
    assert_eq!(first(&LOAD, &findings)[0].capacity, Some(Capacity::Connections(most)));
    let (thousands, rest) = (most / 1000, most % 1000);
    let expected =
        format!("first limit: descriptors (RLIMIT_NOFILE 1048576) at {thousands},{rest:03} connections");
    assert_eq!(first_limit_line(&LOAD, &findings), expected);
}

#[test]
fn descriptor_limit_capacity_is_exact() {
    let needed = LOAD.need(Limit::Descriptors, FOOTPRINT_USUAL).total_for(LOAD.connections);
    let check = |limit: u64, state: State, connections: u64| {
        let findings = Machine::limited("Max open files", limit).findings();
        let finding = findings.iter().find(|finding| finding.limit() == Limit::Descriptors).unwrap();
        assert_eq!(
            (finding.state, finding.capacity),
            (state, Some(Capacity::Connections(connections))),
            "{limit}"
        );
    };
    check(needed, State::Fine, 9_000);
    check(needed + 1, State::Fine, 9_000);
    check(needed + 2, State::Fine, 9_001);
    check(needed - 1, State::Fails, 8_999);
    check(0, State::Fails, 0);
}

#[test]
fn command_only_raises_limits_that_are_bounded() {
    let findings = Machine::new(&[]).findings();
    let command = |limit: Limit| {
        let finding = findings.iter().find(|finding| finding.limit() == limit).unwrap();
        remedy::command(finding)
    };
    let raised = |limit, expected: &str| assert_eq!(command(limit).as_deref(), Some(expected));
    raised(Limit::Descriptors, "ulimit -n 2097152 # systemd: LimitNOFILE=2097152");
    raised(Limit::Threads, "sysctl -w kernel.threads-max=2097152");
    raised(Limit::ThreadIds, "no command does: the kernel has no more ids");
    raised(
        Limit::LocalPorts,
        "no command does: lower [limits] connections, or lead them to several addresses",
    );
    for limit in [Limit::AddressSpace, Limit::Commit, Limit::GroupThreads, Limit::Conntrack] {
        assert_eq!(command(limit), None, "{limit:?}");
    }
}

#[test]
fn failing_limits_precede_narrow_and_ties_are_joined() {
    let files = [
        ("proc/sys/kernel/threads-max", Some("1009")),
        ("proc/sys/kernel/pid_max", Some("1009")),
        ("proc/sys/net/core/somaxconn", Some("1")),
    ];
    let machine = Machine::new(&files);
    let findings = machine.findings();
    let met: Vec<_> = first(&LOAD, &findings).iter().map(|finding| finding.limit()).collect();
    assert_eq!(met, [Limit::Threads, Limit::ThreadIds]);
    let text = machine.report().text();
    assert!(text.contains("At the same point: thread ids (kernel.pid_max 1009)"), "{text}");
    assert!(
        text.contains("sysctl -w kernel.pid_max=1024") && text.contains("narrow: accept queue"),
        "{text}"
    );
    assert_eq!(machine.report().json()["first_together_with"][0], "thread ids");
}

#[test]
fn capability_exempts_from_a_limit() {
    let machine = Machine::limited("Max processes", 5);
    let path = machine.0.path().join("proc/self/status");
    let status = std::fs::read_to_string(&path).unwrap();
    machine.write("proc/self/status", &status.replace("0000000000000000", "0000000001000000"));
    let findings = machine.findings();
    assert_eq!(first(&LOAD, &findings)[0].limit(), Limit::Descriptors);
    assert!(machine.report().text().contains("exempt"));
}

#[test]
fn unreadable_limit_is_unknown_and_others_are_judged() {
    for text in [None, Some(""), Some("max"), Some("?\u{0}"), Some("-3")] {
        let machine = Machine::new(&[
            ("proc/sys/vm/max_map_count", text),
            ("proc/sys/net/core/somaxconn", Some("128")),
        ]);
        let findings = machine.findings();
        let unknown: Vec<_> = findings.iter().filter(|it| it.state == State::Unknown).collect();
        assert_eq!(unknown.iter().map(|it| it.limit()).collect::<Vec<_>>(), [Limit::Mappings], "{text:?}");
        let report = machine.report().text();
        assert!(report.contains("unknown: mappings: /proc/sys/vm/max_map_count"), "{report}");
        assert!(report.contains("First: accept queue"), "{report}");
        assert!(machine.report().is_carried(), "no limit is known to fail");
    }
    let machine = Machine::new(&[("proc/sys/kernel/threads-max", Some("99999999999999999999999999"))]);
    assert!(machine.findings().iter().all(|finding| finding.state == State::Fine));
    let empty = tempfile::tempdir().unwrap();
    let findings = examine(&LOAD, &read_all(&ProcRoot::at(empty.path())), FOOTPRINT_USUAL);
    assert_eq!(first_limit_line(&LOAD, &findings), "the load meets no limit of the kernel");
}

#[test]
fn unreserved_listening_ports_are_reported() {
    let ports = |range, reserved| {
        let range = ("proc/sys/net/ipv4/ip_local_port_range", Some(range));
        Machine::new(&[range, ("proc/sys/net/ipv4/ip_local_reserved_ports", Some(reserved))])
    };
    let machine = ports("1024 65535", "8080");
    let report = machine.report().text();
    assert!(
        report.contains("narrow: listening ports: 3128, 9128 in net.ipv4.ip_local_port_range"),
        "{report}"
    );
    let command = "sysctl -w net.ipv4.ip_local_reserved_ports=8080,3128,9128";
    assert!(report.contains(&format!("  to reserve: {command}\n")), "{report}");
    assert_eq!(machine.report().json()["listening_ports"]["command"], command);
    assert!(machine.report().is_carried(), "a start may fail, the load does not");
    for machine in [ports("32768 60999", ""), ports("1024 65535", "3000-4000,9128"), ports("?", "")] {
        assert!(!machine.report().text().contains("listening ports:"));
    }
}

#[test]
fn report_lines_except_commands_fit_the_width() {
    let files = [
        ("proc/sys/net/core/somaxconn", Some("128")),
        ("proc/sys/kernel/threads-max", Some("7")),
        (
            "proc/sys/vm/max_map_count",
            Some("what it may be, and further, and further, and further, and further"),
        ),
        ("proc/sys/fs/epoll/max_user_watches", Some("9999999")),
        ("proc/sys/kernel/pid_max", Some("4611686018427387903")),
    ];
    for machine in [Machine::new(&[]), Machine::new(&files), Machine::limited("Max address space", 5 << 49)] {
        let text = machine.report().text();
        for line in text.lines().filter(|line| !line.starts_with("  to r")) {
            assert!(line.chars().count() <= WIDTH, "{} characters: {line}", line.chars().count());
        }
    }
}
