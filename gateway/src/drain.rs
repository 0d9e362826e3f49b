//! The end of a gateway: no new connections, time for the open ones, then nothing is lost.
//!
//! Promises: readiness turns false first; connections that were queued are served; every record reaches the
//! ledger and the ledger is durable before [`Gateway::drain`] returns, or the error says how many did not.
//! Leaves to others: who asks for it and when patience ends (`tollgate`).

use std::time::Duration;

use ledger::{LedgerError, Summary};
use sys::clock;

use crate::server::Gateway;
use crate::stats::Stats;
use crate::worker::Order;

/// How often the drain looks whether the threads have ended.
const LOOK: Duration = Duration::from_millis(20);

/// How long records wait for a ledger that takes none of them, once everything else has ended. A disk that
/// is full or broken must not keep the process from saying so.
const LEDGER_PATIENCE: Duration = Duration::from_secs(10);

impl Gateway {
    /// Lets open connections end for at most `patience`, cuts off the rest, and closes the ledger. `hurry` is
    /// asked now and then, and ends the patience when it answers true, also that with a ledger which fails;
    /// it is expected to sleep for the span that it is given.
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
        let deadline = clock::monotonic() + patience;
        while self.is_running() && clock::monotonic() < deadline && !hurry(LOOK) {}
        self.order(|| Order::Stop);
        self.await_ledger(hurry);
        self.order(|| Order::Abandon);
        let Gateway { workers, ledger, log, dns, stats, .. } = self;
        for worker in workers {
            // A thread that panicked has ended the process already.
            let _ = worker.thread.join();
        }
        drop(dns);
        let summary = ledger.close();
        log.close();
        match records_waiting(&stats) {
            0 => summary,
            abandoned => Err(with_abandoned(summary, abandoned)),
        }
    }

    fn order(&self, order: impl Fn() -> Order) {
        self.workers.iter().for_each(|worker| worker.orders.send(order()));
    }

    /// Waits until the ledger has taken the last record, or has failed to take any for too long.
    fn await_ledger(&self, mut hurry: impl FnMut(Duration) -> bool) {
        let mut waiting = u64::MAX;
        let mut deadline = clock::monotonic();
        while self.is_running() {
            let now = clock::monotonic();
            if records_waiting(&self.stats) < waiting {
                waiting = records_waiting(&self.stats);
                deadline = now + LEDGER_PATIENCE;
            }
            let is_failing = self.ledger.status().failing.is_some();
            if now >= deadline || (hurry(LOOK) && is_failing) {
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

/// Records that found no room on their way to the ledger.
fn records_waiting(stats: &Stats) -> u64 {
    stats.sum(|worker| worker.ledger_waiting.value())
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
