//! Remedies: the error that shows a limit, and the command that raises it.
//!
//! Guarantees: root can paste a command as it is on this machine. It has the path of this process's control
//! group and a sufficient amount.

use std::path::Path;

use sys::limits::{Limit, page_bytes};

use super::finding::{Finding, State};

/// The largest `kernel.pid_max`.
const PID_MAX: u64 = 4_194_304;

/// The number of unprivileged ports: 1024 to 65535.
const PORTS_MAX: u64 = 64_512;

/// The errors and symptoms once the limit is met.
pub(super) fn error(limit: Limit) -> &'static str {
    match limit {
        Limit::Descriptors => "EMFILE from accept and connect: clients wait in the queue, requests get 503",
        Limit::OpenFiles => "ENFILE from accept and connect, in every process of the machine",
        Limit::Threads => "EAGAIN from clone: `serve` does not start, a pool does not grow",
        Limit::ThreadIds => {
            "EAGAIN from clone (ENOMEM where a pid namespace ends): `serve` does not start, a pool does not \
             grow"
        }
        Limit::UserThreads => "EAGAIN from clone, also for other programs of the user",
        Limit::GroupThreads => "EAGAIN from clone; `pids.events` counts it",
        Limit::Mappings => {
            "ENOMEM from mmap, which a thread's start reports as EAGAIN; with 3 to 6 mappings left a new \
             thread aborts the process"
        }
        Limit::AddressSpace => {
            "ENOMEM from mmap: a thread is refused, or the process aborts for want of memory"
        }
        Limit::Data => {
            "ENOMEM from mmap and brk: a thread is refused, or the process aborts for want of memory"
        }
        Limit::Stack => "SIGSEGV in the main thread",
        Limit::Commit => "ENOMEM from mmap: a thread is refused, or the process aborts for want of memory",
        Limit::Memory => "the kernel kills a process (SIGKILL), not necessarily this one",
        Limit::GroupMemory => "the kernel kills a process of the group (SIGKILL); `memory.events` counts it",
        Limit::LockedMemory => {
            "ENOMEM from mlock: the live table may be swapped, and a count may wait for the disk"
        }
        Limit::ListenQueue => {
            "silent: SYNs are dropped, clients try again after 1 s; ListenOverflows counts it"
        }
        Limit::SynQueue => {
            "silent: SYNs are dropped, clients try again after 1 s; the kernel's log says SYN flooding"
        }
        Limit::LocalPorts => {
            "EADDRNOTAVAIL from connect, if all connections lead to one address and port: 503"
        }
        Limit::Conntrack => {
            "silent: packets are dropped, which looks like a connect timeout; log: table full"
        }
        Limit::TcpMemory => {
            "silent: segments are dropped and windows shrink; the kernel's log says out of memory"
        }
        Limit::Orphans => "RST in place of the last bytes; the kernel's log says too many orphaned sockets",
        Limit::TimeWait => {
            "silent: TIME_WAIT is left out; the kernel's log says time wait bucket table overflow"
        }
        Limit::PipePages => "silent: new pipes have two pages, and splicing loses its gain",
        Limit::EpollWatches => "ENOSPC from epoll_ctl: the connection is closed",
    }
}

/// The command that raises the limit to the need, or doubles a sufficient one; `None` where nothing is
/// limited.
pub(super) fn command(finding: &Finding) -> Option<String> {
    finding.available?;
    let bound = finding.reading.bound?;
    let amount = match finding.state {
        State::Fine => bound.saturating_mul(2),
        _ => finding.in_use.saturating_add(finding.needed),
    };
    // A round number with some reserve for other processes.
    let count = amount.checked_next_power_of_two().unwrap_or(amount);
    Some(raised(finding, bound, count))
}

fn raised(finding: &Finding, bound: u64, count: u64) -> String {
    let file = finding.reading.file.as_deref();
    let limit = finding.limit();
    match limit {
        Limit::Descriptors => descriptors(count, finding.reading.ceiling),
        Limit::OpenFiles => sysctl("fs.file-max", count),
        Limit::Threads => sysctl("kernel.threads-max", count),
        Limit::ThreadIds if bound >= PID_MAX => "no command does: the kernel has no more ids".to_owned(),
        Limit::ThreadIds => sysctl("kernel.pid_max", count.min(PID_MAX)),
        Limit::UserThreads => format!("ulimit -u {count} # systemd: LimitNPROC={count}"),
        Limit::GroupThreads => group(file, "TasksMax", count),
        Limit::GroupMemory => group(file, "MemoryMax", count),
        Limit::Mappings => sysctl("vm.max_map_count", count),
        Limit::AddressSpace => ulimit_bytes('v', "LimitAS", count),
        Limit::Data => ulimit_bytes('d', "LimitDATA", count),
        Limit::Stack => ulimit_bytes('s', "LimitSTACK", count),
        Limit::LockedMemory => ulimit_bytes('l', "LimitMEMLOCK", count),
        Limit::Commit => sysctl("vm.overcommit_memory", 0),
        Limit::Memory => "no command does: lower [limits] connections, or add memory".to_owned(),
        Limit::ListenQueue => sysctl("net.core.somaxconn", count),
        Limit::SynQueue => sysctl("net.ipv4.tcp_max_syn_backlog", count),
        Limit::LocalPorts if bound >= PORTS_MAX => {
            "no command does: lower [limits] connections, or lead them to several addresses".to_owned()
        }
        Limit::LocalPorts => "sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"".to_owned(),
        Limit::Conntrack => sysctl("net.netfilter.nf_conntrack_max", count),
        Limit::TcpMemory => {
            let pages = count.div_ceil(page_bytes());
            format!("sysctl -w net.ipv4.tcp_mem=\"{} {} {pages}\"", pages / 2, pages / 3 * 2)
        }
        Limit::Orphans => sysctl("net.ipv4.tcp_max_orphans", count),
        Limit::TimeWait => sysctl("net.ipv4.tcp_max_tw_buckets", count),
        Limit::PipePages => sysctl("fs.pipe-user-pages-soft", count),
        Limit::EpollWatches => sysctl("fs.epoll.max_user_watches", count),
    }
}

fn sysctl(name: &str, value: u64) -> String {
    format!("sysctl -w {name}={value}")
}

/// The command that sets a limit in bytes: `ulimit`, in the shell that starts Tollgate, takes KiB, and the
/// directive of systemd bytes.
fn ulimit_bytes(letter: char, directive: &str, bytes: u64) -> String {
    format!("ulimit -{letter} {} # systemd: {directive}={bytes}", bytes.div_ceil(1024))
}

/// `fs.nr_open` is the upper bound of a process's descriptors.
fn descriptors(count: u64, most: Option<u64>) -> String {
    let raised = format!("ulimit -n {count} # systemd: LimitNOFILE={count}");
    match most {
        Some(most) if most < count => format!("sysctl -w fs.nr_open={count} && {raised}"),
        _ => raised,
    }
}

/// Sets a bound of a systemd unit through systemd, which overwrites a value that is written into the unit's
/// control group directly.
fn group(file: Option<&Path>, property: &str, value: u64) -> String {
    let Some(file) = file else { return format!("systemctl set-property UNIT {property}={value}") };
    let unit = file.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("");
    let is_unit = [".service", ".scope", ".slice"].iter().any(|kind| unit.ends_with(kind));
    match is_unit {
        true => format!("systemctl set-property {unit} {property}={value}"),
        false => format!("echo {value} > {}", file.display()),
    }
}
