//! Each limit of a fixture machine, with valid, broken and missing files; and the limits of this machine.

use super::*;
use crate::limits::fixture::{Machine, ample};

fn read(machine: &Machine, limit: Limit) -> LimitValue {
    LimitReader::new(&machine.root()).read(limit)
}

/// Overwrites the file with `text` and expects this bound and use of `limit`.
#[track_caller]
fn check(path: &str, text: &str, limit: Limit, bound: Option<u64>, used: Option<u64>) {
    let machine = ample();
    machine.write(path, text);
    let value = read(&machine, limit);
    assert_eq!((value.bound, value.used), (bound, used), "{path} = {text:?}: {value:?}");
    assert_eq!(value.error, None);
}

#[test]
fn each_limit_has_bound_and_use() {
    let page_bytes = crate::limits::page_bytes();
    check("proc/sys/fs/file-max", "5000", Limit::OpenFiles, Some(5000), Some(420));
    check("proc/sys/kernel/threads-max", "5000", Limit::Threads, Some(5000), Some(1000));
    check("proc/sys/kernel/pid_max", "5000", Limit::ThreadIds, Some(5000), Some(1000));
    check("proc/sys/vm/max_map_count", "5000", Limit::Mappings, Some(5000), Some(200));
    check("sys/fs/cgroup/own/pids.max", "5000", Limit::GroupThreads, Some(5000), Some(4));
    check("sys/fs/cgroup/own/memory.max", "5000000", Limit::GroupMemory, Some(5_000_000), Some(1_310_720));
    check("proc/sys/net/core/somaxconn", "128", Limit::ListenQueue, Some(128), None);
    check("proc/sys/net/ipv4/tcp_max_syn_backlog", "128", Limit::SynQueue, Some(128), None);
    check("proc/sys/net/ipv4/tcp_max_orphans", "128", Limit::Orphans, Some(128), Some(5));
    check("proc/sys/net/ipv4/tcp_max_tw_buckets", "128", Limit::TimeWait, Some(128), Some(7));
    let bytes = |pages: u64| Some(pages * page_bytes);
    check("proc/sys/net/ipv4/tcp_mem", "1 2 3", Limit::TcpMemory, bytes(3), bytes(170));
    check("proc/sys/fs/epoll/max_user_watches", "9", Limit::EpollWatches, Some(9), None);
    check("proc/sys/fs/pipe-user-pages-soft", "16384", Limit::PipePages, Some(16_384), None);
    check("proc/sys/fs/pipe-user-pages-soft", "0", Limit::PipePages, None, None);
    check("proc/sys/net/netfilter/nf_conntrack_max", "77", Limit::Conntrack, Some(77), None);
    check("proc/sys/net/netfilter/nf_conntrack_count", "77", Limit::Conntrack, None, None);
    check("proc/sys/net/ipv4/ip_local_port_range", "32768 60999", Limit::LocalPorts, Some(28_232), None);
    check(
        "proc/sys/net/ipv4/ip_local_reserved_ports",
        "80,2000-2009\n",
        Limit::LocalPorts,
        Some(64_502),
        None,
    );
    let available = (Some(64_000_000 * 1024), Some(4_000_000 * 1024));
    check("proc/sys/vm/overcommit_memory", "0", Limit::Memory, available.0, available.1);
    check("proc/sys/vm/overcommit_memory", "0", Limit::Commit, None, None);
    let commit = (Some(32_000_000 * 1024), Some(1_000_000 * 1024));
    check("proc/sys/vm/overcommit_memory", "2", Limit::Commit, commit.0, commit.1);
    // The hard limit counts, but never beyond `fs.nr_open`.
    check("proc/sys/fs/nr_open", "1000000000", Limit::Descriptors, Some(1_048_576), Some(3));
    check("proc/sys/fs/nr_open", "5000", Limit::Descriptors, Some(5000), Some(3));
}

#[test]
fn process_limits_are_the_soft_ones() {
    let check = |row: &str, limit: Limit, used: u64| {
        let machine = ample();
        machine.write_rlimit(row, 5_000_000);
        let value = read(&machine, limit);
        assert_eq!((value.bound, value.used), (Some(5_000_000), Some(used)), "{row}");
    };
    check("Max processes", Limit::UserThreads, 0);
    check("Max address space", Limit::AddressSpace, 3060 * 1024);
    check("Max data size", Limit::Data, 360 * 1024);
    check("Max stack size", Limit::Stack, 132 * 1024);
    check("Max locked memory", Limit::LockedMemory, 0);
    assert_eq!(read(&ample(), Limit::AddressSpace).bound, None, "unlimited");
}

#[test]
fn privileges_count_in_the_first_namespace_only() {
    let check = |capabilities: &str, uid: &str, namespace: &str, expected: &[Limit]| {
        let machine = ample();
        machine.replace("proc/self/status", "CapEff:\t0000000000000000", &format!("CapEff:\t{capabilities}"));
        machine.replace("proc/self/status", "Uid:\t1000", &format!("Uid:\t{uid}"));
        machine.write("proc/self/uid_map", namespace);
        let values = read_all(&machine.root());
        let exempt: Vec<_> = values.iter().filter(|it| it.exempt.is_some()).map(|it| it.limit).collect();
        assert_eq!(exempt, expected, "{capabilities} {uid} {namespace}");
        assert!(values.iter().all(|it| it.exempt.is_none() || it.free().is_none()));
    };
    let first = "         0          0 4294967295\n";
    check("0000000000000000", "1000", first, &[]);
    check("0000000000000000", "0", first, &[Limit::UserThreads]);
    check("0000000000004000", "1000", first, &[Limit::LockedMemory]);
    check("0000000001000000", "1000", first, &[Limit::UserThreads, Limit::PipePages]);
    check("0000000000200000", "1000", first, &[Limit::OpenFiles, Limit::UserThreads, Limit::PipePages]);
    check("000001ffffffffff", "0", "0 1000 1\n", &[]);
    check("garbage", "0x", first, &[]);
}

#[test]
fn syncookies_exempt_the_syn_queue() {
    let machine = ample();
    assert_eq!(read(&machine, Limit::SynQueue).exempt, None);
    machine.write("proc/sys/net/ipv4/tcp_syncookies", "1");
    assert_eq!(read(&machine, Limit::SynQueue).free(), None);
}

#[test]
fn quick_read_differs_only_in_user_threads() {
    let machine = ample();
    let check = |limit: u64, expected: u64| {
        machine.write_rlimit("Max processes", limit);
        for (quick, exact) in read_all_quickly(&machine.root()).iter().zip(read_all(&machine.root())) {
            match quick.limit {
                Limit::UserThreads => assert_eq!(quick.used, Some(expected)),
                _ => assert_eq!(*quick, exact),
            }
        }
    };
    check(1_000_000, 1000);
    check(4000, 0);
}

#[test]
fn unreadable_limits_are_reported_rest_is_read() {
    let files = [
        ("proc/sys/fs/file-nr", Limit::OpenFiles),
        ("proc/sys/fs/file-max", Limit::OpenFiles),
        ("proc/sys/kernel/threads-max", Limit::Threads),
        ("proc/sys/kernel/pid_max", Limit::ThreadIds),
        ("proc/loadavg", Limit::ThreadIds),
        ("proc/self/status", Limit::UserThreads),
        ("proc/sys/vm/max_map_count", Limit::Mappings),
        ("proc/sys/vm/overcommit_memory", Limit::Commit),
        ("proc/meminfo", Limit::Memory),
        ("proc/sys/net/core/somaxconn", Limit::ListenQueue),
        ("proc/sys/net/ipv4/tcp_max_syn_backlog", Limit::SynQueue),
        ("proc/sys/net/ipv4/ip_local_port_range", Limit::LocalPorts),
        ("proc/sys/net/ipv4/tcp_mem", Limit::TcpMemory),
        ("proc/sys/net/ipv4/tcp_max_orphans", Limit::Orphans),
        ("proc/sys/net/ipv4/tcp_max_tw_buckets", Limit::TimeWait),
        ("proc/sys/fs/pipe-user-pages-soft", Limit::PipePages),
        ("proc/sys/fs/epoll/max_user_watches", Limit::EpollWatches),
        ("proc/self/limits", Limit::Stack),
    ];
    for (path, limit) in files {
        let machine = ample();
        machine.remove(path);
        let missing = read(&machine, limit);
        assert_eq!(missing.bound, None, "{path} is missing");
        assert!(missing.error.unwrap().contains(path), "{path} is missing");
        for bad in ["", "max", "\u{0}\u{7f}", "-7", "one two three", "1 2x"] {
            machine.write(path, bad);
            let values = read_all(&machine.root());
            assert_eq!(values.len(), Limit::ALL.len());
            let failed = values.iter().filter(|it| it.error.is_some()).count();
            assert!(failed <= 6, "{path} = {bad:?}: {failed} limits are lost");
        }
    }
    let machine = ample();
    machine.write("proc/sys/net/ipv4/ip_local_port_range", "60999 32768");
    assert!(read(&machine, Limit::LocalPorts).error.is_some());
    machine.write("proc/sys/kernel/threads-max", "99999999999999999999999");
    assert_eq!(read(&machine, Limit::Threads).bound, Some(u64::MAX));
}

#[test]
fn names_and_settings_are_unique() {
    for (name, which) in [(Limit::name as fn(Limit) -> &'static str, "name"), (Limit::setting, "setting")] {
        let mut all: Vec<_> = Limit::ALL.iter().map(|limit| name(*limit)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), Limit::ALL.len(), "{which}");
    }
}

#[test]
fn limits_of_this_machine_are_read() {
    for value in read_all(&ProcRoot::machine()) {
        let is_essential = matches!(
            value.limit,
            Limit::Descriptors | Limit::Threads | Limit::ThreadIds | Limit::UserThreads | Limit::Mappings
        );
        assert!(!is_essential || value.error.is_none(), "{value:?}");
    }
}
