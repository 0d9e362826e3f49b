//! Draining: no new connections, time for open ones, then the ledger closes.
//!
//! Guarantees: readiness turns false first; queued connections are served; every flow is journaled and
//! applied before [`Gateway::drain`] returns, or the error says which are not, and where they wait.

use std::time::Duration;

use ledger::{LedgerError, Summary};
use sys::clock;

use super::Gateway;
use crate::worker::command::Command;

/// How often the drain checks whether the threads have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Gateway {
    /// Marks the gateway as not ready, and serves on for `span`, or until `interrupted` returns true. Returns
    /// whether it did. `interrupted` sleeps for the given span.
    pub fn announce_end(&self, span: Duration, mut interrupted: impl FnMut(Duration) -> bool) -> bool {
        self.stats.mark_draining();
        let deadline = clock::monotonic() + span;
        while clock::monotonic() < deadline {
            if interrupted(POLL_INTERVAL) {
                return true;
            }
        }
        false
    }

    /// Waits for open connections to end for at most `timeout`, cuts the rest, and closes the ledger.
    /// `interrupted` sleeps for the given span, and ends the wait by returning true.
    ///
    /// # Errors
    /// What the ledger could not store.
    pub fn drain(
        self,
        timeout: Duration,
        mut interrupted: impl FnMut(Duration) -> bool,
    ) -> Result<Summary, LedgerError> {
        self.stats.mark_draining();
        self.command(|| Command::Drain);
        let deadline = clock::monotonic() + timeout;
        while self.is_running() && clock::monotonic() < deadline && !interrupted(POLL_INTERVAL) {}
        self.command(|| Command::Stop);
        let Gateway { workers, ledger, log, dns, pressure, .. } = self;
        for worker in workers {
            // A thread that panicked has aborted the process.
            let _ = worker.thread.join();
        }
        drop((dns, pressure));
        let summary = ledger.close_unless(interrupted);
        log.close();
        summary
    }

    fn command(&self, command: impl Fn() -> Command) {
        self.workers.iter().for_each(|worker| worker.commands.send(command()));
    }

    /// Open connections: handshakes and relays.
    pub fn connections(&self) -> u64 {
        self.stats.sum(|worker| worker.handshakes_active.value() + worker.flows_active())
    }

    fn is_running(&self) -> bool {
        self.workers.iter().any(|worker| !worker.thread.is_finished())
    }
}
