//! What this machine permits, read from the kernel, and the few limits that a process may move itself.
//!
//! Promises: figures as the kernel states them now, never remembered. Leaves to others: what a load
//! needs of them (`tollgate doctor`).

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};

/// How many descriptors this process may hold: soft and hard limit (`RLIMIT_NOFILE`); `u64::MAX` is
/// without limit.
pub fn descriptors() -> (u64, u64) {
    let limit = getrlimit(Resource::Nofile);
    (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

/// Raises the soft descriptor limit to the hard one and returns it. Many systems start services with
/// 1,024, which is 500 tunnels.
///
/// # Errors
/// `EPERM` when the hard limit is above `fs.nr_open`.
pub fn raise_descriptors() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(descriptors().0)
}

/// Descriptors that this process holds now.
///
/// # Errors
/// `/proc` is not mounted, or no descriptor is left to read it with.
pub fn descriptors_open() -> io::Result<u64> {
    // The directory handle that does the counting is not one of ours.
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1) as u64)
}

/// Mappings that a process may have (`vm.max_map_count`); a Rust thread takes about four.
///
/// # Errors
/// The file is missing or holds no number.
pub fn max_map_count() -> io::Result<u64> {
    number("/proc/sys/vm/max_map_count")
}

/// Threads that the system may have (`kernel.threads-max`).
///
/// # Errors
/// The file is missing or holds no number.
pub fn threads_max() -> io::Result<u64> {
    number("/proc/sys/kernel/threads-max")
}

/// Process and thread ids that the system may give out (`kernel.pid_max`).
///
/// # Errors
/// The file is missing or holds no number.
pub fn pid_max() -> io::Result<u64> {
    number("/proc/sys/kernel/pid_max")
}

/// Connections that may wait at a listener, whatever backlog it asks for (`net.core.somaxconn`).
///
/// # Errors
/// The file is missing or holds no number.
pub fn somaxconn() -> io::Result<u64> {
    number("/proc/sys/net/core/somaxconn")
}

/// Pages that the pipes of an unprivileged user may hold before new ones shrink
/// (`fs.pipe-user-pages-soft`).
///
/// # Errors
/// The file is missing or holds no number.
pub fn pipe_pages_soft() -> io::Result<u64> {
    number("/proc/sys/fs/pipe-user-pages-soft")
}

/// First and last local port for outgoing connections (`net.ipv4.ip_local_port_range`): their count bounds
/// the connections from one of our addresses to one destination.
///
/// # Errors
/// The file is missing or holds no two numbers.
pub fn local_port_range() -> io::Result<(u64, u64)> {
    let path = "/proc/sys/net/ipv4/ip_local_port_range";
    let text = std::fs::read_to_string(path)?;
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) => Ok((first, last)),
        _ => Err(malformed(path, &text)),
    }
}

/// CPUs that this process may run on: affinity and the cgroup's quota taken into account. At least 1.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The user that this process acts as.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Which boot of the machine this is: another number after each (`kernel.random.boot_id`).
///
/// # Errors
/// `/proc` is not mounted, or the file holds no such number.
pub fn boot_id() -> io::Result<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).map_err(io::Error::other)
}

/// Gives the calling thread a niceness (19 yields to everybody, 0 is normal).
///
/// # Errors
/// `EACCES` for a negative value without the privilege.
pub fn set_thread_niceness(niceness: i32) -> io::Result<()> {
    // On Linux niceness belongs to a thread, and PRIO_PROCESS takes a thread's id (setpriority(2), NOTES).
    Ok(setpriority_process(Some(rustix::thread::gettid()), niceness)?)
}

fn number(path: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| malformed(path, &text))
}

fn malformed(path: &str, text: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{path} holds {:?}, not the number expected", text.trim()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_states_its_limits() {
        let (soft, hard) = descriptors();
        assert!(0 < soft && soft <= hard);
        assert!(descriptors_open().unwrap() >= 3);
        assert!(cpus() >= 1);
        for limit in [max_map_count(), threads_max(), pid_max(), somaxconn(), pipe_pages_soft()] {
            assert!(limit.unwrap() > 0);
        }
        let (first, last) = local_port_range().unwrap();
        assert!(first <= last && last <= 65535);
    }

    #[test]
    fn a_malformed_file_names_itself() {
        let error = malformed("/proc/x", "many\n").to_string();
        assert_eq!(error, "/proc/x holds \"many\", not the number expected");
    }
}
