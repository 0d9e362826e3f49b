//! The end of a gateway: no new connections, time for the open ones, then nothing is lost.
//!
//! Promises: readiness turns false first; connections that were queued are served; every record reaches the
//! ledger and the ledger is durable before [`Gateway::drain`] returns, or the error says how many did not.
//! Leaves to others: who asks for it and when patience ends (`tollgate`).

use std::time::Duration;

use ledger::{LedgerError, Summary};
use sys::clock;

use crate::server::Gateway;
use crate::worker::Order;

/// How often the drain looks whether the threads have ended.
const LOOK: Duration = Duration::from_millis(20);

/// How long records may wait for a ledger that takes none, once everything else has ended. A disk that is
/// full or broken must not keep the process from saying so.
const LEDGER_PATIENCE: Duration = Duration::from_secs(10);

impl Gateway {
    /// Lets open connections end for at most `patience`, cuts off the rest, and closes the ledger. `hurry` is
    /// asked now and then, and ends the patience when it answers true; it is expected to sleep for the span
    /// that it is given.
    ///
    /// # Errors
    /// What the ledger could not store.
    pub fn drain(
        self,
        patience: Duration,
        mut hurry: impl FnMut(Duration) -> bool,
    ) -> Result<Summary, LedgerError> {
        self.stats.mark_draining();
        self.order(|| Order::Drain);
        self.await_end(patience, &mut hurry);
        self.order(|| Order::Stop);
        self.await_end(LEDGER_PATIENCE, &mut hurry);
        self.order(|| Order::Abandon);
        let Gateway { workers, ledger, log, dns, stats, .. } = self;
        for worker in workers {
            // A thread that panicked has ended the process already.
            let _ = worker.thread.join();
        }
        drop(dns);
        let summary = ledger.close();
        log.close();
        match stats.sum(|worker| worker.ledger_waiting.value()) {
            0 => summary,
            abandoned => Err(with_abandoned(summary, abandoned)),
        }
    }

    fn order(&self, order: impl Fn() -> Order) {
        self.workers.iter().for_each(|worker| worker.orders.send(order()));
    }

    /// Waits until all threads have ended, but not beyond `patience`.
    fn await_end(&self, patience: Duration, hurry: &mut impl FnMut(Duration) -> bool) {
        let deadline = clock::monotonic() + patience;
        while self.is_running() && clock::monotonic() < deadline {
            if hurry(LOOK) {
                break;
            }
        }
    }

    /// Connections that are not ended yet: those in their handshakes, and relays.
    pub fn connections(&self) -> u64 {
        self.stats.sum(|worker| worker.handshakes_active.value() + worker.flows_active())
    }

    fn is_running(&self) -> bool {
        self.workers.iter().any(|worker| !worker.thread.is_finished())
    }
}

/// The ledger's outcome, when `abandoned` records never reached it.
fn with_abandoned(outcome: Result<Summary, LedgerError>, abandoned: u64) -> LedgerError {
    match outcome {
        Ok(_) => {
            let cause = "the ledger was too far behind when the gateway ended".to_owned();
            LedgerError::Unwritten { records: abandoned, cause }
        }
        Err(LedgerError::Unwritten { records, cause }) => {
            LedgerError::Unwritten { records: records + abandoned, cause }
        }
        Err(LedgerError::Panicked) => LedgerError::Panicked,
    }
}
