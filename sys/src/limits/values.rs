//! Every kernel limit that a gateway may reach, with its bound and its present use.
//!
//! Guarantees: a limit that cannot be read carries the error, and the others are read all the same.

use std::io;
use std::path::PathBuf;

use super::cgroup::{Membership, TightestBound};
use super::footprint;
use super::root::ProcRoot;

/// A limit. Its unit is the first word of its description.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Limit {
    /// Descriptors of a process (`RLIMIT_NOFILE`, the hard limit: `serve` raises the soft one to it; never
    /// more than `fs.nr_open`).
    Descriptors,
    /// Open files of the system (`fs.file-max`).
    OpenFiles,
    /// Threads of the system (`kernel.threads-max`).
    Threads,
    /// Thread ids (`kernel.pid_max`).
    ThreadIds,
    /// Threads of a user (`RLIMIT_NPROC`).
    UserThreads,
    /// Threads of a control group and those below it (`pids.max`).
    GroupThreads,
    /// Mappings of a process (`vm.max_map_count`).
    Mappings,
    /// Bytes of address space (`RLIMIT_AS`).
    AddressSpace,
    /// Bytes of writable private memory, touched or not (`RLIMIT_DATA`).
    Data,
    /// Bytes of the main thread's stack (`RLIMIT_STACK`).
    Stack,
    /// Bytes of memory that the kernel commits to processes (`vm.overcommit_memory` = 2: `CommitLimit`).
    Commit,
    /// Bytes of the machine's memory.
    Memory,
    /// Bytes of memory of a control group and those below it (`memory.max`).
    GroupMemory,
    /// Bytes that a process may lock in memory (`RLIMIT_MEMLOCK`).
    LockedMemory,
    /// Established connections in the accept queue of a listener (`net.core.somaxconn`).
    ListenQueue,
    /// Connections in the SYN queue of a listener (`net.ipv4.tcp_max_syn_backlog`).
    SynQueue,
    /// Local ports for connections to one destination (`net.ipv4.ip_local_port_range`).
    LocalPorts,
    /// Flows in the packet filter's tracking table (`net.netfilter.nf_conntrack_max`).
    Conntrack,
    /// Bytes of all TCP buffers (`net.ipv4.tcp_mem`).
    TcpMemory,
    /// Connections that were closed with unsent or unacknowledged bytes (`net.ipv4.tcp_max_orphans`).
    Orphans,
    /// Ended connections in TIME_WAIT (`net.ipv4.tcp_max_tw_buckets`).
    TimeWait,
    /// Pages in a user's pipes, above which new pipes are small (`fs.pipe-user-pages-soft`).
    PipePages,
    /// Descriptors that a user's epoll instances watch (`fs.epoll.max_user_watches`).
    EpollWatches,
}

impl Limit {
    /// Every limit, those on descriptors and threads first.
    pub const ALL: [Limit; 23] = {
        use Limit::*;
        [
            Descriptors,
            OpenFiles,
            Threads,
            ThreadIds,
            UserThreads,
            GroupThreads,
            Mappings,
            AddressSpace,
            Data,
            Stack,
            Commit,
            Memory,
            GroupMemory,
            LockedMemory,
            ListenQueue,
            SynQueue,
            LocalPorts,
            Conntrack,
            TcpMemory,
            Orphans,
            TimeWait,
            PipePages,
            EpollWatches,
        ]
    };

    /// Its name in reports: what it counts.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Descriptors => "descriptors",
            Limit::OpenFiles => "open files",
            Limit::Threads => "threads",
            Limit::ThreadIds => "thread ids",
            Limit::UserThreads => "threads of the user",
            Limit::GroupThreads => "threads of the cgroup",
            Limit::Mappings => "mappings",
            Limit::AddressSpace => "address space",
            Limit::Data => "private memory",
            Limit::Stack => "main stack",
            Limit::Commit => "committed memory",
            Limit::Memory => "memory",
            Limit::GroupMemory => "memory of the cgroup",
            Limit::LockedMemory => "locked memory",
            Limit::ListenQueue => "accept queue",
            Limit::SynQueue => "SYN queue",
            Limit::LocalPorts => "ports to one address",
            Limit::Conntrack => "tracked flows",
            Limit::TcpMemory => "TCP buffers",
            Limit::Orphans => "orphaned connections",
            Limit::TimeWait => "TIME_WAIT",
            Limit::PipePages => "pipe pages",
            Limit::EpollWatches => "epoll watches",
        }
    }

    /// The kernel's name of it.
    pub const fn setting(self) -> &'static str {
        match self {
            Limit::Descriptors => "RLIMIT_NOFILE",
            Limit::OpenFiles => "fs.file-max",
            Limit::Threads => "kernel.threads-max",
            Limit::ThreadIds => "kernel.pid_max",
            Limit::UserThreads => "RLIMIT_NPROC",
            Limit::GroupThreads => "pids.max",
            Limit::Mappings => "vm.max_map_count",
            Limit::AddressSpace => "RLIMIT_AS",
            Limit::Data => "RLIMIT_DATA",
            Limit::Stack => "RLIMIT_STACK",
            Limit::Commit => "CommitLimit",
            Limit::Memory => "MemAvailable",
            Limit::GroupMemory => "memory.max",
            Limit::LockedMemory => "RLIMIT_MEMLOCK",
            Limit::ListenQueue => "net.core.somaxconn",
            Limit::SynQueue => "tcp_max_syn_backlog",
            Limit::LocalPorts => "ip_local_port_range",
            Limit::Conntrack => "nf_conntrack_max",
            Limit::TcpMemory => "tcp_mem",
            Limit::Orphans => "tcp_max_orphans",
            Limit::TimeWait => "tcp_max_tw_buckets",
            Limit::PipePages => "pipe-user-pages-soft",
            Limit::EpollWatches => "max_user_watches",
        }
    }
}

/// The value of one limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LimitValue {
    /// The limit.
    pub limit: Limit,
    /// Its bound; `None` for unlimited, or for unknown, where `error` has the error.
    pub bound: Option<u64>,
    /// Its present use, by all processes that share the limit; `None` where the kernel does not state it.
    pub used: Option<u64>,
    /// The file that states it, where its path differs between machines.
    pub file: Option<PathBuf>,
    /// Another limit to which this one can be raised at most (`fs.nr_open`, for descriptors).
    pub ceiling: Option<u64>,
    /// Why the limit does not apply to this process.
    pub exempt: Option<&'static str>,
    /// The error of a file that could not be read or parsed.
    pub error: Option<String>,
}

impl LimitValue {
    /// What is free of it; `None` where the limit is unlimited, unknown, or does not apply.
    pub fn free(&self) -> Option<u64> {
        match (self.bound, self.exempt) {
            (Some(bound), None) => Some(bound.saturating_sub(self.used.unwrap_or(0))),
            _ => None,
        }
    }
}

/// Reads every limit of the machine at `root`.
pub fn read_all(root: &ProcRoot) -> Vec<LimitValue> {
    let reader = LimitReader::new(root);
    Limit::ALL.iter().map(|limit| reader.read(*limit)).collect()
}

/// As [`read_all`], in a millisecond on the largest machine. The exact count of our user's threads takes a
/// walk over all processes. Far from that limit the count of the whole system, which is an upper bound,
/// replaces it.
pub fn read_all_quickly(root: &ProcRoot) -> Vec<LimitValue> {
    let reader = LimitReader::new(root);
    Limit::ALL.iter().map(|limit| reader.read_quickly(*limit)).collect()
}

/// With at least this many free threads the user's thread limit is far.
const NEAR_THREADS: u64 = 4096;

/// The bound and the use of one limit.
type BoundAndUse = (Option<u64>, Option<u64>);

/// Reads limits; a file with several of them is read once.
pub(super) struct LimitReader<'a> {
    root: &'a ProcRoot,
    limits: io::Result<String>,
    status: io::Result<String>,
    meminfo: io::Result<String>,
    /// Threads in the system.
    threads: io::Result<u64>,
    groups: Membership<'a>,
    privileges: Privileges,
}

impl LimitReader<'_> {
    pub(super) fn new(root: &ProcRoot) -> LimitReader<'_> {
        let status = root.read_text("/proc/self/status");
        let privileges = Privileges::read(status.as_deref().unwrap_or(""), root);
        LimitReader {
            root,
            limits: root.read_text("/proc/self/limits"),
            status,
            meminfo: root.read_text("/proc/meminfo"),
            threads: read_threads(root),
            groups: Membership::read(root),
            privileges,
        }
    }

    pub(super) fn read(&self, limit: Limit) -> LimitValue {
        let group = match limit {
            Limit::GroupThreads => Some(self.groups.tasks()),
            Limit::GroupMemory => Some(self.groups.memory()),
            _ => None,
        };
        let blank = LimitValue {
            limit,
            bound: None,
            used: None,
            file: None,
            ceiling: None,
            exempt: None,
            error: None,
        };
        if let Some(TightestBound { bound, error }) = group {
            return match bound {
                Some((bound, used, file)) => {
                    LimitValue { bound: Some(bound), used: Some(used), file: Some(file), error, ..blank }
                }
                None => LimitValue { error, ..blank },
            };
        }
        match self.read_bound_and_use(limit) {
            Ok((bound, used)) => {
                let ceiling = if limit == Limit::Descriptors { self.nr_open() } else { None };
                LimitValue { bound, used, ceiling, exempt: self.exempt(limit), ..blank }
            }
            Err(error) => LimitValue { error: Some(error.to_string()), ..blank },
        }
    }

    /// Reads one limit the way [`read_all_quickly`] does.
    pub(super) fn read_quickly(&self, limit: Limit) -> LimitValue {
        if limit != Limit::UserThreads {
            return self.read(limit);
        }
        let (Ok(bound), Ok(used)) = (self.user_threads_max(), self.threads()) else {
            return self.read(limit);
        };
        let exempt = self.exempt(limit);
        let is_near = bound.is_some_and(|bound| bound.saturating_sub(used) < NEAR_THREADS);
        match is_near && exempt.is_none() {
            true => self.read(limit),
            false => {
                LimitValue { limit, bound, used: Some(used), file: None, ceiling: None, exempt, error: None }
            }
        }
    }

    fn read_bound_and_use(&self, limit: Limit) -> io::Result<BoundAndUse> {
        let root = self.root;
        match limit {
            Limit::Descriptors => self.descriptors(),
            Limit::OpenFiles => {
                sysctl(root, "fs/file-max", Some(root.read_numbers("/proc/sys/fs/file-nr", 1)?[0]))
            }
            Limit::Threads => sysctl(root, "kernel/threads-max", Some(self.threads()?)),
            Limit::ThreadIds => sysctl(root, "kernel/pid_max", Some(self.threads()?)),
            Limit::UserThreads => Ok((self.user_threads_max()?, Some(self.user_threads()?))),
            Limit::Mappings => sysctl(root, "vm/max_map_count", Some(footprint::maps(root)?)),
            Limit::AddressSpace => Ok((self.rlimit("Max address space")?.0, self.status_bytes("VmSize:"))),
            Limit::Data => Ok((self.rlimit("Max data size")?.0, self.status_bytes("VmData:"))),
            Limit::Stack => Ok((self.rlimit("Max stack size")?.0, self.status_bytes("VmStk:"))),
            Limit::LockedMemory => Ok((self.rlimit("Max locked memory")?.0, self.status_bytes("VmLck:"))),
            Limit::Commit => self.commit(),
            Limit::Memory => self.memory(),
            Limit::ListenQueue => sysctl(root, "net/core/somaxconn", None),
            Limit::SynQueue => sysctl(root, "net/ipv4/tcp_max_syn_backlog", None),
            Limit::LocalPorts => super::LocalPorts::read(root).map(|ports| (Some(ports.count()), None)),
            Limit::Conntrack => conntrack(root),
            Limit::TcpMemory => tcp_memory(root),
            Limit::Orphans => sysctl(root, "net/ipv4/tcp_max_orphans", sockets(root, "orphan")?),
            Limit::TimeWait => sysctl(root, "net/ipv4/tcp_max_tw_buckets", sockets(root, "tw")?),
            Limit::PipePages => {
                let pages = root.read_number("/proc/sys/fs/pipe-user-pages-soft")?;
                Ok(((pages != 0).then_some(pages), None))
            }
            Limit::EpollWatches => sysctl(root, "fs/epoll/max_user_watches", None),
            Limit::GroupThreads | Limit::GroupMemory => unreachable!("groups are read by `cgroup`"),
        }
    }

    /// Descriptors, including the handle that counts them.
    fn descriptors(&self) -> io::Result<BoundAndUse> {
        let hard = self.rlimit("Max open files")?.1.unwrap_or(u64::MAX);
        let bound = hard.min(self.nr_open().unwrap_or(u64::MAX));
        let used = std::fs::read_dir(self.root.path("/proc/self/fd")).ok().map(|open| open.count() as u64);
        Ok(((bound != u64::MAX).then_some(bound), used))
    }

    fn nr_open(&self) -> Option<u64> {
        self.root.read_number("/proc/sys/fs/nr_open").ok()
    }

    /// The soft and the hard limit of a row of `/proc/self/limits`; `None` is `unlimited`.
    fn rlimit(&self, row: &str) -> io::Result<(Option<u64>, Option<u64>)> {
        let text = borrow_result(&self.limits)?;
        let parse_limit = |word: &str| match word {
            "unlimited" => Some(None),
            word => super::root::parse_number(word).map(Some),
        };
        text.lines()
            .find_map(|line| {
                let mut words = line.strip_prefix(row)?.split_whitespace().map(parse_limit);
                Some((words.next()??, words.next()??))
            })
            .ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("/proc/self/limits: no {row:?}"))
            })
    }

    fn commit(&self) -> io::Result<BoundAndUse> {
        /// `vm.overcommit_memory`: the kernel commits no more memory than exists.
        const NEVER: u64 = 2;
        if self.root.read_number("/proc/sys/vm/overcommit_memory")? != NEVER {
            return Ok((None, None));
        }
        let text = borrow_result(&self.meminfo)?;
        match kilobytes(text, "CommitLimit:") {
            Some(bound) => Ok((Some(bound), kilobytes(text, "Committed_AS:"))),
            None => Err(super::root::malformed("/proc/meminfo".as_ref(), text)),
        }
    }

    fn memory(&self) -> io::Result<BoundAndUse> {
        let text = borrow_result(&self.meminfo)?;
        match (kilobytes(text, "MemTotal:"), kilobytes(text, "MemAvailable:")) {
            (Some(total), Some(available)) => Ok((Some(total), Some(total.saturating_sub(available)))),
            _ => Err(super::root::malformed("/proc/meminfo".as_ref(), text)),
        }
    }

    /// Threads in the system.
    fn threads(&self) -> io::Result<u64> {
        borrow_result(&self.threads).copied()
    }

    /// A row of `/proc/self/status` in kB, converted to bytes.
    fn status_bytes(&self, row: &str) -> Option<u64> {
        kilobytes(self.status.as_ref().ok()?, row)
    }

    /// The soft limit of the user's threads: the kernel enforces it, and this process does not raise it.
    fn user_threads_max(&self) -> io::Result<Option<u64>> {
        Ok(self.rlimit("Max processes")?.0)
    }

    /// Threads of our user, as far as `/proc` shows them: a walk over all processes, which takes milliseconds
    /// for thousands of them.
    fn user_threads(&self) -> io::Result<u64> {
        borrow_result(&self.status)?;
        let mut count = 0;
        for entry in std::fs::read_dir(self.root.path("/proc"))?.flatten() {
            if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            // A process that ends meanwhile no longer counts.
            let Ok(status) = std::fs::read(entry.path().join("status")) else { continue };
            let status = String::from_utf8_lossy(&status);
            if uid(&status) == Some(self.privileges.uid) {
                count += field(&status, "Threads:").and_then(super::root::parse_number).unwrap_or(1);
            }
        }
        Ok(count)
    }

    fn has_syncookies(&self) -> bool {
        self.root.read_number("/proc/sys/net/ipv4/tcp_syncookies").is_ok_and(|mode| mode != 0)
    }

    fn exempt(&self, limit: Limit) -> Option<&'static str> {
        let Privileges { is_root, has_sys_resource, has_sys_admin, has_ipc_lock, .. } = self.privileges;
        match limit {
            Limit::UserThreads if is_root => Some("root is exempt"),
            Limit::UserThreads | Limit::PipePages if has_sys_resource => Some("CAP_SYS_RESOURCE is exempt"),
            Limit::UserThreads | Limit::PipePages | Limit::OpenFiles if has_sys_admin => {
                Some("CAP_SYS_ADMIN is exempt")
            }
            Limit::LockedMemory if has_ipc_lock => Some("CAP_IPC_LOCK is exempt"),
            // With cookies only the backlog bounds the queue of a listener (tcp_conn_request).
            Limit::SynQueue if self.has_syncookies() => Some("tcp_syncookies replace it"),
            _ => None,
        }
    }
}

/// The privileges of this process that lift limits. They count in the initial user namespace only: in
/// another one neither a capability nor user id 0 lifts a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Privileges {
    uid: u64,
    is_root: bool,
    has_sys_resource: bool,
    has_sys_admin: bool,
    has_ipc_lock: bool,
}

impl Privileges {
    fn read(status: &str, root: &ProcRoot) -> Privileges {
        // Bits of CapEff (capabilities(7)): CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_SYS_RESOURCE.
        const IPC_LOCK: u32 = 14;
        const SYS_ADMIN: u32 = 21;
        const SYS_RESOURCE: u32 = 24;
        let map = root.read_numbers("/proc/self/uid_map", 3);
        // `0 0 4294967295` maps every id to itself.
        let is_first_namespace = map.is_ok_and(|map| map[..3] == [0, 0, u64::from(u32::MAX)]);
        let effective =
            field(status, "CapEff:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        let has = |capability: u32| is_first_namespace && effective >> capability & 1 == 1;
        // Without a status file: an id that no process has, so that no thread counts as ours.
        let uid = uid(status).unwrap_or(u64::MAX);
        Privileges {
            uid,
            is_root: is_first_namespace && uid == 0,
            has_sys_resource: has(SYS_RESOURCE),
            has_sys_admin: has(SYS_ADMIN),
            has_ipc_lock: has(IPC_LOCK),
        }
    }
}

/// The real user id, the first number of the row: the kernel counts threads by it.
fn uid(status: &str) -> Option<u64> {
    field(status, "Uid:").and_then(super::root::parse_number)
}

fn field<'a>(status: &'a str, row: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(row))?.split_whitespace().next()
}

fn kilobytes(text: &str, row: &str) -> Option<u64> {
    field(text, row).and_then(super::root::parse_number).map(|kilobytes| kilobytes.saturating_mul(1024))
}

/// Borrows the value, or copies the error.
fn borrow_result<T>(read: &io::Result<T>) -> io::Result<&T> {
    read.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))
}

fn sysctl(root: &ProcRoot, name: &str, used: Option<u64>) -> io::Result<BoundAndUse> {
    Ok((Some(root.read_number(format!("/proc/sys/{name}"))?), used))
}

/// Threads in the system: `1.95 1.79 1.49 3/105 14750` states 105 (proc_loadavg(5)).
fn read_threads(root: &ProcRoot) -> io::Result<u64> {
    let text = root.read_text("/proc/loadavg")?;
    let count = text.split_whitespace().nth(3).and_then(|word| word.split_once('/')?.1.parse().ok());
    count.ok_or_else(|| super::root::malformed("/proc/loadavg".as_ref(), &text))
}

/// Without the files connection tracking is not loaded, and there is no limit.
fn conntrack(root: &ProcRoot) -> io::Result<BoundAndUse> {
    match root.read_number("/proc/sys/net/netfilter/nf_conntrack_max") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((None, None)),
        bound => Ok((Some(bound?), root.read_number("/proc/sys/net/netfilter/nf_conntrack_count").ok())),
    }
}

/// Both files count in pages.
fn tcp_memory(root: &ProcRoot) -> io::Result<BoundAndUse> {
    let page_bytes = super::page_bytes();
    let max = root.read_numbers("/proc/sys/net/ipv4/tcp_mem", 3)?[2];
    let used = sockets(root, "mem")?.map(|pages| pages.saturating_mul(page_bytes));
    Ok((Some(max.saturating_mul(page_bytes)), used))
}

/// One number of the line `TCP: inuse 1 orphan 0 tw 0 alloc 1 mem 170`.
fn sockets(root: &ProcRoot, name: &str) -> io::Result<Option<u64>> {
    let text = root.read_text("/proc/net/sockstat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let mut words = line.unwrap_or("").split_whitespace();
    words.find(|word| *word == name);
    Ok(words.next().and_then(super::root::parse_number))
}

#[cfg(all(test, not(loom)))]
mod tests;
