//! What the reactors hand to others: one pool, a class for each kind of job.
//!
//! Promises: one password is hashed at a time, whatever else waits; calls of `getaddrinfo` that hang hold
//! their own few threads; what takes CPU takes what the reactors leave. Leaves to others: the jobs.

use std::io;

use engine::pool::{Class, ClassSettings, Pool, PoolSettings};

/// Checks of passwords: argon2 takes 19 MiB and 50 ms, and must not take a second CPU.
pub const HASHING: Class = Class(0);

/// Names that the system looks up (`getaddrinfo`).
pub const DNS_LOOKUP: Class = Class(1);

/// Calls of `getaddrinfo` at a time. They compute next to nothing, and one that hangs keeps its thread for as
/// long as the system's resolver is patient (15 s for each server by default, resolv.conf(5)). The desk gives
/// no user more than half of them.
pub const DNS_LOOKUPS_MAX: usize = 32;

/// Permits that the pool has at least: a name that is looked up needs no CPU to speak of, and is not to wait
/// for a password.
pub const PERMITS_MIN: usize = 2;

/// Permits at most, on a machine of many CPUs: a password, and four names that are read or written.
const PERMITS_MAX: usize = 5;

/// Threads that run jobs: for as many jobs as the classes run at a time.
pub const THREADS_MAX: usize = 1 + DNS_LOOKUPS_MAX;

/// The threads may take what the reactors leave.
const NICENESS: i32 = 10;

/// Starts the pool; `hash_queue` passwords may wait.
///
/// # Errors
/// No thread can be created.
pub fn start(hash_queue: usize) -> io::Result<Pool> {
    let hashing = ClassSettings {
        name: "hashing",
        queue_max: hash_queue,
        concurrency_max: Some(1),
        ..ClassSettings::default()
    };
    let names = ClassSettings {
        name: "names",
        // The desk starts no more than that, so none waits longer than a thread takes to start.
        queue_max: DNS_LOOKUPS_MAX,
        concurrency_max: Some(DNS_LOOKUPS_MAX),
        ..ClassSettings::default()
    };
    Pool::start(PoolSettings {
        name: "jobs",
        permits: permits(),
        threads_max: THREADS_MAX,
        niceness: NICENESS,
        classes: vec![hashing, names],
    })
}

/// Jobs that may compute at a time.
pub fn permits() -> usize {
    sys::limits::cpus().clamp(PERMITS_MIN, PERMITS_MAX)
}
