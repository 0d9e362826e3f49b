//! The numbers of a policy and its sets in the ledger.
//!
//! Guarantees: no thread waits for a number; it is 0 until the ledger has given it.
//! Not handled here: the request (`server::numbering`), and the numbers of accounts (`account`).

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use policy::{Policy, RuleId};

/// The numbers that belong to a policy.
#[derive(Debug)]
pub(crate) struct PolicyNumbers {
    /// In the order of the policy's sets.
    sets: Box<[AtomicU16]>,
    version: AtomicU32,
}

impl PolicyNumbers {
    /// The numbers of `policy`, none of which is known.
    pub(crate) fn new(policy: &Policy) -> PolicyNumbers {
        let sets = policy.sets().iter().map(|_| AtomicU16::new(0)).collect();
        PolicyNumbers { sets, version: AtomicU32::new(0) }
    }

    /// Stores the numbers of the sets, in the order of the policy, and of its version.
    pub(crate) fn store(&self, sets: &[u16], version: u32) {
        for (set, number) in self.sets.iter().zip(sets) {
            set.store(*number, Ordering::Relaxed);
        }
        self.version.store(version, Ordering::Relaxed);
    }

    /// The number of the set that has `rule`; 0 if none has it, or it is not known.
    pub(crate) fn set_of(&self, policy: &Policy, rule: RuleId) -> u16 {
        policy.set_of(rule).map_or(0, |set| self.sets[set].load(Ordering::Relaxed))
    }

    /// The version of the policy; 0 if it is not known.
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }
}
