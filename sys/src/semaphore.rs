//! Permits that threads sleep for, given by threads that must never sleep.
//!
//! Promises: [`Semaphore::release`] is one system call that cannot block and takes no lock that a
//! descheduled thread could hold. Leaves to others: what a permit stands for.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// A counting semaphore in the kernel (`eventfd` with `EFD_SEMAPHORE`).
#[derive(Debug)]
pub struct Semaphore(OwnedFd);

impl Semaphore {
    /// A semaphore without permits.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn new() -> io::Result<Semaphore> {
        Ok(Semaphore(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?))
    }

    /// Adds a permit and wakes one sleeper, if there is one.
    pub fn release(&self) {
        // It would block only with 2^64 - 2 permits outstanding, which nobody can have released.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes a permit, and sleeps until there is one.
    pub fn acquire(&self) {
        while rustix::io::read(&self.0, &mut [0u8; 8]) == Err(rustix::io::Errno::INTR) {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_permit_wakes_one_sleeper() {
        let semaphore = Semaphore::new().unwrap();
        std::thread::scope(|scope| {
            let sleepers: Vec<_> = (0..4).map(|_| scope.spawn(|| semaphore.acquire())).collect();
            (0..4).for_each(|_| semaphore.release());
            sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        });
    }
}
