//! The metrics of plain HTTP requests.

use std::fmt;

use gateway::observe::stats::WorkerStats;

use super::{MetricsSource, Page};

impl MetricsSource {
    pub(super) fn requests(&self, page: &mut Page<'_>) -> fmt::Result {
        page.counters(
            "tollgate_requests",
            "Plain HTTP requests that were admitted, by method",
            self.labelled("method", WorkerStats::request_counts),
        )?;
        page.counters(
            "tollgate_responses",
            "Responses to admitted plain HTTP requests, by the class of their status",
            self.labelled("status", WorkerStats::response_counts),
        )
    }

    /// The sums over all threads of counters that have a label of this name.
    fn labelled<const N: usize>(
        &self,
        name: &'static str,
        counts: fn(&WorkerStats) -> [(&'static str, u64); N],
    ) -> [([(&'static str, &'static str); 1], u64); N] {
        let mut sums = [("", 0); N];
        for worker in &self.stats.workers {
            for (sum, (label, count)) in sums.iter_mut().zip(counts(worker)) {
                *sum = (label, sum.1 + count);
            }
        }
        sums.map(|(label, sum)| ([(name, label)], sum))
    }
}
