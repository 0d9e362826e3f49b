//! The limits of this machine, read from the kernel, and the few that a process may change itself.
//!
//! Guarantees: each value is read at the call and never cached, except the footprint of a thread, which is
//! measured once per process.
//!
//! ```text
//!   values.rs   every limit, with its use        budget.rs     how many more threads may be started
//!   cgroup.rs   control groups, both versions    footprint.rs  what a thread takes, measured
//!   ports.rs    which ports outgoing connections take
//!   root.rs     where /proc and /sys are read    cpus.rs       which CPUs, on which cores
//! ```

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};

mod budget;
pub mod cgroup;
pub mod cpus;
#[cfg(all(test, not(loom)))]
pub(crate) mod fixture;
mod footprint;
mod ports;
mod root;
mod values;

pub use budget::{THREAD_MEMORY_BYTES, ThreadBudget, thread_budget, threads_within};
pub use footprint::{FOOTPRINT_USUAL, Footprint, footprint};
pub use ports::{LocalPorts, explain_bind_error};
pub use root::ProcRoot;
pub use values::{Limit, LimitValue, read_all, read_all_quickly};

/// How many descriptors this process may have open: soft and hard limit (`RLIMIT_NOFILE`); `u64::MAX` is
/// unlimited.
pub fn descriptor_limits() -> (u64, u64) {
    let limit = getrlimit(Resource::Nofile);
    (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

/// Raises the soft descriptor limit to the hard one and returns it. Many systems start services with
/// 1,024, which is 500 tunnels.
///
/// # Errors
/// Those of setrlimit(2); none is expected.
pub fn raise_descriptors() -> io::Result<u64> {
    // setrlimit fails with EPERM above `fs.nr_open`, even if the hard limit is older and greater.
    let ceiling = ProcRoot::machine().read_number("/proc/sys/fs/nr_open").ok();
    let maximum = getrlimit(Resource::Nofile).maximum.into_iter().chain(ceiling).min();
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(descriptor_limits().0)
}

/// The number of descriptors that this process has open.
///
/// # Errors
/// `/proc` is not mounted, or no descriptor is left to read it with.
pub fn open_descriptors() -> io::Result<u64> {
    // Without the directory handle that this count has open.
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1) as u64)
}

/// The number of CPUs that this process may use: affinity and the cgroup's quota count. At least 1.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of a page, in which the kernel counts pipes and the buffers of sockets.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf takes a number and returns one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).expect("sysconf returns a positive page size")
}

/// The effective user id of this process.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The id of the machine's current boot (`kernel.random.boot_id`). A kill test may replace it
/// (`crash::override_boot_id`).
///
/// # Errors
/// `/proc` is not mounted, or the file holds no such number.
pub fn boot_id() -> io::Result<u128> {
    #[cfg(feature = "crash")]
    if let Some(boot) = crate::crash::boot_id_override() {
        return Ok(boot);
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).map_err(io::Error::other)
}

/// Sets the niceness of the calling thread: 19 is the lowest priority, 0 the normal one.
///
/// # Errors
/// `EACCES` for a negative value without the privilege.
pub fn set_thread_niceness(niceness: i32) -> io::Result<()> {
    // On Linux niceness belongs to a thread, and PRIO_PROCESS takes a thread's id (setpriority(2), NOTES).
    Ok(setpriority_process(Some(rustix::thread::gettid()), niceness)?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn descriptor_and_cpu_limits_are_plausible() {
        let (soft, hard) = descriptor_limits();
        assert!(0 < soft && soft <= hard);
        assert!(open_descriptors().unwrap() >= 3);
        assert!(cpus() >= 1);
    }
}
