//! Failed connections of all parts: how many, and why.
//!
//! Guarantees: none is forgotten, whatever became of its run.

use std::collections::BTreeMap;

use serde_json::Value;

/// Reasons that are listed; the others are counted.
const REASONS_MAX: usize = 3;

/// The failures that the clients counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    by_reason: BTreeMap<String, u64>,
    tried: u64,
}

impl Losses {
    /// Adds the results of the clients in a case.
    pub(super) fn record(&mut self, case: &str, answer: &Value) {
        let count = |name: &str| answer[name].as_u64().unwrap_or(0);
        self.tried += count("completed") + count("failed");
        for (failure, count) in answer["failures"].as_object().into_iter().flatten() {
            self.add(&format!("{case}: {failure}"), count.as_u64().unwrap_or(0));
        }
    }

    /// Adds held connections of a case, and how many of them were lost.
    pub(super) fn record_held(&mut self, case: &str, held: u64, lost: u64) {
        self.tried += held;
        self.add(&format!("{case}: a held connection was lost"), lost);
    }

    fn add(&mut self, reason: &str, count: u64) {
        if count > 0 {
            *self.by_reason.entry(reason.to_owned()).or_default() += count;
        }
    }

    /// Connections that failed.
    pub(super) fn count(&self) -> u64 {
        self.by_reason.values().sum()
    }

    /// Connections of all kinds.
    pub(super) fn tried(&self) -> u64 {
        self.tried
    }

    /// The first reasons.
    pub(super) fn reasons(&self) -> String {
        let listed = self.by_reason.iter().take(REASONS_MAX);
        let listed: Vec<String> = listed.map(|(reason, count)| format!("; {count} in {reason}")).collect();
        let more = self.by_reason.len().saturating_sub(REASONS_MAX);
        listed.concat() + &if more > 0 { format!("; and {more} other reasons") } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn losses_are_counted_and_first_reasons_listed() {
        let mut losses = Losses::default();
        losses.record("crowd-1/mutex", &json!({ "completed": 90, "failed": 0, "failures": {} }));
        losses.record_held("long-lived-8/mutex", 2_000, 0);
        assert_eq!((losses.count(), losses.tried(), losses.reasons()), (0, 2_090, String::new()));
        let failures = json!({ "no reply in time": 2, "connect: refused": 1 });
        losses.record("crowd-2/shared", &json!({ "completed": 7, "failed": 3, "failures": failures }));
        losses.record_held("long-lived-8/shared", 10, 1);
        assert_eq!((losses.count(), losses.tried()), (4, 2_110));
        let reasons = "; 1 in crowd-2/shared: connect: refused; 2 in crowd-2/shared: no reply in time; 1 in \
                       long-lived-8/shared: a held connection was lost";
        assert_eq!(losses.reasons(), reasons);
        losses.record_held("more", 1, 1);
        assert!(losses.reasons().ends_with("; and 1 other reasons"), "{}", losses.reasons());
    }
}
