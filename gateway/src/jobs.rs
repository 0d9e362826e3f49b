//! The jobs of the reactors that run on other threads: one pool, with a class for each kind of job.
//!
//! Guarantees: one password is hashed at a time, whatever else is queued. Hung calls of `getaddrinfo` hold a
//! few threads of their own. Jobs that need CPU get what the reactors leave.

use std::io;

use engine::pool::{Class, ClassSettings, Pool, PoolSettings};

/// Password checks: argon2 takes 19 MiB and 50 ms, and must not take a second CPU.
pub const HASHING: Class = Class(0);

/// Names that the system looks up (`getaddrinfo`).
pub const DNS_LOOKUP: Class = Class(1);

/// Concurrent calls of `getaddrinfo`. They need almost no CPU. One that hangs keeps its thread until the
/// system's resolver times out (15 s for each server by default, resolv.conf(5)). The table of names in
/// flight limits a user to half of them.
pub const DNS_LOOKUPS_MAX: usize = 32;

/// Fewest permits of the pool. A lookup needs almost no CPU, and must not wait for a password.
pub const PERMITS_MIN: usize = 2;

/// Most permits, on a machine with many CPUs: one password, and four names.
const PERMITS_MAX: usize = 5;

/// Threads of the pool: as many as jobs of all classes run at a time.
pub const THREADS_MAX: usize = 1 + DNS_LOOKUPS_MAX;

/// The pool's threads get what the reactors leave.
const NICENESS: i32 = 10;

/// Starts the pool; `hash_queue` passwords may be queued.
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
        // No more are started than that, so none waits longer than a thread takes to start.
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

/// Jobs that may use a CPU at a time.
pub fn permits() -> usize {
    sys::limits::cpus().clamp(PERMITS_MIN, PERMITS_MAX)
}
