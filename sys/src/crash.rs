//! Crash points: named points of the program at which a kill test ends the process with SIGKILL.
//!
//! Guarantees: with the feature `crash` and after `arm`, the n-th hit of the named point, counted over all
//! threads, sends SIGKILL: nothing is flushed, nothing is dropped. Without the feature a point compiles to
//! nothing. To simulate a power failure, a process may use another boot id than the machine's.
//!
//! Not handled here: the list of points (the callers of [`point`]); the environment variables that select
//! one (`tollgate`).

/// Whether this build has crash points, for code that then splits one write in two with a point between.
pub const ENABLED: bool = cfg!(feature = "crash");

/// A crash point; it does nothing in this build.
#[cfg(not(feature = "crash"))]
#[inline(always)]
pub fn point(_name: &'static str) {}

#[cfg(feature = "crash")]
pub(crate) use armed::boot_id_override;
#[cfg(feature = "crash")]
pub use armed::{arm, override_boot_id, point};

#[cfg(feature = "crash")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    static ARMED: OnceLock<ArmedPoint> = OnceLock::new();
    static BOOT_ID: OnceLock<u128> = OnceLock::new();

    struct ArmedPoint {
        name: String,
        /// The hit that kills, counted from 1.
        nth: u64,
        hits: AtomicU64,
    }

    /// Arms one point: `target` is `name:n` and the n-th hit kills the process. Once per process.
    ///
    /// # Errors
    /// A description of the fault in `target`, or of a second call.
    pub fn arm(target: &str) -> Result<(), &'static str> {
        let (name, nth) = target.rsplit_once(':').ok_or("a crash point is written name:n")?;
        let nth = nth.parse().map_err(|_| "the hit of a crash point is a number")?;
        let armed = ArmedPoint { name: name.to_owned(), nth, hits: AtomicU64::new(0) };
        ARMED.set(armed).map_err(|_| "a process has one crash point, and it is set already")
    }

    /// Makes `boot` the boot id of the machine, for this process. The first call counts.
    pub fn override_boot_id(boot: u128) {
        BOOT_ID.get_or_init(|| boot);
    }

    /// The boot id that this process uses instead of the machine's, if one is set.
    pub(crate) fn boot_id_override() -> Option<u128> {
        BOOT_ID.get().copied()
    }

    /// A crash point: kills the process if this is the armed point and its n-th hit.
    pub fn point(name: &'static str) {
        let Some(armed) = ARMED.get() else { return };
        // Relaxed: the count orders nothing, each hit only needs a number of its own.
        if armed.name == name && armed.hits.fetch_add(1, Ordering::Relaxed) + 1 == armed.nth {
            kill_self();
        }
    }

    fn kill_self() -> ! {
        // The signal is delivered before the call returns to this thread. If it is not, the loop keeps the
        // code behind the point from running.
        loop {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn malformed_targets_fail_other_points_pass() {
            assert!(arm("journal.written").is_err());
            assert!(arm("journal.written:soon").is_err());
            arm("journal.written:2").unwrap();
            assert!(arm("journal.written:1").is_err());
            point("journal.written");
            point("journal.synced");
        }
    }
}
