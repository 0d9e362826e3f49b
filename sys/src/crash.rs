//! Crash points: named places in the program at which a kill test has the process die.
//!
//! Promises: with the feature `crash` and after `aim`, the n-th arrival at the named point, counted over
//! all threads, is the last thing that the process does: SIGKILL, nothing is flushed, nothing is dropped.
//! Without the feature a point is nothing at all. For power failures, a process may take another number for
//! that of the machine's boot. Leaves out: which points there are (the callers of [`point`]), and reading the
//! environment (`tollgate`).

/// Whether this build can be killed: for what is done in one step in the product, and in two around a point.
pub const ENABLED: bool = cfg!(feature = "crash");

/// A place at which a kill test may end the process.
#[cfg(not(feature = "crash"))]
#[inline(always)]
pub fn point(_name: &'static str) {}

#[cfg(feature = "crash")]
pub(crate) use armed::pretended_boot;
#[cfg(feature = "crash")]
pub use armed::{aim, point, pretend_boot};

#[cfg(feature = "crash")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    static ARMED: OnceLock<ArmedPoint> = OnceLock::new();
    static BOOT_ID: OnceLock<u128> = OnceLock::new();

    struct ArmedPoint {
        name: String,
        /// The arrival that is deadly, counted from 1.
        nth: u64,
        hits: AtomicU64,
    }

    /// Makes one arrival deadly: `target` is `name:n`. Once per process.
    ///
    /// # Errors
    /// What is wrong with `target`.
    pub fn aim(target: &str) -> Result<(), &'static str> {
        let (name, nth) = target.rsplit_once(':').ok_or("a crash point is written name:n")?;
        let nth = nth.parse().map_err(|_| "the arrival at a crash point is a number")?;
        let armed = ArmedPoint { name: name.to_owned(), nth, hits: AtomicU64::new(0) };
        ARMED.set(armed).map_err(|_| "a process is aimed at once")
    }

    /// Makes `boot` the boot of the machine, for this process. The first call counts.
    pub fn pretend_boot(boot: u128) {
        BOOT_ID.get_or_init(|| boot);
    }

    /// The boot that this process is to believe in, if it is another one than the machine's.
    pub(crate) fn pretended_boot() -> Option<u128> {
        BOOT_ID.get().copied()
    }

    /// A place at which a kill test may end the process.
    pub fn point(name: &'static str) {
        let Some(armed) = ARMED.get() else { return };
        // Relaxed: the count orders nothing, each arrival only needs a number of its own.
        if armed.name == name && armed.hits.fetch_add(1, Ordering::Relaxed) + 1 == armed.nth {
            kill_self();
        }
    }

    fn kill_self() -> ! {
        // The signal is delivered before the call returns to this thread; should it not be, nothing that
        // comes after the point may happen all the same.
        loop {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn malformed_targets_fail_other_points_pass() {
            assert!(aim("journal.written").is_err());
            assert!(aim("journal.written:soon").is_err());
            aim("journal.written:2").unwrap();
            assert!(aim("journal.written:1").is_err());
            point("journal.written");
            point("journal.synced");
        }
    }
}
