//! The names in a directory: as programs see them, and those that a power failure is sure to leave.
//!
//! Guarantees: of the changes since the last sync, a power failure leaves all, none, or the first ones: file
//! systems journal their directories, so no change overtakes another. Each directory has an order of its own:
//! the sync of one need not make another's names durable.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};

use super::content::Survival;
use crate::rng::Rng;

/// Names, and the inodes of their files.
type Inodes = BTreeMap<OsString, u64>;

/// The names of a directory: current, durable, and the changes in between.
#[derive(Default)]
pub(super) struct Names {
    current: Inodes,
    durable: Inodes,
    /// Changes since the last sync, in order.
    unsynced: VecDeque<NameChange>,
    /// The number of earlier changes.
    synced: u64,
}

/// A change of a directory, which happens whole or not at all.
pub(super) enum NameChange {
    Insert(OsString, u64),
    Remove(OsString),
    Rename { from: OsString, to: OsString },
}

impl NameChange {
    fn apply(&self, inodes: &mut Inodes) {
        match self {
            NameChange::Insert(name, inode) => {
                inodes.insert(name.clone(), *inode);
            }
            NameChange::Remove(name) => {
                inodes.remove(name);
            }
            NameChange::Rename { from, to } => {
                if let Some(inode) = inodes.remove(from) {
                    inodes.insert(to.clone(), inode);
                }
            }
        }
    }
}

impl Names {
    pub(super) fn inode(&self, name: &OsStr) -> Option<u64> {
        self.current.get(name).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&OsString, u64)> {
        self.current.iter().map(|(name, inode)| (name, *inode))
    }

    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.current);
        self.unsynced.push_back(change);
    }

    /// The number of changes so far.
    pub(super) fn change_count(&self) -> u64 {
        self.synced + self.unsynced.len() as u64
    }

    /// Makes durable the changes before [`Names::change_count`] was `done`.
    pub(super) fn sync(&mut self, done: u64) {
        while self.synced < done
            && let Some(change) = self.unsynced.pop_front()
        {
            change.apply(&mut self.durable);
            self.synced += 1;
        }
    }

    /// What a power failure leaves.
    pub(super) fn after_power_failure(mut self, rng: &mut Rng) -> Names {
        let count = self.unsynced.len();
        let left = match Survival::random(rng) {
            Survival::All => count,
            Survival::None => 0,
            Survival::Some => rng.random_range(0..count as u64 + 1) as usize,
        };
        self.unsynced.iter().take(left).for_each(|change| change.apply(&mut self.durable));
        Names { current: self.durable.clone(), durable: self.durable, ..Names::default() }
    }
}
