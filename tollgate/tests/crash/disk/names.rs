//! The names in a directory: as programs see them, and those that a power failure is sure to leave.
//!
//! Promises: of what was done since the last sync, a power failure leaves all, nothing, or what came first:
//! file systems journal their directories, so that nothing overtakes. Each directory has an order of its own:
//! that one directory's sync brings another's names to the disk is no promise. Leaves to others: the files.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};

use super::content::Survival;
use crate::chance::Chance;

/// Names, and the numbers of their files.
type Numbers = BTreeMap<OsString, u64>;

/// See the file's header.
#[derive(Default)]
pub(super) struct Names {
    current: Numbers,
    durable: Numbers,
    /// What was done since the last sync, in its order.
    unsynced: VecDeque<Step>,
    /// How much was done before that.
    synced: u64,
}

/// What is done to a directory, each whole or not at all.
pub(super) enum Step {
    Put(OsString, u64),
    Gone(OsString),
    Moved { from: OsString, to: OsString },
}

impl Step {
    fn apply(&self, numbers: &mut Numbers) {
        match self {
            Step::Put(name, number) => {
                numbers.insert(name.clone(), *number);
            }
            Step::Gone(name) => {
                numbers.remove(name);
            }
            Step::Moved { from, to } => {
                if let Some(number) = numbers.remove(from) {
                    numbers.insert(to.clone(), number);
                }
            }
        }
    }
}

impl Names {
    pub(super) fn number(&self, name: &OsStr) -> Option<u64> {
        self.current.get(name).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&OsString, u64)> {
        self.current.iter().map(|(name, number)| (name, *number))
    }

    pub(super) fn step(&mut self, step: Step) {
        step.apply(&mut self.current);
        self.unsynced.push_back(step);
    }

    /// How much has been done so far.
    pub(super) fn done(&self) -> u64 {
        self.synced + self.unsynced.len() as u64
    }

    /// Makes durable what had been done when [`Names::done`] said `done`.
    pub(super) fn sync(&mut self, done: u64) {
        while self.synced < done
            && let Some(step) = self.unsynced.pop_front()
        {
            step.apply(&mut self.durable);
            self.synced += 1;
        }
    }

    /// What a power failure leaves.
    pub(super) fn after_power_failure(mut self, chance: &mut Chance) -> Names {
        let count = self.unsynced.len();
        let left = match Survival::draw(chance) {
            Survival::All => count,
            Survival::None => 0,
            Survival::Some => chance.within(0..count as u64 + 1) as usize,
        };
        self.unsynced.iter().take(left).for_each(|step| step.apply(&mut self.durable));
        Names { current: self.durable.clone(), durable: self.durable, ..Names::default() }
    }
}
