//! The metrics of quotas.

use std::fmt;

use super::{MetricsSource, Page};

impl MetricsSource {
    pub(super) fn quotas(&self, page: &mut Page<'_>) -> fmt::Result {
        let counts = self.stats.quotas.counts();
        let states = [("open", counts.open), ("exhausted", counts.exhausted), ("unknown", counts.unknown)];
        page.gauges(
            "tollgate_quotas",
            "Quotas of users and teams, by state",
            states.map(|(state, count)| ([("state", state)], count)),
        )?;
        page.counter(
            "tollgate_quota_notices",
            "Thresholds of quotas that were reached and reported",
            self.stats.quotas.notices(),
        )
    }
}
